package rabbit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestDeliveryCarriesEverythingTheProducerSet(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	at := time.Unix(1_700_000_000, 0)
	b.Publish("", q, stack.Message{
		Body: []byte{0, 255}, ContentType: "a/b", ContentEncoding: "gzip", MessageId: "id", CorrelationId: "corr",
		ReplyTo: "reply",
		Type:    "tag", AppId: "app", Timestamp: at, Priority: 3, DeliveryMode: 1, Expiration: "600000", UserId: "",
		Headers: rabbit.Table{"n": int16(7), "t": rabbit.Table{"x": []any{true, nil}}},
	})
	c := dial(t, b.URL)
	d := collect(t, consume(t, c, q, 1), 1)[0]
	if string(d.Body) != "\x00\xff" || d.ContentType != "a/b" || d.ContentEncoding != "gzip" || d.MessageID != "id" ||
		d.CorrelationID != "corr" ||
		d.ReplyTo != "reply" || d.Type != "tag" || d.AppID != "app" || !d.Timestamp.Equal(at) || d.Priority != 3 ||
		d.DeliveryMode != rabbit.Transient ||
		d.Expiration != "600000" || d.RoutingKey != q || d.Exchange != "" || d.Redelivered || d.Count != 0 ||
		d.Headers["n"] != int16(7) {
		t.Errorf("delivery = %+v", d)
	}
	if err := c.Close(); err != nil { // before it was settled
		t.Fatal(err)
	}
	again := collect(t, consume(t, dial(t, b.URL), q, 1), 1)[0]
	if !again.Redelivered || again.Count != 1 {
		t.Errorf("again: Redelivered %v Count %d, want true 1", again.Redelivered, again.Count)
	}
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
	if d.Count != 0 {
		t.Errorf("first delivery: Count %d, want 0", d.Count)
	}
	// given back, which RabbitMQ 4.3 does not count, and writes nothing over the forged count for
	if err := s.Requeue(d.Tag, false); err != nil {
		t.Fatal(err)
	}
	if again := collect(t, s, 1)[0]; again.Count > 1 {
		t.Errorf("second delivery: Count %d, want 1 at most", again.Count)
	}
	if err := c.Close(); err != nil { // before it was settled
		t.Fatal(err)
	}
	if again := collect(t, consume(t, dial(t, b.URL), q, 1), 1)[0]; again.Count < 1 || again.Count > 2 {
		t.Errorf("third delivery: Count %d, want 1 or 2", again.Count)
	}
}

func TestCollectStopsAtLimitAndAfterLinger(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	publishN(t, publisher(t, config(b.URL)), q, 5)
	s := consume(t, dial(t, b.URL), q, 10)
	first, err := s.Collect(within(t), 3, time.Minute, nil)
	if err != nil || len(first) != 3 {
		t.Fatalf("limit 3: %d deliveries, %v", len(first), err)
	}
	second, err := s.Collect(within(t), 100, 300*time.Millisecond, nil)
	if err != nil || len(second) != 2 {
		t.Fatalf("linger: %d deliveries, %v", len(second), err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	if got, err := s.Collect(ctx, 1, 0, nil); !errors.Is(err, cause) || len(got) != 0 {
		t.Fatalf("empty queue: %d deliveries, %v; want the context's cause", len(got), err)
	}
	if _, err := s.Collect(within(t), 0, 0, nil); err == nil {
		t.Error("a limit of 0 was taken")
	}
}

func TestSilenceEndsTheLingerOfAnIdleCollect(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	s, p := consume(t, dial(t, b.URL), q, 10), publisher(t, config(b.URL))
	const linger = 4 * time.Second
	for range 5 { // a delivery that is there before Collect has begun to wait is given the whole linger
		type result struct {
			got int
			err error
		}
		done := make(chan result, 1)
		go func() {
			got, err := s.Collect(within(t), 2, linger, nil)
			done <- result{len(got), err}
		}()
		published := time.Now()
		publishN(t, p, q, 1)
		r := <-done
		if r.err != nil || r.got != 1 {
			t.Fatalf("%d deliveries, %v", r.got, r.err)
		}
		if time.Since(published) < linger {
			return
		}
	}
	t.Errorf("five idle collects each took the whole linger of %v for one delivery", linger)
}

func TestPrefetchIsCheckedAndHolds(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	c := dial(t, b.URL)
	for _, n := range []int{-1, 0, 65536, 70000} {
		if _, err := c.Consume(t.Context(), q, "tag", n); err == nil {
			t.Errorf("prefetch %d was taken", n)
		}
	}
	if _, err := c.Consume(t.Context(), q, "", 1); err == nil {
		t.Error("an empty consumer tag was taken")
	}
	publishN(t, publisher(t, config(b.URL)), q, 5)
	s := consume(t, c, q, 2)
	got := collect(t, s, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Collect(ctx, 1, 0, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a third delivery with prefetch 2: %v", err)
	}
	if err := s.Ack(got[1].Tag, true); err != nil {
		t.Fatal(err)
	}
	collect(t, s, 2)
}

func TestSettlingTwiceIsRefusedHereAndHurtsNobody(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	publishN(t, publisher(t, config(b.URL)), q, 6)
	s := consume(t, dial(t, b.URL), q, 10)
	d := collect(t, s, 6)
	mustAck := func(tag uint64, multiple bool) {
		t.Helper()
		if err := s.Ack(tag, multiple); err != nil {
			t.Fatal(err)
		}
	}
	mustAck(d[1].Tag, false)
	mustAck(d[3].Tag, false)
	for _, tag := range []uint64{d[1].Tag, d[3].Tag, 0, d[5].Tag + 1} {
		if err := s.Ack(tag, false); !errors.Is(err, rabbit.ErrNotOutstanding) {
			t.Errorf("ack %d: %v, want ErrNotOutstanding", tag, err)
		}
	}
	mustAck(d[2].Tag, true) // 1, 2, 3; then 4 is settled as well
	if err := s.Requeue(d[0].Tag, false); !errors.Is(err, rabbit.ErrNotOutstanding) {
		t.Errorf("requeue of an acked one: %v", err)
	}
	mustAck(d[5].Tag, true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "all settled", func() bool { return b.Depth(q) == 0 && b.Unacked(q) == 0 })
}

func TestAnAckOfManyPassesNothingBetweenThem(t *testing.T) {
	t.Parallel()
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := stack.AMQP(t)
			q := b.Name("many")
			b.DeclareQueue(q, quorum(nil))
			publishN(t, publisher(t, config(b.URL)), q, 6)
			s := consume(t, dial(t, b.URL), q, 10)
			d := collect(t, s, 6)
			for _, i := range tc.before {
				if err := s.Ack(d[i].Tag, false); err != nil {
					t.Fatal(err)
				}
			}
			var tags []uint64
			for _, i := range tc.ack {
				tags = append(tags, d[i].Tag)
			}
			if err := s.AckAll(tags); err != nil {
				t.Fatal(err)
			}
			if have := s.Acked(); have != uint64(len(tc.before)+len(tc.ack)) {
				t.Errorf("%d deliveries count as acked, want %d", have, len(tc.before)+len(tc.ack))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			poll.Until(t, "the rest is back", func() bool { return b.Depth(q) == len(tc.left) && b.Unacked(q) == 0 })
			for _, i := range tc.left {
				if m, ok := b.Get(q); !ok || m.MessageId != d[i].MessageID {
					t.Errorf("%q came back (%v), want %q", m.MessageId, ok, d[i].MessageID)
				}
			}
		})
	}
}

func TestCancelledSubscriptionCanStillSettle(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	publishN(t, publisher(t, config(b.URL)), q, 4)
	s := consume(t, dial(t, b.URL), q, 3)
	first := collect(t, s, 1)
	poll.Until(t, "prefetch filled", func() bool { return b.Unacked(q) == 3 })
	if err := s.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Ack(first[0].Tag, false); err != nil {
		t.Fatal(err)
	}
	rest := collect(t, s, 2)
	if _, err := s.Collect(within(t), 1, 0, nil); !errors.Is(err, rabbit.ErrCancelled) {
		t.Fatalf("after the last delivery: %v; want ErrCancelled", err)
	}
	if err := s.Requeue(rest[1].Tag, true); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Cancel(t.Context()), s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "3 of 4 back in the queue", func() bool { return b.Depth(q) == 3 && b.Unacked(q) == 0 })
}

func TestBrokersCancelEndsTheSubscriptionAndLeavesTheChannelOpen(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	c := dial(t, b.URL)
	s := consume(t, c, q, 1)
	b.Delete(q)
	if _, err := s.Collect(within(t), 1, 0, nil); !errors.Is(err, rabbit.ErrConsumerCancelled) {
		t.Fatalf("Collect on a deleted queue: %v", err)
	}
	if c.Err() != nil {
		t.Errorf("the connection is over too: %v", c.Err())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestARestEndsWithTheConsumer(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	publishN(t, publisher(t, config(b.URL)), q, 3)
	s := consume(t, dial(t, b.URL), q, 3)
	collect(t, s, 1) // others wait to be collected
	if err := s.Rest(within(t), 0); err != nil {
		t.Fatalf("Rest while all is well: %v", err)
	}
	b.Delete(q)
	if err := s.Rest(within(t), time.Hour); !errors.Is(err, rabbit.ErrConsumerCancelled) {
		t.Errorf("Rest on a deleted queue: %v", err)
	}
}

func TestLateAckAfterTheConnectionDiedSettlesNothing(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	publishN(t, publisher(t, config(b.URL)), q, 3)
	c := dial(t, b.URL)
	s := consume(t, c, q, 3)
	d := collect(t, s, 3)
	b.CloseConnections()
	if _, err := s.Collect(within(t), 1, 0, nil); err == nil || !strings.Contains(err.Error(), "closed by the test") {
		t.Fatalf("Collect = %v, want the broker's reason", err)
	}
	<-c.Done()
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "closed by the test") {
		t.Errorf("Err = %v, want the broker's reason", err)
	}
	if err := s.Ack(d[2].Tag, true); !errors.Is(err, rabbit.ErrClosed) {
		t.Fatalf("late ack: %v, want ErrClosed", err)
	}
	again := collect(t, consume(t, dial(t, b.URL), q, 3), 3)
	if len(again) != 3 || again[0].Count != 1 {
		t.Errorf("%d redelivered, count %d; want 3, 1", len(again), again[0].Count)
	}
}

func TestConsumingFromAMissingQueueSaysSo(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	c := dial(t, b.URL)
	_, err := c.Consume(t.Context(), "nowhere", "tag", 1)
	if err == nil || !strings.Contains(err.Error(), "no queue 'nowhere'") {
		t.Fatalf("Consume = %v", err)
	}
	if e, ok := errors.AsType[*rabbit.BrokerError](err); !ok || e.Code != 404 {
		t.Errorf("want a BrokerError 404, got %v", err)
	}
	if _, _, err := c.Depth(t.Context(), "nowhere"); err == nil {
		t.Error("Depth of a missing queue")
	}
}

// Given deliveries of which nobody has taken any, then they count as soon as the broker has announced them, and each
// time that one comes.
func TestDeliveriesCountWhenTheyCome(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	s := consume(t, dial(t, b.URL), q, 5)
	if n := s.Came(); n != 0 {
		t.Errorf("%d came to an empty queue", n)
	}
	for range 3 {
		b.Publish("", q, stack.Message{Body: []byte("x"), DeliveryMode: rabbit.Persistent})
	}
	all := collect(t, s, 3)
	if n := s.Came(); n != 3 {
		t.Errorf("%d came, want 3", n)
	}
	if err := s.Requeue(all[2].Tag, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Ack(all[1].Tag, true); err != nil {
		t.Fatal(err)
	}
	collect(t, s, 1)
	if came, acked := s.Came(), s.Acked(); came != 4 || acked != 2 {
		t.Errorf("%d came and %d were acked, want 4 and 2", came, acked)
	}
}
