package cli

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

// put commits n messages in transactions of a hundred.
func (s *shell) put(prefix string, n int, routingKey string) {
	s.t.Helper()
	for i := 0; i < n; {
		tx, err := s.db().BeginTx(s.t.Context(), nil)
		for ; err == nil && i < n; i++ {
			key := fmt.Sprintf("%s-%d", prefix, i)
			err = outbox.Put(s.t.Context(), tx, outbox.Message{Tag: "stock.rollback", Key: key, RoutingKey: routingKey,
				Value: map[string]string{"order_sn": key}})
			if i%100 == 99 {
				i++
				break
			}
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// relayShell has an exchange, a queue behind it, a schema with nothing in it, and the settings that a relay needs, that
// of the schema first.
func relayShell(t *testing.T) *shell {
	t.Helper()
	s := newShell(t)
	exchange := s.broker.Name("stock")
	s.broker.DeclareExchange(exchange, "topic")
	s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum"})
	s.broker.Bind(s.queue, "stock.rollback", exchange)
	s.environ = []string{
		"ROLLBACKD_MYSQL_DSN=" + s.dsn, "ROLLBACKD_AMQP_URL=" + s.broker.URL, "ROLLBACKD_EXCHANGE=" + exchange,
		"ROLLBACKD_LOG_FORMAT=json", "ROLLBACKD_ROUTING_KEYS=stock.rollback,other.#", "ROLLBACKD_HTTP_ADDR=127.0.0.1:0",
	}
	return s
}

// Given a schema of a producer's alone and nothing but the settings that a relay needs, then the relay says what is
// missing, `migrate --outbox` makes that and nothing else, and two relays share the work: one of them is killed in the
// midst of it, and every message arrives.
func TestARelayOfItsOwn(t *testing.T) {
	t.Parallel()
	s := relayShell(t)
	broker, queue, env := s.broker, s.queue, s.environ
	s.environ = env[:1]
	assert.Is(t, s.run("", "migrate", "--outbox", "--status"), exitFailed, "the status of an empty schema: exit")
	_, stderr, code := runCLI(t, env, "", "relay")
	if code != exitFailed || !strings.Contains(stderr, "rollbackd migrate --outbox") {
		t.Errorf("a relay without its table: exit %d\n%s", code, stderr)
	}
	s.quietly("", "migrate", "--outbox")
	s.quietly("", "migrate", "--outbox", "--status")
	s.eventually(2, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND "+
		"table_name IN ('rollbackd_outbox', 'rollbackd_schema')")
	s.eventually(2, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()")

	var logs [2]program.Log
	var relays [2]*program.Process
	for i := range relays {
		relays[i] = require.Get(program.Start(program.Options{Path: program.Shared(t), Args: []string{"relay"}, Env: env,
			Log: &logs[i]}))(t)
		t.Cleanup(func() { _ = relays[i].Kill() })
	}
	confirmed := func(p *program.Process) float64 {
		m, err := p.Metrics(t.Context())
		if err != nil {
			t.Fatalf("%v\n%s", err, logs[1].Tail(20))
		}
		return m[`rollbackd_outbox_publishes_total{result="confirmed"}`]
	}
	for i := 0; confirmed(relays[0]) == 0 || confirmed(relays[1]) == 0; i++ {
		s.put(fmt.Sprintf("shared%d", i), 300, "")
	}
	const more = 1500
	s.put("more", more, "")
	require.OK(t, relays[0].Kill())
	s.eventually(0, "SELECT COUNT(*) FROM rollbackd_outbox")
	arrived := map[string]bool{}
	for _, d := range broker.GetAll(queue) {
		if strings.HasPrefix(d.MessageId, "more-") {
			arrived[d.MessageId] = true
		}
	}
	assert.Is(t, len(arrived), more, "messages arrived")

	s.put("refused", 1, "nowhere")
	poll.Until(t, "the metrics of one that is refused", func() bool {
		m, err := relays[1].Metrics(t.Context())
		return err == nil && m["rollbackd_outbox_oldest_due_seconds"] > 0 && m["rollbackd_outbox_relay_ready"] == 1 &&
			m[`rollbackd_outbox_rows{state="refused"}`] == 1 && m[`rollbackd_outbox_rows{state="parked"}`] == 0
	})
	if status, body, err := relays[1].Get(t.Context(), "/readyz"); err != nil || status != http.StatusOK {
		t.Errorf("/readyz is %d %s, %v", status, body, err)
	}
	code, err := relays[1].Stop(context.WithoutCancel(t.Context()))
	if err != nil || code != exitDone {
		t.Errorf("after SIGTERM: exit %d, %v\n%s", code, err, logs[1].Tail(20))
	}
	s.environ = env
	s.put("cut", 1, "")
	s.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at) VALUES ('t', 'p', '', "+
		"'9999-12-31', UTC_TIMESTAMP(6))", "UPDATE rollbackd_outbox SET due_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")
	stdout, _, code := runCLI(t, append(env, "ROLLBACKD_ROUTING_KEYS=stock.#"), "", "doctor", "--outbox")
	for _, want := range []string{"warn   mysql     outbox: the oldest message has been due for 1h",
		"warn   mysql     parked: 1 ", "warn   mysql     routing key: ",
		"ok     rabbitmq  exchange: " + broker.Name("stock"), "ok     mysql     rights: all 4"} {
		assert.Has(t, stdout, want, "doctor does not say: exit %d", code)
	}
	stdout, _, code = runCLI(t, env, "", "outbox", "list", "--key", "cut-0")
	if code != exitDone || !strings.Contains(stdout, "cut-0") {
		t.Errorf("what waits, with a relay's settings: exit %d\n%s", code, stdout)
	}
	restricted := "ROLLBACKD_MYSQL_DSN=" + stack.Restricted(t, s.dsn, "SELECT ON rollbackd_schema")
	stdout, _, code = runCLI(t, append(env, restricted), "", "doctor", "--outbox")
	if code != exitFailed || !strings.Contains(stdout, "by an account that may make tables") {
		t.Errorf("doctor of an account that may not see the table: exit %d\n%s", code, stdout)
	}
	stdout, _, code = runCLI(t, append(env, "ROLLBACKD_EXCHANGE="+broker.Name("none")), "", "doctor", "--outbox")
	if code != exitFailed || !strings.Contains(stdout, "does not exist") {
		t.Errorf("doctor of an exchange that is not there: exit %d\n%s", code, stdout)
	}
}

// Given ROLLBACKD_OUTBOX=on, then migrate makes the table, and a message that is put is sent and applied by one daemon.
func TestARelayWithinRun(t *testing.T) {
	t.Parallel()
	s := newShell(t, "ROLLBACKD_OUTBOX=on")
	s.quietly("", "migrate")
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1, 10, 0)")
	stop := s.daemon()
	s.reserve("m-0", 1, 2)
	s.put("m", 1, "")
	s.eventually(12, "SELECT amount FROM stock WHERE sku_id = 1")
	s.eventually(0, "SELECT COUNT(*) FROM rollbackd_outbox")
	s.says("ok outbox = 0 messages are due\nok exchange = may be published to\nno fail right")
	stop()
	s.exec("DELETE FROM rollbackd_schema WHERE set_name = 'outbox'")
	if code := s.run("", "run"); code != exitFailed || !strings.Contains(s.script.String(), "migrate --outbox") {
		t.Errorf("a daemon whose outbox has no table: exit %d\n%s", code, s.script.String())
	}
}

// Given messages in the outbox of which one is refused, one parked, one waits and one is in a relay's hand, then
// commands list and show them, send what is refused or parked, and delete what may be deleted, each on record.
func TestAPersonHasMessagesOfTheOutboxSentOrDropped(t *testing.T) {
	t.Parallel()
	s := migrated(t, "ROLLBACKD_OUTBOX=on")
	s.play("outbox", map[string]func(){
		"the queue is bound": func() { s.broker.Bind(s.queue, "nowhere", s.broker.Name("stock")) },
	})
}
