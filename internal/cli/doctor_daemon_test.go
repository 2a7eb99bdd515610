package cli

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// until asks doctor again and again until a check of this level and name says so, and returns it with the exit code.
func (s *shell) until(level doctor.Level, name, found string, more ...string) (doctor.Check, int) {
	s.t.Helper()
	late := time.Now().Add(30 * time.Second)
	for {
		checks, code := s.examine(more...)
		for _, c := range checks {
			if c.Area == "daemon" && c.Level == level && c.Name == name && strings.Contains(c.Found, found) {
				return c, code
			}
		}
		if time.Now().After(late) {
			s.t.Fatalf("no check says %s of %q with %q: %+v", level, name, found, checks)
		}
	}
}

// Given a daemon whose queues end its connections, by a message that a filter on the way does not let through, then
// doctor names each queue and what to do, in the daemon's words; and once the way is free, that all is well.
func TestDoctorRepeatsWhatTheDaemonMisses(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	direct, addr := s.broker.URL, stack.FreeAddr(t)
	backstop := rabbit.BackstopQueue(s.queue)
	s.run("", "migrate")
	s.environ = append(s.environ, "ROLLBACKD_HTTP_ADDR="+addr)
	// given no daemon
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.Note, "answer", "no fault when none runs on this machine")
	if code != exitDone {
		t.Errorf("exit %d without a daemon, want 0", code)
	}
	// given one that works
	way := stack.Proxy(t, stack.Addr(t, direct))
	s.environ = append(s.environ, "ROLLBACKD_AMQP_URL="+way.Through(direct))
	s.daemon()
	past := "ROLLBACKD_AMQP_URL=" + direct // doctor goes by another way
	_, port, _ := net.SplitHostPort(addr)
	for _, form := range []string{addr, ":" + port, "0.0.0.0:" + port, "[::]:" + port, "localhost:" + port} {
		c, _ := s.until(doctor.OK, "answer", "takes deliveries", past, "ROLLBACKD_HTTP_ADDR="+form)
		if !strings.Contains(c.Found, ":"+port+", group stock-rollback, queue "+s.queue+",") {
			t.Errorf("asked at %s: %+v does not say who was asked", form, c)
		}
	}
	// when a message ends each connection on which it comes
	const killer = `{"order_sn":"killer"}`
	way.KillOn([]byte(killer))
	for _, queue := range []string{s.queue, backstop} {
		s.broker.Publish("", queue, stack.Message{Body: []byte(killer), DeliveryMode: rabbit.Persistent})
	}
	for _, queue := range []string{s.queue, backstop} {
		c, code := s.until(doctor.Warn, "degraded", queue+": something in it ended the last", past)
		if !strings.Contains(c.Found, "ook for what cuts the connection") || c.Do == "" || code != exitDone {
			t.Errorf("exit %d, %+v; want what to do", code, c)
		}
	}
	// when RabbitMQ is away
	way.KillOn(nil)
	way.Refuse(true)
	way.Cut()
	if c, code := s.until(doctor.Fail, "waiting", "rabbitmq: ", past); code != exitFailed {
		t.Errorf("exit %d, %+v", code, c)
	}
	s.until(doctor.Note, "answer", "takes no deliveries", past)
	// and when the settings are those of another daemon, then this one's troubles are not taken for that one's
	for _, setting := range []string{"ROLLBACKD_GROUP=other", "ROLLBACKD_QUEUE=" + s.queue + ".other"} {
		s.until(doctor.Warn, "answer", "is not that of these settings", past, setting)
		checks, _ := s.examine(past, setting)
		if slices.ContainsFunc(checks, func(c doctor.Check) bool { return c.Area == "daemon" && c.Name != "answer" }) {
			t.Errorf("with %s: %+v", setting, checks)
		}
	}
	// when the way is free
	way.Refuse(false)
	s.eventually(2, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	s.until(doctor.OK, "answer", "takes deliveries", past)
}

// Given a dead-letter queue that a policy makes refuse letters, which AMQP does not show, then doctor names it, because
// the daemon has met it.
func TestDoctorNamesAQueueThatRefusesCopies(t *testing.T) {
	t.Parallel()
	s := migrated(t, "ROLLBACKD_HTTP_ADDR="+stack.FreeAddr(t))
	dead := rabbit.DeadQueue(s.queue)
	s.broker.Policy("full-"+dead, dead, map[string]any{"max-length": 0, "overflow": "reject-publish"})
	defer s.broker.Policy("full-"+dead, dead, nil)
	s.broker.Publish("", dead, stack.Message{Body: []byte("somebody else's"), DeliveryMode: rabbit.Persistent})
	s.daemon()
	for range 3 { // the limit is soft
		s.broker.Publish("", s.queue, stack.Message{Body: []byte("no JSON"), DeliveryMode: rabbit.Persistent})
	}
	c, _ := s.until(doctor.Warn, "degraded", dead+": ")
	if !strings.Contains(c.Found, "rabbitmqctl list_policies") {
		t.Errorf("%+v does not say what to do", c)
	}
}

// Given a setting by which nobody can be asked, or somebody else on the port, then doctor says that.
func TestDoctorSaysWhyItAsksNoDaemon(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	other := stack.Proxy(t, stack.Addr(t, s.dsn)) // MySQL speaks first, and no HTTP
	for found, setting := range map[string]string{
		"ROLLBACKD_HTTP_ADDR is off": "off", "another port each time": "127.0.0.1:0",
	} {
		s.wants(doctor.Note, "answer", found, "ROLLBACKD_HTTP_ADDR="+setting)
	}
	s.wants(doctor.Warn, "answer", "not a daemon of rollbackd", "ROLLBACKD_HTTP_ADDR="+other.Addr)
}
