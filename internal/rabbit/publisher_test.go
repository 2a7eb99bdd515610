package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func to(queue, id string) rabbit.Publishing {
	return rabbit.Publishing{Key: queue, Message: rabbit.Message{MessageID: id, Body: []byte("body")}}
}

func TestEachMessageGetsItsOwnVerdict(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	q, full := b.Name("open"), b.Name("full")
	b.DeclareQueue(q, quorum(nil))
	b.DeclareQueue(full, rabbit.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	p := publisher(t, config(b.URL))
	long := to(q, strings.Repeat("x", 256))
	huge := to(q, "huge")
	huge.Headers = rabbit.Table{"big": strings.Repeat("x", 131_072)}
	odd := to(q, "odd")
	odd.Headers = rabbit.Table{"odd": struct{}{}}
	deep := to(q, "deep")
	nested := any("bottom")
	for range 40 {
		nested = []any{nested}
	}
	deep.Headers = rabbit.Table{"deep": nested}
	changed := to(b.Name("none"), "changed") // RabbitMQ takes BCC off: what comes back equals nothing that was sent
	changed.Headers = rabbit.Table{"BCC": []any{b.Name("none")}}
	verdicts(t, p, []rabbit.Publishing{
		to(q, "1"), to(b.Name("nowhere"), "2"), to(q, "3"), long, huge, odd, deep, to(full, "fills it"), to(full, "over"),
		to(q, "last"), changed,
	}, map[int]error{1: rabbit.ErrUnroutable, 3: rabbit.ErrUnsendable, 4: rabbit.ErrUnsendable, 5: rabbit.ErrUnsendable,
		6: rabbit.ErrUnsendable, 8: rabbit.ErrNacked, 10: rabbit.ErrUnroutable})
	assert.Is(t, b.Depth(q), 3, "messages arrived")
	assert.That(t, len(p.Publish(t.Context(), nil)) == 0, "an empty batch has verdicts")
	cause := errors.New("time to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for _, err := range p.Publish(ctx, []rabbit.Publishing{to(q, "1"), to(q, "2")}) {
		assert.Error(t, err, cause, "Publish")
	}
}

func TestOneRefusedMessageIsBlamedAlone(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	for _, tt := range []struct {
		name   string
		spoilt rabbit.Publishing
		want   error
		text   string
	}{
		{"missing exchange", rabbit.Publishing{Exchange: "nowhere", Key: q}, rabbit.ErrUnroutable, "no exchange 'nowhere'"},
		{"header that the broker cannot read", rabbit.Publishing{
			Key: q, Message: rabbit.Message{Headers: rabbit.Table{"CC": "no list"}},
		}, rabbit.ErrUnsendable, "CC"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := publisher(t, config(b.URL))
			batch := slices.Repeat([]rabbit.Publishing{to(q, "good")}, 20)
			batch[7], batch[8] = tt.spoilt, tt.spoilt
			verdicts(t, p, batch, map[int]error{7: tt.want, 8: tt.want})
			assert.Has(t, fmt.Sprint(p.Publish(t.Context(), batch[7:8])), tt.text, "the refusal")
			publishN(t, p, q, 1)
		})
	}
}

// Given a broker of its own, which starts once for all of these: TLS, a policy, an alarm, a freeze and a limit of size
// of the whole server do what they should, one after the other.
func TestAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	ca := stack.NewAuthority(t, "shop")
	server := stack.Own(t, stack.Options{
		Only: []stack.Kind{stack.KindRabbitMQ}, RabbitMQPlugins: []string{"rabbitmq_management"},
		Encryption: &stack.Encryption{Pair: ca.Issue(stack.Certificate{Hosts: []string{"127.0.0.1"}}), ClientsCA: ca.File},
	})
	t.Run("TLS", func(t *testing.T) { theWalkerSeesPlainTextUnderTLS(t, server, ca.File) })
	t.Run("policy", func(t *testing.T) { thePrintedPolicyDoesWhatTheArgumentsDo(t, server) })
	t.Run("alarm", func(t *testing.T) { aMemoryAlarmMakesPublishingUnknownNotStuck(t, server) })
	t.Run("frozen", func(t *testing.T) { aFrozenBrokerHoldsNobodyLongerThanItsTimeout(t, server) })
	t.Run("too large", func(t *testing.T) { whatIsKnownToBeTooLargeMakesNoNeighbourComeTwice(t, server) })
}

// A body that is too large makes the broker close the channel, and what it had not confirmed on it must be published
// again. That happens once and not each time: what is known to be too large goes apart, until the limit is raised.
func whatIsKnownToBeTooLargeMakesNoNeighbourComeTwice(t *testing.T, s *stack.Server) {
	b := s.Broker(t)
	b.LimitMessages(100_000)
	q := b.Name("known")
	b.DeclareQueue(q, quorum(nil))
	p := publisher(t, config(b.URL))
	large, larger := to(q, "too large"), to(q, "too large too")
	large.Body, larger.Body = make([]byte, 100_001), make([]byte, 200_000)
	first := b.Name("first") // what goes there may come twice: nobody knows yet what is too large
	b.DeclareQueue(first, quorum(nil))
	verdicts(t, p, []rabbit.Publishing{to(first, "1"), large, to(first, "2"), larger, to(first, "3")},
		map[int]error{1: rabbit.ErrUnsendable, 3: rabbit.ErrUnsendable})
	for range 5 {
		batch := slices.Repeat([]rabbit.Publishing{to(q, "small")}, 500)
		batch[400] = large
		verdicts(t, p, batch, map[int]error{400: rabbit.ErrUnsendable})
	}
	assert.Is(t, b.Depth(q), 5*499, "messages arrived")
	b.LimitMessages(200_000)
	for range 2 { // apart, and then among the others
		verdicts(t, p, []rabbit.Publishing{to(q, "small"), large}, nil)
	}
	assert.Is(t, b.Depth(q), 5*499+4, "messages arrived")
}

func TestClosedPublisherRefusesAndCloseWaits(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	p := rabbit.NewPublisher(config(b.URL))
	var wg sync.WaitGroup
	var confirmed, refused int
	var mu sync.Mutex
	for range 8 {
		wg.Go(func() {
			for range 20 {
				err := p.Publish(t.Context(), []rabbit.Publishing{to(q, "x")})[0]
				mu.Lock()
				switch {
				case err == nil:
					confirmed++
				case errors.Is(err, rabbit.ErrClosed) && !errors.Is(err, rabbit.ErrUnconfirmed):
					refused++
				default:
					t.Errorf("Publish = %v, want confirmed or refused", err)
				}
				mu.Unlock()
			}
		})
	}
	poll.Until(t, "some confirmed", func() bool { mu.Lock(); defer mu.Unlock(); return confirmed > 8 })
	require.OK(t, p.Close(t.Context()))
	wg.Wait()
	if n := b.Depth(q); n != confirmed || confirmed+refused != 160 {
		t.Errorf("%d in the queue, %d confirmed, %d refused", n, confirmed, refused)
	}
	assert.OK(t, p.Close(t.Context()), "second Close:")
}

func aFrozenBrokerHoldsNobodyLongerThanItsTimeout(t *testing.T, s *stack.Server) {
	b := s.Broker(t)
	q := b.Name("frozen")
	b.DeclareQueue(q, quorum(nil))
	cfg := config(b.URL)
	cfg.Heartbeat, cfg.ConfirmTimeout, cfg.DialTimeout, cfg.CloseTimeout = time.Second, time.Second, time.Second,
		500*time.Millisecond
	p := publisher(t, cfg)
	publishN(t, publisher(t, config(b.URL)), q, 100) // a second is little for a machine that has much to do
	c := require.Get(rabbit.Dial(t.Context(), cfg))(t)
	sub := consume(t, c, q, 100)
	d := collect(t, sub, 100)
	acking := require.Get(rabbit.Dial(t.Context(), cfg))(t)
	full := consume(t, acking, q, 1)
	require.OK(t, s.Freeze())
	start := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			big := to(q, "x")
			big.Body = make([]byte, 100_000)
			// More than all socket buffers hold: the writer itself gets stuck.
			for _, err := range p.Publish(t.Context(), slices.Repeat([]rabbit.Publishing{big}, 200)) {
				assert.That(t, err != nil, "a frozen broker confirmed")
			}
		})
	}
	wg.Go(func() {
		_, err := sub.Collect(within(t), 1, 0, nil)
		assert.That(t, err != nil, "Collect on a frozen broker: no error")
	})
	wg.Go(func() {
		_ = rabbit.FillSocket(full) // a write that is stuck ends with the heartbeat
		<-acking.Done()
		_ = acking.Close()
	})
	wg.Wait()
	assert.Error(t, sub.Ack(d[0].Tag, false), rabbit.ErrClosed, "ack after the heartbeat was missed")
	assert.OK(t, sub.Cancel(t.Context()), "Cancel:")
	_ = sub.Close()
	_ = c.Close()
	assert.AtMost(t, time.Since(start), 12*time.Second, "it took") // four publishers, each with a dial of its own
	require.OK(t, s.Thaw())
	poll.Until(t, "published again", func() bool {
		return p.Publish(t.Context(), []rabbit.Publishing{to(q, "again")})[0] == nil
	})
}

func aMemoryAlarmMakesPublishingUnknownNotStuck(t *testing.T, s *stack.Server) {
	b := s.Broker(t)
	q := b.Name("alarm")
	b.DeclareQueue(q, quorum(nil))
	cfg := config(b.URL)
	cfg.ConfirmTimeout = 2 * time.Second
	p := publisher(t, cfg)
	publishN(t, p, q, 1)
	c := dial(t, b.URL)
	sub := consume(t, c, q, 1000)
	b.Eval(`rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})`)
	var err error
	arrived := 1
	poll.Until(t, "the alarm blocks the connection", func() bool { // which is told a moment later
		if err = p.Publish(t.Context(), []rabbit.Publishing{to(q, "blocked")})[0]; err == nil {
			arrived++
		}
		return err != nil
	})
	assert.That(t, errors.Is(err, rabbit.ErrUnconfirmed) && strings.Contains(err.Error(), "low on memory"),
		"Publish under a memory alarm: %v", err)
	taken := collect(t, sub, arrived)
	assert.OK(t, sub.Ack(taken[len(taken)-1].Tag, true), "ack on the consuming connection:")
	poll.Until(t, "acked under the alarm", func() bool { return b.Unacked(q) == 0 })
	b.Eval(`rabbit_alarm:clear_alarm({resource_limit, memory, node()})`)
	publishN(t, p, q, 1)
}

// Given messages to one exchange and key, of which some have another queue that takes them and some have none, when
// they are under way together, then each gets its own verdict: what was returned is known by what it is.
func TestAReturnedMessageIsTakenForNoneOfItsNeighbours(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	twins := rabbit.Table{"int": 7, "small": int16(7), "yes": true, "at": at, "none": nil, "bytes": []byte("b"),
		"list": []any{1, "two", map[string]any{"three": uint8(3)}}, "map": rabbit.Table{"deep": rabbit.Table{"x": 1.5}}}
	for name, tell := range map[string]func(m *rabbit.Message, i int){
		"by message_id":     func(m *rabbit.Message, i int) { m.MessageID = fmt.Sprint(i) },
		"by correlation_id": func(m *rabbit.Message, i int) { m.CorrelationID = fmt.Sprint(i) },
		"by body":           func(m *rabbit.Message, i int) { m.Body = []byte(fmt.Sprint(i)) },
		"by time":           func(m *rabbit.Message, i int) { m.Timestamp = at.Add(time.Duration(i) * time.Second) },
		"by a header":       func(m *rabbit.Message, i int) { m.Headers["key"] = fmt.Sprint(i) },
		"by a time in a header": func(m *rabbit.Message, i int) {
			m.Headers["key"] = at.Add(time.Duration(i) * time.Second)
		},
		"by an element of a list": func(m *rabbit.Message, i int) { m.Headers["key"] = []any{rabbit.Table{"a": i}} },
		"by its way alone":        func(*rabbit.Message, int) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := stack.AMQP(t)
			q, nowhere := b.Name("some"), b.Name("none")
			b.DeclareQueue(q, quorum(nil))
			p := publisher(t, config(b.URL))
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					batch, want := make([]rabbit.Publishing, 400), map[int]error{} // 4 × 400 is more than the window
					for i := range batch {
						m := rabbit.Message{Headers: rabbit.Table{}}
						maps.Copy(m.Headers, twins)
						if i%7 != 0 {
							m.Headers["CC"] = []any{q} // is routed, though by another key
						} else {
							m.Headers["CC"], want[i] = []any{nowhere}, rabbit.ErrUnroutable
						}
						tell(&m, 1000*g+i)
						batch[i] = rabbit.Publishing{Key: nowhere, Message: m}
					}
					verdicts(t, p, batch, want)
				})
			}
			wg.Wait()
			assert.Is(t, b.Depth(q), 4*342, "messages arrived")
		})
	}
}
