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
	raw := require.Get(stack.DialRaw(t.Context(), broker.URL))(t)
	defer raw.Close()
	const id, typ = "a message", "a.type"
	publish := func(t *testing.T, headers []byte) (queue string) {
		t.Helper()
		queue = broker.Name("raw-" + t.Name())
		broker.DeclareQueue(queue, map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 100})
		m := stack.RawMessage{Key: queue, MessageID: id, Type: typ, Headers: headers, Body: []byte("body")}
		require.OK(t, raw.Publish(m))
		return queue
	}
	for _, odd := range stack.UnreadableHeaders("m") {
		t.Run(odd.Name, func(t *testing.T) {
			if !refuses(t, broker.URL, publish(t, odd.Entries)) {
				t.Error("the client could read them")
			}
		})
	}
	for _, odd := range stack.FillingHeaders(raw.FrameMax(), "m", id, typ) {
		t.Run(odd.Name, func(t *testing.T) {
			queue := publish(t, odd.Entries)
			if refuses(t, broker.URL, queue) {
				t.Error("the client could not read them the first time")
			}
			if !refuses(t, broker.URL, queue) {
				t.Error("the client could read them the second time")
			}
		})
	}
	t.Run("unroutable", func(t *testing.T) {
		if err := raw.Publish(stack.RawMessage{Key: broker.Name("nowhere"), Body: []byte("body")}); err == nil {
			t.Error("a message that no queue took was confirmed")
		}
		publish(t, nil) // the connection is good for the next one
	})
}
