package consumer_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func shipped() error { return consumer.Permanent(errors.New("already shipped")) }

// brakesOnTheNext checks that the brake has counted exactly as many letters as it allows: one more trips it.
func (w *world) brakesOnTheNext(r *running) {
	w.t.Helper()
	if waitsFor(r, "max_dead_rate") {
		w.t.Error("it braked too soon")
	}
	w.rejecting("one-more", shipped)
	w.publish("{}", "one-more")
	w.paused(r, "max_dead_rate")
}

// Given a brake that allows as many letters as there are, when their queue refuses them again and again, and they are
// given back and come again, then each of them is counted once.
func TestTheBrakeCountsALetterOnceHoweverOftenItIsRefused(t *testing.T) {
	t.Parallel()
	for name, reject := range map[string]func() error{
		"permanent": shipped,
		"exhausted": func() error { return errors.New("shelf is locked") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 6, time.Hour, time.Hour
			w.cfg.Lanes, w.cfg.HoldLimit, w.cfg.MaxAttempts = 1, 200*time.Millisecond, 1
			w.handler = consumer.HandlerFunc(w.handle)
			bad := keys("bad", 6)
			for _, k := range bad {
				w.rejecting(k, reject)
			}
			w.declare()
			room := w.full(rabbit.DeadQueue(w.cfg.Queue))
			w.publish("{}", bad...)
			r := w.start()
			w.eventually("each was given back several times", func() bool { return w.outcomes()["abandoned"] >= 30 })
			room()
			w.ended(dedup.Dead, bad...)
			w.quiet()
			w.want("letters", w.letters(), once(bad...))
			w.want("by reason", w.counts("rollbackd_dead_lettered_total"), map[string]int{name: 6})
			w.brakesOnTheNext(r)
		})
	}
}

// A letter whose message is replayed and fails again is another letter.
func TestTheBrakeCountsTheLetterOfAReplayedMessageAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 2, time.Hour, time.Hour
	w.rejecting("bad", shipped)
	w.declare()
	room := w.full(rabbit.DeadQueue(w.cfg.Queue))
	w.publish("{}", "bad")
	r := w.start()
	w.eventually("it is held", func() bool { return w.held() == 1 })
	w.ended(dedup.Failed, "bad")
	room()
	w.ended(dedup.Dead, "bad")
	w.quiet()
	d := w.letter()
	for d.MessageId == "filler" {
		d = w.letter()
	}
	w.broker.Publish("", w.cfg.Queue, stack.Message{MessageId: d.MessageId, Type: d.Type, Headers: d.Headers,
		Body: d.Body, DeliveryMode: rabbit.Persistent})
	w.eventually("it is dead again", func() bool {
		row := w.row("bad")
		return row.Status == dedup.Dead && row.Replays == 1
	})
	w.brakesOnTheNext(r)
}

// Given a copy with the same identity and body in the batch of an item that is held, then both stay unacked until the
// one copy of them is taken, and end together.
func TestACopyInTheBatchOfAHeldItemEndsWithIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		queue  func(*world) string
		reject func() error
		status dedup.Status
		ended  map[string]int
	}{
		"letter": {func(w *world) string { return rabbit.DeadQueue(w.cfg.Queue) }, shipped, dedup.Dead,
			map[string]int{"applied": 1, "dead_lettered": 1, "duplicate_of_dead": 2}},
		"retry copy": {func(w *world) string { return rabbit.RetryQueue(w.cfg.Queue, w.cfg.RetryDelays[0]) },
			func() error { return errors.New("shelf is locked") }, dedup.Failed,
			map[string]int{"applied": 1, "retried": 1, "in_progress": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.oneBatch(4)
			w.cfg.RetryDelays = []time.Duration{time.Hour, 2 * time.Hour}
			w.rejecting("bad", tc.reject)
			w.declare()
			queue := tc.queue(w)
			room := w.full(queue)
			before := w.broker.Depth(queue)
			w.publish("{}", "bad", "good", "bad", "bad")
			w.start()
			w.ended(dedup.Success, "good")
			w.eventually("all three are held", func() bool { return w.held() == 3 && w.broker.Unacked(w.cfg.Queue) == 3 })
			calls := w.times("bad")
			room()
			w.end(tc.ended)
			w.eventually("all are acked", func() bool { return w.held() == 0 && w.broker.Unacked(w.cfg.Queue) == 0 })
			if n := w.broker.Depth(queue) - before; n != 1 {
				t.Errorf("%d copies for three deliveries, want 1", n)
			}
			w.ended(tc.status, "bad")
			if n := w.times("bad"); n != calls {
				t.Errorf("the handler got it %d times more", n-calls)
			}
			if n := w.broker.Depth(w.cfg.Queue); n != 0 {
				t.Errorf("%d deliveries came back", n)
			}
		})
	}
}

// Given a dead-letter queue that refuses what the backstop's lane has, more than it may hold, then that lane waits and
// says so, and the main queue flows on.
func TestTheBackstopHoldsItsLettersAndTheMainQueueFlows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare()
	dead, backstop := rabbit.DeadQueue(w.cfg.Queue), rabbit.BackstopQueue(w.cfg.Queue)
	room := w.full(dead)
	given := keys("given-up", 60)
	w.publishInto(backstop, given...)
	r := w.start()
	w.eventually("its lane holds half of its window", func() bool {
		return w.held() == 50 && slices.ContainsFunc(r.State().Degraded, func(s string) bool {
			return strings.HasPrefix(s, backstop+": 50 deliveries")
		})
	})
	for i := range 3 {
		good := keys(fmt.Sprintf("good-%d", i), 100)
		w.publish("{}", good...)
		w.ended(dedup.Success, good...)
	}
	if s := r.State(); !s.Consuming || len(s.Paused) > 0 {
		t.Errorf("state %+v, want consuming: only the backstop waits", s)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND reason = 'delivery_limit'"); n !=
		50 {
		t.Errorf("%d rows keep their reason, want those 50 that are held", n)
	}
	room()
	w.ended(dedup.Dead, given...)
	w.eventually("nothing is amiss", func() bool {
		return len(r.State().Degraded) == 0 && w.broker.Unacked(backstop) == 0 && w.broker.Depth(backstop) == 0
	})
	w.end(map[string]int{"applied": 300, "dead_lettered": 60})
	w.want("letters", w.letters(), once(given...))
}

// Given a connection that ends each time when a letter is published, before the broker has it or after, then the letter
// keeps its reason through every redelivery, and the handler has seen its message once.
func TestAConnectionThatEndsWithALetterCostsNoFurtherRun(t *testing.T) {
	t.Parallel()
	letter := func(piece []byte) bool { return bytes.Contains(piece, []byte("x-rollbackd-reason")) }
	const cuts = 9
	for name, tc := range map[string]struct {
		cut     func(*stack.TCPProxy) <-chan struct{}
		letters int // at most
	}{
		"before it arrives":      {func(p *stack.TCPProxy) <-chan struct{} { return p.DropRequest(letter) }, 1},
		"before it is confirmed": {func(p *stack.TCPProxy) <-chan struct{} { return p.DropReply(letter) }, cuts + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.GiveBackAfter = 300 * time.Millisecond // it is given back, and comes again
			w.rejecting("hopeless", shipped)
			w.publish("{}", append(keys("good", 50), "hopeless")...)
			l := w.proxied()
			var last <-chan struct{}
			for range cuts {
				last = tc.cut(l.amqp)
			}
			first, second := w.launch(), w.launch()
			w.ended(dedup.Success, keys("good", 50)...)
			w.eventually("its row keeps the reason", func() bool { return w.row("hopeless").Reason == "permanent" })
			w.publish("{}", "hopeless") // a copy that may come to the other engine
			await(t, last, "the connection has ended each time")
			w.ended(dedup.Dead, "hopeless")
			w.quiet()
			if err := errors.Join(first.drained(), second.drained()); err != nil {
				t.Error(err)
			}
			if n := w.times("hopeless"); n != 1 {
				t.Errorf("the handler got it %d times, want once", n)
			}
			if row := w.row("hopeless"); row.Reason != "permanent" || row.Remark != "already shipped" {
				t.Errorf("it is dead because %q (%s), want permanent", row.Reason, row.Remark)
			}
			if n := w.letters()["hopeless"]; n < 1 || n > tc.letters {
				t.Errorf("%d letters, want one, or one more for each lost confirm: at most %d", n, tc.letters)
			}
			w.want("effects", w.effects(), once(keys("good", 50)...))
		})
	}
}

// Given a broker whose max_message_size was lowered after large messages came, then the letters of these are held,
// their rows keep the reason, the log and the state name one and what to do, everything else flows, although most are
// larger than a lane's share of the memory, and no letter of another message is published twice because of them. They
// go when the limit is raised.
func TestALetterThatIsTooLargeForTheBrokerIsHeldAndHindersNobody(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, servers{rabbit: stack.OwnRabbit(t)})
	w.cfg.HoldLimit = time.Second
	w.cfg.MemoryBudget = 3 << 20 // four of them are larger than a share
	reasons := map[string]dedup.Reason{"hopeless": "permanent"}
	sizes := map[string]int{"hopeless": 200_000}
	large := append(keys("large", 4), "hopeless")
	for _, k := range large[:4] {
		reasons[k], sizes[k] = "malformed", 3<<19
	}
	w.rejecting("hopeless", shipped)
	w.declare()
	for _, k := range large {
		w.broker.Publish("", w.cfg.Queue, stack.Message{MessageId: k, Type: tag, Body: make([]byte, sizes[k]),
			DeliveryMode: rabbit.Persistent})
	}
	w.broker.LimitMessages(100000)
	first := w.launch()
	w.eventually("they are held, and who reads the state knows what to do", func() bool {
		s := first.State()
		return w.held() == len(large) && len(s.Paused) == 0 && len(s.Degraded) == 1 &&
			strings.HasPrefix(s.Degraded[0], rabbit.DeadQueue(w.cfg.Queue)+": ") &&
			strings.Contains(s.Degraded[0], "large") && strings.Contains(s.Degraded[0], "max_message_size")
	})
	if n := w.counts("rollbackd_degraded")[rabbit.DeadQueue(w.cfg.Queue)]; n != 1 {
		t.Errorf("degraded: %v", w.counts("rollbackd_degraded"))
	}
	if !strings.Contains(w.logs.String(), "msg=degraded why=cannot_be_sent") {
		t.Error("the log does not say what is amiss")
	}
	// given other bad messages while they come, and are tried, again and again
	var bad, good []string
	for round := 0; w.outcomes()["abandoned"] < 3*len(large); round++ {
		more, others := keys(fmt.Sprintf("bad-%03d", round), 20), keys(fmt.Sprintf("good-%03d", round), 20)
		for _, k := range more {
			w.rejecting(k, shipped)
		}
		w.publish("{}", append(others, more...)...)
		bad, good = append(bad, more...), append(good, others...)
		w.ended(dedup.Dead, more...)
		w.ended(dedup.Success, others...)
	}
	for _, k := range large {
		if row := w.row(k); row.Status != dedup.Failed || row.Reason != reasons[k] {
			t.Errorf("the row of %s is %v because %q, want failed, %s", k, row.Status, row.Reason, reasons[k])
		}
	}
	// and a restart
	if err := first.drained(); err != nil {
		t.Error(err)
	}
	r := w.start()
	w.eventually("they are held again", func() bool { return w.held() == len(large) })
	// when the limit is raised
	w.broker.LimitMessages(134217728)
	w.ended(dedup.Dead, large...)
	w.recovered(r)
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 && w.held() == 0 })
	w.quiet()
	w.want("letters", w.letters(), once(append(bad, large...)...))
	w.want("effects", w.effects(), once(good...))
	for _, k := range large {
		if row := w.row(k); row.Reason != reasons[k] {
			t.Errorf("%s is dead because %q, want %s", k, row.Reason, reasons[k])
		}
	}
	if n := w.times("hopeless"); n != 1 {
		t.Errorf("the handler got the hopeless one %d times, want once", n)
	}
}

// Given a held letter whose queue has room again, when RabbitMQ takes it and its confirm is lost, then it is published
// again, because its row still asks for it: the message has one row and one outcome, the second letter is told of,
// counted, and dropped as stale by a replay.
func TestAHeldLetterWhoseConfirmIsLostIsPublishedAgainAndAbsorbed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dead := rabbit.DeadQueue(w.cfg.Queue)
	var mended atomic.Bool
	w.rejecting("bad", func() error {
		if mended.Load() {
			return nil
		}
		return consumer.Permanent(errors.New("already shipped"))
	})
	w.declare()
	room := w.full(dead)
	l := w.proxied()
	w.publish("{}", "bad")
	r := w.start()
	w.eventually("it is held", func() bool { return w.held() == 1 })
	// RabbitMQ 3.10 goes on refusing on a channel on which it has refused; the engine makes a new one when its pauses have
	// grown beyond a second
	w.eventually("the next try is on a new connection", func() bool {
		return r.sample(t, "rollbackd_publishes_total", "letter", "failed") >= 7
	})
	before := w.broker.Depth(dead)
	// when there is room, and RabbitMQ's answer to the next letter is lost
	l.amqp.Hold(true)
	room()
	lost := l.amqp.DropReply(func(piece []byte) bool {
		return bytes.Contains(piece, []byte(dead)) && bytes.Contains(piece, []byte("already shipped"))
	})
	l.amqp.Hold(false)
	await(t, lost, "a confirm is lost")
	w.ended(dedup.Dead, "bad")
	w.recovered(r)
	// then there are two letters of one message, which died once
	w.eventually("both letters are there", func() bool { return w.broker.Depth(dead) == before+2 })
	if n := w.counts("rollbackd_dead_lettered_total")["permanent"]; n != 1 {
		t.Errorf("%d messages died, want 1", n)
	}
	if n := r.sample(t, "rollbackd_publishes_total", "letter", "unknown"); n != 1 {
		t.Errorf("%v letters count as unknown, want 1", n)
	}
	if log := w.logs.String(); !strings.Contains(log, "may have copies that it did not confirm") {
		t.Error("the log does not say that a letter was not confirmed")
	}
	// and a replay acts on one of them
	mended.Store(true)
	cfg := w.cfg
	cfg.AMQPURLs = []string{w.broker.URL}
	letters, err := cfg.Letters(w.open(w.direct))
	if err != nil {
		t.Fatal(err)
	}
	bad := deadletter.Filter{Keys: []string{"bad"}}
	res, err := letters.Replay(t.Context(), bad, deadletter.ReplayOptions{By: "tester"})
	if err != nil || res.Replayed != 1 || res.Duplicates+res.Stale != 1 {
		t.Errorf("the replay: %+v, %v; want one letter replayed and one dropped", res, err)
	}
	w.ended(dedup.Success, "bad")
	w.want("effects", w.effects(), once("bad"))
}

// sample is the value of a metric with these label values.
func (r *running) sample(t *testing.T, metric string, labels ...string) float64 {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetValue())
			}
			if f.GetName() == metric && slices.Equal(has, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
