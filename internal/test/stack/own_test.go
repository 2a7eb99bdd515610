package stack

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/poll"
)

func TestKilledRabbitKeepsAConfirmedDurableMessage(t *testing.T) {
	t.Parallel()
	s := OwnRabbit(t)
	b := s.Broker(t)
	b.DeclareQueue("q", map[string]any{"x-queue-type": "quorum"})
	b.Publish("", "q", Message{Body: []byte("kept"), DeliveryMode: amqp.Persistent})

	before := s.Pid()
	s.Kill()
	if pid := s.Pid(); pid != 0 {
		t.Errorf("process id after Kill = %d, want 0", pid)
	}
	s.Start()

	if pid := s.Pid(); pid == before || pid == 0 {
		t.Errorf("process id after Start = %d, before %d, want another", pid, before)
	}
	// A quorum queue elects its leader after the start.
	poll.Until(t, "the message being ready", func() bool { return b.Depth("q") == 1 })
	if d, ok := b.Get("q"); !ok || string(d.Body) != "kept" {
		t.Errorf("Get = %q, %v, want the message", d.Body, ok)
	}
}

func TestRabbitControl(t *testing.T) {
	t.Parallel()
	s := OwnRabbit(t)
	b := s.Broker(t)
	b.DeclareQueue("q", nil)

	// Given a delivery in hand.
	conn, err := amqp.Dial(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	b.Publish("", "q", Message{Body: []byte("x")})
	if _, ok, err := ch.Get("q", false); !ok || err != nil {
		t.Fatalf("Get = %v, %v, want the message", ok, err)
	}
	if n := b.Unacked("q"); n != 1 {
		t.Errorf("unacked = %d, want 1", n)
	}

	// When the connection is closed by force, the delivery is ready again.
	b.CloseConnections()
	select {
	case err := <-closed:
		if err == nil || err.Code != amqp.ConnectionForced {
			t.Errorf("closed with %v, want CONNECTION_FORCED", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the connection was not closed within 20s")
	}
	poll.Until(t, "the message being ready again", func() bool { return b.Depth("q") == 1 && b.Unacked("q") == 0 })

	// When the application is stopped and started, the node's process stays.
	pid := s.Pid()
	s.Ctl("stop_app")
	if conn, err := amqp.Dial(s.URL()); err == nil {
		conn.Close()
		t.Error("a connection was taken while the application was stopped")
	}
	s.Ctl("start_app")
	if n := b.Depth("q"); n != 0 { // the message was transient
		t.Errorf("depth after start_app = %d, want 0", n)
	}
	if s.Pid() != pid {
		t.Errorf("process id = %d, want the same, %d", s.Pid(), pid)
	}
}

func TestKilledMySQLKeepsACommittedRow(t *testing.T) {
	t.Parallel()
	s := OwnMySQL(t)
	dsn := s.Database(t)
	execMySQL(t, dsn, "CREATE TABLE t (a INT)")
	execMySQL(t, dsn, "INSERT INTO t VALUES (1)")

	s.Kill()
	s.Start()

	if n := count(t, dsn, "SELECT COUNT(*) FROM t"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	s.Stop()
	s.Start()
	if n := count(t, dsn, "SELECT COUNT(*) FROM t"); n != 1 {
		t.Errorf("%d rows after a stop in good order, want 1", n)
	}
}

func TestFrozenRedisDoesNotAnswerUntilThawed(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t)

	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := pingRedis(ctx, s.Addr()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("ping of a frozen redis = %v, want a timeout", err)
	}
	s.Thaw()
	if err := pingRedis(t.Context(), s.Addr()); err != nil {
		t.Errorf("ping of a thawed redis = %v", err)
	}

	// A frozen server is killed and stopped all the same.
	s.Freeze()
	s.Stop()
	s.Start()
	s.Freeze()
	s.Kill()
}

func TestRestrictedAccountMayOnlyWhatWasGranted(t *testing.T) {
	t.Parallel()
	dsn := MySQL(t)
	execMySQL(t, dsn, "CREATE TABLE t (a INT)")
	db, err := openMySQL(Restricted(t, dsn, "SELECT ON t"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("SELECT * FROM t"); err != nil {
		t.Errorf("SELECT = %v, want it allowed", err)
	}
	if _, err := db.Exec("INSERT INTO t VALUES (1)"); err == nil || !strings.Contains(err.Error(), "denied") {
		t.Errorf("INSERT = %v, want it denied", err)
	}
}

func TestRabbitWithPlugins(t *testing.T) {
	t.Parallel()
	s := Own(t, Options{Only: []Kind{KindRabbitMQ}, RabbitMQPlugins: []string{"rabbitmq_management", "rabbitmq_shovel"}})
	// A plugin's own command, shovel_status, is not found by rabbitmqctl 4.0.
	out, err := s.Ctl("eval", "lists:member(rabbitmq_shovel, rabbit_plugins:active()).")
	if err != nil || strings.TrimSpace(out) != "true" {
		t.Errorf("the shovel is enabled: %q, %v", out, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(s.HTTP() + "/api/overview")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("the management API answers %s", res.Status)
	}
}

func TestFaultThatDoesNotHappenFailsTheTest(t *testing.T) {
	s := OwnRedis(t)
	r := &recorder{TB: t}
	s.t = r
	s.Kill()
	if err := s.Freeze(); err == nil {
		t.Error("a dead server was frozen")
	}
	if _, err := s.Ctl("x"); err == nil {
		t.Error("redis has no control command and took one")
	}
	s.Start()
	if err := s.Start(); err == nil {
		t.Error("a running server was started")
	}
	s.t = t
	if len(r.errors) != 3 {
		t.Errorf("the test failed %d times, want 3: %q", len(r.errors), r.errors)
	}
}
