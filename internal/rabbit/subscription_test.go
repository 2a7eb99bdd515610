package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// everything is a message with all that a producer can set, but for what never is published.
func everything(headers rabbit.Table) rabbit.Message {
	return rabbit.Message{Body: []byte{0, 255}, ContentType: "a/b", ContentEncoding: "gzip", MessageID: "id",
		CorrelationID: "corr", ReplyTo: "reply", Type: "tag", AppID: "app", Timestamp: time.Unix(1_700_000_000, 0),
		Priority: 3, DeliveryMode: rabbit.Persistent, Headers: headers}
}

// Given a message of another producer, and one of ours whose headers have any types and which says of itself what
// RabbitMQ must not hear, when they are delivered, then each has everything that it was given.
func TestDeliveryCarriesEverythingTheProducerSet(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	theirs := everything(rabbit.Table{"n": int16(7), "t": rabbit.Table{"x": []any{true, nil}}})
	theirs.Expiration, theirs.DeliveryMode = "600000", rabbit.Transient
	b.Publish("", q, stack.Message{
		Body: theirs.Body, ContentType: theirs.ContentType, ContentEncoding: theirs.ContentEncoding,
		MessageId: theirs.MessageID, CorrelationId: theirs.CorrelationID, ReplyTo: theirs.ReplyTo, Type: theirs.Type,
		AppId: theirs.AppID, Timestamp: theirs.Timestamp, Priority: theirs.Priority, DeliveryMode: theirs.DeliveryMode,
		Expiration: theirs.Expiration, Headers: theirs.Headers,
	})
	ours := everything(rabbit.Table{
		"int": 1 << 40, "map": map[string]any{"a": uint(1)}, "list": []any{map[string]any{}, []byte{1}, nil},
	})
	ours.UserID, ours.Expiration, ours.DeliveryMode = "somebody", "rubbish", rabbit.Transient
	require.OK(t, publisher(t, config(b.URL)).Publish(t.Context(), []rabbit.Publishing{{Key: q, Message: ours}})...)
	want := everything(rabbit.Table{"int": int64(1 << 40), "map": rabbit.Table{"a": int64(1)},
		"list": []any{rabbit.Table{}, []byte{1}, nil}})
	c := dial(t, b.URL)
	for i, d := range collect(t, consume(t, c, q, 2), 2) {
		diff := cmp.Diff([]rabbit.Message{theirs, want}[i], d.Message)
		assert.That(t, diff == "" && d.RoutingKey == q && d.Exchange == "" && !d.Redelivered && d.Count == 0,
			"delivery = %+v (-want +got):\n%s", d, diff)
	}
	require.OK(t, c.Close()) // before they were settled
	again := collect(t, consume(t, dial(t, b.URL), q, 1), 1)[0]
	assert.That(t, again.Redelivered && again.Count == 1,
		"again: Redelivered %v Count %d, want true 1", again.Redelivered, again.Count)
}

func TestADeliveryCountThatAProducerForgesIsNotBelieved(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	b.Publish("", q, stack.Message{
		Headers: rabbit.Table{rabbit.HeaderDeliveryCount: int64(150), "x-acquired-count": int64(150)},
	})
	c := dial(t, b.URL)
	s := consume(t, c, q, 1)
	d := collect(t, s, 1)[0]
	assert.Is(t, d.Count, 0, "first delivery: Count")
	// given back, which RabbitMQ 4.3 does not count, and writes nothing over the forged count for
	require.OK(t, s.Requeue(d.Tag, false))
	assert.AtMost(t, collect(t, s, 1)[0].Count, 1, "second delivery: Count")
	require.OK(t, c.Close()) // before it was settled
	again := collect(t, consume(t, dial(t, b.URL), q, 1), 1)[0]
	assert.That(t, again.Count >= 1 && again.Count <= 2, "third delivery: Count %d, want 1 or 2", again.Count)
}

func TestCollectStopsAtLimitAndAfterLinger(t *testing.T) {
	t.Parallel()
	_, _, s := filled(t, 5, 10)
	poll.Until(t, "all have come", func() bool { return s.Came() == 5 })
	require.Is(t, len(require.Get(s.Collect(within(t), 3, time.Minute, nil))(t)), 3, "limit 3: deliveries")
	require.Is(t, len(require.Get(s.Collect(within(t), 100, 300*time.Millisecond, nil))(t)), 2, "linger: deliveries")
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	got, err := s.Collect(ctx, 1, 0, nil)
	require.That(t, errors.Is(err, cause) && len(got) == 0, "empty queue: %v, %v; want the context's cause", got, err)
	_, err = s.Collect(within(t), 0, 0, nil)
	assert.That(t, err != nil, "a limit of 0 was taken")
}

func TestSilenceEndsTheLingerOfAnIdleCollect(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	s, p := consume(t, dial(t, b.URL), q, 10), publisher(t, config(b.URL))
	const linger = 4 * time.Second
	for range 5 { // a delivery that is there before Collect has begun to wait is given the whole linger
		done := make(chan int, 1)
		go func() {
			got, err := s.Collect(within(t), 2, linger, nil)
			assert.OK(t, err)
			done <- len(got)
		}()
		published := time.Now()
		publishN(t, p, q, 1)
		require.Is(t, <-done, 1, "deliveries")
		if time.Since(published) < linger {
			return
		}
	}
	t.Errorf("five idle collects each took the whole linger of %v for one delivery", linger)
}

func TestPrefetchIsCheckedAndHolds(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	c := budgeted(t, b, 64<<20, 1)
	for _, n := range []int{-1, 0, 65536, 70000} {
		_, err := c.Consume(t.Context(), q, "tag", n)
		assert.That(t, err != nil, "prefetch %d was taken", n)
	}
	_, err := c.Consume(t.Context(), q, "", 1)
	assert.That(t, err != nil, "an empty consumer tag was taken")
	publishN(t, publisher(t, config(b.URL)), q, 5)
	s := consume(t, c, q, 2)
	got := collect(t, s, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = s.Collect(ctx, 1, 0, nil)
	require.That(t, errors.Is(err, context.DeadlineExceeded), "a third delivery with prefetch 2: %v", err)
	require.OK(t, s.Ack(got[1].Tag, true))
	for _, d := range collect(t, s, 2) {
		s.Unload(d.Tag)
	}
	collect(t, s, 1) // by another consumer, as those before are in memory no more
}

func TestAnAckOfManyPassesNothingBetweenThem(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	for name, tc := range map[string]struct {
		before, ack, left []int
	}{
		"all":                        {nil, []int{0, 1, 2, 3, 4, 5}, nil},
		"not the first":              {nil, []int{1, 2, 5}, []int{0, 3, 4}},
		"a gap":                      {nil, []int{0, 1, 3, 4}, []int{2, 5}},
		"a gap that is settled":      {[]int{2}, []int{0, 1, 3, 4}, []int{5}},
		"behind what is settled":     {[]int{0, 1}, []int{2, 3}, []int{4, 5}},
		"one":                        {nil, []int{0}, []int{1, 2, 3, 4, 5}},
		"the last one, behind a gap": {[]int{1, 3}, []int{5}, []int{0, 2, 4}},
	} {
		publishN(t, publisher(t, config(b.URL)), q, 6)
		s := consume(t, dial(t, b.URL), q, 10)
		var tags []uint64
		for _, d := range collect(t, s, 6) {
			tags = append(tags, d.Tag)
		}
		some := func(which []int) (some []uint64) {
			for _, i := range which {
				some = append(some, tags[i])
			}
			return some
		}
		for _, tag := range some(tc.before) {
			require.OK(t, s.Ack(tag, false))
			assert.Error(t, s.Requeue(tag, false), rabbit.ErrNotOutstanding, "%s: %d given back, which is acked", name, tag)
		}
		require.OK(t, s.AckAll(some(tc.ack)))
		assert.Is(t, int(s.Acked()), len(tc.before)+len(tc.ack), "%s: deliveries that count as acked", name)
		assert.Is(t, s.Came(), 6, "%s: deliveries that count as come", name)
		require.OK(t, s.Close())
		poll.Until(t, "the rest is back", func() bool { return b.Depth(q) == len(tc.left) && b.Unacked(q) == 0 })
		for _, i := range tc.left {
			m, ok := b.Get(q)
			assert.That(t, ok && m.MessageId == fmt.Sprint(i), "%s: %q came back (%v), want %d", name, m.MessageId, ok, i)
		}
	}
}

func TestCancelledSubscriptionCanStillSettle(t *testing.T) {
	t.Parallel()
	b, q, s := filled(t, 4, 3)
	first := collect(t, s, 1)
	poll.Until(t, "prefetch filled", func() bool { return b.Unacked(q) == 3 })
	require.OK(t, s.Cancel(t.Context()))
	require.OK(t, s.Ack(first[0].Tag, false))
	rest := collect(t, s, 2)
	_, err := s.Collect(within(t), 1, 0, nil)
	assert.Error(t, err, rabbit.ErrCancelled, "after the last delivery")
	require.OK(t, s.Requeue(rest[1].Tag, true), s.Cancel(t.Context()), s.Close(), s.Close())
	poll.Until(t, "3 of 4 back in the queue", func() bool { return b.Depth(q) == 3 && b.Unacked(q) == 0 })
}

func TestBrokersCancelEndsTheSubscriptionAndLeavesTheChannelOpen(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	publishN(t, publisher(t, config(b.URL)), q, 3)
	c := dial(t, b.URL)
	s, resting := consume(t, c, q, 1), consume(t, c, q, 2)
	collect(t, s, 1)
	collect(t, resting, 1) // another one waits to be collected
	require.OK(t, resting.Rest(within(t), 0))
	b.Delete(q)
	_, err := s.Collect(within(t), 1, 0, nil)
	assert.Error(t, err, rabbit.ErrConsumerCancelled, "Collect on a deleted queue")
	assert.Error(t, resting.Rest(within(t), time.Hour), rabbit.ErrConsumerCancelled, "Rest on a deleted queue")
	assert.OK(t, c.Err(), "the connection is over too:")
	require.OK(t, s.Close())
}
