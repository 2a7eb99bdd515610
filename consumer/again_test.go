package consumer_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// blamed leaves rows as the fast path leaves them whose handler blamed these messages an hour ago. Their next attempt
// is due, and they share it, if they come in one batch.
func (w *world) blamed(keys ...string) {
	w.t.Helper()
	w.rows(dedup.Failed, 1, "blame/1", keys...)
	w.exec("UPDATE consumer_log SET body_hash = UNHEX(SHA2('{}', 256)), msg_body = '{}' WHERE owner = 'blame/1'")
}

// story is what happened to a key: from, to and the attempts after each step.
func (w *world) story(key string) string {
	w.t.Helper()
	var steps []string
	for _, e := range w.events(key) {
		steps = append(steps, fmt.Sprintf("%v>%v:%d", e.From, e.To, e.Attempt))
	}
	return strings.Join(steps, " ")
}

// wantStory checks that each of keys has had the same story.
func (w *world) wantStory(want string, keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		require.Is(w.t, w.story(k), want, "the story of %s", k) // the others have most likely the same
	}
}

// The stories of messages that were blamed in the fast path before, or by blamed.
const (
	firstFails  = "absent>failed:1"
	secondFails = "failed>processing:2 processing>failed:2"
	thirdFails  = "failed>processing:3 processing>failed:3"
	dies        = "failed>dead:3"
	secondWorks = "failed>processing:2 processing>success:2"
	secondUnrun = "failed>processing:2 processing>failed:1"
	thirdUnrun  = "failed>processing:3 processing>failed:2"
)

// Given a group in which one message fails without being blamed, or too late, or for what may be the database's fault,
// then its claims are given back, each message goes on alone, and nobody has paid an attempt for it.
func TestAGroupThatFailsWithoutBlameGivesItsClaimsBack(t *testing.T) {
	boom := errors.New("boom")
	missing := func(tx *gorm.DB) error { return tx.Exec("INSERT INTO nowhere VALUES (1)").Error }
	over := func(tx *gorm.DB) error { // its time is
		<-tx.Statement.Context.Done()
		return tx.Statement.Context.Err()
	}
	blame := func(i int, err error) error { return consumer.Blame(consumer.BlamedMessage{Index: i, Err: err}) }
	ways := map[string]func(*gorm.DB) error{
		"an error":                     func(*gorm.DB) error { return boom },
		"a panic":                      func(*gorm.DB) error { panic(boom) },
		"permanent":                    func(*gorm.DB) error { return consumer.Permanent(boom) },
		"blame of nobody who is there": func(*gorm.DB) error { return blame(20, boom) },
		"a blame without an error":     func(*gorm.DB) error { return blame(0, nil) },
		"a slow statement":             func(tx *gorm.DB) error { return tx.Exec("SELECT SLEEP(20)").Error },
		"its time is over":             over,
		"blame when its time is over":  func(tx *gorm.DB) error { return blame(0, over(tx)) },
		"a deadlock that it made of its own": func(*gorm.DB) error {
			return &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock"}
		},
		"a table that is not there":           missing,
		"blame for a table that is not there": func(tx *gorm.DB) error { return blame(0, missing(tx)) },
		"a swallowed error":                   func(tx *gorm.DB) error { _ = missing(tx); return nil },
	}
	w := newWorld(t)
	w.oneBatch(20)
	w.cfg.Lease, w.cfg.HandlerTimeout = 12*time.Second, 2*time.Second
	var shared atomic.Int32
	w.batch(func(tx *gorm.DB, msgs []consumer.Message) error {
		if len(msgs) == 1 {
			return nil
		}
		shared.Add(1)
		name, _, _ := strings.Cut(msgs[0].Key, "-")
		return ways[name](tx)
	})
	w.declare()
	w.start()
	var all []string
	for name := range ways {
		before, orders := shared.Load(), keys(name, 20)
		w.blamed(orders...)
		w.publish("{}", orders...)
		all = append(all, orders...)
		w.applied(all...)
		w.wantStory(secondUnrun+" "+secondWorks, orders...)
		assert.AtLeast(t, shared.Load(), before+1, "%s: attempts together", name)
	}
	w.end(map[string]int{"applied": len(all)})
}

// Given a group of which the handler blames some for what may be the database's fault, then only these go on alone, and
// nothing is counted for them.
func TestBlameThatIsTheDatabasesFaultCountsNothingInAGroup(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(20)
	w.batch(func(_ *gorm.DB, msgs []consumer.Message) error {
		return blaming(msgs, func(m consumer.Message) error {
			switch {
			case m.Key == "order-0003" && len(msgs) > 1:
				return consumer.Contention(errors.New("seats are taken"))
			case m.Key == "order-0004":
				return errors.New("shelf is locked")
			case m.Key == "order-0005":
				return consumer.Permanent(errors.New("no such shelf"))
			}
			return nil
		})
	})
	all := keys("order", 20)
	w.blamed(all...)
	w.startWith(all...)

	good := without(all, all[4], all[5])
	w.rests(good, all[4:6]...)
	w.wantStory(secondUnrun+" "+secondWorks, all[3])
	w.wantStory(secondFails+" "+thirdFails+" "+dies, all[4])
	w.wantStory("failed>processing:2 processing>failed:2 failed>dead:2", all[5])
	w.wantStory(secondWorks, without(all, all[3], all[4], all[5])...)
	is(w, "claims, of which a group is one", w.number("SELECT COUNT(DISTINCT owner) FROM (SELECT owner FROM consumer_log "+
		"WHERE consumer_status < 2 UNION SELECT owner FROM consumer_log_event WHERE 0 IN (`from`, `to`)) AS claims"), 3)
}

// When one of many blamed messages has a row by then, each that shares its statements is looked at by itself. They are
// few at a time, so that this never takes longer than a call of the log may.
func TestBlameOfManyThatMeetsARowIsRecordedInPieces(t *testing.T) {
	const n, piece = 450, 200
	w := newWorld(t)
	w.oneBatch(n)
	w.cfg.Prefetch, w.cfg.MaxAttempts = 2*n, 1 // half of what is prefetched may be a batch
	var blamed []string                        // by the first call, however many messages that has
	w.handler = handling(func(_ *gorm.DB, msgs []consumer.Message) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if blamed != nil {
			return nil
		}
		return blaming(msgs[:len(msgs)-1], func(m consumer.Message) error {
			blamed = append(blamed, m.Key)
			return errors.New("shelf is locked")
		})
	})
	var committed sync.Once
	var pieces atomic.Int64
	w.cfg.Hook = func(p consumer.Point) {
		switch p {
		case consumer.PointCommitted:
			committed.Do(func() { w.rows(dedup.Success, 1, "", blamed[0]) })
		case consumer.PointFailed:
			pieces.Add(1)
		}
	}
	w.startWith(keys("order", n)...)
	w.settled(n)
	w.mu.Lock()
	dead := len(blamed) - 1 // the first has a row
	w.mu.Unlock()
	w.end(map[string]int{"applied": n - dead - 1, "duplicate": 1, "dead_lettered": dead})
	assert.AtLeast(t, int(pieces.Load())*piece, len(blamed), "room in %d pieces", pieces.Load())
	assert.AtMost(t, int(pieces.Load()), 2*n/piece, "pieces")
}

// The answer to any COMMIT of a group may be lost, whether it took place or not: every attempt is counted once.
func TestALostAnswerToAGroupsCommitChangesNothing(t *testing.T) {
	const n = 20
	type one struct {
		fail    func([]consumer.Message) error
		before  func(w *world, keys ...string)
		commits int
		status  dedup.Status
		stories []string // of which each message has one
	}
	each(t, map[string]one{
		// their first blame; claim, failure; claim, failure; the first that says dead
		"all fail": {func(msgs []consumer.Message) error {
			return blaming(msgs, func(consumer.Message) error { return errors.New("shelf is locked") })
		}, nil, 6, dedup.Dead, []string{firstFails + " " + secondFails + " " + thirdFails + " " + dies}},
		// the effect of who is not blamed; blame; claim; effect
		"some fail once": {func(msgs []consumer.Message) error {
			return blaming(msgs, func(m consumer.Message) error {
				if m.Attempt < 2 && m.Key[len(m.Key)-4:] < "0005" {
					return errors.New("no reservation yet")
				}
				return nil
			})
		}, nil, 4, dedup.Success, []string{"", firstFails + " " + secondWorks}},
		// claim; un-claim; claim, effect
		"none is blamed": {func(msgs []consumer.Message) error {
			if len(msgs) > 1 {
				return errors.New("one at a time, please")
			}
			return nil
		}, (*world).blamed, 4, dedup.Success, []string{secondWorks}},
		// claim, effect
		"each alone": {func([]consumer.Message) error { return nil }, (*world).failedOnce, 2, dedup.Success,
			[]string{secondWorks}},
	}, func(t *testing.T, w *world, tc one) {
		w.oneBatch(n)
		w.cfg.Lease = 12 * time.Second
		w.batch(func(_ *gorm.DB, msgs []consumer.Message) error { return tc.fail(msgs) })
		w.declare()
		l := w.proxied()
		r := w.start()
		effects := map[string]int{}
		for i := range 2 * tc.commits { // of each commit, its answer and the commit itself
			all, lose := keys(fmt.Sprint("order-", i), n), l.mysql.DropReply
			if i%2 == 1 {
				lose = l.mysql.DropRequest
			}
			if tc.before != nil {
				tc.before(w, all...)
			}
			lost := lose(nthCommit(i/2 + 1))
			w.publish("{}", all...)
			await(t, lost, "the answer is lost")
			w.ended(tc.status, all...)
			w.quiet()
			w.recovered(r)
			if tc.status == dedup.Dead {
				w.want("letters", w.letters(), once(all...))
			} else {
				maps.Copy(effects, once(all...))
			}
			w.want("effects", w.effects(), effects)
			for _, k := range all {
				unrun := strings.NewReplacer(secondUnrun+" ", "", thirdUnrun+" ", "") // nobody has paid for that
				got := unrun.Replace(w.story(k))
				require.That(t, slices.Contains(tc.stories, got), "the story of %s is\n%s, want one of %q", k, got, tc.stories)
			}
		}
	})
}

// An attempt that a dependency ended is none; and what took over an expired lease and could not be tried stays alone,
// however often that happens, until it is tried.
func TestAnAttemptThatADependencyEndedIsNone(t *testing.T) {
	each(t, named("blame/1", "host/1/2/3/4/alone"), func(t *testing.T, w *world, owner string) {
		w.oneBatch(1)
		w.cfg.GiveBackAfter, w.cfg.Lease = 100*time.Millisecond, time.Hour // so that nobody takes it over
		w.exec("RENAME TABLE effect TO gone")
		w.blamed("key")
		w.exec("UPDATE consumer_log SET owner = ?", owner)
		w.startWith("key")
		var row dedup.Row // as it was then: soon it is claimed again
		w.eventually("it was claimed and given back", func() bool {
			row = w.row("key")
			return w.outcomes()["abandoned"] > 0 && row.Status == dedup.Failed && row.Owner != owner
		})
		assert.That(t, row.Attempts == 1 && row.RunsAlone() == strings.HasSuffix(owner, "alone"), "its row is %+v", row)
		w.exec("RENAME TABLE gone TO effect")
		w.applied("key")
		w.wantRow("key", wanted{Attempts: 2})
	})
}

// Two engines, half of the messages fail once, and each comes five times.
func TestTwoEnginesShareFailingMessagesAndTheirCopies(t *testing.T) {
	each(t, map[string]bool{"with the lock": true, "without": false}, func(t *testing.T, w *world, redis bool) {
		w.cfg.BatchSize = 50
		if !redis {
			w.redisURL = ""
		}
		const copies = 5
		all := keys("order", 300)
		for i, k := range all {
			if i%2 == 0 {
				w.flaky(k)
			}
		}
		for range copies {
			w.publish("{}", all...)
		}
		w.start()
		w.start()
		w.quiet()
		w.applied(all...)
		attempts := map[string]int{}
		for i, k := range all {
			row := w.row(k)
			attempts[fmt.Sprint(i%2 == 0, row.Attempts)]++
			// a copy may be applied while the blame of the other is on its way,
			// without the lock, or where a group met trouble after its blame, and was begun anew
			assert.AtMost(t, row.Attempts, 2-i%2, "attempts of %s", k)
		}
		assert.AtLeast(t, attempts["true 2"], 1, "failures were counted: %v", attempts)
		var got map[string]int
		w.eventually("every delivery is counted", func() bool { // which comes after its ack
			got = w.outcomes()
			later := got["retried"] + got["in_progress"] + got["lease_lost"]
			// two copies that meet in a batch and come back later do so as one, and so are counted as applied or duplicate
			one := later - w.counts("rollbackd_publishes_total")["retry"]
			return got["applied"] == len(all) && got["applied"]+got["duplicate"]+one == copies*len(all)
		})
		assert.AtMost(t, got["dead_lettered"]+got["abandoned"], 0, "outcomes %v", maps.Clone(got))
	})
}

// reopened leaves rows as a replay leaves them.
func (w *world) reopened(keys ...string) {
	w.t.Helper()
	var all []dedup.Reopening
	for _, k := range keys {
		all = append(all, dedup.Reopening{
			From:  dedup.Row{Identity: id(k), Version: dedup.Version{Status: dedup.Absent}},
			Entry: dedup.Entry{Identity: id(k), BodyHash: sha256.Sum256([]byte("{}")), Body: []byte("{}")},
			Note:  dedup.ReplayNote{By: "me", Token: "replay/1"},
		})
	}
	require.All(w.records.ReopenAll(w.t.Context(), all))(w.t)
}

// The stories of reopened messages.
const (
	reopens     = "absent>failed:0"
	worksAtOnce = reopens + " failed>success:1"
	failsAtOnce = reopens + " failed>failed:1"
)

// Given reopened messages, two copies of each and two engines without a lock, then each is applied once, which its row
// counts as an attempt, and none was claimed.
func TestReopenedMessagesAreAppliedOnceWithoutAClaim(t *testing.T) {
	w := newWorld(t)
	w.redisURL = ""
	w.cfg.BatchSize = 50
	all := keys("order", 300)
	w.reopened(all...)
	w.publish("{}", all...)
	w.startWith(all...)
	w.start()
	w.applied(all...)
	w.quiet()
	w.wantRows(wanted{Status: dedup.Success, Attempts: 1, Replays: 1}, all...)
	w.wantStory(worksAtOnce, all...)
	is(w, "bodies", w.number("SELECT COUNT(msg_body) FROM consumer_log"), 0)
}

// Given reopened messages of which some fail again, for good, too early, or nobody knows which, then they alone pay for
// it, and the others are applied.
func TestReopenedMessagesThatFailAgainFailAlone(t *testing.T) {
	type one struct {
		fail  func(*world, ...string)
		end   dedup.Status
		story string
		times int
	}
	boom := errors.New("boom")
	each(t, map[string]one{
		"once":     {(*world).flaky, dedup.Success, failsAtOnce + " " + secondWorks, 2},
		"always":   {(*world).failing, dedup.Dead, failsAtOnce + " " + secondFails + " " + thirdFails + " " + dies, 3},
		"for good": {(*world).hopeless, dedup.Dead, reopens + " failed>dead:0", 1},
		"without blame": {func(w *world, bad ...string) {
			w.batch(func(_ *gorm.DB, msgs []consumer.Message) error {
				if len(msgs) > 1 && slices.ContainsFunc(msgs, func(m consumer.Message) bool { return m.Key == bad[0] }) {
					return boom
				}
				return nil
			})
		}, dedup.Success, worksAtOnce, 0},
		"it is too early": {func(w *world, bad ...string) {
			calls := 0
			w.rejecting(bad[0], func() error {
				if calls++; calls < 3 {
					return consumer.Later(boom, time.Millisecond)
				}
				return nil
			})
		}, dedup.Success, reopens + " failed>processing:1 processing>failed:0 processing>success:1", 3},
	}, func(t *testing.T, w *world, tc one) {
		all := keys("order", 40)
		w.oneBatch(len(all))
		w.reopened(all...)
		bad, good := all[7], without(all, all[7])
		tc.fail(w, bad)
		w.startWith(all...)
		if tc.end == dedup.Dead {
			w.rests(good, bad)
		} else {
			w.applied(all...)
			w.quiet()
		}
		is(w, "its story", w.story(bad), tc.story)
		if tc.times > 0 {
			is(w, "its calls", w.times(bad), tc.times)
		}
		w.wantStory(worksAtOnce, good...)
	})
}
