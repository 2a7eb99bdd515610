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
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a daemon that always has a backlog, when old rows are deleted beside it by the code and at the pace of its own
// cleaner, then no transaction meets a deadlock, no message is tried twice, and all of them are applied.
//
// With ROLLBACKD_TEST_BIG (make bench-prune) it deletes a million rows and prints what that costs: the rate at which
// messages are applied meanwhile, against the mean of the rates before and after. Nothing depends on the figure.
func TestPruningBesideMessagesHurtsNone(t *testing.T) {
	rows, window := sized(20_000, 1_000_000), time.Duration(sized(1, 20))*time.Second
	server := stack.OwnMySQL(t) // deadlocks are counted by the server
	// Rollbacks that come first are an effect, too, and need no orders before.
	w := newWorld(t, "MYSQL_DSN", server.Database(t), "LOG_RETENTION", "0", "EMPTY_ROLLBACK", "refuse")
	w.oldRows(rows)
	before := w.deadlocks()
	daemon := w.start()
	w.ready(daemon)
	enough := w.feed(daemon)
	w.eventually("the first messages are applied", time.Minute, func() bool { return w.applied(daemon) > 1000 })

	rateBefore := w.rate(daemon, window)
	began, from := time.Now(), w.applied(daemon)
	if deleted := w.pruneAll(); deleted != rows {
		t.Errorf("%d rows deleted, want %d", deleted, rows)
	}
	took := time.Since(began)
	rateMeanwhile := float64(w.applied(daemon)-from) / took.Seconds()
	rateAfter := w.rate(daemon, window)
	t.Logf("deleted %d rows in %v, %.0f a second", rows, took.Round(time.Second), float64(rows)/took.Seconds())
	t.Logf("messages a second: %.0f before, %.0f meanwhile, %.0f after: deleting costs %.1f %% of the throughput (a "+
		"figure only with %s)",
		rateBefore, rateMeanwhile, rateAfter, 100*(1-2*rateMeanwhile/(rateBefore+rateAfter)), bigEnv)

	messages := enough()
	w.eventually("all messages are applied", 5*time.Minute, func() bool { return w.applied(daemon) == messages })
	metrics, err := daemon.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := metrics.Settled(); n != messages {
		t.Errorf("%d deliveries for %d messages: some came back", n, messages)
	}
	if n := w.deadlocks() - before; n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	w.stop(daemon)
	if n := w.rows(dedup.Success); n != messages {
		t.Errorf("%d rows for %d messages", n, messages)
	}
}

// feed keeps a backlog before the daemon until enough is called, which returns how many messages were published.
func (w *world) feed(daemon *program.Process) (enough func() (messages int)) {
	w.t.Helper()
	const backlog, batch = 30_000, 1000
	ctx, stop := context.WithCancel(w.t.Context())
	type outcome struct {
		messages int
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
		n, err := 0, error(nil)
		for tick := time.Tick(20 * time.Millisecond); err == nil && ctx.Err() == nil; {
			var metrics program.Metrics
			if metrics, err = daemon.Metrics(w.t.Context()); err != nil || n-metrics.Deliveries("applied") > backlog {
				<-tick
				continue
			}
			var sent []rabbit.Publishing
			for _, o := range shop.Orders(w.rng, "order-"+itoa(n), batch, skus) {
				sent = append(sent, w.route.Message(o.Key(), o.Body()))
			}
			err = errors.Join(p.Publish(w.t.Context(), sent)...)
			n += batch
		}
		done <- outcome{n, errors.Join(err, p.Close(context.WithoutCancel(w.t.Context())))}
	}()
	end := sync.OnceValue(func() outcome {
		stop()
		return <-done
	})
	w.t.Cleanup(func() { end() })
	return func() int {
		w.t.Helper()
		o := end()
		if o.err != nil {
			w.t.Fatal(o.err)
		}
		return o.messages
	}
}

func (w *world) applied(daemon *program.Process) int {
	w.t.Helper()
	metrics, err := daemon.Metrics(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return metrics.Deliveries("applied")
}

// rate is how many messages are applied per second in a window.
func (w *world) rate(daemon *program.Process, window time.Duration) float64 {
	w.t.Helper()
	began, from := time.Now(), w.applied(daemon)
	<-time.After(window)
	return float64(w.applied(daemon)-from) / time.Since(began).Seconds()
}

// oldRows puts n rows into the log that were applied one to two months ago, their keys among those of the messages.
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
				UTC_TIMESTAMP(6) - INTERVAL 60 DAY + INTERVAL n SECOND, UTC_TIMESTAMP(6) - INTERVAL 60 DAY
			FROM (SELECT ? + a.d + 10*b.d + 100*c.d AS n FROM `+digits+` AS a, `+digits+` AS b,
				`+digits+` AS c) AS numbers WHERE n < ?`,
			[]byte(cfg.Group), from, n)
	}
}

// pruneAll is a pass of the daemon's cleaner, on a pool like its own.
func (w *world) pruneAll() (deleted int) {
	w.t.Helper()
	records := w.store(dedup.OpenOptions{LockWait: time.Second}).Records
	said := time.Now()
	pruned, err := records.Prune(w.t.Context(), dedup.PruneOptions{Group: w.config().Group, OlderThan: 24 * time.Hour,
		Progress: func(rows int) {
			if time.Since(said) > 10*time.Second {
				said = time.Now()
				w.t.Logf("%d rows deleted", rows)
			}
		}})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range pruned {
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
