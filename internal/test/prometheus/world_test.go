package prometheus

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m, program.Remove) }

// service is what handler http calls: it answers everything with a status.
type service struct {
	status atomic.Int64
	delay  atomic.Int64 // before an answer, in nanoseconds
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	select {
	case <-time.After(time.Duration(s.delay.Load())):
	case <-r.Context().Done():
	}
	w.WriteHeader(int(s.status.Load()))
}

// world is a daemon on queues and a schema of its own, under a job of its own.
type world struct {
	t       *testing.T
	prom    *server
	job     string
	broker  *stack.Broker
	db      *sql.DB
	env     map[string]string
	service *service
	queue   string
	addr    string
	names   atomic.Int64
}

func newWorld(t *testing.T, prom *server, job string) *world {
	t.Helper()
	w := &world{t: t, prom: prom, job: job, service: &service{}, addr: stack.FreeAddr(t)}
	w.service.status.Store(http.StatusOK)
	at := httptest.NewServer(w.service)
	t.Cleanup(at.Close)
	w.env = map[string]string{
		"HTTP_ADDR": w.addr, "HANDLER": "http", "HTTP_TARGET": at.URL, "LOG_FORMAT": "text",
		"HANDLER_TIMEOUT": "2s", "HTTP_TIMEOUT": "1s", "LEASE": "5s", "RETRY_DELAYS": "100ms,200ms,300ms,400ms",
		"LOG_RETENTION": "0", // its passes are ten minutes apart, which the faster rules take for none at all
	}
	return w
}

func (w *world) set(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		w.env[pairs[i]] = pairs[i+1]
	}
}

// prepare gives it a place on the servers, and makes tables and queues, once.
func (w *world) prepare() {
	w.t.Helper()
	if w.broker != nil {
		return
	}
	if w.env["MYSQL_DSN"] == "" {
		w.set("MYSQL_DSN", stack.MySQL(w.t), "REDIS_URL", stack.Redis(w.t))
	}
	w.db = require.Get(require.First(dedup.Open(w.t.Context(), w.env["MYSQL_DSN"], dedup.OpenOptions{}))(w.t).DB())(w.t)
	w.t.Cleanup(func() { _ = w.db.Close() })
	w.broker = stack.AMQP(w.t)
	w.queue = w.broker.Name("stock.rollback")
	w.set("AMQP_URL", w.broker.URL, "QUEUE", w.queue, "EXCHANGE", w.broker.Name("stock"))
	require.Get(program.Run(w.t.Context(), program.Shared(w.t), w.environ(), "migrate"))(w.t)
}

// behindAKiller puts something between the daemon and RabbitMQ that cuts each connection on which a message comes that
// cut has made.
func (w *world) behindAKiller() (cut func(*stack.Message)) {
	w.t.Helper()
	w.prepare()
	proxy := stack.Proxy(w.t, stack.Addr(w.t, w.broker.URL))
	proxy.KillOn([]byte("cut me"))
	w.set("AMQP_URL", proxy.Through(w.broker.URL))
	return func(m *stack.Message) { m.Body = []byte(`"cut me"`) }
}

func (w *world) environ() []string {
	env := []string{"PATH=" + os.Getenv("PATH")}
	for k, v := range w.env {
		env = append(env, "ROLLBACKD_"+k+"="+v)
	}
	return env
}

// start starts the daemon; [world.run] waits until Prometheus has seen it too.
func (w *world) start() *program.Process {
	w.t.Helper()
	return program.Serve(w.t, program.Options{Path: program.Shared(w.t), Args: []string{"run"}, Env: w.environ()})
}

func (w *world) run() *program.Process {
	w.t.Helper()
	w.prepare()
	p := w.start()
	w.prom.scrape(w.t, w.job, w.addr)
	eventually(w.t, w.job+" is scraped, elected and consumes", time.Minute, func() bool {
		return w.prom.holds(w.t, fmt.Sprintf(
			`rollbackd_leader{job=%q} == 1 and on() rollbackd_queue_consumers{job=%[1]q,kind="main"} > 0`, w.job))
	})
	return p
}

// publish publishes n messages with new keys.
func (w *world) publish(queue string, n int, change func(*stack.Message)) {
	w.t.Helper()
	for range n {
		m := stack.Message{MessageId: fmt.Sprint("m", w.names.Add(1)), Type: "t", Body: []byte("{}"), DeliveryMode: 2}
		if change != nil {
			change(&m)
		}
		w.broker.Publish("", queue, m)
	}
}

// steadily publishes five messages a second until the test of this world ends.
func (w *world) steadily(change func(*stack.Message)) {
	w.every(200*time.Millisecond, func() { w.publish(w.queue, 1, change) })
}

// every does something again and again until the test of this world ends.
func (w *world) every(pause time.Duration, do func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.Tick(pause); ; {
			select {
			case <-stop:
				return
			case <-tick:
				do()
			}
		}
	}()
	w.t.Cleanup(func() { close(stop); <-stopped })
}

// guess comes with a token that is wrong.
func (w *world) guess() {
	ask, err := http.NewRequestWithContext(context.WithoutCancel(w.t.Context()), http.MethodGet,
		"http://"+w.addr+"/api/v1/overview", http.NoBody)
	if err != nil {
		w.t.Error(err)
		return
	}
	ask.Header.Set("Authorization", fmt.Sprint("Bearer guess-", w.names.Add(1)))
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		w.t.Error(err)
		return
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusTooManyRequests {
		w.t.Errorf("a wrong token is answered with %s", answer.Status)
	}
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.db, query, args...)
}

// row is a row of the log whose last transition was so long ago.
func (w *world) rows(n int, status dedup.Status, reason string, age time.Duration) {
	w.t.Helper()
	for i := range n {
		w.exec(`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason,
			consumer_timestamp, created_at, dead_at)
			VALUES ('stock-rollback', 't', ?, ?, 1, ?, UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6),
				UTC_TIMESTAMP(6))`,
			fmt.Appendf(nil, "row-%v-%d", status, i), int(status), reason, int(age.Seconds()))
	}
}

func (w *world) fires(alerts ...string) {
	w.t.Helper()
	for _, alert := range alerts {
		w.prom.fires(w.t, alert, w.job, 2*time.Minute)
	}
}
