package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// stocked makes a table of two rows for handlers to meet others at, and a connection of somebody else's.
func (w *world) stocked() *sql.Conn {
	w.t.Helper()
	w.exec("CREATE TABLE amount (sku INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	w.exec("CREATE TABLE weight (n INT PRIMARY KEY) ENGINE=InnoDB")
	w.exec("INSERT INTO amount VALUES (1, 0), (2, 0)")
	return w.conn()
}

// conn is a connection of the test's own.
func (w *world) conn() *sql.Conn {
	w.t.Helper()
	// it may have to wait for a lock, and may hold one in silence
	o := dedup.OpenOptions{ReadTimeout: time.Minute, Idle: time.Minute}
	db, _, err := dedup.Open(w.t.Context(), w.direct, o)
	if err != nil {
		w.t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = pool.Close() })
	c, err := pool.Conn(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) execOn(c *sql.Conn, query string) {
	w.t.Helper()
	if _, err := c.ExecContext(w.t.Context(), query); err != nil {
		w.t.Errorf("%s: %v", query, err)
	}
}

// A handler that overlooks a deadlock (MySQL has rolled the transaction back, what follows would be committed by
// itself) or a lock wait timeout (only the statement is gone) must not commit anything.
func TestAContentionThatTheHandlerOverlooksCommitsNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ deadlock, overlook, reading bool }{
		"deadlock, overlooked":                     {true, true, false},
		"deadlock, reported":                       {true, false, false},
		"deadlock among rows, overlooked":          {true, true, true},
		"deadlock among rows, reported":            {true, false, true},
		"lock wait timeout, overlooked":            {false, true, false},
		"lock wait timeout, reported":              {false, false, false},
		"lock wait timeout among rows, overlooked": {false, true, true},
		"lock wait timeout among rows, reported":   {false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.oneBatch(2)
			w.cfg.HandlerTimeout, w.cfg.Lease = 20*time.Second, 30*time.Second
			other := w.stocked()
			met, meetings := make(chan struct{}), 0
			w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				if err := tx.Exec("UPDATE amount SET n = n + 1 WHERE sku = 1").Error; err != nil {
					return err
				}
				first := meetings == 0
				if first {
					meetings++
					// Somebody else has sku 2, wants sku 1 in the case of a deadlock, and has written more, so that MySQL spares him.
					w.execOn(other, "SET SESSION innodb_lock_wait_timeout = 60")
					w.execOn(other, "BEGIN")
					w.execOn(other, "INSERT INTO weight WITH RECURSIVE seq (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM seq "+
						"WHERE n < 100) SELECT n FROM seq")
					w.execOn(other, "UPDATE amount SET n = n + 10 WHERE sku = 2")
					if tc.deadlock {
						go func() { // joined through met
							defer close(met)
							w.execOn(other, "UPDATE amount SET n = n + 10 WHERE sku = 1")
							w.execOn(other, "COMMIT")
						}()
						for w.number("SELECT COUNT(*) FROM "+stack.Transactions+" JOIN "+stack.Processes+" p ON p.id = conn "+
							"WHERE p.db = DATABASE() AND waits") == 0 {
							// until the other waits for us
							<-time.After(300 * time.Millisecond)
						}
					}
				}
				var err error
				if tc.reading { // the server sends the names of the columns before it waits for the first row
					var n []int
					err = tx.Raw("SELECT n FROM amount WHERE sku BETWEEN 2 AND 9 FOR UPDATE").Scan(&n).Error
				}
				if err == nil || tc.overlook {
					err = errors.Join(err, tx.Exec("UPDATE amount SET n = n + 1 WHERE sku = 2").Error)
				}
				if first && !tc.deadlock {
					w.execOn(other, "ROLLBACK")
					close(met)
				}
				if first && err == nil {
					t.Error("the statement met nobody")
				}
				if err != nil && !tc.overlook {
					return err
				}
				for _, m := range msgs {
					if err := insert(tx, m.Key); err != nil && !tc.overlook {
						return err
					}
				}
				return nil
			})
			w.publish("{}", "one", "two")
			w.start()
			await(t, met, "the two have met")
			w.ended(dedup.Success, "one", "two")
			w.want("effects", w.effects(), once("one", "two"))
			w.end(map[string]int{"applied": 2})
			want := 1
			if tc.deadlock {
				want = 11 // the other's
			}
			if n := w.number("SELECT MAX(n) FROM amount"); n != want {
				t.Errorf("the amounts are at most %d, want %d", n, want)
			}
			if n := w.number("SELECT COUNT(DISTINCT n) FROM amount"); n != 1 {
				t.Error("the amounts differ: half an effect was committed")
			}
		})
	}
}

func TestAForeignLockIsWaitedForWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes = 1
	other := w.stocked()
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		w.mu.Lock()
		w.calls = append(w.calls, []string{"any"})
		w.mu.Unlock()
		return tx.Exec("UPDATE amount SET n = n + ? WHERE sku = 1", len(msgs)).Error
	})
	w.execOn(other, "BEGIN")
	w.execOn(other, "UPDATE amount SET n = 0 WHERE sku = 1 AND n = 0")
	w.execOn(other, "UPDATE amount SET n = 100 WHERE sku = 1")
	w.publish("{}", "one", "two")
	w.start()
	w.eventually("the batch was halved, and both came back",
		func() bool { return w.times("any") > 5 && w.outcomes()["in_progress"] > 1 })
	w.execOn(other, "COMMIT")
	w.ended(dedup.Success, "one", "two")
	w.quiet()
	if got := w.outcomes(); got["applied"] != 2 || len(got) != 2 {
		t.Errorf("outcomes %v, want 2 applied, and in_progress", got)
	}
	if n := w.number("SELECT n FROM amount WHERE sku = 1"); n != 102 {
		t.Errorf("the amount is %d, want 102", n)
	}
	for _, k := range []string{"one", "two"} {
		if row := w.row(k); row.Attempts != 1 {
			t.Errorf("%s had %d attempts, want 1", k, row.Attempts)
		}
	}
}

func TestKilledConnectionsCostNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize = 3, 10
	w.rejecting("bad", func() error { return errors.New("shelf is locked") })
	all := keys("order", 300)
	w.publish("{}", append(all, "bad")...)
	reached, release := w.blockAt(consumer.PointEffect)
	r := w.start()
	await(t, reached, "a transaction is open")
	own := w.conn()
	for range 5 {
		w.killConnections(own)
	}
	release()
	for range 10 {
		w.killConnections(own)
	}
	w.ended(dedup.Success, all...)
	w.ended(dedup.Dead, "bad")
	w.recovered(r)
	w.want("effects", w.effects(), once(all...))
	if row := w.row("bad"); row.Attempts != 3 {
		t.Errorf("%d attempts, want 3", row.Attempts)
	}
}

// killConnections kills all connections to the test's database but own, which does it, and says how many there were.
// Those that are kept stay.
func (w *world) killConnections(own *sql.Conn, kept ...int64) int {
	w.t.Helper()
	rows, err := own.QueryContext(w.t.Context(), "SELECT id FROM "+stack.Processes+" WHERE db = DATABASE() "+
		"AND id <> CONNECTION_ID()")
	if err != nil {
		w.t.Fatal(err)
	}
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			w.t.Fatal(err)
		}
		if !slices.Contains(kept, id) {
			ids = append(ids, id)
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		w.t.Fatal(err)
	}
	for _, id := range ids {
		_, _ = own.ExecContext(w.t.Context(), "KILL ?", id) // it may have ended
	}
	return len(ids)
}

// hog takes all the connections there are, until the test ends. The engine may be faster, and have one again that was
// taken from it; what is taken here stays taken, so in the end it has none.
func (w *world) hog(admin *sql.Conn) {
	w.t.Helper()
	pool, err := w.open(w.dsn).DB()
	if err != nil {
		w.t.Fatal(err)
	}
	var taken []int64
	w.eventually("the engine has no connection", func() bool {
		for {
			c, err := pool.Conn(w.t.Context())
			if err != nil { // there is none left
				return w.killConnections(admin, taken...) == 0
			}
			w.t.Cleanup(func() { _ = c.Close() })
			var id int64
			if err := c.QueryRowContext(w.t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
				w.t.Fatal(err)
			}
			taken = append(taken, id)
		}
	})
}

// TestMySQLAwayOrUnwilling goes through everything that a server can do to us, one after the other on one server.
func TestMySQLAwayOrUnwilling(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	var admin *sql.Conn // of the case with too many connections
	for _, tc := range []struct {
		name         string
		takeAway     func(*world)
		giveBack     func(*world)
		unprivileged bool // the engine is
	}{
		{
			name:     "killed",
			takeAway: func(*world) { _ = server.Kill() },
			giveBack: func(*world) { _ = server.Start() },
		}, {
			name:     "frozen",
			takeAway: func(*world) { _ = server.Freeze() },
			giveBack: func(*world) { _ = server.Thaw() },
		}, {
			name: "read-only", unprivileged: true,
			takeAway: func(w *world) { w.exec("SET GLOBAL read_only = ON") },
			giveBack: func(w *world) { w.exec("SET GLOBAL read_only = OFF") },
		}, {
			name: "too many connections", unprivileged: true,
			takeAway: func(w *world) {
				admin = w.conn()
				w.execOn(admin, "SET GLOBAL max_connections = 10") // MariaDB allows no fewer
				w.hog(admin)
			},
			giveBack: func(w *world) { w.execOn(admin, "SET GLOBAL max_connections = 500") },
		}, {
			name: "a right revoked", unprivileged: true,
			takeAway: func(w *world) { // it waits until the open transaction's time ends
				w.execOn(w.conn(), "RENAME TABLE effect TO effect_of_others")
			},
			giveBack: func(w *world) { w.exec("RENAME TABLE effect_of_others TO effect") },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldOn(t, servers{mysql: server})
			if tc.unprivileged {
				w.dsn = stack.Restricted(t, w.dsn, "SELECT, INSERT, UPDATE, DELETE ON "+w.database()+".*")
			}
			w.cfg.Lanes, w.cfg.BatchSize = 3, 10
			w.rejecting("bad", func() error { return errors.New("shelf is locked") })
			all := keys("order", 100)
			w.publish("{}", append(all[:50:50], "bad")...)
			// given an engine in the middle of its work
			reached, release := w.blockAt(consumer.PointEffect)
			r := w.start()
			await(t, reached, "a transaction is open")
			// when MySQL goes away
			tc.takeAway(w)
			release()
			w.publish("{}", all[50:]...)
			w.paused(r, "mysql")
			if up := w.counts("rollbackd_dependency_up"); up["mysql"] != 0 || up["rabbitmq"] != 1 {
				t.Errorf("dependencies up: %v, want rabbitmq and not mysql", up)
			}
			tc.giveBack(w)
			// then all goes on when it is back, and it has cost nothing
			w.ended(dedup.Success, all...)
			w.ended(dedup.Dead, "bad")
			w.recovered(r)
			w.quiet()
			w.want("effects", w.effects(), once(all...))
			if row := w.row("bad"); row.Attempts != 3 || row.Reason != "exhausted" {
				t.Errorf("the bad one is dead after %d attempts because %q, want 3, exhausted", row.Attempts, row.Reason)
			}
			if n := w.dead(); n != 1 {
				t.Errorf("%d letters, want 1", n)
			}
			if up := w.counts("rollbackd_dependency_up"); up["mysql"] != 1 {
				t.Errorf("dependencies up: %v, want mysql among them", up)
			}
		})
	}
}
