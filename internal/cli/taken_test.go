package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a queue of the shop's own, when it is taken as it is, then migrate makes what stands beside it and prints the
// policy that the queue needs, and doctor says what it could not see.
func TestMigratePrintsThePolicyOfAQueueThatIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	s := newShell(t, "ROLLBACKD_TOPOLOGY=check")
	if s.run("", "migrate") != exitFailed || s.run("", "migrate", "--status") != exitFailed {
		t.Error("migrate does without the queue")
	}
	s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum", "x-delivery-limit": int32(50)})
	if s.run("", "migrate") != exitDone || s.run("", "migrate", "--status") != exitDone {
		t.Error("the queue is not taken as it is")
	}
	s.environ = append(s.environ, "ROLLBACKD_RABBITMQ_API_URL=http://rollbackd:hunter2@127.0.0.1:1")
	s.run("", "migrate")
	s.golden("taken")
	s.wants(doctor.Warn, "policy of the main queue", "connection refused")
	checks, code := s.examine("ROLLBACKD_RABBITMQ_API_URL=")
	wantCheck(t, checks, code, doctor.Warn, "policy of the main queue", "AMQP does not show")
	wantCheck(t, checks, code, doctor.OK, "queue", "taken as it is")
	s.broker.Delete(s.queue)
	s.wants(doctor.Fail, "queue", "nobody makes it")
	s.broker.DeclareQueue(s.queue, nil)
	s.wants(doctor.Fail, "policy of the main queue", "rollbackd move", "ROLLBACKD_RABBITMQ_API_URL=")
}

// Given the management API, when the queue has no policy, a wrong one, or the one that is printed, then doctor says
// what is missing, or that all is well.
func TestDoctorVerifiesThePolicyByTheManagementAPI(t *testing.T) {
	t.Parallel()
	s := newShell(t, "ROLLBACKD_TOPOLOGY=check")
	server := stack.Own(t, stack.Options{
		Only: []stack.Kind{stack.KindRabbitMQ}, RabbitMQPlugins: []string{"rabbitmq_management"},
	})
	s.broker = server.Broker(t)
	s.environ = append(s.environ, "ROLLBACKD_AMQP_URL="+s.broker.URL, "ROLLBACKD_RABBITMQ_API_URL="+server.HTTP())
	s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum"})
	s.run("", "migrate")
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.Fail, "policy of the main queue", "dead-letter-exchange is not set")
	wantCheck(t, checks, code, doctor.Fail, "policy of the main queue", "delivery-limit is not set")
	good := map[string]any{
		"dead-letter-exchange": "", "dead-letter-routing-key": s.queue + ".backstop",
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": 200,
	}
	s.broker.Policy("rollbackd", s.queue, good)
	s.becomes(doctor.OK, "gives it what a declared one has") // the API follows a moment later
	good["dead-letter-routing-key"] = "elsewhere"
	s.broker.Policy("rollbackd", s.queue, good)
	s.becomes(doctor.Fail, `"elsewhere"`)
}

// becomes waits until doctor says this of the main queue's policy.
func (s *shell) becomes(level doctor.Level, found string) {
	s.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(time.Minute); ; <-tick.C {
		checks, _ := s.examine()
		i := slices.IndexFunc(checks, func(c doctor.Check) bool { return c.Name == "policy of the main queue" })
		if i >= 0 && checks[i].Level == level && strings.Contains(checks[i].Found, found) {
			return
		}
		if time.Now().After(late) {
			s.t.Fatalf("after a minute doctor does not say %s with %q:\n%+v", level, found, checks)
		}
	}
}
