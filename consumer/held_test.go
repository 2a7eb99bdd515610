package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// full makes a queue with n messages of somebody else's that refuses almost all others, as a policy of the operator
// would: the limit is soft, so it is filled until it refuses. room takes the limit away.
func (w *world) full(queue string) (room func()) {
	w.t.Helper()
	w.broker.Policy("full-"+queue, queue, map[string]any{"max-length": 1, "overflow": "reject-publish"})
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	defer func() { _ = p.Close(w.t.Context()) }()
	filler := rabbit.Publishing{Key: queue, Message: rabbit.Message{MessageID: "filler", DeliveryMode: rabbit.Persistent}}
	w.eventually(queue+" refuses", func() bool {
		return errors.Is(p.Publish(w.t.Context(), []rabbit.Publishing{filler})[0], rabbit.ErrNacked)
	})
	return func() { w.broker.Policy("full-"+queue, queue, nil) }
}

// unreadable makes messages that no handler sees.
func (w *world) unreadable(keys ...string) {
	w.t.Helper()
	bad := map[string]bool{}
	for _, k := range keys {
		bad[k] = true
	}
	w.handler = validating{w.handler, func(m *consumer.Message) error {
		if bad[m.Key] {
			return errors.New("no JSON")
		}
		return nil
	}}
}

type validating struct {
	consumer.Handler
	validate func(*consumer.Message) error
}

func (v validating) Validate(m *consumer.Message) error { return v.validate(m) }

// held is how many deliveries all engines hold.
func (w *world) held() (n int) {
	w.t.Helper()
	w.mu.Lock()
	regs := slices.Clone(w.regs)
	w.mu.Unlock()
	for _, reg := range regs {
		families, err := reg.Gather()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "rollbackd_held_deliveries" {
				n += int(f.GetMetric()[0].GetGauge().GetValue())
			}
		}
	}
	return n
}

func (w *world) letters() map[string]int {
	w.t.Helper()
	got := map[string]int{}
	for {
		d, ok := w.broker.Get(rabbit.DeadQueue(w.cfg.Queue))
		if !ok {
			return got
		}
		if d.MessageId != "filler" {
			got[d.MessageId]++
		}
	}
}

func TestAFullDeadLetterQueueHoldsOnlyWhatItRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad, good := keys("bad", 20), keys("good", 200)
	w.unreadable(bad...)
	w.declare()
	// given a dead-letter queue with room for five, and bad messages among good ones
	dead := rabbit.DeadQueue(w.cfg.Queue)
	w.broker.Policy("five", dead, map[string]any{"max-length": 5, "overflow": "reject-publish"})
	var all []string
	for i, k := range good {
		if i%10 == 0 {
			all = append(all, bad[i/10])
		}
		all = append(all, k)
	}
	w.publish("{}", all...)
	r := w.start()
	// then the good ones are applied and acked at once
	w.ended(dedup.Success, good...)
	// and every letter that was confirmed has its row, the others keep their reason
	w.eventually("every bad one has a letter and its row, or waits with its reason", func() bool {
		dead := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
		return dead >= 5 && dead == w.dead() && w.held() == 20-dead &&
			w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND reason = 'malformed'") == 20-dead
	})
	w.eventually("only what is held is unacked", func() bool { return w.broker.Unacked(w.cfg.Queue) == w.held() })
	if s := r.State(); !s.Consuming || len(s.Paused) > 0 || len(s.Degraded) != 1 {
		t.Errorf("state %+v, want consuming, and degraded because of one queue", s)
	}
	if w.dead() >= 20 {
		t.Fatalf("%d letters: the queue refused nothing", w.dead())
	}
	// when the policy goes
	w.broker.Policy("five", dead, nil)
	w.ended(dedup.Dead, bad...)
	w.quiet()
	w.eventually("nothing is held", func() bool { return w.held() == 0 && len(r.State().Degraded) == 0 })
	// then there is one letter for each message
	w.want("letters", w.letters(), once(bad...))
	w.want("effects", w.effects(), once(good...))
	w.end(map[string]int{"applied": 200, "dead_lettered": 20})
}

func TestAPermanentFailureWhoseLetterIsRefusedRunsOnce(t *testing.T) {
	t.Parallel()
	for name, redis := range map[string]bool{"with the lock": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if !redis {
				w.redisURL = ""
			}
			hopeless := func() error { return consumer.Permanent(errors.New("already shipped")) }
			flaky := func() error { // found permanent by its first claimed attempt, its second
				if w.timesLocked("late") < 1 {
					return errors.New("try again")
				}
				return consumer.Permanent(errors.New("already shipped"))
			}
			w.rejecting("hopeless", hopeless)
			w.rejecting("late", flaky)
			w.declare()
			room := w.full(rabbit.DeadQueue(w.cfg.Queue))
			w.publish("{}", "hopeless", "late", "good")
			// given an engine that dies when both rows keep their reasons
			w.crashAtThe(2, consumer.PointCondemned)
			dead := w.held() // which nobody takes from the gauge of an engine that is dead
			first, second := w.launch(), w.launch()
			w.eventually("both are held", func() bool { return w.held() >= dead+2 })
			w.ended(dedup.Failed, "hopeless", "late")
			// and copies of them, and a restart
			w.publish("{}", "hopeless", "late", "hopeless")
			w.eventually("the copies have come", func() bool { return w.broker.Depth(w.cfg.Queue) == 0 })
			if err := errors.Join(first.drained(), second.drained()); err != nil {
				t.Fatal(err)
			}
			if n := w.held() - dead; n != 0 {
				t.Errorf("%d held after the stop", n)
			}
			w.start()
			w.eventually("it holds them again", func() bool { return w.held() >= dead+2 })
			room()
			// then each has one letter with its reason, and the handler was not called again
			w.ended(dedup.Dead, "hopeless", "late")
			w.quiet()
			w.want("letters", w.letters(), once("hopeless", "late"))
			w.want("effects", w.effects(), once("good"))
			for key, calls := range map[string]int{"hopeless": 1, "late": 2} {
				if n := w.times(key); n != calls {
					t.Errorf("the handler got %s %d times, want %d", key, n, calls)
				}
				if row := w.row(key); row.Reason != "permanent" || row.Remark != "already shipped" {
					t.Errorf("%s is dead because %q (%s), want permanent", key, row.Reason, row.Remark)
				}
			}
		})
	}
}

func TestAFullRetryQueueHoldsOnlyWhatItRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.RetryDelays = []time.Duration{time.Hour, 2 * time.Hour}
	w.rejecting("bad", func() error { return errors.New("shelf is locked") })
	w.declare()
	queue := rabbit.RetryQueue(w.cfg.Queue, w.cfg.RetryDelays[0])
	room := w.full(queue)
	before := w.broker.Depth(queue)
	w.publish("{}", append(keys("good", 100), "bad")...)
	w.start()
	w.ended(dedup.Success, keys("good", 100)...)
	w.eventually("one is held", func() bool { return w.held() == 1 && w.broker.Unacked(w.cfg.Queue) == 1 })
	w.publish("{}", "later")
	w.ended(dedup.Success, "later")
	if row := w.row("bad"); row.Attempts != 1 || row.Status != dedup.Failed {
		t.Errorf("row %+v, want failed after one attempt", row)
	}
	room()
	w.eventually("its copy waits", func() bool { return w.held() == 0 && w.broker.Unacked(w.cfg.Queue) == 0 })
	if n := w.broker.Depth(queue) - before; n != 1 {
		t.Errorf("%d copies wait, want 1", n)
	}
	if row := w.row("bad"); row.Attempts != 1 {
		t.Errorf("%d attempts, want 1", row.Attempts)
	}
}

func TestALaneHoldsHalfOfItsWindowAndThenTakesNoMore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ batch, prefetch, body, least, most int }{
		"a window of two batches":         {10, 20, 2, 9, 10},
		"a window of one batch":           {20, 20, 2, 9, 10},
		"a window of one":                 {1, 1, 2, 1, 1},
		"a window that bodies make small": {10, 20, 256 << 10, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, tc.batch, tc.prefetch
			if tc.body > 2 {
				w.cfg.MemoryBudget = 2 * 5 * int64(tc.body) * 3 / 2 // a share has room for five, a window fills three quarters
			}
			bad := keys("bad", 40)
			w.unreadable(bad...)
			w.declare()
			room := w.full(rabbit.DeadQueue(w.cfg.Queue))
			w.publish(strings.Repeat("x", tc.body), bad...)
			r := w.start()
			w.paused(r, "held")
			if n := w.held(); n > tc.most || n < tc.least {
				t.Errorf("%d held, want %d to %d", n, tc.least, tc.most)
			}
			if up := w.counts("rollbackd_paused"); up["held"] != 1 {
				t.Errorf("paused: %v", up)
			}
			room()
			w.ended(dedup.Dead, bad...)
			w.recovered(r)
			w.quiet()
			w.want("letters", w.letters(), once(bad...))
		})
	}
}

// Given a lane whose window small messages have made wide, when a few held letters of differing sizes fill its share of
// the memory budget, long before they are half of the window by number, then it says that it stands still, and for
// whom; it tries its letters when their time comes, and goes on by itself.
func TestALaneWhoseShareOfTheMemoryIsHeldSaysThatItStandsStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.patience = time.Minute
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 20, 100
	w.cfg.MemoryBudget = 2 * 2 << 20 // a share of 2 MiB, of which a window fills three quarters
	bad, small := keys("bad", 10), keys("small", 1000)
	w.unreadable(bad...)
	w.declare()
	room := w.full(rabbit.DeadQueue(w.cfg.Queue))
	w.publish("{}", small...)
	r := w.start()
	w.ended(dedup.Success, small...)
	for i, k := range bad {
		w.publish(strings.Repeat("x", (250-10*i)<<10), k)
		w.eventually("it is held, or there is no room for it", func() bool {
			return w.held() == i+1 || waitsFor(r, "held")
		})
	}
	w.publish("{}", "good")
	w.paused(r, "held")
	if n := w.held(); n < 5 || n > 9 {
		t.Errorf("%d are held, want as many as fill the share, which are seven", n)
	}
	why := strings.Join(r.State().Paused, "")
	if !strings.Contains(why, "memory budget") || !strings.Contains(why, rabbit.DeadQueue(w.cfg.Queue)) {
		t.Errorf("paused because %q, want the memory budget and the queue named", why)
	}
	if up := w.counts("rollbackd_paused"); up["held"] != 1 {
		t.Errorf("paused: %v", up)
	}
	if n := strings.Count(w.logs.String(), "waiting for held"); n != 1 {
		t.Errorf("the log says %d times that it stands still, want once", n)
	}
	if w.row("good").Status == dedup.Success {
		t.Fatal("there was room for a good one")
	}
	tried := w.counts("rollbackd_publishes_total")["letter"]
	w.eventually("it tries its letters", func() bool { return w.counts("rollbackd_publishes_total")["letter"] > tried })
	room()
	w.ended(dedup.Dead, bad...)
	w.ended(dedup.Success, "good")
	w.recovered(r)
	w.quiet()
	w.want("letters", w.letters(), once(bad...))
	if n := w.sessions(); n != 0 {
		t.Errorf("%d sessions ended", n)
	}
}

// Given a lane that takes nothing because of what it holds, when its queue is deleted and its consumer with it, then
// the engine notices and makes the queue again.
func TestALaneThatTakesNothingNoticesThatItsQueueIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 1, 2
	w.unreadable("bad")
	w.declare()
	room := w.full(rabbit.DeadQueue(w.cfg.Queue))
	w.publish("{}", "bad", "good")
	r := w.start()
	w.paused(r, "held")
	w.broker.Delete(w.cfg.Queue)
	w.eventually("the queue is there again", func() bool { return w.broker.Exists(w.cfg.Queue) })
	w.publish("{}", "later")
	w.ended(dedup.Success, "later")
	room()
	w.recovered(r)
}

func TestAConnectionThatIsCutTwiceWhileSomethingIsHeldIsNobodysFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 5, 10
	w.unreadable("bad")
	w.declare()
	w.full(rabbit.DeadQueue(w.cfg.Queue))
	// given a delivery that is held, the first of each session, and more settled behind it than a window holds
	w.publish("{}", "bad")
	l := w.proxied()
	r := w.start()
	for i := range 3 {
		w.eventually("it is held", func() bool { return w.held() == 1 })
		good := keys(fmt.Sprintf("good-%d", i), 20)
		w.publish("{}", good...)
		w.ended(dedup.Success, good...)
		w.eventually("only it is unacked", func() bool {
			return w.broker.Unacked(w.cfg.Queue) == 1 && w.broker.Depth(w.cfg.Queue) == 0
		})
		l.amqp.Cut()
		w.eventually("the session has ended", func() bool { return w.sessions() > i })
	}
	w.recovered(r)
	if strings.Contains(w.logs.String(), "ends_connections queue="+w.cfg.Queue+" ") {
		t.Error("the queue was in quarantine")
	}
}

func TestWhatIsHeldTooLongIsGivenBackAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.HoldLimit = 1, 200*time.Millisecond
	w.unreadable("bad")
	w.declare()
	room := w.full(rabbit.DeadQueue(w.cfg.Queue))
	w.publish("{}", "bad")
	r := w.start()
	w.eventually("it is given back", func() bool { return w.outcomes()["abandoned"] >= 2 })
	connections := w.sessions()
	w.publish("{}", keys("good", 20)...)
	w.ended(dedup.Success, keys("good", 20)...)
	room()
	w.ended(dedup.Dead, "bad")
	w.quiet()
	w.recovered(r)
	if n := w.sessions(); n != connections {
		t.Errorf("the session ended")
	}
	w.want("letters", w.letters(), once("bad"))
}

func TestWhatIsEndedWhileHeldGetsNoLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unreadable("discarded", "reopened")
	w.declare()
	room := w.full(rabbit.DeadQueue(w.cfg.Queue))
	w.publish("{}", "discarded", "reopened")
	w.start()
	w.eventually("both are held", func() bool { return w.held() == 2 })
	w.ended(dedup.Failed, "discarded", "reopened")
	// given a person who ends one and gives the other another chance
	k := func(name string) dedup.Identity { return dedup.Identity{Group: group, Tag: tag, Key: name} }
	rows, err := w.records.LookUp(context.WithoutCancel(t.Context()), []dedup.Identity{k("discarded"), k("reopened")})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.records.Discard(t.Context(), rows[k("discarded")], dedup.Entry{Identity: k("discarded")}, "me",
		"not needed"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.records.Reopen(t.Context(), rows[k("reopened")], dedup.Entry{Identity: k("reopened")},
		dedup.ReplayNote{By: "me", Token: "t"}); err != nil {
		t.Fatal(err)
	}
	w.eventually("nothing is held but the letter of the opening",
		func() bool { return w.outcomes()["duplicate_of_dead"] == 1 })
	room()
	w.ended(dedup.Dead, "reopened")
	w.quiet()
	w.want("letters", w.letters(), once("reopened"))
	if row := w.row("discarded"); row.Status != dedup.Discarded {
		t.Errorf("the discarded one is %v", row.Status)
	}
}

// sessions is how many sessions the engines have lost so far, by the log.
func (w *world) sessions() int {
	log := w.logs.String()
	return strings.Count(log, "deliveries given back") + strings.Count(log, "waiting for rabbitmq")
}
