package daemon_test

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given headers of every kind that the client library gives its connection up over, among a thousand good messages,
// when a daemon consumes them with its defaults, then every good one is applied, also if only what RabbitMQ has added
// makes its headers more than the library reads; each of the others is a letter that says why; and nothing is delivered
// twice but what was delivered before the daemon started.
func TestUnreadableHeadersDoNotHurtTheirNeighbours(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	orders := w.open(1_020)
	sent := w.route.Rollbacks(orders[20:])
	full, bad := w.publishUnreadable(orders[:20])
	w.publish(sent...)

	start := time.Now()
	daemon := w.start()
	w.ended(len(sent) + full + bad)
	t.Logf("all ended %v after the start", time.Since(start).Round(time.Millisecond))
	metrics := w.settled(daemon, len(sent)+full+bad)
	w.stop(daemon)
	is(w, "letters say that their headers cannot be read",
		w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ? AND reason = 'unidentified'"+
			" AND remark LIKE 'its headers cannot be read: %'", int(dedup.Dead)), bad)
	is(w, "applied", w.rows(dedup.Success), len(sent)+full)
	if n := metrics.Settled(); int(n) != len(sent)+full+bad {
		t.Errorf("%v deliveries were settled, want %d, each once", n, len(sent)+full+bad)
	}
}

// The same, but the key stands where it can be read: each message runs under it.
func TestUnreadableHeadersDoNotMatterWhenTheKeyIsElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "KEY_FROM", "property:message_id")
	orders := w.open(40)
	good := w.route.Rollbacks(orders[20:])
	full, bad := w.publishUnreadable(orders[:20])
	w.publish(good...)
	w.finish(len(good)+full+bad, 0, oracle.Allowance{})
}

// publishUnreadable publishes rollbacks of these orders, each with headers of another kind: full ones, which are more
// than can be read once RabbitMQ has added to them, and which are delivered once here; and bad ones, which cannot be
// read.
func (w *world) publishUnreadable(orders []shop.Order) (full, bad int) {
	w.t.Helper()
	raw := require.Get(stack.DialRaw(w.t.Context(), w.broker.URL))(w.t)
	defer raw.Close()
	n := 0
	publish := func(p oracle.Sent, kind stack.OddHeaders) {
		m := stack.RawMessage{
			Exchange: p.Exchange, Key: p.Key, MessageID: p.MessageID, Type: p.Type, Headers: kind.Entries, Body: p.Body,
		}
		if err := raw.Publish(m); err != nil {
			w.t.Fatalf("%s: %v", kind.Name, err)
		}
		w.ledger.Record(p, nil)
		n++
	}
	next := func() oracle.Sent { return w.route.Rollback(orders[n]) }
	for i := range stack.FillingHeaders(raw.FrameMax(), "m", "", "") {
		p := next()
		publish(p, stack.FillingHeaders(raw.FrameMax(), "m", p.MessageID, p.Type)[i])
	}
	full = n
	w.deliverOnce(full)
	for _, kind := range stack.UnreadableHeaders("m") {
		publish(next(), kind)
	}
	return full, n - full
}

// deliverOnce takes n messages of the main queue and gives them back.
func (w *world) deliverOnce(n int) {
	w.t.Helper()
	conn := require.Get(rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"}))(w.t)
	defer conn.Close()
	sub := require.Get(conn.Consume(w.t.Context(), w.config().Queue, "test", n))(w.t)
	for got := 0; got < n; {
		some := require.Get(sub.Collect(w.t.Context(), n-got, 0, nil))(w.t)
		got += len(some)
	}
	require.OK(w.t, sub.Close())
}
