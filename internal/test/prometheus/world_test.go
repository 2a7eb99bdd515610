package prometheus

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
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
	ctx, stop := context.WithCancel(context.Background())
	var doing sync.WaitGroup
	doing.Go(func() {
		for wait.For(ctx, pause) == nil {
			do()
		}
	})
	w.t.Cleanup(func() { stop(); doing.Wait() })
}

// guess comes with a token that is wrong.
func (w *world) guess() {
	ask := must.Get(http.NewRequestWithContext(context.WithoutCancel(w.t.Context()), http.MethodGet,
		"http://"+w.addr+"/api/v1/overview", http.NoBody))
	ask.Header.Set("Authorization", fmt.Sprint("Bearer guess-", w.names.Add(1)))
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		w.t.Error(err)
		return
	}
	_ = answer.Body.Close()
	assert.That(w.t, answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusTooManyRequests,
		"a wrong token is answered with %s", answer.Status)
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

// server is a private Prometheus.
type server struct {
	addr    string
	targets string // the file in which it finds them

	mu    sync.Mutex
	known []target // guarded by mu
}

type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

const settings = `
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [alerts.yaml, rules.yaml]
scrape_configs:
  - job_name: daemons
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
`

// startServer starts a Prometheus with the rules sped up and no target, for the time of this test.
func startServer(t *testing.T) *server {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("make test-prometheus installs it: ", err)
	}
	dir := t.TempDir()
	s := &server{addr: stack.FreeAddr(t), targets: filepath.Join(dir, "targets.json")}
	write(t, filepath.Join(dir, "prometheus.yml"), settings)
	write(t, filepath.Join(dir, "alerts.yaml"), sped(t, alertsFile))
	write(t, filepath.Join(dir, "rules.yaml"), sped(t, rulesFile))
	write(t, s.targets, "[]")
	program.Serve(t, program.Options{Path: path, Args: []string{
		"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=" + s.addr,
	}})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	eventually(t, "prometheus is ready", 30*time.Second, func() bool {
		status, _, err := program.Get(t.Context(), s.addr, "/-/ready")
		return err == nil && status == http.StatusOK
	})
	return s
}

// scrape adds a target under a job of its own.
func (s *server) scrape(t *testing.T, job, addr string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = append(s.known, target{[]string{addr}, map[string]string{"job": job}})
	text := require.Get(json.Marshal(s.known))(t)
	next := s.targets + ".next"
	write(t, next, string(text))
	if err := os.Rename(next, s.targets); err != nil { // whole, or not at all
		t.Fatal(err)
	}
}

// found is what an expression comes to now. A busy machine may take longer to answer than a page may.
func (s *server) found(t *testing.T, expr string) []any {
	t.Helper()
	var text string
	poll.Until(t, "an answer to "+expr, func() bool {
		_, body, err := program.Get(context.WithoutCancel(t.Context()), s.addr, "/api/v1/query?query="+url.QueryEscape(expr))
		text = body
		return err == nil
	})
	var answer struct {
		Error string
		Data  struct{ Result []any }
	}
	require.OK(t, json.Unmarshal([]byte(text), &answer))
	assert.Is(t, answer.Error, "", "%s is answered with", expr)
	return answer.Data.Result
}

// holds reports whether the expression has a result now.
func (s *server) holds(t *testing.T, expr string) bool { t.Helper(); return len(s.found(t, expr)) > 0 }

func (s *server) firing(t *testing.T, alert, job string) bool {
	t.Helper()
	return s.holds(t, fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing",job=%q}`, alert, job))
}

// fires waits until the alert fires for the job; an empty job is an alert on what is not there.
func (s *server) fires(t *testing.T, alert, job string, within time.Duration) {
	t.Helper()
	began := time.Now()
	eventually(t, alert+" fires for the job "+job, within, func() bool { return s.firing(t, alert, job) })
	t.Logf("%s fires after %v", alert, time.Since(began).Round(time.Second))
}

func eventually(t *testing.T, what string, within time.Duration, yes func() bool) {
	t.Helper()
	require.That(t, poll.Within(within, yes), "still not after %v: %s", within, what)
}
