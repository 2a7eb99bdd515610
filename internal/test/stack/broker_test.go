package stack

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given two tests, then queues of one have names of their own, on a virtual host that goes with it.
func TestEachBrokerHasNamesOfItsOwn(t *testing.T) {
	b, vhost := AMQP(t), ""
	t.Run("inner", func(t *testing.T) {
		a := AMQP(t)
		a.DeclareQueue(a.Name("q"), nil)
		vhost = a.vhost
		assert.That(t, a.Exists(a.Name("q")), "a declared queue does not exist")
		assert.That(t, !b.Exists(b.Name("q")), "a queue of one Broker has the name of another's")
		assert.That(t, a.node == nil || !b.Exists(a.Name("q")), "two tests share a virtual host of ours")
	})
	if all := b.Eval("rabbit_vhost:list_names()"); vhost == "" || strings.Contains(all, vhost) {
		t.Errorf("virtual hosts after the test: %s, want none %q", all, vhost)
	}
}

// recorder takes what would fail the test.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Error(args ...any)                 { r.errors = append(r.errors, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.errors = append(r.errors, format) }

func TestPublishFailsTheTestWhenTheMessageReachesNoQueue(t *testing.T) {
	b := AMQP(t)
	r := &recorder{TB: t}
	b.t = r
	b.Publish("", "nowhere", Message{})
	assert.Is(t, len(r.errors), 1, "errors")
	b.t = t
}

func TestGivenBrokerIsLeftAsItWas(t *testing.T) {
	ours := AMQP(t)
	var queue, exchange string
	t.Run("inner", func(t *testing.T) {
		given := newBroker(t, nil, ours.URL)
		queue, exchange = given.Name("q"), given.Name("x")
		given.DeclareQueue(queue, nil)
		given.DeclareExchange(exchange, "fanout")
		given.Bind(queue, "", exchange)
		given.Unbind(queue, "", exchange)
	})
	assert.That(t, !ours.Exists(queue), "the queue outlived its test on a given server")
	all := ours.Eval("[N || {resource, _, exchange, N} <- rabbit_exchange:list_names()]")
	assert.That(t, !strings.Contains(all, exchange), "the exchange outlived its test on a given server")
	t.Run("commands", func(t *testing.T) {
		newBroker(t, nil, ours.URL).CloseConnections()
		t.Error("a command for a given server did not skip the test")
	})
}

// Given headers that fill a frame, then a plain client reads them once, and gives its connection up when they come
// again, with what RabbitMQ has added.
func TestFillingHeadersAreTooMuchForAClientTheSecondTime(t *testing.T) {
	b := AMQP(t)
	for _, odd := range FillingHeaders("m", "id", "t") {
		queue := b.Name(odd.Name)
		b.DeclareQueue(queue, map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 100})
		b.Publish("", queue, Message{MessageId: "id", Type: "t", DeliveryMode: amqp.Persistent, Headers: odd.Table})
		for _, want := range []string{"id", ""} {
			conn := require.Get(amqp.Dial(b.URL))(t)
			ch := require.Get(conn.Channel())(t)
			got := require.Get(ch.Consume(queue, "", false, false, false, false, nil))(t)
			assert.Is(t, poll.Receive(t, odd.Name, got).MessageId, want, "%s: the delivered message", odd.Name)
			_ = conn.Close() // it may be closed already
		}
	}
}
