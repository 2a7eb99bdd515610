package cli

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a queue of the shop's own, when it is taken as it is, then migrate makes what stands beside it and prints the
// policy that the queue needs, and doctor says what it could not see.
func TestMigratePrintsThePolicyOfAQueueThatIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	s := newShell(t, "ROLLBACKD_TOPOLOGY=check")
	s.play("taken", map[string]func(){
		"the shop makes its queue": func() {
			s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum", "x-delivery-limit": int32(50)})
		},
		"the queue is deleted":       func() { s.broker.Delete(s.queue) },
		"the queue is a classic one": func() { s.broker.DeclareQueue(s.queue, nil) },
	})
}

// Given a RabbitMQ of its own with the management API: doctor looks at a queue's policy, definitions that are gone come
// back, and the accounts of deploy/accounts suffice.
func TestWhatTheManagementOfRabbitMQShowsAndKeeps(t *testing.T) {
	t.Parallel()
	server := stack.Own(t, stack.Options{
		Only: []stack.Kind{stack.KindRabbitMQ}, RabbitMQPlugins: []string{"rabbitmq_management"},
	})
	t.Run("policy", func(t *testing.T) { doctorVerifiesThePolicy(t, server) })
	t.Run("definitions", func(t *testing.T) { theDefinitionsComeBack(t, server) })
	// the last one, because it takes rights away
	t.Run("accounts", func(t *testing.T) { theAccountFilesAreAllThatServersNeed(t, server) })
}

// When the queue has no policy, a wrong one, or the one that is printed, then doctor says what is missing, or that all
// is well.
func doctorVerifiesThePolicy(t *testing.T, server *stack.Server) {
	s := newShell(t, "ROLLBACKD_TOPOLOGY=check")
	s.broker = server.Broker(t)
	s.environ = append(s.environ, "ROLLBACKD_AMQP_URL="+s.broker.URL, "ROLLBACKD_RABBITMQ_API_URL="+server.HTTP())
	s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum"})
	s.run("", "migrate")
	s.says("fail policy of the main queue = dead-letter-exchange is not set\n" +
		"fail policy of the main queue = delivery-limit is not set")
	good := map[string]any{
		"dead-letter-exchange": "", "dead-letter-routing-key": s.queue + ".backstop",
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": 200,
	}
	s.broker.Policy("rollbackd", s.queue, good)
	s.until("ok policy of the main queue = gives it what a declared one has") // the API follows a moment later
	good["dead-letter-routing-key"] = "elsewhere"
	s.broker.Policy("rollbackd", s.queue, good)
	s.until(`fail policy of the main queue = "elsewhere"`)
}
