package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// handlers are the ways in which the stock can be given back, and the locks beside which it can be. Each must pass the
// acceptance tests, on the same tables and judged by the same oracle.
var handlers = []struct {
	name  string
	pairs func(t *testing.T) []string // settings
}{
	{"stock", func(*testing.T) []string { return nil }},
	{"sql", func(t *testing.T) []string {
		file := must(filepath.Abs(filepath.Join("testdata", "stock.sql")))(t)
		return []string{"HANDLER", "sql", "SQL_FILE", file}
	}},
	{"http", func(t *testing.T) []string {
		dsn := stack.MySQL(t)
		return []string{"MYSQL_DSN", dsn, "HANDLER", "http", "HTTP_TARGET", serveStock(t, dsn).URL + "/rollbacks",
			"HTTP_TIMEOUT", "2s"}
	}},
	{"stock, lock off", func(*testing.T) []string { return []string{"LOCK", "off"} }},
	// the locks that have a run of their own; those on ZooKeeper and on Redis that fails over have servers to ask for
	{"stock, lock zookeeper", func(*testing.T) []string { return []string{"LOCK", "zookeeper"} }},
	{"stock, lock sentinels", func(*testing.T) []string { return []string{"REDIS_URL", withSentinels} }},
	{"stock, lock cluster", func(*testing.T) []string { return []string{"REDIS_URL", inCluster} }},
	{"stock, lock redlock", beside("redlock")},
	{"stock, lock mysql", beside("mysql")},
}

// locksEnv asks for the acceptance tests beside other locks: make test-locks.
const locksEnv = "ROLLBACKD_TEST_LOCKS"

func beside(kind string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		if os.Getenv(locksEnv) == "" {
			t.Skip("make test-locks runs this")
		}
		return []string{"LOCK", kind}
	}
}

// These as REDIS_URL give a world servers that no other test uses: one, a master with a replica and sentinels, or a
// cluster.
const (
	ownRedis      = "own"
	withSentinels = "sentinels"
	inCluster     = "cluster"
)

// accept runs a test for each handler and each lock, in a world of its own, where half of the messages come by the
// outbox; the pairs are settings as for newWorld.
func accept(t *testing.T, test func(w *world), pairs ...string) {
	t.Helper()
	t.Parallel()
	for _, h := range handlers {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			settings := append(h.pairs(t), pairs...)
			servers, set, more := lockServers(t, settings)
			w := newWorld(t, append(settings, more...)...)
			w.lockServers, w.lockSet = servers, set
			w.byOutbox()
			test(w)
			is(w, "messages left in the outbox", w.waiting(), 0)
		})
	}
}

// Given orders of which everything is published three times, and a second message about each under another key, when a
// daemon has run, then each order's goods are back once.
func TestAcceptDuplicatesAndTwoKeysOfOneOrder(t *testing.T) {
	accept(t, func(w *world) {
		orders := w.open(200)
		sent := w.route.Rollbacks(orders)
		sent = append(sent, sent...)
		sent = append(sent, w.route.Rollbacks(orders)...)
		for _, o := range orders {
			second := w.route.Message("again-"+o.SN, o.Body())
			sent = append(sent, oracle.Sent{Publishing: second, Fate: oracle.ToBeApplied(), Order: o.SN})
		}
		w.mixed(sent)
		is(w, "copies absorbed", w.finish(2*len(orders), 0, oracle.Allowance{}).DuplicatesAbsorbed, 2*len(orders))
	}, "BATCH_SIZE", "50")
}

// Given messages that can never be applied among good ones, when a daemon has run, then each is a dead letter for its
// own reason, and no good one has paid for them.
func TestAcceptBadMessagesDieAlone(t *testing.T) {
	accept(t, func(w *world) {
		orders := w.open(100)
		sent := w.route.Rollbacks(orders)
		for i := range 20 {
			malformed := dedup.ReasonMalformed
			if w.env["HANDLER"] == "http" { // what a body means is the service's to say, and it has one way to refuse
				malformed = dedup.ReasonPermanent
			}
			add := func(key, body string, reason dedup.Reason) {
				p := w.route.Message(fmt.Sprintf("%s-%d", key, i), []byte(body))
				sent = append(sent, oracle.Sent{Publishing: p, Fate: oracle.ToDie(reason)})
			}
			add("unreadable", fmt.Sprintf(`{"order_sn":"x-%d","items":[{"sku_id":1`, i), malformed)
			add("nameless", `{"items":[{"sku_id":1,"quantity":1}]}`, malformed)
			add("nothing reserved", fmt.Sprintf(`{"order_sn":"x-%d","items":[{"sku_id":1,"quantity":1}]}`, i),
				dedup.ReasonExhausted)
		}
		w.mixed(sent)
		w.finish(len(orders), 60, oracle.Allowance{})
	}, "MAX_ATTEMPTS", "5", "RETRY_DELAYS", "100ms,200ms,300ms,400ms")
}

// Given a message whose key another body has taken, when it comes, then it is a dead letter of its own, and the first
// one's effect stays as it is.
func TestAcceptConflictsDieBesideTheFirst(t *testing.T) {
	accept(t, func(w *world) {
		orders := w.open(60)
		daemon := w.start()
		w.publish(w.route.Rollbacks(orders)...)
		w.ended(len(orders))
		var others []oracle.Sent
		for _, o := range orders {
			other := w.route.Message(o.Key(), append(o.Body(), ' '))
			others = append(others, oracle.Sent{Publishing: other, Fate: oracle.ToDie(dedup.ReasonConflict)})
		}
		w.publish(others...)
		w.ended(2 * len(orders))
		w.stop(daemon)
		w.judged(60, 60, oracle.Allowance{})
	})
}

// Given messages that came before their orders' reservations, when they have failed as often as they may, then they are
// dead letters; when the orders have reserved, then a replay by hand applies some, and compensation the others.
func TestAcceptReplayAndCompensationApplyWhatFailed(t *testing.T) {
	accept(t, func(w *world) {
		orders := shop.Orders(w.rng, "order", 40, skus)
		ok(w.t, shop.Stock(w.t.Context(), w.db, skus, 10_000_000))
		w.remember()
		reserve := func(some []shop.Order) {
			ok(w.t, shop.SeedReserved(w.t.Context(), w.db, some))
		}
		daemon := w.start()
		w.publish(w.route.Rollbacks(orders)...)
		w.eventually("all are dead", func() bool { return w.rows(dedup.Dead) == len(orders) })
		reserve(orders[:25])
		w.exits(w.command("dlq", "replay", "--all", "--no-wait"), 0, 3*time.Minute)
		w.eventually("what can be applied is, and the rest is dead again", func() bool {
			return w.rows(dedup.Success) == 25 && w.rows(dedup.Dead) == 15
		})
		w.stop(daemon)

		reserve(orders[25:])
		w.set("COMPENSATE_AFTER", "1s")
		daemon = w.start()
		w.eventually("compensation has applied the rest", func() bool { return w.rows(dedup.Success) == 40 })
		w.rest(daemon)
	}, "MAX_ATTEMPTS", "2", "RETRY_DELAYS", "100ms", "MAX_DEAD_RATE", "off")
}

// Given a daemon in the middle of its work, when it is killed three times, then every message takes effect once.
//
// The process is frozen first and killed while it is: its transactions are open, its commits unanswered, its acks
// unsent. A dead process's locks live for LOCK_TTL, and what it had claimed for LEASE; both are short here.
func TestAcceptKilledInTheMiddle(t *testing.T) {
	accept(t, func(w *world) {
		messages := sized(1000, 50_000)
		orders := w.open(messages)
		w.publish(shop.Repeat(w.rng, w.route.Rollbacks(orders), .1)...)
		for _, share := range []float64{.1, .3, .5} {
			daemon := w.start()
			w.freezeInside(daemon, int(share*float64(messages)))
			w.kill(daemon)
		}
		report := w.finish(messages, 0, oracle.Allowance{Attempts: 2})
		// No message fails, so a lane of transactions claims one at a time, and a kill costs it that one attempt.
		if most := 3 * w.config().Lanes; w.env["HANDLER"] != "http" && report.AttemptsSpent > most {
			w.t.Errorf("%d attempts were lost to three kills, want %d at most", report.AttemptsSpent, most)
		}
	}, "BATCH_SIZE", "100", "LANES", "2", "LOCK_TTL", "1s", "HANDLER_TIMEOUT", "3s", "LEASE", "5s")
}

// Given a COMMIT whose answer is lost, now of one that was made and now of one that was not, when the daemon has gone
// on, then every message took effect once.
func TestAcceptLostCommits(t *testing.T) {
	accept(t, func(w *world) {
		proxy := stack.Proxy(w.t, stack.Addr(w.t, w.env["MYSQL_DSN"]))
		orders := w.open(400)
		w.publish(w.route.Rollbacks(orders)...)
		direct := w.env["MYSQL_DSN"]
		w.set("MYSQL_DSN", proxy.Through(direct))
		commits := func(piece []byte) bool { return bytes.HasSuffix(piece, []byte("\x03COMMIT")) }
		var lost []<-chan struct{}
		for range 4 {
			lost = append(lost, proxy.DropReply(commits), proxy.DropRequest(commits))
		}
		daemon := w.start()
		w.ended(len(orders))
		w.stop(daemon)
		for i, c := range lost {
			select {
			case <-c:
			default:
				w.t.Errorf("COMMIT number %d was not lost: nothing was tried", i)
			}
		}
		w.set("MYSQL_DSN", direct)
		w.judged(len(orders), 0, oracle.Allowance{})
	}, "BATCH_SIZE", "20", "LANES", "2")
}

// Given a lock that forgets everything again and again, when every message is published three times, then every one
// takes effect once.
func TestAcceptLockIsWiped(t *testing.T) {
	accept(t, func(w *world) {
		wipe := w.wipeLock()
		orders := w.open(400)
		sent := w.route.Rollbacks(orders)
		sent = append(sent, sent...)
		w.publish(append(sent, w.route.Rollbacks(orders)...)...)
		first, second := w.start(), w.start()
		wiped := 0
		w.eventually("all are applied", func() bool {
			wiped += wipe()
			return w.rows(dedup.Success) == len(orders)
		})
		w.ended(len(orders))
		w.stop(first, second)
		if w.judged(len(orders), 0, oracle.Allowance{}); wiped == 0 {
			w.t.Error("no lock and no marker was wiped: nothing was tried")
		}
	}, "BATCH_SIZE", "20", "LANES", "2", "REDIS_URL", "own")
}

// Given a lock whose server stands still, is gone and comes back while messages are worked on, when every message is
// published three times, then every one takes effect once.
func TestAcceptLockStandsStillAndIsGone(t *testing.T) {
	accept(t, func(w *world) {
		faults := w.lockFaults()
		const some = 100 // between two faults
		messages := some * (1 + len(faults))
		orders := w.open(messages)
		first, second := w.start(), w.start()
		for i := 0; i <= len(faults); i++ {
			if i < len(faults) {
				faults[i].do()
			}
			sent := w.route.Rollbacks(orders[some*i : some*(i+1)])
			sent = append(sent, sent...)
			w.publish(append(sent, sent[:some]...)...)
			w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == some*(i+1) })
			if i < len(faults) {
				faults[i].undo()
			}
		}
		w.ended(messages)
		w.stop(first, second)
		w.judged(messages, 0, oracle.Allowance{})
	}, "BATCH_SIZE", "20", "LANES", "2", "REDIS_URL", "own")
}
