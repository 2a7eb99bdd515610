package wire_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// everyKeyFrom names each kind of source, alone and with others behind it.
var everyKeyFrom = []string{
	defaultKeyFrom, "body:sha256", "header:k", "header:k,body:sha256", "header:CCx,header:k,property:correlation_id",
	"property:message_id", "property:correlation_id,json:/order_sn", "json:/order_sn", "json:/order_sn,body:sha256",
	"header:x-retry,property:message_id", "header:Type,json:/items/0/sku_id",
}

// road is a broker with all queues, and a main queue whose messages reach the backstop when they come back once.
type road struct {
	b    *stack.Broker
	topo rabbit.TopologyConfig
	pub  *rabbit.Publisher
	conn *rabbit.Conn
	subs map[string]*rabbit.Subscription
	four bool // RabbitMQ 4 or later
	kept bool // no hop over the delivery limit for this message
}

func newRoad(t *testing.T) *road {
	t.Helper()
	r := &road{b: stack.AMQP(t), subs: map[string]*rabbit.Subscription{}}
	r.topo = rabbit.TopologyConfig{
		Exchange: r.b.Name("stock"), Queue: r.b.Name("main"), RoutingKeys: []string{"#"},
		Delays: []time.Duration{time.Millisecond},
	}
	r.b.Track(r.topo.Queues()...)
	r.b.TrackExchanges(r.topo.Exchange)
	cfg := rabbit.Config{URLs: []string{r.b.URL}, Name: rabbit.ConnectionName("test"), Heartbeat: 5 * time.Second}
	c := require.Get(rabbit.Dial(t.Context(), cfg))(t)
	t.Cleanup(func() { _ = c.Close() })
	r.conn, r.four = c, !strings.HasPrefix(c.ServerVersion(), "3.")
	r.pub = rabbit.NewPublisher(cfg)
	t.Cleanup(func() { _ = r.pub.Close(context.WithoutCancel(t.Context())) })
	require.Get(rabbit.Declare(t.Context(), c, r.topo))(t)
	// The same queue with a lower limit, so that the broker dead-letters what comes back once.
	r.b.Delete(r.topo.Queue)
	r.b.DeclareQueue(r.topo.Queue, rabbit.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(0), "x-dead-letter-exchange": "", "x-overflow": "reject-publish",
		"x-dead-letter-routing-key": rabbit.BackstopQueue(r.topo.Queue), "x-dead-letter-strategy": "at-least-once",
	})
	r.b.Bind(r.topo.Queue, "#", r.topo.Exchange)
	for _, q := range []string{r.topo.Queue, rabbit.DeadQueue(r.topo.Queue), rabbit.BackstopQueue(r.topo.Queue)} {
		r.subs[q] = require.Get(c.Consume(t.Context(), q, q, 10))(t)
	}
	return r
}

// take receives the next message of a queue, which must come.
func (r *road) take(t require.Test, queue string) rabbit.Delivery {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return require.Get(r.subs[queue].Collect(ctx, 1, 0, nil))(t)[0]
}

func (r *road) send(t require.Test, p rabbit.Publishing) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.OK(t, r.pub.Publish(ctx, []rabbit.Publishing{p})...)
}

// hop moves a message on in one of the ways that exist.
func (r *road) hop(t *rapid.T, from string, d rabbit.Delivery, o wire.CopyOptions) (string, rabbit.Delivery) {
	main, dead, backstop := r.topo.Queue, rabbit.DeadQueue(r.topo.Queue), rabbit.BackstopQueue(r.topo.Queue)
	ways := []string{"retry", "dead-letter", "replay", "shovel"}
	if from == main && !r.kept {
		ways = append(ways, "delivery limit")
	}
	way := rapid.SampledFrom(ways).Draw(t, "way")
	to, arrives := main, main
	m := wire.Copy(d, main, o)
	switch way {
	case "retry":
		to = rabbit.RetryQueue(main, time.Millisecond)
	case "dead-letter":
		to, arrives = dead, dead
	case "shovel":
		m = d.Message // as it is, by whatever tool
		// RabbitMQ 4 does not go on with an x-death that somebody publishes: the next one names the main queue alone.
		r.kept = r.kept || r.four && from == backstop
	case "delivery limit":
		// A channel that ends counts as a delivery everywhere; from RabbitMQ 4.3 on a requeue does not.
		require.OK(t, r.subs[from].Close())
		r.subs[from] = require.Get(r.conn.Consume(context.Background(), from, from, 10))(t)
		return backstop, r.take(t, backstop)
	}
	if way == "shovel" && from == main && d.Exchange != "" {
		to = main // a shovel from the main queue would lose the routing key: only letters are moved by hand
		m = wire.Copy(d, main, o)
	}
	r.send(t, rabbit.Publishing{Key: to, Message: m})
	require.OK(t, r.subs[from].Ack(d.Tag, false))
	return arrives, r.take(t, arrives)
}

func TestACopyHasTheIdentityOfItsMessage(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	rapid.Check(t, func(t *rapid.T) {
		r.kept = false
		key := routingKey().Draw(t, "routing key")
		r.b.Publish(r.topo.Exchange, key, producersMessage().Draw(t, "message"))
		d := r.take(t, r.topo.Queue)
		r.walk(t, d, identities(t, r.topo.Queue, d), rapid.IntRange(1, 5).Draw(t, "hops"))
	})
}

// walk lets a message of the main queue, and its copies, take so many hops, where it keeps its identity, and acks it.
func (r *road) walk(t *rapid.T, d rabbit.Delivery, want []named, hops int) {
	queue := r.topo.Queue
	published, known := wire.PublishedAt(d.Message)
	for n := hops; ; n-- {
		for i, got := range identities(t, r.topo.Queue, d) {
			require.Is(t, got, want[i], "by %s it became", everyKeyFrom[i])
		}
		at, ok := wire.PublishedAt(d.Message)
		require.That(t, !known || ok && at.Equal(published), "published at %v became %v, %v", published, at, ok)
		if n == 0 {
			break
		}
		o := options().Draw(t, "options")
		o.Identity = want[rapid.IntRange(0, len(everyKeyFrom)-1).Draw(t, "copied under")].id
		queue, d = r.hop(t, queue, d, o)
	}
	require.OK(t, r.subs[queue].Ack(d.Tag, false))
}

type named struct {
	id  wire.Identified
	why string
}

func identities(t require.Test, queue string, d rabbit.Delivery) []named {
	var all []named
	for _, list := range everyKeyFrom {
		id, err := wire.Identify("g", sources(t, list), queue, d)
		require.OK(t, id.Identity.Validate()) // else the log would refuse the key
		all = append(all, named{id, fmt.Sprint(err)})
	}
	return all
}

func options() *rapid.Generator[wire.CopyOptions] {
	return rapid.Custom(func(t *rapid.T) wire.CopyOptions {
		return wire.CopyOptions{
			Attempt: rapid.IntRange(0, 5).Draw(t, "attempt"), Replays: rapid.IntRange(0, 2).Draw(t, "replays"),
			Error:  rapid.SampledFrom([]string{"", "boom", strings.Repeat("ü", 2000), "\xff\x00"}).Draw(t, "error"),
			Reason: rapid.SampledFrom(append(dedup.Reasons(), "")).Draw(t, "reason"),
		}
	})
}

func routingKey() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"stock.rollback", "", "rollbackd.conflict", strings.Repeat("k", 255), "a\nb", "\xff\xfe"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 120), func(b []byte) string { return string(b) }),
	)
}

// shortText is what fits into an AMQP property, often none, sometimes odd.
func shortText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.Just(""), rapid.StringN(1, 20, 60),
		rapid.SampledFrom([]string{"rollbackd.x", strings.Repeat("t", 101), strings.Repeat("t", 255), "a\x00", "\xc3", "🎁 "}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 255), func(b []byte) string { return string(b) }),
	)
}

func producersMessage() *rapid.Generator[stack.Message] {
	return rapid.Custom(func(t *rapid.T) stack.Message {
		m := stack.Message{
			Body: rapid.OneOf(
				rapid.SampledFrom([][]byte{nil, []byte(`{"order_sn":"20261121-1","items":[{"sku_id":5}]}`),
					[]byte(`{"order_sn":7}`), []byte(`{"order_sn":null}`), []byte(`{`), []byte("\xff")}),
				rapid.SliceOfN(rapid.Byte(), 0, 300),
			).Draw(t, "body"),
			ContentType: shortText().Draw(t, "content type"), ContentEncoding: shortText().Draw(t, "encoding"),
			DeliveryMode: rapid.Uint8Range(0, 2).Draw(t, "mode"), Priority: rapid.Uint8Range(0, 9).Draw(t, "priority"),
			CorrelationId: shortText().Draw(t, "correlation"), MessageId: shortText().Draw(t, "id"),
			Type:  shortText().Draw(t, "type"),
			AppId: shortText().Draw(t, "app"), ReplyTo: rapid.SampledFrom([]string{"", "me", "\xff"}).Draw(t, "reply"),
			Expiration: rapid.SampledFrom([]string{"", "3600000"}).Draw(t, "expiration"),
			Headers:    headers(2).Draw(t, "headers"),
		}
		if rapid.Bool().Draw(t, "timestamp") {
			m.Timestamp = time.Unix(rapid.Int64Range(-10, 1<<40).Draw(t, "seconds"), 0)
		}
		if rapid.Bool().Draw(t, "CC") {
			m.Headers["CC"], m.Headers["BCC"] = []any{"nobody"}, []any{"nobody"}
		}
		return m
	})
}

func headers(depth int) *rapid.Generator[rabbit.Table] {
	names := rapid.OneOf(
		rapid.SampledFrom([]string{"x-message-key", "k", "CCx", "x-retry", "Type", wire.HeaderPublishedAt, "timestamp_in_ms",
			wire.HeaderRoutingKey, wire.HeaderExchange, wire.HeaderDeadAt, wire.HeaderAttempt, wire.HeaderDropped,
			"x-rollbackd-unknown", "x-delivery-count", "x-acquired-count", "x-first-death-queue"}),
		rapid.StringN(1, 10, 30),
	)
	return rapid.Custom(func(t *rapid.T) rabbit.Table {
		out := rabbit.Table{}
		for range rapid.IntRange(0, 5).Draw(t, "headers") {
			out[names.Draw(t, "name")] = value(depth).Draw(t, "value")
		}
		return out
	})
}

func value(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(),
		rapid.Uint16().AsAny(), rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Float32().AsAny(),
		rapid.Float64().AsAny(), shortText().AsAny(), rapid.SliceOfN(rapid.Byte(), 0, 300).AsAny(),
		rapid.Map(rapid.Int64Range(-1000, 1<<40), func(n int64) any { return time.Unix(n, 0) }),
		rapid.Map(rapid.Int32(), func(n int32) any { return rabbit.Decimal{Scale: 2, Value: n} }),
		rapid.Map(rapid.IntRange(1000, 4000), func(n int) any { return strings.Repeat("x", n) }),
	}
	if depth > 0 {
		kinds = append(kinds, headers(depth-1).AsAny(), rapid.SliceOfN(value(depth-1), 0, 3).AsAny())
	}
	return rapid.OneOf(kinds...)
}

// Given messages in a queue that was there before, some of which went through its own retry queue, when they are
// carried over to the main queue and go on from there, then each has the identity that it has where it came from, for
// every source of keys and tags.
func TestACarriedMessageHasTheIdentityOfItsMessage(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	old, retry, exchange := r.b.Name("old"), r.b.Name("old-retry"), r.b.Name("shop")
	r.b.DeclareExchange(exchange, "topic")
	r.b.DeclareQueue(retry, rabbit.Table{
		"x-message-ttl": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": old,
	})
	r.b.DeclareQueue(old, rabbit.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry})
	r.b.Bind(old, "#", exchange)
	// meet takes the next message of the old queue over a consumer of its own, so that the shop's can be first.
	meet := func(t *rapid.T) (*rabbit.Subscription, rabbit.Delivery) {
		r.subs[old] = require.Get(r.conn.Consume(context.Background(), old, old, 1))(t)
		return r.subs[old], r.take(t, old)
	}
	rapid.Check(t, func(t *rapid.T) {
		r.kept = false
		key := routingKey().Draw(t, "routing key")
		r.b.Publish(exchange, key, producersMessage().Draw(t, "message"))
		sub, d := meet(t)
		want := identities(t, old, d)
		if rapid.Bool().Draw(t, "the shop retries it") {
			require.OK(t, sub.Requeue(d.Tag, false), sub.Close())
			r.b.Reject(old)
			sub, d = meet(t)
		}
		r.send(t, rabbit.Publishing{Key: r.topo.Queue, Message: require.Get(wire.Carry(d, old))(t)})
		require.OK(t, sub.Ack(d.Tag, false), sub.Close())
		r.walk(t, r.take(t, r.topo.Queue), want, rapid.IntRange(0, 2).Draw(t, "hops"))
	})
}

func TestHeadersThatFillAFrameDoNotStopACopy(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	many := func(n int, v any) rabbit.Table {
		h := rabbit.Table{}
		for i := range n {
			h[fmt.Sprintf("h%05d", i)] = v
		}
		return h
	}
	with := func(h rabbit.Table, name string, v any) rabbit.Table { h[name] = v; return h }
	for name, headers := range map[string]rabbit.Table{
		"one huge header":            {"x-message-key": "k", "huge": strings.Repeat("x", 130_500)},
		"the key itself is huge":     {"x-message-key": strings.Repeat("k", 130_500)},
		"the key is a huge table":    {"x-message-key": many(10, strings.Repeat("k", 13_000))},
		"several large ones":         with(many(12, []byte(strings.Repeat("x", 10_800))), "x-message-key", int64(5)),
		"thousands of small ones":    with(many(8_000, nil), "x-message-key", strings.Repeat("k", 200)),
		"thousands of middling ones": with(many(1_300, strings.Repeat("x", 85)), "x-message-key", strings.Repeat("k", 200)),
	} {
		t.Run(name, func(t *testing.T) {
			r.b.Publish(r.topo.Exchange, "stock.rollback", stack.Message{Body: []byte("b"), Headers: headers, MessageId: "id"})
			d := r.take(t, r.topo.Queue)
			want := identities(t, r.topo.Queue, d)
			from := sources(t, defaultKeyFrom)
			for range 3 {
				id, _ := wire.Identify("g", from, r.topo.Queue, d)
				r.send(t, rabbit.Publishing{Key: rabbit.RetryQueue(r.topo.Queue, time.Millisecond),
					Message: wire.Copy(d, r.topo.Queue, wire.CopyOptions{
						Identity: id, Attempt: 1, Error: strings.Repeat("e", 5000), Reason: dedup.ReasonUnidentified,
					})})
				require.OK(t, r.subs[r.topo.Queue].Ack(d.Tag, false))
				d = r.take(t, r.topo.Queue)
				require.Is(t, identities(t, r.topo.Queue, d)[0].id.Identity, want[0].id.Identity, "it became")
			}
			info := wire.ReadCopy(d.Headers)
			assert.That(t, info.Attempt == 1 && len(info.Error) == wire.MaxErrorBytes && info.RoutingKey == "stock.rollback",
				"our own headers suffered: %+v", info)
			require.OK(t, r.subs[r.topo.Queue].Ack(d.Tag, false))
		})
	}
}

// Given messages whose headers nobody can read, when they go any way that a message can go, then each keeps its
// identity, and no two of them share one where it would come from their headers.
func TestUnreadableHeadersKeepTheirIdentity(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	all := stack.UnreadableHeaders("m")
	owner := map[string]string{} // of each identity that headers would have given
	rapid.Check(t, func(t *rapid.T) {
		odd := all[rapid.IntRange(0, len(all)-1).Draw(t, "headers")]
		// RabbitMQ 4 writes an x-death of its own in the place of a forged one: then the headers can be read.
		r.kept = r.four && odd.Name == "a forged x-death"
		key := routingKey().Draw(t, "routing key")
		m := stack.Message{
			Headers: odd.Table, MessageId: shortText().Draw(t, "id"), CorrelationId: shortText().Draw(t, "correlation"),
			Type: shortText().Draw(t, "type"), Body: []byte(`{"order_sn":"20261121-1","items":[{"sku_id":5}]}`),
		}
		r.b.Publish(r.topo.Exchange, key, m)
		d := r.take(t, r.topo.Queue)
		_, ok := rabbit.ReadUnreadable(d.Headers)
		require.That(t, ok, "%s: not marked", odd.Name)
		want := identities(t, r.topo.Queue, d)
		tag := cmp.Or(m.Type, key) // with a type the routing key says nothing of what the message is
		what := fmt.Sprintf("%q %q %q %q", odd.Name, tag, m.MessageId, m.CorrelationId)
		for i, id := range want {
			headerFirst := strings.HasPrefix(everyKeyFrom[i], "header:")
			require.That(t, !headerFirst || id.id.Identity.Tag == wire.TagUnidentified,
				"%s: named %v although its headers are lost", everyKeyFrom[i], id.id.Identity)
			other := owner[id.id.Identity.Key]
			require.That(t, !headerFirst || other == "" || other == what, "%s and %s are both %v", other, what, id.id.Identity)
			if headerFirst {
				owner[id.id.Identity.Key] = what
			}
		}
		r.walk(t, d, want, rapid.IntRange(1, 4).Draw(t, "hops"))
	})
}
