package daemon_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Given a quorum queue of the shop's own, with arguments of its own and fed by an exchange of its own, when a daemon
// takes it as it is, then messages are applied, retried and dead-lettered as ever, and the queue is as it was.
func TestAQueueThatIsTakenAsItIsIsConsumed(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, "TOPOLOGY", "check", "MAX_ATTEMPTS", "2", "RETRY_DELAYS", "100ms,200ms")
	queue := w.env["QUEUE"]
	w.broker.DeclareExchange(w.route.Exchange, "direct")
	w.broker.DeclareQueue(queue, map[string]any{"x-queue-type": "quorum", "x-max-length": int32(100_000)})
	w.broker.Bind(queue, w.route.Key, w.route.Exchange)
	w.broker.Policy("rollbackd", queue, map[string]any{
		"dead-letter-exchange": "", "dead-letter-routing-key": rabbit.BackstopQueue(queue),
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": rabbit.DeliveryLimit,
	})
	w.migrate()
	orders := w.open(200)
	sent := w.route.Rollbacks(orders)
	never := w.route.Message("nobody", []byte(`{"order_sn":"nobody"}`))
	sent = append(sent, oracle.Sent{Publishing: never, Fate: oracle.ToDie(dedup.ReasonExhausted)})
	w.publish(append(sent, sent...)...)
	w.finish(len(orders), 1, oracle.Allowance{})
	if log := w.logs.String(); !strings.Contains(log, "not seen over AMQP") || !strings.Contains(log, "set_policy") {
		t.Error("the log does not say that the policy is not seen, and what it should be")
	}
}

// Given a classic queue, when a daemon shall take it as it is, then it ends and says what to do instead, and the
// messages stay.
func TestAClassicQueueIsNotTakenAsItIs(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, "TOPOLOGY", "check")
	queue := w.env["QUEUE"]
	w.broker.DeclareQueue(queue, nil)
	w.migrate()
	w.publish(oracle.Sent{Publishing: rabbit.Publishing{Key: queue, Message: rabbit.Message{MessageID: "m"}}})
	w.exits(w.start(), 1, time.Minute)
	if log := w.logs.String(); !strings.Contains(log, "is a classic queue") || !strings.Contains(log, "rollbackd move") {
		t.Errorf("it said %s", log)
	}
	w.eventually("its message is there", func() bool { return w.broker.Depth(queue) == 1 })
}
