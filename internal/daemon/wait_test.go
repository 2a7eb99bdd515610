package daemon_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
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
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		w.t.Fatalf("/readyz says %q: %v", body, err)
	}
	assert.Is(w.t, r.Ready, (status == http.StatusOK), "/readyz answers %d and says ready", status)
	return status, r
}

func (w *world) ready(daemon *program.Process) {
	w.t.Helper()
	w.eventually("/readyz says ready", func() bool {
		status, _ := w.readyz(daemon)
		return status == http.StatusOK
	})
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
			t.Parallel()
			w := newWorld(t, onStock(t)[tt.handler]...)
			proxy := stack.Proxy(t, stack.Addr(t, w.env[tt.variable]))
			proxy.Refuse(true)
			w.set(tt.variable, proxy.Through(w.env[tt.variable]))
			w.publish(w.route.Rollbacks(w.open(50))...)

			daemon := w.start()
			w.eventually("/readyz names "+tt.server, func() bool {
				status, r := w.readyz(daemon)
				named := func(s string) bool { return strings.HasPrefix(s, tt.server+": ") }
				if tt.works {
					return status == http.StatusOK && len(r.Waiting) == 0 && slices.ContainsFunc(r.Degraded, named)
				}
				return !r.Ready && slices.ContainsFunc(r.Waiting, named)
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
			w.eventually("nothing is amiss",
				func() bool { _, r := w.readyz(daemon); return len(r.Degraded) == 0 })
			w.ended(50)
			w.rest(daemon)
		})
	}
}

// Given a daemon that works, then its pages answer as documented.
func TestPagesSayHowItGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	orders := w.open(100)
	daemon := w.start()
	w.ready(daemon)
	w.publish(w.route.Rollbacks(orders)...)
	w.publish(w.route.Rollback(orders[0]))
	w.ended(len(orders))

	if status, body, err := daemon.Get(t.Context(), "/healthz"); err != nil || status != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz answers %d %q (%v), want 200 and ok", status, body, err)
	}
	metrics := w.settled(daemon, 101)
	is(w, "applied", metrics.Deliveries("applied"), 100)
	is(w, "duplicates", metrics.Deliveries("duplicate"), 1)
	is(w, "deliveries", metrics.Settled(), 101)
	is(w, "RabbitMQ is up", metrics[`rollbackd_dependency_up{name="rabbitmq"}`], 1)
	w.rest(daemon)
}

// Given a daemon whose transaction waits for a row that somebody else has locked, when it gets SIGTERM, then it drains:
// /readyz says so, what is in hand is finished once the row is free, and the exit code is 0.
func TestSIGTERMDrains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon, free := w.draining(300)
	free()
	w.exits(daemon, 0, time.Minute)
	if n := w.rows(dedup.Success); n == 0 {
		t.Error("the drain finished nothing of what was in hand")
	}
	w.judge(oracle.Allowance{Queued: true})
}

// Given two daemons amid a backlog, when both are told to go, as KEDA does it at zero, while messages still come, then
// both end with 0 in the time that a pod has, and hold nothing. What was not theirs to finish waits, and those that
// come back apply it: each effect once, for one attempt.
func TestScalingToZeroAndBackUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	const atFirst, meanwhile, grace = 3000, 500, 40 * time.Second
	w := newWorld(t, "LANES", "1", "BATCH_SIZE", "20")
	sent := w.route.Rollbacks(w.open(atFirst + meanwhile))
	w.publish(sent[:atFirst]...)
	free := w.lockStock() // so that none is through the backlog before the other has begun
	first := []*program.Process{w.start(), w.start()}
	w.eventually("both consume", func() bool { return w.broker.Consumers(w.config().Queue) == len(first) })
	free()
	w.eventually("both are at work", func() bool {
		return w.metrics(first[0]).Settled() > 0 && w.metrics(first[1]).Settled() > 0
	})
	for _, p := range first {
		w.signal(p, syscall.SIGTERM)
	}
	w.publish(sent[atFirst:]...)
	for _, p := range first {
		w.exits(p, 0, grace)
	}
	queue := w.config().Queue
	if waits, held := w.broker.Depth(queue), w.broker.Unacked(queue); waits < meanwhile || held > 0 {
		t.Errorf("with nobody there %d messages wait, want %d at least, and %d are unacked", waits, meanwhile, held)
	}
	is(w, "claims that nobody has", w.rows(dedup.Processing), 0)
	second := []*program.Process{w.start(), w.start()}
	w.ended(len(sent))
	is(w, "attempts beyond the first", w.rest(second...).AttemptsSpent, 0)
}

// Given a daemon that drains and cannot come to an end, when it gets a second signal, then it ends at once, and another
// daemon finishes the work.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
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
	free = w.lockStock()
	daemon = w.start()
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("a transaction waits for the stock", func() bool {
		return w.count("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'UPDATE "+
			"stock %'") > 0
	})
	w.signal(daemon, syscall.SIGTERM)
	w.eventually("/readyz says draining", func() bool {
		_, r := w.readyz(daemon)
		return r.Draining
	})
	return daemon, free
}

// Given a database that was never migrated, when the daemon starts, then it exits with 1 and says what to run.
func TestSchemaThatWasNeverMigratedEndsTheStart(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.exits(w.start(), 1, time.Minute)
	assert.Has(t, w.logs.String(), "run: rollbackd migrate",
		"it does not advise to run 'rollbackd migrate'; it said: %s", w.logs)
}

// Given stock tables of the last release, when the daemon meets them, then it waits, says what they lack, and charges
// no message an attempt; after `rollbackd migrate` beside it, it goes on.
func TestStockTablesOfTheLastReleaseAreWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("ALTER TABLE stock_reservation DROP COLUMN room")
	w.exec("DELETE FROM rollbackd_schema WHERE set_name = 'stock' AND version = 2")
	orders := w.open(20)
	daemon := w.start()
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("the daemon says what is missing", func() bool {
		return strings.Contains(w.logs.String(), "Unknown column 'room'")
	})
	is(w, "messages were charged an attempt", w.count("SELECT COUNT(*) FROM consumer_log"), 0)
	if out, err := program.Run(t.Context(), program.Shared(t), w.environ(), "migrate"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.ended(len(orders))
	w.rest(daemon)
}
