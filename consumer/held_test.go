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

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// full makes a queue with n messages of somebody else's that refuses almost all others, as a policy of the operator
// would: the limit is soft, so it is filled until it refuses. room takes the limit away.
func (w *world) full(queue string) (room func()) {
	w.t.Helper()
	w.declare()
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
	w.handler = validating{w.handler, func(m *consumer.Message) error {
		if slices.Contains(keys, m.Key) {
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
func (w *world) held() int { return w.samples("rollbackd_held_deliveries")[""] }

// holds waits until they hold so many.
func (w *world) holds(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d are held", n), func() bool { return w.held() == n })
}

func (w *world) letters() map[string]int {
	w.t.Helper()
	got := map[string]int{}
	for _, d := range w.broker.GetAll(w.deadQueue()) {
		if d.MessageId != "filler" {
			got[d.MessageId]++
		}
	}
	return got
}

func TestALaneHoldsHalfOfItsWindowAndThenTakesNoMore(t *testing.T) {
	type one struct{ batch, prefetch, body, least, most int }
	each(t, map[string]one{
		"a window of two batches":         {10, 20, 2, 9, 10},
		"a window of one batch":           {20, 20, 2, 9, 10},
		"a window of one":                 {1, 1, 2, 1, 1},
		"a window that bodies make small": {10, 20, 256 << 10, 1, 2},
	}, func(t *testing.T, w *world, tc one) {
		w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, tc.batch, tc.prefetch
		if tc.body > 2 {
			w.cfg.MemoryBudget = 2 * 5 * int64(tc.body) * 3 / 2 // a share has room for five, a window fills three quarters
		}
		bad := keys("bad", 40)
		w.unreadable(bad...)
		room := w.full(w.deadQueue())
		w.publish(strings.Repeat("x", tc.body), bad...)
		r := w.start()
		w.paused(r, "held")
		assert.AtMost(t, w.held(), tc.most, "held")
		assert.AtLeast(t, w.held(), tc.least, "held")
		is(w, "rollbackd_paused", w.counts("rollbackd_paused")["held"], 1)
		// when its queue is deleted then, and its consumer with it, the engine notices and makes the queue again
		w.broker.Delete(w.cfg.Queue)
		w.eventually("the queue is there again", func() bool { return w.broker.Exists(w.cfg.Queue) })
		w.publish(strings.Repeat("x", tc.body), bad...)
		room()
		w.recovered(r)
		w.died(bad...)
	})
}

// Given a lane whose window small messages have made wide, when a few held letters of differing sizes fill its share of
// the memory budget, long before they are half of the window by number, then it says that it stands still, and for
// whom; it tries its letters when their time comes, and goes on by itself.
func TestALaneWhoseShareOfTheMemoryIsHeldSaysThatItStandsStill(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 20, 100
	w.cfg.MemoryBudget = 2 * 2 << 20 // a share of 2 MiB, of which a window fills three quarters
	bad, small := keys("bad", 10), keys("small", 1000)
	w.unreadable(bad...)
	room := w.full(w.deadQueue())
	r := w.startWith(small...)
	w.ended(dedup.Success, small...)
	for i, k := range bad {
		w.publish(strings.Repeat("x", (250-10*i)<<10), k)
		w.eventually("it is held, or there is no room for it", func() bool { return w.held() == i+1 || waitsFor(r, "held") })
	}
	w.publish("{}", "good")
	w.paused(r, "held")
	assert.AtMost(t, w.held(), 9, "held, of which seven fill the share")
	assert.AtLeast(t, w.held(), 5, "held, of which seven fill the share")
	for _, names := range []string{"memory budget", w.deadQueue()} {
		assert.Has(t, strings.Join(r.State().Paused, ""), names, "why it is paused")
	}
	is(w, "rollbackd_paused", w.counts("rollbackd_paused")["held"], 1)
	assert.Is(t, strings.Count(w.logs.String(), "waiting for held"), 1, "the log says times that it stands still")
	require.That(t, w.row("good").Status != dedup.Success, "there was room for a good one")
	tried := w.counts("rollbackd_publishes_total")["letter"]
	w.eventually("it tries its letters", func() bool { return w.counts("rollbackd_publishes_total")["letter"] > tried })
	room()
	w.ended(dedup.Success, "good")
	w.recovered(r)
	w.died(bad...)
	is(w, "sessions ended", w.sessions(), 0)
}

func TestAConnectionThatIsCutTwiceWhileSomethingIsHeldIsNobodysFault(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 5, 10
	w.unreadable("bad")
	w.full(w.deadQueue())
	// given a delivery that is held, the first of each session, and more settled behind it than a window holds
	w.publish("{}", "bad")
	l := w.proxied()
	r := w.start()
	for i := range 3 {
		w.holds(1)
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
	w.unsaid("ends_connections queue=" + w.cfg.Queue + " ")
}

func TestWhatIsEndedWhileHeldGetsNoLetter(t *testing.T) {
	w := newWorld(t)
	w.unreadable("discarded", "reopened")
	room := w.full(w.deadQueue())
	w.startWith("discarded", "reopened")
	w.holds(2)
	w.ended(dedup.Failed, "discarded", "reopened")
	// given a person who ends one and gives the other another chance
	require.OK(t, w.records.Discard(t.Context(), w.row("discarded"), dedup.Entry{Identity: id("discarded")}, "me",
		"not needed"))
	require.Get(w.records.Reopen(t.Context(), w.row("reopened"), dedup.Entry{Identity: id("reopened")},
		dedup.ReplayNote{By: "me", Token: "t"}))(t)
	w.eventually("nothing is held but the letter of the opening",
		func() bool { return w.outcomes()["duplicate_of_dead"] == 1 })
	room()
	w.died("reopened")
	w.wantRow("discarded", wanted{Status: dedup.Discarded})
}

// sessions is how many sessions the engines have lost so far, by the log.
func (w *world) sessions() int {
	log := w.logs.String()
	return strings.Count(log, "deliveries given back") + strings.Count(log, "waiting for rabbitmq")
}

// brakesOnTheNext checks that the brake has counted exactly as many letters as it allows: one more trips it.
func (w *world) brakesOnTheNext(r *running) {
	w.t.Helper()
	assert.That(w.t, !waitsFor(r, "max_dead_rate"), "it braked too soon")
	w.hopeless("one-more")
	w.publish("{}", "one-more")
	w.paused(r, "max_dead_rate")
}

// Given a brake that allows as many letters as there are, when their queue refuses them again and again, and they are
// given back and come again, then each of them is counted once.
func TestTheBrakeCountsALetterOnceHoweverOftenItIsRefused(t *testing.T) {
	each(t, map[string]func(*world, ...string){"permanent": (*world).hopeless, "exhausted": (*world).failing},
		func(t *testing.T, w *world, reject func(*world, ...string)) {
			w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 6, time.Hour, time.Hour
			w.cfg.Lanes, w.cfg.HoldLimit, w.cfg.MaxAttempts = 1, 200*time.Millisecond, 1
			bad := keys("bad", 6)
			reject(w, bad...)
			room := w.full(w.deadQueue())
			r := w.startWith(bad...)
			w.eventually("each was given back several times", func() bool { return w.outcomes()["abandoned"] >= 18 })
			room()
			w.died(bad...)
			is(w, "letters by reason", w.sum("rollbackd_dead_lettered_total"), 6)
			is(w, "sessions ended", w.sessions(), 0)
			w.brakesOnTheNext(r)
		})
}

// A letter whose message is replayed and fails again is another letter.
func TestTheBrakeCountsTheLetterOfAReplayedMessageAgain(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 2, time.Hour, time.Hour
	w.hopeless("bad")
	r := w.startWith("bad")
	w.ended(dedup.Dead, "bad")
	w.quiet()
	w.move(w.letter(), w.cfg.Queue)
	w.eventually("it is dead again", func() bool { return w.row("bad").Replays == 1 && w.row("bad").Status == dedup.Dead })
	w.brakesOnTheNext(r)
}

// Given a copy with the same identity and body in the batch of an item that is held, then both stay unacked until the
// one copy of them is taken, and end together.
func TestACopyInTheBatchOfAHeldItemEndsWithIt(t *testing.T) {
	type one struct {
		queue  func(*world) string
		reject func(*world, ...string)
		status dedup.Status
		ended  map[string]int
	}
	each(t, map[string]one{
		"letter": {(*world).deadQueue, (*world).hopeless, dedup.Dead,
			map[string]int{"applied": 1, "dead_lettered": 1, "duplicate_of_dead": 2}},
		"retry copy": {func(w *world) string { return rabbit.RetryQueue(w.cfg.Queue, w.cfg.RetryDelays[0]) },
			(*world).failing, dedup.Failed,
			map[string]int{"applied": 1, "retried": 1, "in_progress": 2}},
	}, func(t *testing.T, w *world, tc one) {
		w.oneBatch(4)
		w.cfg.RetryDelays = []time.Duration{time.Hour, 2 * time.Hour}
		tc.reject(w, "bad")
		queue := tc.queue(w)
		room := w.full(queue)
		before := w.broker.Depth(queue)
		w.startWith("bad", "good", "bad", "bad")
		w.ended(dedup.Success, "good")
		w.eventually("all three are held", func() bool { return w.held() == 3 && w.broker.Unacked(w.cfg.Queue) == 3 })
		calls := w.times("bad")
		room()
		w.end(tc.ended)
		w.eventually("all are acked", func() bool { return w.held() == 0 && w.broker.Unacked(w.cfg.Queue) == 0 })
		is(w, "copies for three deliveries", w.broker.Depth(queue)-before, 1)
		w.ended(tc.status, "bad")
		is(w, "calls of bad", w.times("bad"), calls)
		is(w, "deliveries came back", w.broker.Depth(w.cfg.Queue), 0)
	})
}

// Given a dead-letter queue that refuses what the backstop's lane has, more than it may hold, then that lane waits and
// says so, and the main queue flows on.
func TestTheBackstopHoldsItsLettersAndTheMainQueueFlows(t *testing.T) {
	w := newWorld(t)
	dead, backstop := w.deadQueue(), w.backstop()
	room := w.full(dead)
	given := keys("given-up", 60)
	w.publishInto(backstop, given...)
	r := w.start()
	held := 0
	w.eventually("its lane holds half of its window, but for less than an eighth of that", func() bool {
		held = w.held()
		return held > 44 && held <= 50 && slices.ContainsFunc(r.State().Degraded, func(s string) bool {
			return strings.HasPrefix(s, fmt.Sprintf("%s: %d deliveries", backstop, held))
		})
	})
	for i := range 3 {
		good := keys(fmt.Sprintf("good-%d", i), 100)
		w.publish("{}", good...)
		w.ended(dedup.Success, good...)
	}
	w.recovered(r) // only the backstop waits
	w.eventually("the rows of what it holds keep their reason", func() bool {
		kept := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND reason = 'delivery_limit'")
		return kept == w.held()
	})
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
	letter := func(piece []byte) bool { return bytes.Contains(piece, []byte("x-rollbackd-reason")) }
	const cuts = 9
	type one struct {
		cut     func(*stack.TCPProxy) <-chan struct{}
		letters int // at most
	}
	each(t, map[string]one{
		"before it arrives":      {func(p *stack.TCPProxy) <-chan struct{} { return p.DropRequest(letter) }, 1},
		"before it is confirmed": {func(p *stack.TCPProxy) <-chan struct{} { return p.DropReply(letter) }, cuts + 1},
	}, func(t *testing.T, w *world, tc one) {
		w.cfg.GiveBackAfter = 300 * time.Millisecond // it is given back, and comes again
		w.hopeless("hopeless")
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
		require.OK(t, errors.Join(first.drained(), second.drained()))
		is(w, "calls of hopeless", w.times("hopeless"), 1)
		w.wantRow("hopeless", wanted{Reason: "permanent", Remark: "already shipped"})
		n := w.letters()["hopeless"]
		assert.That(t, n >= 1 && n <= tc.letters, "%d letters, want one, or one more for each lost confirm", n)
		w.want("effects", w.effects(), once(keys("good", 50)...))
	})
}

// Given a broker whose max_message_size was lowered after large messages came, then the letters of these are held,
// their rows keep the reason, the log and the state name one and what to do, everything else flows, although most are
// larger than a lane's share of the memory, and no letter of another message is published twice because of them. They
// go when the limit is raised.
func aLetterThatIsTooLargeForTheBrokerIsHeldAndHindersNobody(t *testing.T, server *stack.Server) {
	w := newWorldOn(t, servers{rabbit: server})
	w.cfg.HoldLimit = 4 * time.Second // all of them are there at once, on a busy machine too
	w.cfg.MemoryBudget = 3 << 20      // four of them are larger than a share
	large := append(keys("large", 4), "hopeless")
	w.hopeless("hopeless")
	w.publish(strings.Repeat("x", 3<<19), large[:4]...)
	w.publish(strings.Repeat("x", 200_000), "hopeless")
	w.broker.LimitMessages(100000)
	first := w.launch()
	w.eventually("they are held, and who reads the state knows what to do", func() bool {
		s := first.State()
		return w.held() == len(large) && len(s.Paused) == 0 && len(s.Degraded) == 1 &&
			strings.HasPrefix(s.Degraded[0], w.deadQueue()+": ") &&
			strings.Contains(s.Degraded[0], "large") && strings.Contains(s.Degraded[0], "max_message_size")
	})
	is(w, "degraded", w.counts("rollbackd_degraded")[w.deadQueue()], 1)
	w.logged("msg=degraded why=cannot_be_sent")
	// given another bad message and a good one while they come, and are tried, again and again
	var bad, good []string
	for round := 0; w.outcomes()["abandoned"] < 2*len(large); round++ {
		bad, good = append(bad, fmt.Sprintf("bad-%03d", round)), append(good, fmt.Sprintf("good-%03d", round))
		w.hopeless(bad[round])
		w.publish("{}", good[round], bad[round])
		w.ended(dedup.Dead, bad[round])
		w.ended(dedup.Success, good[round])
	}
	w.wantRows(wanted{Status: dedup.Failed, Reason: "malformed"}, large[:4]...)
	w.wantRow("hopeless", wanted{Status: dedup.Failed, Reason: "permanent"})
	// and a restart
	require.OK(t, first.drained())
	r := w.start()
	w.holds(len(large))
	// when the limit is raised
	w.broker.LimitMessages(134217728)
	w.ended(dedup.Dead, large...)
	w.recovered(r)
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 && w.held() == 0 })
	w.quiet()
	w.want("letters", w.letters(), once(append(bad, large...)...))
	w.want("effects", w.effects(), once(good...))
	w.wantRows(wanted{Reason: "malformed"}, large[:4]...)
	w.wantRow("hopeless", wanted{Reason: "permanent"})
	is(w, "calls of hopeless", w.times("hopeless"), 1)
}

// Given a held letter whose queue has room again, when RabbitMQ takes it and its confirm is lost, then it is published
// again, because its row still asks for it: the message has one row and one outcome, the second letter is told of and
// counted, and replays take both without a second effect.
func TestAHeldLetterWhoseConfirmIsLostIsPublishedAgainAndAbsorbed(t *testing.T) {
	w := newWorld(t)
	dead := w.deadQueue()
	w.hopeless("bad")
	room := w.full(dead)
	l := w.proxied()
	r := w.startWith("bad")
	w.holds(1)
	// RabbitMQ 3.10 goes on refusing on a channel on which it has refused; the engine makes a new one when its pauses have
	// grown beyond a second
	w.eventually("the next try is on a new connection", func() bool {
		return w.samples("rollbackd_publishes_total")["letter failed"] >= 7
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
	w.eventually("it is counted", func() bool { return w.counts("rollbackd_dead_lettered_total")["permanent"] > 0 })
	is(w, "messages died", w.counts("rollbackd_dead_lettered_total")["permanent"], 1)
	is(w, "letters that count as unknown", w.samples("rollbackd_publishes_total")["letter unknown"], 1)
	w.logged("may have copies that it did not confirm")
	// and replays take both, whatever the first one finds of the second while the message is on its way: it has one effect
	w.rejecting("bad", nil)
	w.replays("bad")
	w.applied("bad")
	w.replays("bad")
	w.eventually("no letter of it is left", func() bool { return w.broker.Depth(dead) == before })
	w.quiet()
	w.applied("bad")
}

// Given a claimed message that failed for good, when its letter finds a RabbitMQ that answers nothing for longer than a
// lease, and a second engine has a copy of it, then the copy is its letter and no attempt.
func TestALetterWithoutAnAnswerCostsNoSecondAttempt(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.redisURL = ""
	w.oneBatch(1)
	w.cfg.Prefetch = 1 // so that its copy goes to the second engine
	amqp, dsn := w.amqpURL, w.dsn
	l := w.proxied()
	var attempts atomic.Int32
	w.doing(func(_ *gorm.DB, m consumer.Message) error {
		if m.Attempt == 0 {
			return errors.New("not in the fast path")
		}
		if attempts.Add(1) == 1 {
			l.amqp.Hold(true)
		}
		return consumer.Permanent(errors.New("already shipped"))
	})
	w.publish("{}", "shipped")
	first := w.launch()
	w.eventually("its attempt has failed", func() bool { return attempts.Load() == 1 })
	w.amqpURL, w.dsn = amqp, dsn
	w.start()
	w.publish("{}", "shipped")
	w.ended(dedup.Dead, "shipped")
	l.sever()
	_ = first.drained() // it may be cut off from everything
	w.wantRow("shipped", wanted{Attempts: 2, Reason: "permanent", Remark: "already shipped"})
	is(w, "attempts were made", attempts.Load(), 1)
	w.died("shipped")
}

// Given two messages in the backstop whose processes died in an attempt, when the second one's row is locked for longer
// than a lease, and a copy of the first comes meanwhile, then the copy is its letter, the only one, and the handler
// never runs.
func TestTheBackstopsClaimOutlivesNoLease(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.redisURL = ""
	w.crashed(1, "one", "two")
	w.declare()
	w.publishInto(w.backstop(), "one", "two")
	other := w.conn()
	w.execOn(other, "BEGIN")
	w.execOn(other, "SELECT * FROM consumer_log WHERE msg_key = 'two' FOR UPDATE")
	locked := time.Now()
	w.cfg.BatchLinger = 500 * time.Millisecond
	first := w.start()
	w.eventually("the first is claimed", func() bool { return w.row("one").Attempts == 2 })
	second := w.start()
	w.publish("{}", "one")
	w.ended(dedup.Dead, "one")
	w.eventually("the lock outlives two leases", func() bool { return time.Since(locked) > 2*w.cfg.Lease })
	w.execOn(other, "COMMIT")
	w.recovered(first)
	w.recovered(second)
	w.died("one", "two")
	w.wantRows(wanted{Attempts: 2, Reason: "delivery_limit"}, "one", "two")
	w.want("calls", w.calls.of(), nil)
}
