package cli

import (
	"net"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

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
	s.says("exit 0\nnote answer = no fault when none runs on this machine")
	// given one that works
	way := stack.Proxy(t, stack.Addr(t, direct))
	s.environ = append(s.environ, "ROLLBACKD_AMQP_URL="+way.Through(direct))
	s.daemon()
	past := "ROLLBACKD_AMQP_URL=" + direct // doctor goes by another way
	_, port, _ := net.SplitHostPort(addr)
	for _, form := range []string{addr, ":" + port, "0.0.0.0:" + port, "[::]:" + port, "localhost:" + port} {
		s.until("ok answer = :"+port+", group stock-rollback, queue "+s.queue+",…takes deliveries", past,
			"ROLLBACKD_HTTP_ADDR="+form)
	}
	// when a message ends each connection on which it comes
	const killer = `{"order_sn":"killer"}`
	way.KillOn([]byte(killer))
	for _, queue := range []string{s.queue, backstop} {
		s.broker.Publish("", queue, stack.Message{Body: []byte(killer), DeliveryMode: rabbit.Persistent})
	}
	for _, queue := range []string{s.queue, backstop} {
		s.until("warn degraded = "+queue+": something in it ended the last…ook for what cuts the connection", past)
	}
	// when RabbitMQ is away
	way.KillOn(nil)
	way.Refuse(true)
	way.Cut()
	s.until("fail waiting = rabbitmq: ", past)
	s.until("note answer = takes no deliveries", past)
	// and when the settings are those of another daemon, then this one's troubles are not taken for that one's
	for _, setting := range []string{"ROLLBACKD_GROUP=other", "ROLLBACKD_QUEUE=" + s.queue + ".other"} {
		s.until("warn answer = is not that of these settings", past, setting)
		s.says("no warn degraded\nno fail waiting\nno note draining", past, setting)
	}
	// when the way is free
	way.Refuse(false)
	s.eventually(2, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	s.until("ok answer = takes deliveries", past)
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
	s.until("warn degraded = " + dead + ": …rabbitmqctl list_policies")
}

// Given a setting by which nobody can be asked, or somebody else on the port, then doctor says that.
func TestDoctorSaysWhyItAsksNoDaemon(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	other := stack.Proxy(t, stack.Addr(t, s.dsn)) // MySQL speaks first, and no HTTP
	s.says("note answer = ROLLBACKD_HTTP_ADDR is off", "ROLLBACKD_HTTP_ADDR=off")
	s.says("note answer = another port each time", "ROLLBACKD_HTTP_ADDR=127.0.0.1:0")
	s.says("warn answer = not a daemon of rollbackd", "ROLLBACKD_HTTP_ADDR="+other.Addr)
}
