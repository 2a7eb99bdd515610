package daemon_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

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
	w := newWorld(t, "MYSQL_DSN", server.Database(t), "LOG_RETENTION", "0", "EMPTY_ROLLBACK", "refuse")
	w.oldRows(rows)
	deadlocks := w.deadlocks()
	daemon := w.start()
	w.ready(daemon)
	applied := func() int { return w.metrics(daemon).Deliveries("applied") }
	enough := w.feed(daemon)
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
	beside := rate(func() { is(w, "rows deleted", w.pruneAll(), rows) })
	t.Logf("%.0f rows were deleted a second, beside %.0f messages; %.0f messages before it",
		float64(rows)/time.Since(began).Seconds(), beside, before)
	messages := enough()
	w.eventually("all messages are applied", func() bool { return applied() == messages })
	is(w, "deliveries", w.metrics(daemon).Settled(), messages)
	is(w, "deadlocks", w.deadlocks()-deadlocks, 0)
	w.stop(daemon)
	is(w, "rows", w.rows(dedup.Success), messages)
}

// feed keeps a backlog before the daemon until enough is called, which returns how many messages were published.
func (w *world) feed(daemon *program.Process) (enough func() (messages int)) {
	w.t.Helper()
	const batch = 500
	backlog := sized(2_000, 30_000)
	ctx, stop := context.WithCancel(w.t.Context())
	messages, done := 0, make(chan error, 1)
	go func() {
		p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
		var err error
		for tick := time.Tick(20 * time.Millisecond); err == nil && ctx.Err() == nil; {
			var metrics program.Metrics
			if metrics, err = daemon.Metrics(w.t.Context()); err != nil || messages-metrics.Deliveries("applied") > backlog {
				<-tick
				continue
			}
			var sent []rabbit.Publishing
			for _, o := range shop.Orders(w.rng, "order-"+itoa(messages), batch, skus) {
				sent = append(sent, w.route.Message(o.Key(), o.Body()))
			}
			err = errors.Join(p.Publish(w.t.Context(), sent)...)
			messages += batch
		}
		done <- errors.Join(err, p.Close(context.WithoutCancel(w.t.Context())))
	}()
	end := sync.OnceValue(func() error {
		stop()
		return <-done
	})
	w.t.Cleanup(func() { _ = end() })
	return func() int {
		w.t.Helper()
		require.OK(w.t, end())
		return messages
	}
}

// oldRows puts n rows into the log that were applied two months ago at 30,000 a second, their keys among those of the
// messages.
func (w *world) oldRows(n int) {
	w.t.Helper()
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

// pruneAll is a pass of the daemon's cleaner, on a pool like its own.
func (w *world) pruneAll() (deleted int) {
	w.t.Helper()
	records := w.store(dedup.OpenOptions{LockWait: time.Second}).Records
	for _, p := range require.Get(records.Prune(w.t.Context(), dedup.PruneOptions{
		Group: w.config().Group, OlderThan: 24 * time.Hour,
	}))(w.t) {
		deleted += p.Rows
	}
	return deleted
}

// deadlocks is how many the server has counted.
func (w *world) deadlocks() (n int) {
	w.t.Helper()
	var name string
	// MariaDB
	err := w.db.QueryRowContext(context.WithoutCancel(w.t.Context()), "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").Scan(
		&name, &n)
	if err != nil {
		n = w.count("SELECT COUNT FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'")
	}
	return n
}
