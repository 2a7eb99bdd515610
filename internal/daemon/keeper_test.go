package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// member is a daemon of a fleet, with its own log.
type member struct {
	*program.Process
	log *program.Log
}

func (w *world) join() member {
	p, log := w.logged("run")
	return member{p, log}
}

// logged starts a command of the binary with a log of its own.
func (w *world) logged(command string) (*program.Process, *program.Log) {
	w.t.Helper()
	log := &program.Log{}
	return w.startProcess(program.Options{Path: program.Shared(w.t), Args: []string{command}, Env: w.environ(),
		Log: io.MultiWriter(log, w.logs)}), log
}

func (m member) elections() int { return strings.Count(m.log.String(), `"msg":"elected"`) }

// leader is the connection of the elected daemon, 0 if there is none.
func (w *world) leader() int64 {
	return require.Get(w.store(dedup.OpenOptions{}).Records.Leader(w.t.Context(), w.config().Group))(w.t)
}

// row puts a row into the log whose last transition was so long ago.
func (w *world) row(key string, status dedup.Status, age time.Duration) {
	w.t.Helper()
	w.exec(
		`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason,
			consumer_timestamp, created_at, dead_at)
		VALUES ('stock-rollback', 't', ?, ?, 1, 'permanent', UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6),
			UTC_TIMESTAMP(6))`,
		[]byte(key), int(status), int(age.Seconds()))
}

// Given a fleet of two, then one of them is elected, says what waits longest, and deletes what has outlived its
// retention; and when its session is killed, or its process, the other one takes over and does it. Each warns once of a
// letter that is older than its successes are remembered.
func TestOneDaemonOfTheFleetKeepsTheLogAndAnotherTakesOver(t *testing.T) {
	w := newWorld(t, "LOG_RETENTION", "24h")
	const day = 24 * time.Hour
	w.row("young", dedup.Success, day-time.Hour)
	w.row("dead", dedup.Dead, day+time.Hour)
	// It is there before the election: whoever is elected has a pass some seconds later, and the next one after minutes.
	old := func(who string) { t.Helper(); w.row("old, while it is the "+who, dedup.Success, day+time.Hour) }
	old("first")
	first := w.join()
	w.eventually("the first is elected", func() bool { return first.elections() == 1 })
	second := w.join()
	w.ready(second.Process)
	works := func(who string) {
		t.Helper()
		w.eventually("the "+who+" deletes what is old", func() bool { return w.rows(dedup.Success) == 1 })
	}
	works("first")
	assert.Is(t, second.elections(), 0, "the second was elected times beside the first")
	shows := func(m member, want program.Metrics) { // a pass is counted when it has ended, after its commit
		t.Helper()
		for sample, v := range want {
			w.eventually(fmt.Sprint(sample, " is ", v), func() bool { return w.metrics(m.Process)[sample] == v })
		}
	}
	shows(first, program.Metrics{"rollbackd_leader": 1, "rollbackd_retention_deleted_rows_total": 1})
	shows(second, program.Metrics{"rollbackd_leader": 0, "rollbackd_retention_deleted_rows_total": 0})
	const late = "rollbackd_retention_late_seconds"
	w.eventually("it says how late the row went, until the pass is over", func() bool {
		got := w.metrics(first.Process)[late]
		return got > 0 && got < 60
	})

	const shorter = "ROLLBACKD_LOG_RETENTION is shorter" // which each says when it has asked, for itself
	w.eventually("it has said what waits longest, and both have warned", func() bool {
		return strings.Contains(first.log.String(), "what waits longest") &&
			strings.Contains(first.log.String(), shorter) && strings.Contains(second.log.String(), shorter)
	})
	for _, m := range []member{first, second} {
		is(w, "warnings of a letter that is older than rows are kept", strings.Count(m.log.String(), shorter), 1)
	}

	// when the session is killed that was elected
	old("second")
	w.exec("KILL ?", w.leader())
	w.eventually("the second is elected", func() bool { return second.elections() == 1 })
	works("second")
	w.eventually("the first says that it is not elected any more", func() bool {
		return strings.Contains(first.log.String(), "no longer elected")
	})
	shows(first, program.Metrics{"rollbackd_leader": 0, `rollbackd_retention_runs_total{result="done"}`: 1, late: 0})
	shows(second, program.Metrics{"rollbackd_leader": 1})

	// when the process is killed that is elected
	old("first")
	w.kill(second.Process)
	w.eventually("the first is elected again", func() bool { return first.elections() == 2 })
	works("first")
	w.stop(first.Process)
	is(w, "dead rows are left", w.rows(dedup.Dead), 1)
	assert.Is(t, w.leader(), 0, "connection holds the lock although nobody runs")
}

// bookmark waits until letters that die from now on are news.
func (w *world) bookmark() {
	w.t.Helper()
	w.eventually("the bookmark", func() bool {
		return w.count("SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'told:%'") == 1
	})
}

// Given rollbacks that fail because their reservations are not there yet, when these come, then the letters come back
// by themselves, people were told of them, and metrics count both.
func TestLettersComeBackByThemselvesAndPeopleAreTold(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	w := newWorld(t, "MAX_ATTEMPTS", "1", "RETRY_DELAYS", "100ms", "HANDLER_TIMEOUT", "2s", "LEASE", "4s",
		"COMPENSATE_AFTER", "15s", "DEAD_LETTER_WEBHOOK", server.URL)
	const n = 20
	orders := shop.Orders(w.rng, "order", n, skus)
	require.OK(t, shop.Stock(t.Context(), w.db, skus, 1000))
	daemon := w.start()
	w.bookmark()
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("all are dead", func() bool { return w.rows(dedup.Dead) == n })
	// when the reservations come
	require.OK(t, shop.SeedReserved(t.Context(), w.db, orders))
	w.remember()
	w.eventually("all come back and have their effect", func() bool { return w.rows(dedup.Success) == n })
	for sample, least := range map[string]float64{
		`rollbackd_compensation_runs_total{result="done"}`:          1,
		`rollbackd_compensation_letters_total{result="replayed"}`:   n,
		`rollbackd_notifications_total{result="done"}`:              1,
		`rollbackd_notified_letters_total`:                          n,
		`rollbackd_handler_duration_seconds_count{result="failed"}`: 1,
		`rollbackd_handler_duration_seconds_count{result="done"}`:   1,
		`rollbackd_connections_opened_total{name="rabbitmq"}`:       4, // main queue, backstop, copies, depths
		`rollbackd_connections_opened_total{name="mysql"}`:          2,
		`rollbackd_connections_opened_total{name="redis"}`:          1,
	} {
		w.eventually(fmt.Sprintf("%s is at least %v", sample, least), func() bool { // counted at its end
			return w.metrics(daemon)[sample] >= least
		})
	}
	w.rest(daemon)
}

// Given a webhook that never answers and a queue that is gone, when the daemon is stopped, then it stops at once.
func TestAKeeperInTroubleDoesNotHoldADrainUp(t *testing.T) {
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	w := newWorld(t, "HANDLER_TIMEOUT", "2s", "LEASE", "4s", "DEAD_LETTER_WEBHOOK", server.URL, "LOG_RETENTION", "24h")
	orders := w.open(10)
	daemon := w.join()
	w.bookmark()
	w.publish(w.route.Rollbacks(orders)...)
	w.ended(10)
	w.publish(oracle.Sent{Publishing: w.route.Message("no json", []byte("{")), Fate: oracle.ToDie(dedup.ReasonMalformed)})
	poll.Receive(t, "the webhook is called", asked)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // the webhook would wait for ten seconds
	defer cancel()
	code, err := daemon.Stop(ctx)
	assert.That(t, err == nil && code == 0, "the daemon ended with %d (%v), want 0 at once", code, err)
	w.judge(oracle.Allowance{})
}

// Given a daemon that always has a backlog, when old rows, that once came as fast as it can, are deleted beside it by
// the code and at the pace of its own cleaner, then no transaction meets a deadlock, no message is tried twice, and all
// of them are applied.
//
// With ROLLBACKD_TEST_BIG (make bench-prune) it deletes a million rows and prints how fast they go, and how fast
// messages are applied before that and meanwhile.
func TestPruningBesideMessagesHurtsNone(t *testing.T) {
	rows := sized(5_000, 1_000_000)
	server := stack.OwnMySQL(t) // deadlocks are counted by the server
	// Rollbacks that come first are an effect, too, and need no orders before.
	w := aloneWorld(t, "MYSQL_DSN", server.Database(t), "LOG_RETENTION", "0", "EMPTY_ROLLBACK", "refuse")
	w.oldRows(rows)
	deadlocks := w.deadlocks()
	daemon := w.start()
	w.ready(daemon)
	applied := func() int { return w.metrics(daemon).Deliveries("applied") }
	enough := w.feed()
	w.eventually("the first messages are applied", func() bool { return applied() > 1000 })
	rate := func(do func()) float64 {
		began, from := time.Now(), applied()
		do()
		return float64(applied()-from) / time.Since(began).Seconds()
	}
	before := rate(func() {
		first := applied()
		w.eventually("more messages are applied", func() bool { return applied() > first+sized(1000, 300_000) })
	})
	began := time.Now()
	beside := rate(func() { // a pass of the daemon's cleaner, on a pool like its own
		deleted, records := 0, w.store(dedup.OpenOptions{LockWait: time.Second}).Records
		o := dedup.PruneOptions{Group: w.config().Group, OlderThan: 24 * time.Hour}
		for _, p := range require.Get(records.Prune(t.Context(), o))(t) {
			deleted += p.Rows
		}
		is(w, "rows deleted", deleted, rows)
	})
	t.Logf("%.0f rows were deleted a second, beside %.0f messages; %.0f messages before it",
		float64(rows)/time.Since(began).Seconds(), beside, before)
	messages := enough()
	w.eventually("all messages are applied", func() bool { return applied() == messages })
	is(w, "deliveries", w.metrics(daemon).Settled(), messages)
	is(w, "deadlocks", w.deadlocks()-deadlocks, 0)
	w.stop(daemon)
	is(w, "rows", w.rows(dedup.Success), messages)
}

// feed keeps a backlog in the queue until enough is called, which returns how many messages were published.
func (w *world) feed() (enough func() (messages int)) {
	const batch = 500
	ctx, stop := context.WithCancel(w.t.Context())
	queue, done := w.config().Queue, make(chan int, 1)
	go func() {
		p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
		defer func() { _ = p.Close(context.WithoutCancel(ctx)) }()
		messages := 0
		for tick := time.Tick(20 * time.Millisecond); ctx.Err() == nil && !w.t.Failed(); <-tick {
			for ctx.Err() == nil && !w.t.Failed() && w.broker.Depth(queue) < sized(2_000, 30_000) {
				var sent []rabbit.Publishing
				for _, o := range shop.Orders(w.rng, fmt.Sprint("order-", messages), batch, skus) {
					sent = append(sent, w.route.Message(o.Key(), o.Body()))
				}
				assert.OK(w.t, errors.Join(p.Publish(context.WithoutCancel(ctx), sent)...))
				messages += batch
			}
		}
		done <- messages
	}()
	enough = sync.OnceValue(func() int { stop(); return <-done })
	w.t.Cleanup(func() { enough() })
	return enough
}

// oldRows puts n rows into the log that were applied two months ago at 30,000 a second, their keys among those of the
// messages.
func (w *world) oldRows(n int) {
	const digits = "(SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION " +
		"SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
	cfg := w.config()
	for from := 0; from < n; from += 1000 {
		w.exec(
			`INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, body_hash, consumer_status, consumer_times,
				consumer_timestamp, created_at)
			SELECT ?, 'stock.rollback', CONCAT('rollback-order-', LPAD(n, 6, '0'), '-old'), CONCAT('rollback-order-', n),
				UNHEX(SHA2(n, 256)), 1, 1,
				UTC_TIMESTAMP(6) - INTERVAL 60 DAY + INTERVAL n*33 MICROSECOND, UTC_TIMESTAMP(6) - INTERVAL 60 DAY
			FROM (SELECT ? + a.d + 10*b.d + 100*c.d AS n FROM `+digits+` AS a, `+digits+` AS b,
				`+digits+` AS c) AS numbers WHERE n < ?`,
			[]byte(cfg.Group), from, n)
	}
}

// deadlocks is how many the server has counted.
func (w *world) deadlocks() (n int) {
	w.t.Helper()
	var name string
	const ofMariaDB = "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
	if w.db.QueryRowContext(context.WithoutCancel(w.t.Context()), ofMariaDB).Scan(&name, &n) != nil {
		n = w.count("SELECT COUNT FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'")
	}
	return n
}
