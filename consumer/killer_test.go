package consumer_test

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

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

func TestWhatEndsTheBackstopsConnectionLeavesTheMainQueueAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.proxied()
	l.amqp.KillOn([]byte(killer))
	backstop := rabbit.BackstopQueue(w.cfg.Queue)
	w.declare()
	w.publishBody(backstop, "killer", killer)
	r := w.start()
	w.eventually("it has ended three connections", func() bool { return l.amqp.Killed() >= 3 })
	// when messages come meanwhile
	all := keys("order", 100)
	w.publish("{}", all...)
	// then each is applied by its first delivery
	w.ended(dedup.Success, all...)
	killed := l.amqp.Killed()
	w.eventually("it goes on ending connections", func() bool { return l.amqp.Killed() > killed })
	w.end(map[string]int{"applied": 100})
	w.want("effects", w.effects(), once(all...))
	// and the engine is at work, but says what is amiss
	w.recovered(r)
	if !degraded(r, backstop) {
		t.Errorf("degraded: %q, want the backstop", r.State().Degraded)
	}
	if got := w.counts("rollbackd_degraded"); got[backstop] == 0 {
		t.Errorf("rollbackd_degraded %v, want 1 for %s", got, backstop)
	}
	// until the way is free
	l.amqp.KillOn(nil)
	w.ended(dedup.Dead, "killer")
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
}

func TestWhatEndsTheMainQueuesConnectionLeavesTheBackstopAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.proxied()
	l.amqp.KillOn([]byte(killer))
	w.declare()
	w.publishBody(w.cfg.Queue, "killer", killer)
	w.start()
	w.eventually("it has ended three connections", func() bool { return l.amqp.Killed() >= 3 })
	all := keys("given-up", 60)
	w.publishInto(rabbit.BackstopQueue(w.cfg.Queue), all...)
	w.ended(dedup.Dead, all...)
	w.end(map[string]int{"dead_lettered": 60}) // none was abandoned
	l.amqp.KillOn(nil)
	w.ended(dedup.Success, "killer")
}

// Given 300 good messages and among them one that ends each connection on which it comes, then it alone is charged
// until the delivery limit takes it away, the good ones are applied by their third delivery, and once it can be read it
// is a letter.
func TestADeliveryThatEndsConnectionsIsFoundAndStandsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limitDeliveries(9)
	l := w.proxied()
	l.amqp.KillOn([]byte(killer))
	var mu sync.Mutex
	deliveries := map[string]int64{}
	handle := w.handler
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range msgs {
			before, _ := rabbit.Int(m.Headers["x-delivery-count"])
			deliveries[m.Key] = max(deliveries[m.Key], before+1)
		}
		return handle.Handle(ctx, tx, msgs)
	})
	all := keys("order", 300)
	w.publish("{}", all[:120]...)
	w.publishBody(w.cfg.Queue, "killer", killer)
	w.publish("{}", all[120:]...)
	r := w.start()
	w.eventually("the engine says what is amiss", func() bool {
		return degraded(r, w.cfg.Queue) && w.counts("rollbackd_degraded")[w.cfg.Queue] == 1
	})
	w.ended(dedup.Success, all...)
	backstop := rabbit.BackstopQueue(w.cfg.Queue)
	w.eventually("it is the backstop's trouble, and the main queue is cleared", func() bool {
		return degraded(r, backstop) && !degraded(r, w.cfg.Queue)
	})
	mu.Lock()
	for key, n := range deliveries {
		if n > 3 {
			t.Errorf("%s was delivered %d times, want no more than three", key, n)
		}
	}
	mu.Unlock()
	w.want("effects", w.effects(), once(all...))
	if text := w.logs.String(); !strings.Contains(text, "queue="+w.cfg.Queue) ||
		!strings.Contains(text, "one message is taken at a time") {
		t.Error("the log does not say which queue is in quarantine")
	}
	// and the main queue flows again
	w.publish("{}", "later")
	w.ended(dedup.Success, "later")
	l.amqp.KillOn(nil)
	w.ended(dedup.Dead, "killer")
	if row := w.row("killer"); row.Reason != "delivery_limit" {
		t.Errorf("reason %q, want delivery_limit", row.Reason)
	}
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
}

// A broker that goes away twice is not a delivery's fault for long: what came back is taken one at a time, then all is
// as it was.
func TestAConnectionThatIsCutTwiceCostsAMomentOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.proxied()
	reached, release := w.blockAt(consumer.PointEffect)
	w.publish("{}", keys("order", 20)...)
	r := w.start()
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
	t.Parallel()
	w := newWorld(t)
	l := w.proxied()
	w.declare()
	conn, err := rabbit.Dial(t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	backstop := rabbit.BackstopQueue(w.cfg.Queue)
	consumed := func(queue string) bool {
		_, consumers, err := conn.Depth(t.Context(), queue)
		return err == nil && consumers > 0
	}
	r := w.start()
	for range 4 {
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
		w.eventually("a delivery is blamed", func() bool {
			return strings.Contains(w.logs.String(), "ends_connections queue="+queue+" ")
		})
		// and RabbitMQ, which is there, is not
		w.eventually("only that is told", func() bool { return degraded(r, queue) && !waitsFor(r, "rabbitmq") })
		l.amqp.KillOn(nil)
		w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
	}
	w.ended(dedup.Success, "killer-of-"+w.cfg.Queue)
	w.ended(dedup.Dead, "killer-of-"+backstop)
}

// limitDeliveries lowers the main queue's delivery limit by a policy.
func (w *world) limitDeliveries(n int) {
	w.t.Helper()
	u, err := url.Parse(w.broker.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	vhost := cmp.Or(strings.TrimPrefix(u.Path, "/"), "/")
	w.broker.Eval(fmt.Sprintf(`ok = rabbit_policy:set(<<%q>>, <<%q>>, <<%q>>, [{<<"delivery-limit">>, %d}], 0, `+
		`<<"queues">>, <<"tests">>)`,
		vhost, w.cfg.Queue, "^"+regexp.QuoteMeta(w.cfg.Queue)+"$", n))
	w.t.Cleanup(func() {
		w.broker.Eval(fmt.Sprintf(`rabbit_policy:delete(<<%q>>, <<%q>>, <<"tests">>)`, vhost, w.cfg.Queue))
	})
}
