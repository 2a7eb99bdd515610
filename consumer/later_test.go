package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// clocked notes when the handler is called for each message.
type clocked struct {
	mu   sync.Mutex
	runs map[string][]run // guarded by mu
}

type run struct {
	at      time.Time
	attempt int
	claim   string // in which it was; "": in none
}

// note takes in one more run, and returns the message's runs so far.
func (c *clocked) note(m consumer.Message, claim string) []run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = map[string][]run{}
	}
	c.runs[m.Key] = append(c.runs[m.Key], run{time.Now(), m.Attempt, claim})
	return c.runs[m.Key]
}

func (c *clocked) of(key string) []run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.runs[key])
}

// claims are the runs without those in the fast path, by their claims: a group may run several times in one.
func claims(runs []run) (all [][]run) {
	for _, r := range runs {
		if n := len(all); n > 0 && all[n-1][0].claim == r.claim {
			all[n-1] = append(all[n-1], r)
		} else if r.attempt > 0 {
			all = append(all, []run{r})
		}
	}
	return all
}

// claimOf is the claim of a message that the handler is called for, if there is one.
func (w *world) claimOf(m consumer.Message) string {
	rows, _ := w.records.LookUp(context.WithoutCancel(w.t.Context()), []dedup.Identity{m.Identity})
	return rows[m.Identity].Owner
}

// sayings are the ways in which a handler says of messages what is wrong with them: the error that says has for them.
// All but those of Calls write the effect before.
func sayings(w *world, says func(m consumer.Message) error) map[string]consumer.Handler {
	one := func(tx *gorm.DB, m consumer.Message) error { return errors.Join(insert(tx, m.Key), says(m)) }
	return map[string]consumer.Handler{
		"Each": by(false, one),
		"Blame": consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			return errors.Join(insertAll(tx, msgs), blaming(msgs, says))
		}),
		"Except": consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			var out []consumer.BlamedMessage
			for i, m := range msgs {
				if err := says(m); err != nil {
					out = append(out, consumer.BlamedMessage{Index: i, Err: err})
				} else if err := insert(tx, m.Key); err != nil {
					return err
				}
			}
			return consumer.Except(out...)
		}),
		"Mux": consumer.Mux{tag: by(false, one)},
		"Calls": consumer.Calls(func(ctx context.Context, m consumer.Message) error {
			if err := says(m); err != nil {
				return err
			}
			return insert(w.gorm.WithContext(ctx), m.Key)
		}, consumer.CallOptions{}),
	}
}

// eachSaying runs f for each of the ways in a world of its own.
func eachSaying(t *testing.T, f func(t *testing.T, w *world, handle func(says func(consumer.Message) error))) {
	t.Helper()
	each(t, named("Each", "Blame", "Except", "Mux", "Calls"), func(t *testing.T, w *world, way string) {
		f(t, w, func(says func(consumer.Message) error) { w.handler = sayings(w, says)[way] })
	})
}

// Given three messages among twenty that are put off for 3 s in two attempts, and sent once more meanwhile, whatever
// kind of handler says so, then the others are applied at once, none of the three runs again before its time or waits
// for the longest retry delay, none has a counted attempt more, and each has its effect once. While one waits its row
// says until when.
func TestAMessageThatIsPutOffComesWhenItsTimeHasCome(t *testing.T) {
	const after, longest = 3 * time.Second, 40 * time.Second
	eachSaying(t, func(t *testing.T, w *world, handle func(func(consumer.Message) error)) {
		w.cfg.RetryDelays = []time.Duration{100 * time.Millisecond, longest}
		w.broker.Track(w.topology().Queues()...)
		var c clocked
		handle(func(m consumer.Message) error {
			if !strings.HasPrefix(m.Key, "early") || len(claims(c.note(m, w.claimOf(m)))) > 2 {
				return nil
			}
			return consumer.Later(errors.New("the shop is closed"), after)
		})
		good, early := keys("good", 20), keys("early", 3)
		w.oneBatch(23)
		w.startWith(slices.Concat(good[:10], early, good[10:])...)
		w.ended(dedup.Success, good...)
		w.eventually("the row says until when", func() bool {
			row := w.row(early[0])
			return row.PutOff() && row.Attempts == 0 && row.Wait > 0 && row.Wait <= after && !row.Due &&
				row.Remark == "put off: the shop is closed"
		})
		w.publish("{}", early...) // copies
		w.ended(dedup.Success, early...)
		w.quiet()
		w.applied(append(good, early...)...)
		for _, k := range early {
			all := claims(c.of(k))
			assert.Is(t, len(all), 3, "%s was claimed times", k)
			for i := 1; i < len(all); i++ {
				before := all[i-1][len(all[i-1])-1].at
				if gap := all[i][0].at.Sub(before); gap < after*9/10 || gap > longest/2 {
					t.Errorf("%s came after %v, want %v", k, gap, after)
				}
				is(w, "the attempt", all[i][0].attempt, 1)
			}
			w.wantRow(k, wanted{Attempts: 1})
		}
		is(w, "letters", w.dead(), 0)
		for outcome, n := range w.outcomes() {
			if outcome != "applied" && outcome != "in_progress" && outcome != "duplicate" {
				t.Errorf("%d deliveries ended as %s", n, outcome)
			}
		}
	})
}

// Given a message whose attempts fail with delays of their own, the first longer than the retry delay and the second
// shorter, whatever kind of handler says so, then each attempt is counted and comes when asked for, the row says until
// when, the last one is the last, and the neighbours are applied.
func TestAFailedAttemptMaySayWhenTheNextOneComes(t *testing.T) {
	eachSaying(t, func(t *testing.T, w *world, handle func(func(consumer.Message) error)) {
		w.cfg.RetryDelays = []time.Duration{100 * time.Millisecond, 40 * time.Second}
		w.broker.Track(w.topology().Queues()...)
		delays := []time.Duration{4 * time.Second, 300 * time.Millisecond, time.Hour}
		var c clocked
		handle(func(m consumer.Message) error {
			if m.Key != "bad" {
				return nil
			}
			n := len(c.note(m, ""))
			return consumer.RetryIn(fmt.Errorf("run %d", n), delays[min(n, len(delays))-1])
		})
		good := keys("good", 20)
		w.oneBatch(21)
		w.startWith(append(good, "bad")...)
		w.ended(dedup.Success, good...)
		w.ended(dedup.Failed, "bad")
		if row := w.row("bad"); row.Attempts != 1 || row.Due || row.Wait < time.Second/2 || row.Remark != "run 1" {
			t.Errorf("the row says %+v", row)
		}
		w.ended(dedup.Dead, "bad")
		w.quiet()
		w.wantRow("bad", wanted{Attempts: 3, Reason: dedup.ReasonExhausted, Remark: "run 3"})
		w.applied(good...)
		runs := c.of("bad")
		require.Is(t, len(runs), 3, "runs")
		for i, want := range delays[:2] {
			if gap := runs[i+1].at.Sub(runs[i].at); gap < want*9/10 || gap > w.cfg.RetryDelays[1]/2 {
				t.Errorf("attempt %d came after %v, want %v", i+2, gap, want)
			}
		}
	})
}

func TestNobodyIsPutOffForLongerThanMaxDelay(t *testing.T) {
	each(t, map[string]func(error, time.Duration) error{"Later": consumer.Later, "RetryIn": consumer.RetryIn},
		func(t *testing.T, w *world, says func(error, time.Duration) error) {
			w.cfg.MaxDelay = time.Second
			var c clocked
			w.handler = by(false, func(tx *gorm.DB, m consumer.Message) error {
				if len(c.note(m, "")) > 2 {
					return insert(tx, m.Key)
				}
				return says(errors.New("not now"), 1000*time.Hour)
			})
			w.startWith("order")
			w.applied("order")
		})
}

// Given a batch of which a handler says Later as a whole, then all of it is put off, together, and nobody pays an
// attempt; and so it is with the part of a Mux that is one handler's, while the others are applied.
func TestLaterOfAWholeCallHoldsForAllItsMessages(t *testing.T) {
	w := newWorld(t)
	var once sync.Map // handlers that have said it, by their first message
	closed := consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		if err := insertAll(tx, msgs); err != nil {
			return err
		}
		if msgs[0].Attempt == 0 {
			return consumer.Later(errors.New("closed"), 300*time.Millisecond)
		}
		if _, said := once.LoadOrStore(msgs[0].Key, true); !said {
			return consumer.Later(errors.New("closed still"), 300*time.Millisecond)
		}
		return nil
	})
	open := whole(effectOfKey)
	w.handler = consumer.Mux{"closed": closed, "open": open}
	shut, well := ofTag("closed", 30), ofTag("open", 30)
	w.oneBatch(60)
	w.publishMessages(append(shut, well...)...)
	w.start()
	w.endedAs(dedup.Success, append(shut, well...)...)
	w.quiet()
	want := map[string]int{}
	for _, m := range append(shut, well...) {
		want[m.MessageID] = 1
	}
	w.want("effects", w.effects(), want)
	is(w, "rows with more than one attempt", w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_times > 1"), 0)
	assert.AtMost(t, w.claimOwners(), 10, "claims")
}
