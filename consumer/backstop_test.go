package consumer_test

import (
	"errors"
	"slices"
	"strings"
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

func TestWhatTheBrokerGaveUpGetsARowAndALetterAndNoHandler(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	validated := false
	w.handler = validating{w.handler, func(*consumer.Message) error { validated = true; return errors.New("refused") }}
	w.declare()
	w.claim("crashing")
	w.publishInto(w.backstop(), "unknown", "unknown", "crashing", "")
	w.start()
	w.ended(dedup.Dead, "unknown", "crashing")
	w.end(map[string]int{"dead_lettered": 3, "duplicate_of_dead": 1})
	w.quiet()
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"delivery_limit": 3})
	for range 3 {
		assert.Is(t, w.letter().Headers["x-rollbackd-reason"], "delivery_limit", "a letter has the reason")
	}
	w.wantRow("unknown", wanted{Reason: "delivery_limit",
		Remark: "moved to " + w.backstop() + ", not by RabbitMQ's account of it"})
	if validated || w.times("unknown") > 0 {
		t.Error("the handler has seen it")
	}
}

func TestWhatTheBrokerGaveUpIsJudgedByItsRow(t *testing.T) {
	w := newWorld(t)
	w.hopeless("dead")
	w.startWith("done", "dead")
	w.ended(dedup.Success, "done")
	w.ended(dedup.Dead, "dead")
	w.quiet()
	backstop := w.backstop()
	// given the letter of a dead row, moved by hand and given up by the broker; an ordinary copy; one that is done;
	// another body
	letter := w.letter()
	w.move(letter, backstop)
	w.publishInto(backstop, "dead", "done")
	w.broker.Publish("", backstop, stack.Message{MessageId: "done", Type: tag, Body: []byte("other")})
	w.end(map[string]int{"applied": 1, "duplicate": 1, "dead_lettered": 2, "duplicate_of_dead": 2})
	// then the row still has its letter, as it was
	found := map[string]string{}
	for range 2 {
		l := w.letter()
		found[l.Headers["x-rollbackd-reason"].(string)] = string(l.Body)
		if l.Headers["x-rollbackd-reason"] == "permanent" &&
			l.Headers["x-rollbackd-dead-at"] != letter.Headers["x-rollbackd-dead-at"] {
			t.Errorf("the letter says it is dead since %v, was %v", l.Headers["x-rollbackd-dead-at"],
				letter.Headers["x-rollbackd-dead-at"])
		}
	}
	if found["permanent"] != "{}" || found["delivery_limit"] != "other" {
		t.Errorf("letters %v", found)
	}
	w.want("effects", w.effects(), once("done"))
}

func TestALeaseThatLivesIsWaitedForInTheBackstopButNotInADrain(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease = 30 * time.Second // longer than a drain may take
	w.declare()
	claim := w.claim("busy")
	w.publishInto(w.backstop(), "busy", "free")
	r := w.launch()
	w.ended(dedup.Dead, "free") // it does not wait for the other
	w.drains(r)
	w.end(map[string]int{"dead_lettered": 1, "abandoned": 1})
	require.OK(t, w.records.UnclaimAll(t.Context(), []dedup.Claim{claim})[0])
	w.start()
	w.ended(dedup.Dead, "busy")
}

func TestTheDeliveryLimitOfTheMainQueueEndsInALetter(t *testing.T) {
	w := newWorld(t)
	w.declare()
	// given a message that the broker has delivered too often: 201 deliveries failed
	w.publish("{}", "loops")
	w.broker.Fail(w.cfg.Queue, 201)
	backstop := w.backstop()
	w.eventually("it is in the backstop", func() bool { return w.broker.Depth(backstop) == 1 })
	// and that came back from the backstop too
	w.broker.Fail(backstop, 3)
	w.start()
	w.ended(dedup.Dead, "loops") // under its own identity, although it came by another way
	remark := "given up by RabbitMQ: it came back unsettled to " + w.cfg.Queue +
		" more often than its delivery limit allows (200, unless a policy sets less)"
	w.wantRow("loops", wanted{Reason: "delivery_limit", Remark: remark})
	w.quiet()
	is(w, "letters", w.dead(), 1)
}

// An operator's policy may take messages off the main queue or refuse them: none of it loses one, and letters say what
// happened.
func TestPoliciesOnTheMainQueueLoseNothing(t *testing.T) {
	w := newWorld(t)
	w.declare()
	// given a policy that lets messages expire while nobody consumes
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, map[string]any{"message-ttl": 500})
	gone := keys("gone", 5)
	w.publishInto(w.cfg.Queue, gone...)
	w.eventually("they are in the backstop", func() bool {
		return w.broker.Depth(w.backstop()) == len(gone)
	})
	// then, when policies limit deliveries and length, each is a letter that says so, and the others are applied
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, map[string]any{
		"delivery-limit": 5, "max-length": 1000, "overflow": "drop-head",
	})
	w.start()
	w.publish("{}", keys("good", 50)...)
	w.ended(dedup.Dead, gone...)
	w.ended(dedup.Success, keys("good", 50)...)
	told := w.number(`SELECT COUNT(*) FROM consumer_log WHERE reason = 'delivery_limit' AND remark LIKE
		'taken off %by RabbitMQ: expired%'`)
	if told != len(gone) || w.dead() != len(gone) {
		t.Errorf("%d rows say that their messages expired, and there are %d letters, want %d", told, w.dead(), len(gone))
	}
	w.want("effects", w.effects(), once(keys("good", 50)...))
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, nil)
}

// A letter that was moved by hand into the backstop behind a message whose lease lives is acked with its copy, not
// after that lease: each restart would make another letter of it.
func TestALetterInTheBackstopDoesNotMultiply(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease = 30 * time.Second
	w.hopeless("dead")
	w.publish("{}", "dead")
	r := w.launch()
	w.ended(dedup.Dead, "dead")
	w.quiet()
	w.drains(r)
	letter := w.letter()
	w.claim("busy")
	backstop := w.backstop()
	w.publishInto(backstop, "busy")
	w.move(letter, backstop)
	for range 2 {
		r := w.launch()
		w.eventually("the letter is back and acked", func() bool {
			return w.dead() == 1 && w.broker.Unacked(backstop) == 1 && w.broker.Depth(backstop) <= 1
		})
		w.drains(r)
		is(w, "letters of one row", w.dead(), 1)
	}
}

// killer is a body that ends each connection on which it comes: the proxy cuts it, as a filter on the way may.
const killer = `{"order_sn":"killer"}`

func (w *world) publishBody(queue, key, body string) {
	w.t.Helper()
	w.broker.Publish("", queue, stack.Message{MessageId: key, Type: tag, Body: []byte(body),
		DeliveryMode: rabbit.Persistent})
}

func degraded(r *running, queue string) bool {
	return slices.ContainsFunc(r.State().Degraded, func(s string) bool { return strings.HasPrefix(s, queue+": ") })
}

// Given a message that ends each connection on which it comes, in the backstop or in the main queue, then what is in
// the other queue is ended by its first delivery, and the engine is at work, but says what is amiss until the way is
// free.
func TestWhatEndsAQueuesConnectionLeavesTheOtherQueueAlone(t *testing.T) {
	type one struct {
		queue, other   func(*world) string
		killer, others dedup.Status
		end            string
	}
	main := func(w *world) string { return w.cfg.Queue }
	each(t, map[string]one{
		"the backstop":   {(*world).backstop, main, dedup.Dead, dedup.Success, "applied"},
		"the main queue": {main, (*world).backstop, dedup.Success, dedup.Dead, "dead_lettered"},
	}, func(t *testing.T, w *world, tc one) {
		l := w.proxied()
		l.amqp.KillOn([]byte(killer))
		queue := tc.queue(w)
		w.declare()
		w.publishBody(queue, "killer", killer)
		r := w.start()
		w.eventually("it has ended three connections", func() bool { return l.amqp.Killed() >= 3 })
		all := keys("order", 60)
		w.publishInto(tc.other(w), all...)
		w.ended(tc.others, all...)
		killed := l.amqp.Killed()
		w.eventually("it goes on ending connections", func() bool { return l.amqp.Killed() > killed })
		w.end(map[string]int{tc.end: len(all)}) // none was abandoned
		if queue != w.cfg.Queue {               // the main queue's connection is never up for long in the other case
			w.recovered(r)
		}
		w.eventually("it says what is amiss", func() bool {
			return degraded(r, queue) && w.counts("rollbackd_degraded")[queue] > 0
		})
		l.amqp.KillOn(nil)
		w.ended(tc.killer, "killer")
		w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
	})
}

// Given 300 good messages and among them one that ends each connection on which it comes, then it alone is charged
// until the delivery limit takes it away, the good ones are applied by their third delivery, and once it can be read it
// is a letter.
func TestADeliveryThatEndsConnectionsIsFoundAndStandsAlone(t *testing.T) {
	w := newWorld(t)
	w.declare()
	w.broker.Policy("nine", w.cfg.Queue, map[string]any{"delivery-limit": 9})
	l := w.proxied()
	l.amqp.KillOn([]byte(killer))
	w.doing(func(_ *gorm.DB, m consumer.Message) error {
		if before, _ := rabbit.Int(m.Headers["x-delivery-count"]); before > 2 {
			t.Errorf("%s was delivered %d times, want no more than three", m.Key, before+1)
		}
		return nil
	})
	all := keys("order", 300)
	w.publish("{}", all[:120]...)
	w.publishBody(w.cfg.Queue, "killer", killer)
	r := w.startWith(all[120:]...)
	w.eventually("the engine says what is amiss", func() bool {
		return degraded(r, w.cfg.Queue) && w.counts("rollbackd_degraded")[w.cfg.Queue] == 1
	})
	w.ended(dedup.Success, all...)
	backstop := w.backstop()
	w.eventually("it is the backstop's trouble, and the main queue is cleared", func() bool {
		return degraded(r, backstop) && !degraded(r, w.cfg.Queue)
	})
	w.want("effects", w.effects(), once(all...))
	w.logged("queue=" + w.cfg.Queue)
	w.logged("one message is taken at a time")
	// and the main queue flows again
	w.publish("{}", "later")
	w.ended(dedup.Success, "later")
	l.amqp.KillOn(nil)
	w.ended(dedup.Dead, "killer")
	w.wantRow("killer", wanted{Reason: "delivery_limit"})
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
}

// A broker that goes away twice is not a delivery's fault for long: what came back is taken one at a time, then all is
// as it was.
func TestAConnectionThatIsCutTwiceCostsAMomentOnly(t *testing.T) {
	w := newWorld(t)
	l := w.proxied()
	reached, release := w.blockAt(consumer.PointEffect)
	r := w.startWith(keys("order", 20)...)
	await(t, reached, "messages are in hand")
	l.amqp.Cut()
	release()
	w.eventually("another session stands", func() bool { return l.amqp.Links() > 0 })
	l.amqp.Cut()
	w.ended(dedup.Success, keys("order", 20)...)
	w.publish("{}", keys("later", 200)...)
	w.ended(dedup.Success, keys("later", 200)...)
	w.recovered(r)
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
	w.want("effects", w.effects(), once(append(keys("order", 20), keys("later", 200)...)...))
}

// Given that nothing is in the queues, then connections that are cut again and again are the fault of no delivery; and
// when one comes that ends them, it is named all the same.
func TestIdleConnectionsThatAreCutAreNobodysFault(t *testing.T) {
	w := newWorld(t)
	l := w.proxied()
	w.declare()
	conn := require.Get(rabbit.Dial(t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"}))(t)
	defer func() { _ = conn.Close() }()
	backstop := w.backstop()
	consumed := func(queue string) bool {
		_, consumers, err := conn.Depth(t.Context(), queue)
		return err == nil && consumers > 0
	}
	r := w.start()
	for range 3 {
		w.eventually("both queues are consumed", func() bool {
			return l.amqp.Links() >= 2 && consumed(w.cfg.Queue) && consumed(backstop)
		})
		l.amqp.Refuse(true) // so that the broker is seen to know of it
		l.amqp.Cut()
		w.eventually("the broker knows", func() bool { return !consumed(w.cfg.Queue) && !consumed(backstop) })
		l.amqp.Refuse(false)
	}
	w.recovered(r)
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
	if strings.Contains(w.logs.String(), "ends_connections") {
		t.Error("a delivery was blamed")
	}
	for _, queue := range []string{w.cfg.Queue, backstop} {
		l.amqp.KillOn([]byte(killer))
		w.publishBody(queue, "killer-of-"+queue, killer)
		w.logged("ends_connections queue=" + queue + " ")
		// and RabbitMQ, which is there, is not
		w.eventually("only that is told", func() bool { return degraded(r, queue) && !waitsFor(r, "rabbitmq") })
		l.amqp.KillOn(nil)
		w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
	}
	w.ended(dedup.Success, "killer-of-"+w.cfg.Queue)
	w.ended(dedup.Dead, "killer-of-"+backstop)
}
