package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

// readiness is what /readyz says.
type readiness struct {
	Ready    bool     `json:"ready"`
	Draining bool     `json:"draining"`
	Waiting  []string `json:"waiting"`
	Degraded []string `json:"degraded"`
	Queues   []struct {
		Group, Queue string
		Ready        bool
	} `json:"queues"`
}

func (w *world) readyz(daemon *program.Process) (status int, r readiness) {
	w.t.Helper()
	status, body, err := daemon.Get(w.t.Context(), "/readyz")
	require.OK(w.t, err)
	err = json.Unmarshal([]byte(body), &r)
	require.That(w.t, err == nil, "/readyz says %q: %v", body, err)
	assert.Is(w.t, r.Ready, (status == http.StatusOK), "/readyz answers %d and says ready", status)
	return status, r
}

// says waits until /readyz says this.
func (w *world) says(daemon *program.Process, what string, is func(r readiness) bool) {
	w.t.Helper()
	w.eventually("/readyz says "+what, func() bool { _, r := w.readyz(daemon); return is(r) })
}

// named reports whether one of the reasons is of this dependency, and says so.
func named(reasons []string, dependency, says string) bool {
	return slices.ContainsFunc(reasons, func(s string) bool {
		return strings.HasPrefix(s, dependency+": ") && strings.Contains(s, says)
	})
}

func (w *world) ready(daemon *program.Process) {
	w.t.Helper()
	w.says(daemon, "ready", func(r readiness) bool { return r.Ready })
}

// Given a server that is away when the daemon starts, then the daemon waits and /readyz names the server; and when the
// server comes, the daemon goes on by itself, and no attempt was spent. Without Redis it works meanwhile, and is ready.
func TestServersThatAreAbsentAtTheStartAreWaitedFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		server, variable string
		works            bool // without the server
		handler          string
	}{
		{"rabbitmq", "AMQP_URL", false, "stock"}, {"mysql", "MYSQL_DSN", false, "stock"},
		{"redis", "REDIS_URL", true, "stock"},
		{"mysql", "MYSQL_DSN", false, "sql"}, // whose statements cannot be checked meanwhile
	} {
		t.Run(tt.server+" with "+tt.handler, func(t *testing.T) {
			w := newWorld(t, onStock(t)[tt.handler]...)
			proxy := stack.Proxy(t, stack.Addr(t, w.env[tt.variable]))
			proxy.Refuse(true)
			w.set(tt.variable, proxy.Through(w.env[tt.variable]))
			w.publish(w.route.Rollbacks(w.open(50))...)

			daemon := w.start()
			w.says(daemon, "which server is missed", func(r readiness) bool {
				if tt.works {
					return r.Ready && len(r.Waiting) == 0 && named(r.Degraded, tt.server, "")
				}
				return !r.Ready && named(r.Waiting, tt.server, "")
			})
			if status, _, err := daemon.Get(t.Context(), "/healthz"); err != nil || status != http.StatusOK {
				t.Errorf("/healthz answers %d (%v) while the daemon waits, want 200: restarting it would not help", status, err)
			}
			if tt.works {
				w.ended(50)
			} else if n := w.rows(dedup.Success); n != 0 {
				t.Errorf("%d messages applied without %s", n, tt.server)
			}
			proxy.Refuse(false)
			w.ready(daemon)
			w.says(daemon, "that nothing is amiss", func(r readiness) bool { return len(r.Degraded) == 0 })
			w.ended(50)
			w.rest(daemon)
		})
	}
}

// Given a daemon whose transaction waits for a row that somebody else has locked, when it gets SIGTERM, then it drains:
// /readyz says so, what is in hand is finished once the row is free, and the exit code is 0.
func TestSIGTERMDrains(t *testing.T) {
	w := newWorld(t)
	daemon, free := w.draining(300)
	free()
	w.exits(daemon, 0, time.Minute)
	assert.AtLeast(t, w.rows(dedup.Success), 1, "of what was in hand the drain finished")
	w.judge(oracle.Allowance{Queued: true})
}

// Given a daemon that drains and cannot come to an end, when it gets a second signal, then it ends at once, and another
// daemon finishes the work.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	w := newWorld(t, "DRAIN_TIMEOUT", "1m", "LOCK_TTL", "1s")
	const n = 300
	daemon, free := w.draining(n)
	w.signal(daemon, syscall.SIGTERM)
	w.exits(daemon, 128+int(syscall.SIGTERM), 30*time.Second) // half of what it may drain
	free()
	w.finish(n, 0, oracle.Allowance{})
}

// draining is a daemon that has got SIGTERM while its transaction waits for the stock, which free lets go.
func (w *world) draining(messages int) (daemon *program.Process, free func()) {
	w.t.Helper()
	orders := w.open(messages)
	free = w.hold([]string{"ROLLBACK"}, "BEGIN", "UPDATE stock SET version = version + 1")
	daemon = w.start()
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("a transaction waits for the stock", func() bool {
		return w.count("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'UPDATE stock %'") > 0
	})
	w.signal(daemon, syscall.SIGTERM)
	w.says(daemon, "draining", func(r readiness) bool { return r.Draining })
	return daemon, free
}

// Given a database that was never migrated, when the daemon starts, then it exits with 1 and says what to run.
func TestSchemaThatWasNeverMigratedEndsTheStart(t *testing.T) {
	w := emptyWorld(t)
	w.exits(w.start(), 1, time.Minute)
	assert.Has(t, w.logs.String(), "run: rollbackd migrate", "what it advises to run")
}

// stockService is a service over the same tables as the built-in handler's, behind HTTP. It honours keys, as
// docs/handlers.md asks of it: the key and the effect are one transaction.
type stockService struct{ db *gorm.DB }

// startStock runs such a service for a test, and returns the settings of a world that has it as its handler.
func startStock(t *testing.T) (settings []string) {
	t.Helper()
	dsn := stack.MySQL(t)
	db := require.First(dedup.Open(t.Context(), dsn, dedup.OpenOptions{MaxOpen: 20}))(t)
	pool := require.Get(db.DB())(t)
	require.OK(t, db.Exec("CREATE TABLE service_key (k VARBINARY(64) PRIMARY KEY) ENGINE=InnoDB").Error)
	at := httptest.NewServer(&stockService{db})
	t.Cleanup(func() { at.Close(); _ = pool.Close() })
	return []string{"MYSQL_DSN", dsn, "HANDLER", "http", "HTTP_TARGET", at.URL + "/rollbacks", "HTTP_TIMEOUT", "2s"}
}

// ServeHTTP applies one message.
func (s *stockService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if status, err := s.apply(r); err != nil {
		http.Error(w, err.Error(), status)
	}
}

func (s *stockService) apply(r *http.Request) (status int, err error) {
	var order struct {
		SN    string `json:"order_sn"`
		Items []struct {
			SKU      int64 `json:"sku_id"`
			Quantity int64 `json:"quantity"`
		} `json:"items"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return http.StatusBadRequest, err
	}
	if err := json.Unmarshal(body, &order); err != nil || order.SN == "" {
		return http.StatusUnprocessableEntity, errors.Join(err, errors.New("no order can be read from this"))
	}
	parts := strings.Split(r.Header.Get("X-Rollbackd-Message"), "/")
	tag, _ := url.PathUnescape(parts[1])
	key, _ := url.PathUnescape(parts[2])
	request := stock.Request{OrderSN: order.SN, Tag: tag, Key: key}
	for _, i := range order.Items {
		request.Items = append(request.Items, stock.Item{SKU: i.SKU, Quantity: i.Quantity})
	}
	err = s.db.WithContext(r.Context()).Transaction(func(tx *gorm.DB) error {
		known := tx.Exec("INSERT INTO service_key (k) VALUES (?)", r.Header.Get("Idempotency-Key")).Error
		if e, ok := errors.AsType[*mysql.MySQLError](known); ok && e.Number == 1062 {
			return nil
		}
		if known != nil {
			return known
		}
		return stock.Rollback(r.Context(), tx, []stock.Request{request}, stock.Options{})
	})
	blamed, ok := errors.AsType[*stock.BatchError](err)
	if ok && blamed.Requests[0].Permanent {
		return http.StatusUnprocessableEntity, err
	}
	if e, met := errors.AsType[*mysql.MySQLError](err); met && (e.Number == 1213 || e.Number == 1205) {
		return http.StatusConflict, err
	}
	return http.StatusInternalServerError, err
}

// Given a daemon of two queues, each with a handler, a group and a log of its own, which `migrate` has made, when the
// table of one handler is taken away, then the other queue is consumed as ever, /readyz says whose queue waits; and
// when the table is back, its messages are applied.
func TestATableThatIsMissingStopsItsQueueAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "points.sql")
	require.OK(t, os.WriteFile(file, []byte("INSERT INTO points (account) VALUES (:account);"), 0o600))
	points := stack.AMQP(t).Name("points.refund")
	w := emptyWorld(t, "QUEUES", "stock,points", "POINTS__GROUP", "points", "POINTS__LOG_TABLE", "points_log",
		"POINTS__HANDLER", "sql", "POINTS__SQL_FILE", file, "POINTS__ROUTING_KEYS", "points.refund", "POINTS__QUEUE", points)
	w.broker.Track(w.config().All()[1].TopologyConfig().Queues()...)
	require.Get(w.types("migrate"))(t)
	require.OK(t, oracle.Audit(t.Context(), w.db))
	w.exec("CREATE TABLE points (account VARCHAR(40) NOT NULL) ENGINE=InnoDB")
	orders := w.open(50)
	daemon := w.start()
	w.ready(daemon)
	w.exec("RENAME TABLE points TO elsewhere")
	for i := range 10 {
		w.broker.Publish(w.route.Exchange, "points.refund",
			stack.Message{MessageId: fmt.Sprint("account ", i), Body: fmt.Appendf(nil, `{"account":"a%d"}`, i), DeliveryMode: 2})
	}
	w.says(daemon, "which queue waits", func(said readiness) bool {
		return named(append(said.Waiting, said.Degraded...), "mysql of "+points, "") ||
			!said.Ready && len(said.Queues) == 2 && !said.Queues[1].Ready && said.Queues[0].Ready
	})
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("the other queue is consumed", func() bool { return w.rows(dedup.Success) == 50 })
	w.exec("RENAME TABLE elsewhere TO points")
	w.eventually("the points are back", func() bool { return w.count("SELECT COUNT(*) FROM points") == 10 })
	is(w, "rows of the second log", w.count("SELECT COUNT(*) FROM points_log WHERE group_name = 'points'"), 10)
	_, said := w.readyz(daemon)
	assert.That(t, len(said.Queues) == 2 && said.Queues[0].Queue == w.env["QUEUE"] && said.Queues[1].Queue == points &&
		said.Queues[1].Group == "points", "/readyz says %+v, want both queues", said)
	w.ended(50)
	w.rest(daemon)
}
