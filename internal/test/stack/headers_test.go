package stack_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// refuses says whether a plain client, consuming from the queue, loses its connection over what it gets.
func refuses(t *testing.T, target, queue string) bool {
	t.Helper()
	conn := require.Get(amqp.Dial(target))(t)
	defer conn.Close()
	ch := require.Get(conn.Channel())(t)
	select {
	case _, ok := <-require.Get(ch.Consume(queue, "", false, false, false, false, nil))(t):
		return !ok
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing came from %s", queue)
	}
	return false
}

func TestAClientGivesItsConnectionUpOverUnreadableHeaders(t *testing.T) {
	broker := stack.AMQP(t)
	const id, typ = "a message", "a.type"
	publish := func(t *testing.T, headers amqp.Table) (queue string) {
		t.Helper()
		queue = broker.Name("odd-" + t.Name())
		broker.DeclareQueue(queue, map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 100})
		broker.Publish("", queue, stack.Message{
			MessageId: id, Type: typ, DeliveryMode: amqp.Persistent, Headers: headers, Body: []byte("body"),
		})
		return queue
	}
	for _, odd := range stack.UnreadableHeaders("m") {
		t.Run(odd.Name, func(t *testing.T) {
			if !refuses(t, broker.URL, publish(t, odd.Table)) {
				t.Error("the client could read them")
			}
		})
	}
	for _, odd := range stack.FillingHeaders("m", id, typ) {
		t.Run(odd.Name, func(t *testing.T) {
			queue := publish(t, odd.Table)
			if refuses(t, broker.URL, queue) {
				t.Error("the client could not read them the first time")
			}
			if !refuses(t, broker.URL, queue) {
				t.Error("the client could read them the second time")
			}
		})
	}
}
