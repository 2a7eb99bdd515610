package rabbit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// budgeted is a connection whose subscriptions, of which there are so many, have a budget of so many bytes.
func budgeted(t *testing.T, b *stack.Broker, size int64, subscriptions int) *rabbit.Conn {
	t.Helper()
	cfg := config(b.URL)
	cfg.Budget = rabbit.NewBudget(size, subscriptions)
	return dialWith(t, cfg)
}

// publishSizes publishes messages with bodies of these sizes, the first byte of each its number.
func publishSizes(t *testing.T, p *rabbit.Publisher, queue, prefix string, sizes ...int) {
	t.Helper()
	var batch []rabbit.Publishing
	for i, size := range sizes {
		batch = append(batch, rabbit.Publishing{Key: queue, Message: rabbit.Message{
			MessageID: fmt.Sprintf("%s-%d", prefix, i), Body: bytes.Repeat([]byte{byte(i)}, size),
			DeliveryMode: rabbit.Persistent,
		}})
	}
	require.OK(t, p.Publish(within(t), batch)...)
}

func times(n, size int) []int { return slices.Repeat([]int{size}, n) }

// fillTime is how long a collection waits for a window to fill: it grows only while all of it is in hand.
const fillTime = 50 * time.Millisecond

// timesCame is how often a message was delivered by now: RabbitMQ 4.3 counts what was given back beside what failed.
func timesCame(d rabbit.Delivery) int {
	given, _ := rabbit.Int(d.Headers["x-acquired-count"])
	return 1 + max(d.Count, int(given))
}

// Given a backlog of small messages, when the window grows to the prefetch, then none of them is delivered twice: a
// quorum queue gives back what is on its way to a consumer that is cancelled, and counts that as a delivery.
func TestAWindowGrowsWithoutASecondDelivery(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	const n, size, prefetch = 8000, 100, 1500
	publishSizes(t, publisher(t, config(b.URL)), q, "small", times(n, size)...)
	s := consume(t, budgeted(t, b, 16<<20, 1), q, prefetch)
	came := map[string]int{}
	var buf []rabbit.Delivery
	for len(came) < n {
		buf = require.Get(s.Collect(within(t), 2000, fillTime, buf))(t)
		for _, d := range buf {
			came[d.MessageID] = max(came[d.MessageID], timesCame(d))
		}
		require.OK(t, s.Ack(buf[len(buf)-1].Tag, true))
	}
	assert.Is(t, slices.Max(slices.Collect(maps.Values(came))), 1, "most deliveries of one of %d messages", n)
	assert.AtLeast(t, rabbit.Window(s), 500, "a window, at the end, of about the prefetch of %d", prefetch)
}

// A window that fills while a batch is worked on grows before the batch is acked: when the next one is taken it is not
// full any more, and a lane with a small window leaves its messages to another that they make slow.
func TestAWindowThatFillsDuringABatchGrows(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	s := consume(t, budgeted(t, b, 64<<20, 5), q, 2000)
	p, window := publisher(t, config(b.URL)), uint64(rabbit.Window(s))

	// given a batch that was taken before the window was full
	publishN(t, p, q, int(window/2))
	batch := collect(t, s, int(window/2))
	// when it is acked after the window has filled
	publishN(t, p, q, 10*int(window))
	poll.Until(t, "the window is full", func() bool { return s.Came() == window })
	var tags []uint64
	for _, d := range batch {
		tags = append(tags, d.Tag)
	}
	require.OK(t, s.AckAll(tags))

	// then another consumer follows, with a window for all
	require.That(t, rabbit.Retired(s), "the consumer with the small window goes on")
	collect(t, s, 10*int(window))
	assert.That(t, rabbit.Window(s) > 2*int(window), "the window is %d, was %d", rabbit.Window(s), window)
}

// ackSome acks what comes within a moment.
func ackSome(t *testing.T, s *rabbit.Subscription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*fillTime)
	defer cancel()
	for {
		got, err := s.Collect(ctx, 2000, fillTime, nil)
		if err != nil {
			return
		}
		require.OK(t, s.Ack(got[len(got)-1].Tag, true))
	}
}

func TestABodyLargerThanItsShareComesThroughAlone(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	const share, size = 1 << 20, 3 << 20
	p := publisher(t, config(b.URL))
	publishSizes(t, p, q, "huge", size, size, size)
	publishSizes(t, p, q, "small", times(20, 100)...)
	s := consume(t, budgeted(t, b, share, 1), q, 100)
	sizes := map[int]int{}
	var buf []rabbit.Delivery
	for sizes[size] < 3 || sizes[100] < 20 {
		buf = require.Get(s.Collect(within(t), 100, time.Millisecond, buf))(t)
		huge := 0
		for _, d := range buf {
			sizes[len(d.Body)]++
			if len(d.Body) == size {
				huge++
			}
		}
		assert.That(t, huge <= 1 && rabbit.Held(s) <= share,
			"%d huge ones at once, and %d bytes beside, want one and a share of %d", huge, rabbit.Held(s), share)
		require.OK(t, s.Ack(buf[len(buf)-1].Tag, true))
	}
	assert.Is(t, fmt.Sprint(sizes), fmt.Sprint(map[int]int{100: 20, size: 3}), "bodies by size")
}

// Given a subscription whose window small messages have made wide, when it holds large ones until there is no room for
// anything more, then Collect says so and does not wait, what there was no room for is given back, and its neighbour
// begins anew too; when something is settled, the rest comes; and when its connection ends while it
// has no consumer, whoever rests until something is settled is told, and whoever collects or acks.
func TestASubscriptionWithoutRoomSaysSo(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	const share, small, large, size = 4 << 20, 4000, 100, 256 << 10
	p := publisher(t, config(b.URL))
	publishSizes(t, p, q, "small", times(small, 100)...)
	c, quiet := budgeted(t, b, share, 1), b.Name("quiet")
	b.DeclareQueue(quiet, nil)
	neighbour := require.Get(c.Consume(t.Context(), quiet, rabbit.ConsumerTag(2), 1500))(t)
	s := consume(t, c, q, 1500)
	poll.Until(t, "all small ones are settled, and a consumer with a wide window waits", func() bool {
		ackSome(t, s)
		return s.Acked() == small && rabbit.Window(s) >= 1000 && !rabbit.Retired(s)
	})
	publishSizes(t, p, q, "large", times(large, size)...)
	poll.Until(t, "all are on their way", func() bool { return b.Depth(q) == 0 })
	assert.AtMost(t, rabbit.Held(s), share, "bytes are in hand")
	var held []rabbit.Delivery
	for { // and settles nothing
		got, err := s.Collect(within(t), 1000, time.Millisecond, nil)
		held = append(held, got...)
		if errors.Is(err, rabbit.ErrNoRoom) {
			break
		}
		require.That(t, err == nil, "after %d deliveries: %v, want ErrNoRoom", len(held), err)
		require.That(t, s.HasRoom() || len(got) > 0, "Collect waited although there was no room")
	}
	assert.That(t, !s.HasRoom(), "it says that it has room")
	poll.Until(t, "what there was no room for is back in the queue", func() bool { return b.Depth(q) > large/2 })
	assert.Is(t, rabbit.Shed(s), 0, "deliveries are yet to be given back")
	assert.That(t, rabbit.Retired(neighbour), "the neighbour's window was left as it was")
	_, err := s.Collect(within(t), 1000, time.Millisecond, nil)
	assert.Error(t, err, rabbit.ErrNoRoom, "asked again")
	require.OK(t, s.Ack(held[len(held)-1].Tag, true))
	assert.That(t, s.HasRoom(), "nothing is in hand, and it says that it has no room")
	var last uint64
	for more := 0; ; more += len(held) {
		var err error
		held, err = s.Collect(within(t), 1000, time.Millisecond, held)
		if errors.Is(err, rabbit.ErrNoRoom) && more > 0 {
			break
		}
		require.OK(t, err)
		for _, d := range held {
			// Each may have to be given back, and once more behind others: far from a delivery limit of 20.
			assert.AtMost(t, timesCame(d), 4, "%s was delivered times", d.MessageID)
			last = d.Tag
		}
	}
	done := make(chan error, 1)
	go func() { done <- s.Rest(within(t), time.Hour) }() // joined below
	b.CloseConnections()
	err = <-done
	assert.That(t, err != nil && !errors.Is(err, context.DeadlineExceeded),
		"Rest did not notice that the connection ended: %v", err)
	_, err = s.Collect(within(t), 1000, time.Millisecond, nil)
	assert.Has(t, fmt.Sprint(err), "closed by the test", "the end has the broker's reason")
	<-c.Done()
	assert.Has(t, fmt.Sprint(c.Err()), "closed by the test", "and the connection's")
	assert.Error(t, s.Ack(last, false), rabbit.ErrClosed, "an ack that is late")
}

// Given two subscriptions whose second message finds no room, alone or with a small one behind it, when what came is
// settled, then the second comes again; and the windows, which became narrow for the first of them, are narrow already.
func TestWhatFoundNoRoomComesAgain(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	c, p := budgeted(t, b, 4<<20, 2), publisher(t, config(b.URL))
	var subs []*rabbit.Subscription
	queues := []string{b.Name("alone"), b.Name("with another")}
	for _, q := range queues {
		b.DeclareQueue(q, quorum(nil))
		subs = append(subs, consume(t, c, q, 3))
	}
	for i, sizes := range [][]int{{1 << 20, 1 << 20}, {1 << 20, 1 << 20, 100}} {
		publishSizes(t, p, queues[i], "", sizes...)
		poll.Until(t, "all came", func() bool { return subs[i].Came() == uint64(len(sizes)) })
	}
	for i, s := range subs {
		got := require.Get(s.Collect(within(t), 1+i, time.Minute, nil))(t)
		assert.That(t, rabbit.Retired(s), "the consumer with the wide window goes on")
		require.OK(t, s.Ack(got[i].Tag, true))
		assert.Is(t, collect(t, s, 1)[0].Body[0], 1, "number of what comes again")
	}
	assert.That(t, !rabbit.Retired(subs[0]), "narrow windows were narrowed")
}

// It is not parallel: it measures the memory of the process.
func TestHeadersWeighWhatTheyTakeInMemory(t *testing.T) {
	b := stack.AMQP(t)
	many := func(n int, v any) []any { return slices.Repeat([]any{v}, n) }
	names := rabbit.Table{}
	for i := range 8000 {
		names[fmt.Sprintf("%x", i)] = nil
	}
	for name, headers := range map[string]rabbit.Table{
		"tables of one entry": {"a": many(7500, rabbit.Table{"n": nil}), "b": many(7500, rabbit.Table{"n": nil})},
		"empty tables":        {"a": many(8000, rabbit.Table{}), "b": many(8000, rabbit.Table{})},
		"arrays of one":       {"a": many(8000, []any{nil}), "b": many(8000, []any{nil})},
		"empty values":        {"a": many(8000, nil), "b": many(8000, nil), "c": many(8000, nil), "d": many(8000, nil)},
		"entries":             names,
		"one text":            {"a": strings.Repeat("t", 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 20
			q := b.Name("heavy-" + strings.ReplaceAll(name, " ", "-"))
			b.DeclareQueue(q, quorum(nil))
			p := publisher(t, config(b.URL))
			m := rabbit.Message{Headers: headers, DeliveryMode: rabbit.Persistent}
			require.OK(t, p.Publish(within(t), slices.Repeat([]rabbit.Publishing{{Key: q, Message: m}}, n))...)
			conn := budgeted(t, b, 1<<30, 1)
			before := heap()
			s := consume(t, conn, q, n)
			in := collect(t, s, n)
			assert.AtMost(t, heap()-before, rabbit.Held(s)+2<<20, "bytes in memory")
			runtime.KeepAlive(in)
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Given a subscription whose consumer was ended to begin a wider one, and hundreds of acks sent one by one meanwhile,
// when it is cancelled and closed, then RabbitMQ has taken all of them.
func TestACancelBetweenTwoConsumersLosesNoAck(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	const n, size = 6000, 100
	publishSizes(t, publisher(t, config(b.URL)), q, "small", times(n, size)...)
	s := consume(t, budgeted(t, b, 16<<20, 1), q, 4000)
	var held []rabbit.Delivery
	acked := 0
	for !rabbit.Retired(s) || len(held) < 200 {
		for _, d := range held {
			require.OK(t, s.Ack(d.Tag, false))
		}
		acked += len(held)
		require.That(t, acked != n, "all came, and no window of 200 or more became a wider one")
		held = require.Get(s.Collect(within(t), 4000, 200*time.Millisecond, held))(t)
	}
	for _, d := range held {
		require.OK(t, s.Ack(d.Tag, false))
	}
	acked += len(held)
	require.OK(t, errors.Join(s.Cancel(within(t)), s.Close()))
	poll.Until(t, "nothing is in anybody's hands", func() bool { return b.Unacked(q) == 0 })
	poll.Until(t, "the rest is back", func() bool { return b.Depth(q) >= n-acked })
	assert.Is(t, b.Depth(q)-(n-acked), 0, "of %d messages that were acked come again", acked)
}

// Given a narrow line, and a body for which there is no room and which takes longer than the client waits for a frame,
// when it is dropped as it comes, then the connection lives, and what came before it can be acked.
func TestABodyThatIsDroppedSlowlyEndsNoConnection(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	u := require.Get(url.Parse(b.URL))(t)
	line := stack.Proxy(t, u.Host)
	cfg := config(line.Through(b.URL))
	cfg.Heartbeat = time.Second // the client waits three of them
	const share, large, rate = 1 << 20, 8 << 20, 1 << 20
	cfg.Budget = rabbit.NewBudget(share, 1)
	c := require.Get(rabbit.Dial(t.Context(), cfg))(t)
	defer c.Close() //nolint:errcheck // the test says what it wants of it
	p := publisher(t, config(b.URL))
	s := consume(t, c, q, 100)
	publishSizes(t, p, q, "small", times(200, 100)...)
	poll.Until(t, "the window is wide", func() bool {
		ackSome(t, s)
		return s.Acked() == 200 && rabbit.Window(s) >= 50
	})
	// The first is larger than a share and comes through alone; the second is dropped.
	publishSizes(t, p, q, "large", large)
	first := collect(t, s, 1)[0]
	line.Rate(rate)
	before := line.Carried()
	publishSizes(t, p, q, "large", large)
	poll.Until(t, "all of it was carried, or the connection is over", func() bool {
		return line.Carried() >= before+large || c.Err() != nil
	})
	line.Rate(0)
	err := c.Err()
	require.That(t, err == nil, "after %d bytes the connection was over: %v", line.Carried()-before, err)
	require.OK(t, s.Ack(first.Tag, false))
	assert.Is(t, len(collect(t, s, 1)[0].Body), large, "bytes of the body that came again")
	require.OK(t, c.Close())
	assert.Is(t, rabbit.Sharers(consume(t, dialWith(t, cfg), q, 1)), 1, "after its end, subscriptions of the budget")
}
