package consumer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// failedOnce leaves rows as an engine leaves them whose handler failed an hour ago: the next attempt is due, and
// claimed.
func (w *world) failedOnce(keys ...string) {
	w.t.Helper()
	w.rows(dedup.Failed, 1, "", keys...)
}

// costNothing waits until these messages are applied, and checks that nothing which was waited for became an attempt or
// a letter.
func (w *world) costNothing(fresh, failedOnce []string, engines ...*running) {
	w.t.Helper()
	w.ended(dedup.Success, slices.Concat(fresh, failedOnce)...)
	for _, r := range engines {
		w.recovered(r)
	}
	w.quiet()
	w.applied(slices.Concat(fresh, failedOnce)...)
	for _, k := range fresh {
		w.wantRow(k, wanted{Attempts: 1})
	}
	for _, k := range failedOnce {
		w.wantRow(k, wanted{Attempts: 2}) // the one that failed and the one that succeeded
	}
	is(w, "letters", w.dead(), 0)
}

// Given somebody who has the handler's table locked for longer than a lease, when messages come, fresh ones and claimed
// ones, then they wait, the engine says why, and it has cost nothing.
func TestATableLockCostsNoAttempt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lock, then, unlock string
		server             bool // locks all of it
	}{
		"LOCK TABLES WRITE":           {"LOCK TABLES effect WRITE", "", "UNLOCK TABLES", false},
		"LOCK TABLES READ, as a dump": {"LOCK TABLES effect READ", "", "UNLOCK TABLES", false},
		"of the log":                  {"LOCK TABLES consumer_log READ", "", "UNLOCK TABLES", false},
		"ALTER behind a reader": {"SELECT COUNT(*) FROM effect", "ALTER TABLE effect ADD COLUMN n INT, ALGORITHM=COPY",
			"COMMIT", false},
		"FLUSH TABLES WITH READ LOCK": {"FLUSH TABLES WITH READ LOCK", "", "UNLOCK TABLES", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var own servers
			if tc.server {
				own.mysql = stack.OwnMySQL(t)
			}
			w := newWorldOn(t, own)
			w.hasty()
			fresh, claimed := keys("fresh", 8), keys("claimed", 3)
			w.failedOnce(claimed...)
			w.publish("{}", append(append([]string{}, fresh...), claimed...)...)
			other := w.conn()
			w.execOn(other, "BEGIN")
			w.execOn(other, tc.lock)
			altered := make(chan struct{})
			go func() { // joined through altered
				defer close(altered)
				if tc.then != "" {
					third := w.conn()
					w.execOn(third, "SET SESSION lock_wait_timeout = 60")
					w.execOn(third, tc.then)
				}
			}()
			locked := time.Now()
			r := w.start()
			w.eventually("it says that it waits for locks", func() bool { return contendedWith(r) })
			w.eventually("the lock outlives a lease", func() bool { return time.Since(locked) > 2*w.cfg.Lease })
			if n := w.contentions(); n == 0 {
				t.Error("the metric counts no contention")
			}
			w.execOn(other, tc.unlock)
			await(t, altered, "the table is altered")
			w.costNothing(fresh, claimed, r)
		})
	}
}

// contentions is how many waits in vain all engines have counted.
func (w *world) contentions() int { return w.samples("rollbackd_contention_total")[""] }

// Given row locks of others, each shorter than a lock wait, one behind the other in the way of one statement, when the
// handler's time ends while it waits, then that is nobody's attempt.
func TestManyShortRowLocksInOneStatementCostNoAttempt(t *testing.T) {
	type one struct{ fresh, claimed []string }
	each(t, map[string]one{
		"fresh":   {fresh: keys("fresh", 4)},
		"claimed": {claimed: keys("claimed", 2)},
	}, func(t *testing.T, w *world, tc one) {
		w.hasty()
		w.cfg.Lanes, w.cfg.Lease = 1, 6*time.Second
		const rows = 10
		w.exec("CREATE TABLE amount (sku INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
		for i := range rows {
			w.exec("INSERT INTO amount VALUES (?, 0)", i)
		}
		w.batch(func(tx *gorm.DB, msgs []consumer.Message) error {
			return tx.Exec("UPDATE amount SET n = n + ?", len(msgs)).Error
		})
		all := append(append([]string{}, tc.fresh...), tc.claimed...)
		w.failedOnce(tc.claimed...)
		w.publish("{}", all...)
		var held []func()
		for i := range rows {
			other := w.conn()
			w.execOn(other, "SET SESSION wait_timeout = 60") // the last of them stands still for longer than ours may
			w.execOn(other, "BEGIN")
			w.execOn(other, fmt.Sprintf("UPDATE amount SET n = n + 100 WHERE sku = %d", i))
			held = append(held, func() { w.execOn(other, "COMMIT") })
		}
		r := w.start()
		for _, free := range held {
			<-time.After(700 * time.Millisecond)
			free()
		}
		w.costNothing(tc.fresh, tc.claimed, r)
		is(w, "rows have all changes", w.number(fmt.Sprintf("SELECT COUNT(*) FROM amount WHERE n = %d", 100+len(all))), rows)
	})
}

// Given the handler's table away and the log there, two engines without a lock, and a message sent twice, when that
// lasts for several leases, then neither copy ever takes a live claim for a dead one: no attempt is spent, no
// letter made.
func TestAWaitOnAClaimDoesNotOutliveItsLease(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 1, 1 // so that each engine has a copy
	w.redisURL = ""
	w.failedOnce("key")
	w.exec("RENAME TABLE effect TO gone")
	w.declare() // at once with both engines, RabbitMQ may not route yet what it has said to be bound
	first, second := w.start(), w.start()
	w.publish("{}", "key")
	w.publish("{}", "key")
	w.eventually("one waits for the table", func() bool { return waitsFor(first, "mysql") || waitsFor(second, "mysql") })
	w.eventually("the other has met its claim", func() bool { return w.outcomes()["in_progress"] > 0 })
	away := time.Now()
	w.eventually("the table is away for three leases", func() bool { return time.Since(away) > 3*w.cfg.Lease })
	w.exec("RENAME TABLE gone TO effect")
	w.costNothing(nil, []string{"key"}, first, second)
	for _, e := range w.events("key") {
		if e.From == dedup.Processing && e.To == dedup.Processing {
			t.Errorf("attempt %d was a takeover: its claim had outlived its lease", e.Attempt)
		}
	}
}

// Given a message whose statement takes longer than a handler may, when it is alone with it, then that is no
// attempt, and when others succeed meanwhile, three such times are. Its lane goes on, and the server is not left at
// work on it.
func TestASlowStatementNeverStallsItsLane(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, servers{mysql: stack.OwnMySQL(t)}) // another test's wait for a row would be a doubt
	w.hasty()
	w.cfg.Lanes, w.cfg.MaxAttempts, w.cfg.RetryDelays, w.patience = 1, 2, w.cfg.RetryDelays[:1], 2*time.Minute
	w.handler = whole(func(tx *gorm.DB, m consumer.Message) error {
		if m.Key == "slow" {
			return tx.Exec("SELECT SLEEP(600)").Error
		}
		return insert(tx, m.Key)
	})
	w.startWith("slow")
	w.eventually("it came back three times", func() bool { return w.outcomes()["in_progress"] >= 3 })
	if row := w.row("slow"); row.Attempts > 1 || row.Status == dedup.Dead || row.Remark != "" {
		t.Errorf("alone, it is %v after %d attempts: %q; want no attempt", row.Status, row.Attempts, row.Remark)
	}
	sent := w.beside(func() bool { return w.row("slow").Status == dedup.Dead })
	w.wantRow("slow", wanted{Attempts: 2, Says: "time ran out inside a statement"})
	w.want("effects", w.effects(), once(sent...))
	w.eventually("the server is at work on none of them", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info = 'SELECT "+
			"SLEEP(600)'") == 0
	})
}

// contendedWith reports whether the engine says that it waits for locks of others.
func contendedWith(r *running) bool {
	return slices.ContainsFunc(r.State().Degraded, func(s string) bool { return strings.HasPrefix(s, "contention: ") })
}

// Given a transaction that idles with a row that a message needs, for longer than a lease, then the engine names it and
// the statement that ends it; the log does so once. Where its account may not see that, it says once what is missing.
func TestWhoHoldsARowForLongerThanALeaseIsNamed(t *testing.T) {
	const named, hidden = "somebody holds rows that messages wait for", "who holds the locks cannot be seen"
	each(t, map[string]bool{"named": false, "without the right": true}, func(t *testing.T, w *world, mayNot bool) {
		w.hasty()
		w.exec("CREATE TABLE shelf (n INT NOT NULL) ENGINE=InnoDB")
		w.exec("INSERT INTO shelf VALUES (0)")
		w.batch(func(tx *gorm.DB, _ []consumer.Message) error { return tx.Exec("UPDATE shelf SET n = n + 1").Error })
		if mayNot {
			w.dsn = stack.Restricted(t, w.dsn, "ALL ON *")
		}
		other := w.conn()
		w.execOn(other, "SET SESSION wait_timeout = 600")
		w.execOn(other, "BEGIN")
		w.execOn(other, "UPDATE shelf SET n = 7")
		var id int
		require.OK(t, other.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
		want, once, never := ".shelf; its transaction began ", named, hidden
		if mayNot {
			want, once, never = "who cannot be seen: ", hidden, named
		}
		began := time.Now()
		r := w.start()
		w.publish("{}", "key")
		w.eventually("State says who", func() bool { return strings.Contains(strings.Join(r.State().Degraded, "\n"), want) })
		assert.AtLeast(t, time.Since(began), w.cfg.Lease, "it is said after")
		said := strings.Join(r.State().Degraded, "\n")
		t.Log(said)
		if kill := fmt.Sprintf("KILL %d", id); !mayNot && !strings.Contains(said, kill) {
			t.Errorf("%q does not say how to end it by %s", said, kill)
		}
		waits := w.contentions()
		w.eventually("it is waited for in vain three times more", func() bool { return w.contentions() > waits+2 })
		w.execOn(other, "ROLLBACK")
		w.ended(dedup.Success, "key")
		w.wantRow("key", wanted{Attempts: 1})
		assert.Is(t, strings.Count(w.logs.String(), once), 1, "the log says times %q", once)
		if strings.Contains(w.logs.String(), never) {
			t.Errorf("the log says %q", never)
		}
	})
}
