package consumer_test

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// conn is a connection of the test's own.
func (w *world) conn() *sql.Conn {
	w.t.Helper()
	// it may have to wait for a lock, and may hold one in silence
	o := dedup.OpenOptions{ReadTimeout: time.Minute, Idle: time.Minute}
	db := require.First(dedup.Open(w.t.Context(), w.direct, o))(w.t)
	pool := require.Get(db.DB())(w.t)
	w.t.Cleanup(func() { _ = pool.Close() })
	c := require.Get(pool.Conn(w.t.Context()))(w.t)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) execOn(c *sql.Conn, query string) {
	w.t.Helper()
	_, err := c.ExecContext(w.t.Context(), query)
	assert.OK(w.t, err, query+":")
}

// A handler that overlooks a deadlock (MySQL has rolled the transaction back, what follows would be committed by
// itself) or a lock wait timeout (only the statement is gone) must not commit anything; nor one that reports it. Among
// rows, the server sends the names of the columns before it waits for the first row.
func TestAContentionThatTheHandlerOverlooksCommitsNothing(t *testing.T) {
	type one struct{ deadlock, overlook, reading bool }
	const yes = true
	each(t, named(one{yes, yes, false}, one{yes, false, false}, one{yes, yes, yes}, one{yes, false, yes},
		one{false, yes, false}, one{false, false, false}, one{false, yes, yes}, one{false, false, yes},
	), func(t *testing.T, w *world, tc one) {
		w.oneBatch(2)
		w.cfg.HandlerTimeout, w.cfg.Lease = 20*time.Second, 30*time.Second
		w.exec("CREATE TABLE amount (sku INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
		w.exec("CREATE TABLE weight (n INT PRIMARY KEY) ENGINE=InnoDB")
		w.exec("INSERT INTO amount VALUES (1, 0), (2, 0)")
		other := w.conn()
		met, first := make(chan struct{}), true
		w.handler = handling(func(tx *gorm.DB, msgs []consumer.Message) error {
			if err := tx.Exec("UPDATE amount SET n = n + 1 WHERE sku = 1").Error; err != nil {
				return err
			}
			meeting := first
			if first = false; meeting {
				// Somebody else has sku 2, wants sku 1 in the case of a deadlock, and has written more, so that MySQL spares him.
				for _, text := range []string{
					"SET SESSION innodb_lock_wait_timeout = 60", "BEGIN",
					"INSERT INTO weight WITH RECURSIVE seq (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM seq WHERE n < 100) " +
						"SELECT n FROM seq", "UPDATE amount SET n = n + 10 WHERE sku = 2",
				} {
					w.execOn(other, text)
				}
				if tc.deadlock {
					go func() { // joined through met
						defer close(met)
						w.execOn(other, "UPDATE amount SET n = n + 10 WHERE sku = 1")
						w.execOn(other, "COMMIT")
					}()
					waits, n := "SELECT COUNT(*) FROM "+stack.Transactions+" JOIN "+stack.Processes+" p ON p.id = conn "+
						"WHERE p.db = DATABASE() AND waits", 0
					for w.db.QueryRow(waits).Scan(&n) == nil && n == 0 { // until the other waits for us
						<-time.After(300 * time.Millisecond)
					}
				}
			}
			var err error
			if tc.reading {
				err = tx.Raw("SELECT n FROM amount WHERE sku BETWEEN 2 AND 9 FOR UPDATE").Scan(&[]int{}).Error
			}
			if err == nil || tc.overlook {
				err = errors.Join(err, tx.Exec("UPDATE amount SET n = n + 1 WHERE sku = 2").Error)
			}
			if meeting && !tc.deadlock {
				w.execOn(other, "ROLLBACK")
				close(met)
			}
			assert.That(t, !meeting || err != nil, "the statement met nobody")
			if err == nil || tc.overlook {
				err = insertAll(tx, msgs)
			}
			if tc.overlook {
				return nil
			}
			return err
		})
		w.startWith("one", "two")
		await(t, met, "the two have met")
		w.applied("one", "two")
		w.end(map[string]int{"applied": 2})
		want := map[bool]int{true: 11, false: 1} // 10 are of the other
		is(w, "the amounts are at most", w.number("SELECT MAX(n) FROM amount"), want[tc.deadlock])
		is(w, "different amounts: half an effect was committed", w.number("SELECT COUNT(DISTINCT n) FROM amount"), 1)
	})
}

// TestMySQLAwayOrUnwilling takes one server away in each of these ways, one after the other.
func TestMySQLAwayOrUnwilling(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	for name, tc := range map[string]struct{ takeAway, giveBack func(*world) }{
		"killed": {func(*world) { _ = server.Kill() }, func(*world) { _ = server.Start() }},
		"frozen": {func(*world) { _ = server.Freeze() }, func(*world) { _ = server.Thaw() }},
		"read-only": {func(w *world) { w.exec("SET GLOBAL read_only = ON") },
			func(w *world) { w.exec("SET GLOBAL read_only = OFF") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, servers{mysql: server})
			w.dsn = stack.Restricted(t, w.dsn, "SELECT, INSERT, UPDATE, DELETE ON *") // which a read-only server refuses
			w.survives(consumer.DependencyMySQL, "{}", 100, tc.takeAway, tc.giveBack)
		})
	}
}

// survives takes a server away from an engine in the middle of its work, and gives it back: then all goes on, and it
// has cost nothing.
func (w *world) survives(server, body string, n int, takeAway, giveBack func(*world)) {
	w.t.Helper()
	point, first := consumer.PointCommitted, n // of RabbitMQ there are messages in hand, committed and not acked
	if server == consumer.DependencyMySQL {
		point, first = consumer.PointEffect, 50
	}
	w.hasty()
	w.cfg.Lanes, w.cfg.BatchSize = 3, 10
	w.failing("bad")
	all := keys("order", n)
	w.publish(body, append(all[:first:first], "bad")...)
	r, release := w.into(point, w.start)
	takeAway(w)
	release()
	if first < n {
		w.publish(body, all[first:]...)
	}
	w.paused(r, server)
	up := once(consumer.DependencyMySQL, consumer.DependencyRabbitMQ, consumer.DependencyRedis)
	delete(up, server)
	w.eventually("the gauge says so", func() bool { return maps.Equal(w.counts("rollbackd_dependency_up"), up) })
	giveBack(w)
	w.ended(dedup.Dead, "bad")
	w.recovered(r)
	w.quiet()
	w.applied(all...)
	w.wantRow("bad", wanted{Attempts: 3, Reason: "exhausted"})
	up[server] = 1
	w.want("dependencies up", w.counts("rollbackd_dependency_up"), up)
	most := map[string]int{consumer.DependencyMySQL: 1, consumer.DependencyRabbitMQ: 2}[server] // a confirm may be lost
	assert.AtLeast(w.t, w.dead(), 1, "letters")
	assert.AtMost(w.t, w.dead(), most, "letters")
}

// TestMySQLWithAFullDisk fills the disk under a real server. What such a server does depends on where it meets the end:
//
//   - a table that cannot grow: error 1114, the statement is undone and the transaction goes on;
//   - no room for the undo of a failed statement: InnoDB ends its own process ("Out of disk space in rollback"), which
//     is how MariaDB 10.11 ends a large value that does not fit any more, and it cannot start before there is room;
//   - a binary log that cannot grow: the server waits inside COMMIT until somebody makes room, looks for it once a
//     minute, and then commits, long after everybody has hung up.
func TestMySQLWithAFullDisk(t *testing.T) {
	t.Parallel()
	const size = 512 << 20 // bytes
	for _, tc := range []struct {
		name string
		body int // bytes
		args []string
		// The end of what a paused engine names, where it is always the same.
		says string
	}{
		{name: "a table cannot grow", body: 4000, says: "is full"},
		{name: "a large value does not fit", body: 200_000},
		{name: "the binary log cannot grow", body: 4000, args: []string{"--log-bin=binlog", "--server-id=1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := stack.Own(t, stack.Options{Only: []stack.Kind{stack.KindMySQL}, MySQLDisk: size, MySQLArgs: tc.args})
			w := newWorldOn(t, servers{mysql: server})
			w.patience = 3 * time.Minute // a server that waits for room looks once a minute
			body := `{"note":"` + strings.Repeat("x", tc.body) + `"}`
			w.survives(consumer.DependencyMySQL, body, 600, func(*world) { server.FillDisk() }, func(w *world) {
				t.Logf("alive: %v", server.Pid() != 0)
				if tc.says != "" {
					w.eventually("the pause says "+tc.says, func() bool {
						return strings.Contains(strings.Join(w.last.State().Paused, "\n"), tc.says)
					})
				}
				if tc.args != nil {
					w.eventually("a COMMIT waits for room", func() bool {
						return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE info = 'COMMIT' AND time > 3") > 0
					})
				}
				is(w, "letters while the disk is full", w.dead(), 0)
				server.FreeDisk()
			})
			is(w, "attempts", w.number("SELECT MAX(consumer_times) FROM consumer_log WHERE consumer_status = 1"), 1)
		})
	}
}

// While a disk runs full, some tables still have room and others have none: one message meets the full one again and
// again while its neighbours succeed. A MEMORY table at its limit refuses with the same error 1114, and no disk is
// needed.
func TestATableThatIsFullIsNobodysFaultWhileOthersSucceed(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 2, 1, 1
	w.cfg.Lease = time.Minute // so that nobody takes over
	own := w.conn()
	w.execOn(own, "SET SESSION max_heap_table_size = 16384")
	w.execOn(own, "CREATE TABLE tiny (b CHAR(200) NOT NULL) ENGINE=MEMORY")
	for err := error(nil); err == nil; { // until it is full
		_, err = own.ExecContext(t.Context(), "INSERT INTO tiny VALUES ('x')")
	}
	// given a message that needs the full table, and that failed once for a reason of its own
	var tries atomic.Int32
	w.doing(func(tx *gorm.DB, m consumer.Message) error {
		if m.Key != "big" {
			return nil
		}
		tries.Add(1)
		return tx.Exec("INSERT INTO tiny VALUES ('x')").Error
	})
	tried := func() {
		t.Helper()
		before := tries.Load()
		w.eventually("the message is tried", func() bool { return tries.Load() > before })
	}
	w.failedOnce("big")
	w.startWith("big")
	// when the others succeed each time between two tries of it
	all := keys("order", 3)
	for _, key := range all {
		tried()
		w.publish("{}", key)
		w.ended(dedup.Success, key)
	}
	tried()
	// then no attempt was spent on it, and it goes on when there is room
	row := w.row("big")
	is(w, "the message is", fmt.Sprint(row.Status, " in attempt ", row.Attempts), "processing in attempt 2")
	w.execOn(own, "DELETE FROM tiny")
	w.ended(dedup.Success, "big")
	w.wantRow("big", wanted{Attempts: 2})
	w.want("effects", w.effects(), once(append(all, "big")...))
}

// TestRabbitMQAway lowers what one server takes, raises an alarm of it, kills, freezes and restarts it under an engine.
// An alarm is named with what to do also while there is nothing to publish, and when it is over no more.
func TestRabbitMQAway(t *testing.T) {
	t.Parallel()
	server := stack.OwnRabbit(t)
	t.Run("too large", func(t *testing.T) { aLetterThatIsTooLargeForTheBrokerIsHeldAndHindersNobody(t, server) })
	t.Run("alarm", func(t *testing.T) {
		w := newWorldOn(t, servers{rabbit: server})
		r := w.startWith("order")
		w.ended(dedup.Success, "order")
		named := func() bool { return strings.Contains(strings.Join(r.State().Degraded, "; "), "free memory or disk") }
		is(w, "it is named before it is so", named(), false)
		w.broker.Eval("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})")
		w.eventually("it is named", named)
		w.broker.Eval("rabbit_alarm:clear_alarm({resource_limit, memory, node()})")
		w.eventually("it is named no more", func() bool { return !named() })
	})
	for name, tc := range map[string]struct{ takeAway, giveBack func(*stack.Server) error }{
		"killed": {(*stack.Server).Kill, (*stack.Server).Start}, "frozen": {(*stack.Server).Freeze, (*stack.Server).Thaw},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, servers{rabbit: server})
			w.amqpURL += "?heartbeat=1" // so that a frozen server is noticed after 1.5 s
			w.survives(consumer.DependencyRabbitMQ, "{}", 200,
				func(*world) { _ = tc.takeAway(server) }, func(*world) { _ = tc.giveBack(server) })
		})
	}
}

func TestAcksOfAClosedConnectionAckNothingElse(t *testing.T) {
	w := newWorld(t)
	w.broker.Eval("ok") // skips on a server that is not ours, before the engine is held up
	w.oneBatch(10)
	w.cfg.Prefetch = 20
	all := keys("order", 50)
	w.publish("{}", all...)
	// given ten messages committed, and the connection closed by force before their ack
	r, release := w.into(consumer.PointCommitted, w.start)
	w.broker.CloseConnections()
	w.eventually("the broker has all messages back", func() bool { return w.broker.Depth(w.cfg.Queue) == 50 })
	// when it goes on
	release()
	// then every message is applied, and the ten come again as duplicates
	w.recovered(r)
	w.applied(all...)
	w.end(map[string]int{"applied": 50, "duplicate": 10})
	w.quiet()
}

func TestAQueueThatIsGoneLosesNothing(t *testing.T) {
	each(t, map[string]time.Duration{"made again by the operator": time.Minute,
		"made again by the engine": 300 * time.Millisecond}, func(t *testing.T, w *world, giveBack time.Duration) {
		w.cfg.GiveBackAfter = giveBack
		w.failing("bad")
		w.hopeless("hopeless")
		r := w.startWith("warm up")
		w.ended(dedup.Success, "warm up")
		w.broker.Delete(w.deadQueue(), rabbit.RetryQueue(w.cfg.Queue, w.cfg.RetryDelays[0]))
		w.publishInto(w.cfg.Queue, "bad", "hopeless", "good") // without declaring them again
		if giveBack == time.Minute {
			w.holds(2)
			w.ended(dedup.Success, "good")
			n := w.outcomes()
			assert.That(t, n["dead_lettered"]+n["retried"] == 0, "outcomes %v while the queues are gone", n)
			w.declare()
		}
		w.recovered(r)
		w.rests([]string{"warm up", "good"}, "bad", "hopeless")
		w.wantRow("bad", wanted{Attempts: 3})
	})
}

// TestRedisAway takes a server away in every way, under both policies, while messages come several times each.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	type way struct{ takeAway, giveBack func(*stack.Server) error }
	killed, frozen := way{(*stack.Server).Kill, (*stack.Server).Start}, way{(*stack.Server).Freeze, (*stack.Server).Thaw}
	for _, tc := range []struct {
		name string
		way
		policy lock.Policy
		before []string // of these, none when it is absent from the start
	}{
		{"killed, proceed", killed, lock.Proceed, keys("before", 50)},
		{"killed, pause", killed, lock.Pause, keys("before", 50)},
		{"frozen, proceed", frozen, lock.Proceed, keys("before", 50)},
		{"frozen, pause", frozen, lock.Pause, keys("before", 50)},
		{"absent at the start, proceed", killed, lock.Proceed, nil},
		{"absent at the start, pause", killed, lock.Pause, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := stack.OwnRedis(t)
			w := newWorldOn(t, servers{redis: server})
			w.cfg.LockOnError, w.cfg.BatchSize, w.cfg.GiveBackAfter = tc.policy, 10, 500*time.Millisecond
			w.failing("bad")
			after := keys("after", 50)
			if tc.before == nil {
				_ = tc.takeAway(server)
			}
			r := w.startWith(tc.before...)
			w.ended(dedup.Success, tc.before...)
			if tc.before != nil {
				_ = tc.takeAway(server)
			}
			for range 3 {
				w.publish("{}", append(after, "bad")...)
			}
			if tc.policy == lock.Proceed { // everything holds without it
				w.eventually("degraded because of redis", func() bool { return degraded(r, "redis") })
				w.ended(dedup.Success, after...)
			} else {
				w.paused(r, "redis")
				w.eventually("the deliveries are given back", func() bool {
					return w.outcomes()["abandoned"] > 0 && !r.State().Consuming
				})
				before := w.outcomes()["abandoned"]
				<-time.After(3 * w.cfg.GiveBackAfter)
				is(w, "deliveries taken and given back while redis was away", w.outcomes()["abandoned"]-before, 0)
				is(w, "messages were worked on without the lock",
					w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_key LIKE 'after%'"), 0)
			}
			s := r.State()
			s.Degraded = slices.DeleteFunc(s.Degraded, func(why string) bool { // without it, copies may meet for long
				return tc.policy == lock.Proceed && names([]string{why}, "contention")
			})
			assert.That(t, len(s.Paused)+len(s.Degraded) == 1, "%+v, want redis alone", s)
			is(w, "rollbackd_dependency_up", w.counts("rollbackd_dependency_up")["redis"], 0)
			_ = tc.giveBack(server)
			w.ended(dedup.Success, after...)
			w.ended(dedup.Dead, "bad")
			w.recovered(r)
			w.sound(r)
			w.quiet()
			is(w, "rollbackd_dependency_up", w.counts("rollbackd_dependency_up")["redis"], 1)
			w.want("effects", w.effects(), once(append(tc.before, after...)...))
			w.wantRow("bad", wanted{Attempts: 3})
		})
	}
	t.Run("flushed under load", func(t *testing.T) {
		t.Parallel()
		w := newWorldOn(t, servers{redis: stack.OwnRedis(t)})
		w.cfg.BatchSize, w.cfg.BatchLinger = 5, 0
		client, _ := w.redisOf()
		all := keys("order", 100)
		w.start()
		w.start()
		for range 5 {
			w.publish("{}", all...)
			require.OK(t, errors.Join(client.FlushAll(t.Context()).Err(), client.ScriptFlush(t.Context()).Err()))
		}
		w.quiet()
		w.applied(all...)
		is(w, "applied", w.outcomes()["applied"], len(all))
	})
}

// Given a cluster whose other node is written to too, when transactions lose against those of the other node, which
// they may be told at COMMIT alone, then they are tried again, it has cost nothing, and nobody says that MySQL is away.
func TestAConflictInAClusterOfGaleraCostsNothing(t *testing.T) {
	cluster := stack.OwnCluster(t, stack.Galera)
	w := newWorldOn(t, servers{mysql: cluster.Databases[0]})
	w.cfg.Lanes, w.cfg.HandlerTimeout, w.cfg.Lease = 1, 10*time.Second, 20*time.Second
	w.exec("CREATE TABLE amount (sku INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	w.exec("INSERT INTO amount VALUES (1, 0)")
	direct := w.direct
	w.direct = strings.Replace(direct, cluster.Databases[0].Addr(), cluster.Databases[1].Addr(), 1)
	other := w.conn()
	w.direct = direct
	stack.Number(t, other, "SELECT n FROM amount") // waits for the table to be there
	var conflicts atomic.Int32
	const most = 8
	w.batch(func(tx *gorm.DB, _ []consumer.Message) error {
		if err := tx.Exec("UPDATE amount SET n = n + 1 WHERE sku = 1").Error; err != nil {
			return err
		}
		if conflicts.Load() < most {
			conflicts.Add(1)
			w.execOn(other, "UPDATE amount SET n = n + 100 WHERE sku = 1")
		}
		return nil
	})
	fresh, claimed := keys("fresh", 8), keys("claimed", 4)
	w.failedOnce(claimed...)
	r := w.startWith(append(fresh, claimed...)...)
	w.costNothing(fresh, claimed, r)
	is(w, "transactions met others", conflicts.Load(), most)
	w.unsaid("waiting for mysql")
}

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
	w.wantRows(wanted{Attempts: 1}, fresh...)
	w.wantRows(wanted{Attempts: 2}, failedOnce...) // the one that failed and the one that succeeded
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
			altered, third := make(chan struct{}), w.conn()
			go func() { // joined through altered
				defer close(altered)
				if tc.then != "" {
					w.execOn(third, "SET SESSION lock_wait_timeout = 60")
					w.execOn(third, tc.then)
				}
			}()
			locked := time.Now()
			r := w.start()
			w.eventually("it says that it waits for locks", func() bool { return degraded(r, "contention") })
			w.eventually("the lock outlives a lease", func() bool { return time.Since(locked) > 2*w.cfg.Lease })
			assert.AtLeast(t, w.contentions(), 1, "contentions that the metric counts")
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
		assert.That(t, e.From != dedup.Processing || e.To != dedup.Processing,
			"attempt %d was a takeover: its claim had outlived its lease", e.Attempt)
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
	row := w.row("slow")
	assert.That(t, row.Attempts <= 1 && row.Status != dedup.Dead && row.Remark == "", "alone, it has an attempt: %+v", row)
	sent := w.beside(func() bool { return w.row("slow").Status == dedup.Dead })
	w.wantRow("slow", wanted{Attempts: 2, Says: "time ran out inside a statement"})
	w.want("effects", w.effects(), once(sent...))
	w.eventually("the server is at work on none of them", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info = 'SELECT "+
			"SLEEP(600)'") == 0
	})
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
		id := stack.Number(t, other, "SELECT CONNECTION_ID()")
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
		assert.That(t, mayNot || strings.Contains(said, fmt.Sprintf("KILL %d", id)), "%q does not say how to end it", said)
		waits := w.contentions()
		w.eventually("it is waited for in vain three times more", func() bool { return w.contentions() > waits+2 })
		w.execOn(other, "ROLLBACK")
		w.ended(dedup.Success, "key")
		w.wantRow("key", wanted{Attempts: 1})
		assert.Is(t, strings.Count(w.logs.String(), once), 1, "the log says times %q", once)
		w.unsaid(never)
	})
}
