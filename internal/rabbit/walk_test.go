package rabbit_test

import (
	"cmp"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given headers of every kind that the client would close the connection over, when they are delivered, come again, and
// reach another queue by the delivery limit, then each time the message arrives with its properties, its body, its
// delivery count and the same mark, and what follows it arrives as well.
func TestAMessageWithUnreadableHeadersArrivesWithAMark(t *testing.T) {
	t.Parallel()
	broker := stack.AMQP(t)
	for _, odd := range stack.UnreadableHeaders("m") {
		t.Run(odd.Name, func(t *testing.T) { testUnreadable(t, broker, odd, true) })
	}
}

// Given headers that the client reads, and no longer with what the broker adds to them, when they are delivered, come
// again, and reach another queue by the delivery limit, then each time all of them arrive, with the broker's.
func TestHeadersThatFillAFrameStayReadable(t *testing.T) {
	t.Parallel()
	broker := stack.AMQP(t)
	for _, odd := range stack.FillingHeaders("m", "id", "t") {
		t.Run(odd.Name, func(t *testing.T) { testUnreadable(t, broker, odd, false) })
	}
}

// testUnreadable lets the message come three times, and then from the other queue.
func testUnreadable(t *testing.T, b *stack.Broker, odd stack.OddHeaders, unreadable bool) {
	q, dead := b.Name("main "+odd.Name), b.Name("dead "+odd.Name)
	b.DeclareQueue(dead, quorum(nil))
	b.DeclareQueue(q, quorum(rabbit.Table{
		"x-delivery-limit": int64(2), "x-overflow": "reject-publish",
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-dead-letter-strategy": "at-least-once",
	}))
	b.Publish("", q, stack.Message{
		MessageId: "id", Type: "t", DeliveryMode: rabbit.Persistent, Headers: odd.Table, Body: []byte("b"),
	})
	c := dial(t, b.URL)
	var first rabbit.Unreadable
	see := func(queue string, count int, marked bool) *rabbit.Subscription {
		t.Helper()
		s := consume(t, c, queue, 1)
		d := collect(t, s, 1)[0]
		mark, ok := rabbit.ReadUnreadable(d.Headers)
		got := d.MessageID + d.Type + d.CorrelationID + string(d.Body) // the headers are looked at below
		if queue == dead && odd.Name == "a forged x-death" && !ok {
			marked = false // RabbitMQ 4 writes a new one, and what is left can be read
		}
		require.That(t, ok == marked && got == "idtb" && d.DeliveryMode == rabbit.Persistent,
			"delivery %d of %q: marked %v as %v, %+v", count, queue, ok, mark, d.Message)
		assert.That(t, queue != q || d.Count == count, "it says that it came back %d times, want %d", d.Count, count)
		first = cmp.Or(first, mark)
		if !unreadable {
			own := 0
			for name := range d.Headers {
				if !rabbit.BrokerWrites(name) {
					own++
				}
			}
			deaths, _ := d.Headers[rabbit.HeaderDeath].([]any)
			assert.That(t, own == len(odd.Table) && d.Headers["x-mark"] == "m" && (queue == dead) == (len(deaths) == 1),
				"%d headers of the producer became %d, with %d deaths", len(odd.Table), own, len(deaths))
		}
		assert.That(t, !marked || mark == first, "the mark %v became %v", first, mark)
		return s
	}
	for count := range 3 {
		require.OK(t, see(q, count, unreadable).Close()) // gives it back, and counts it
	}
	s := see(dead, 0, unreadable)
	publishN(t, publisher(t, config(b.URL)), dead, 1)
	require.OK(t, s.Close())
	assert.Is(t, collect(t, consume(t, c, dead, 10), 2)[1].MessageID, "0", "behind it came")
}
