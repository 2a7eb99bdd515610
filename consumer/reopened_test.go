package consumer_test

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// reopened leaves rows as a replay leaves them.
func (w *world) reopened(keys ...string) {
	w.t.Helper()
	all := make([]dedup.Reopening, len(keys))
	for i, k := range keys {
		body := []byte("{}")
		all[i] = dedup.Reopening{
			From:  dedup.Row{Identity: id(k), Version: dedup.Version{Status: dedup.Absent}},
			Entry: dedup.Entry{Identity: id(k), BodyHash: sha256.Sum256(body), Body: body},
			Note:  dedup.ReplayNote{By: "me", Token: "replay/1"},
		}
	}
	_, errs := w.records.ReopenAll(w.t.Context(), all)
	assert.OK(w.t, errors.Join(errs...))
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
	w.declare()
	w.reopened(all...)
	w.publish("{}", all...)
	w.publish("{}", all...)
	w.start()
	w.start()
	w.applied(all...)
	w.quiet()
	for _, k := range all {
		w.wantRow(k, wanted{Status: dedup.Success, Attempts: 1, Replays: 1})
	}
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
				for _, m := range msgs {
					if m.Key == bad[0] && len(msgs) > 1 {
						return boom
					}
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
		w.declare()
		w.reopened(all...)
		bad, good := all[7], without(all, all[7])
		tc.fail(w, bad)
		w.startWith(all...)
		w.ended(tc.end, bad)
		w.ended(dedup.Success, good...)
		w.quiet()
		effects := once(good...)
		if tc.end == dedup.Success {
			effects[bad] = 1
		}
		w.want("effects", w.effects(), effects)
		is(w, "its story", w.story(bad), tc.story)
		if tc.times > 0 {
			is(w, "its calls", w.times(bad), tc.times)
		}
		w.wantStory(worksAtOnce, good...)
	})
}

// Given an engine that dies with reopened messages in hand, before or after their COMMIT, then they are as they were,
// or applied: no attempt is lost with it, and none is made alone.
func TestADeathCostsReopenedMessagesNoAttempt(t *testing.T) {
	each(t, named(consumer.PointEffect, consumer.PointCommitted), func(t *testing.T, w *world, at consumer.Point) {
		all := keys("order", 40)
		w.oneBatch(len(all))
		w.cfg.LockTTL = time.Second
		w.declare()
		w.reopened(all...)
		w.publish("{}", all...)
		w.crashAt(at)
		w.start()
		w.applied(all...)
		for _, k := range all {
			w.wantRow(k, wanted{Attempts: 1, Replays: 1})
		}
		w.wantStory(worksAtOnce, all...)
		w.mu.Lock()
		defer w.mu.Unlock()
		assert.AtMost(t, len(w.calls), 10, "calls of the handler")
	})
}

// Given COMMITs whose answers are lost, then the rows say whether they were made, and nothing happens twice.
func TestAnUnknownCommitOfReopenedMessagesIsLookedUp(t *testing.T) {
	w := newWorld(t)
	all := keys("order", 40)
	w.oneBatch(len(all))
	w.declare()
	w.reopened(all...)
	w.publish("{}", all...)
	lost := w.proxied().mysql.DropReply(nthCommit(1))
	w.start()
	await(t, lost, "the answer to a COMMIT is lost")
	w.applied(all...)
	for _, k := range all {
		w.wantRow(k, wanted{Attempts: 1, Replays: 1})
	}
	w.wantStory(worksAtOnce, all...)
}
