package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

// put commits n messages.
func (s *shell) put(prefix string, n int, routingKey string) {
	s.t.Helper()
	messages := make([]outbox.Message, n)
	for i := range messages {
		key := fmt.Sprintf("%s-%d", prefix, i)
		messages[i] = outbox.Message{Tag: "stock.rollback", Key: key, RoutingKey: routingKey,
			Value: map[string]string{"order_sn": key}}
	}
	tx := require.Get(s.db().BeginTx(s.t.Context(), nil))(s.t)
	require.OK(s.t, outbox.Put(s.t.Context(), tx, messages...), tx.Commit())
}

// Given a schema of a producer's alone and nothing but the settings that a relay needs, then the relay says what is
// missing, `migrate --outbox` makes that and nothing else, and two relays share the work: one of them is killed in the
// midst of it, and every message arrives.
func TestARelayOfItsOwn(t *testing.T) {
	s := newSender(t)
	env := s.environ
	s.environ = env[:1]
	assert.Is(t, s.run("", "migrate", "--outbox", "--status"), exitFailed, "the status of an empty schema: exit")
	s.environ = env
	s.answers(exitFailed, "rollbackd migrate --outbox", "", "relay")
	s.environ = env[:1]
	s.quietly("", "migrate", "--outbox")
	s.quietly("", "migrate", "--outbox", "--status")
	s.environ = env
	s.eventually(2, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND "+
		"table_name IN ('rollbackd_outbox', 'rollbackd_schema')")
	s.eventually(2, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()")

	relays := []*program.Process{s.relay(), s.relay()}
	confirmed := func(p *program.Process) float64 {
		return require.Get(p.Metrics(t.Context()))(t)[`rollbackd_outbox_publishes_total{result="confirmed"}`]
	}
	for i := 0; confirmed(relays[0]) == 0 || confirmed(relays[1]) == 0; i++ {
		s.put(fmt.Sprintf("shared%d", i), 300, "")
	}
	const more = 1500
	s.put("more", more, "")
	require.OK(t, relays[0].Kill())
	s.eventually(0, "SELECT COUNT(*) FROM rollbackd_outbox")
	arrived := map[string]bool{}
	for _, d := range s.broker.GetAll(s.queue) {
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
	status, body, err := relays[1].Get(t.Context(), "/readyz")
	assert.That(t, err == nil && status == http.StatusOK, "/readyz is %d %s, %v", status, body, err)
	s.stopped(relays[1])
	s.put("cut", 1, "")
	s.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at) VALUES ('t', 'p', '', "+
		"'9999-12-31', UTC_TIMESTAMP(6))", "UPDATE rollbackd_outbox SET due_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")
	s.answers(exitDone, "cut-0", "", "outbox", "list", "--key", "cut-0")
	s.set("ROUTING_KEYS=stock.#")
	said := s.answers(exitDone, "", "", "doctor", "--outbox")
	for _, want := range []string{"warn   mysql     outbox: the oldest message has been due for 1h",
		"warn   mysql     parked: 1 ", "warn   mysql     routing key: ",
		"ok     rabbitmq  exchange: " + s.broker.Name("stock"), "ok     mysql     rights: all 4"} {
		assert.Has(t, said, want, "doctor does not say")
	}
	s.environ = append(env, "ROLLBACKD_EXCHANGE="+s.broker.Name("none"))
	s.answers(exitFailed, "does not exist", "", "doctor", "--outbox")
	s.environ = append(env, "ROLLBACKD_MYSQL_DSN="+stack.Restricted(t, s.dsn, "SELECT ON rollbackd_schema"))
	s.answers(exitFailed, "by an account that may make tables", "", "doctor", "--outbox")
}

// Given ROLLBACKD_OUTBOX=on, then migrate makes the table, and a message that is put is sent and applied by one daemon.
func TestARelayWithinRun(t *testing.T) { played(t, "outbox-in-run", "ROLLBACKD_OUTBOX=on") }

// Given messages in the outbox of which one is refused, one parked, one waits and one is in a relay's hand, then
// commands list and show them, send what is refused or parked, and delete what may be deleted, each on record.
func TestAPersonHasMessagesOfTheOutboxSentOrDropped(t *testing.T) {
	s := migrated(t, "ROLLBACKD_OUTBOX=on")
	s.play("outbox", map[string]func(){
		"the queue is bound": func() { s.broker.Bind(s.queue, "nowhere", s.broker.Name("stock")) },
	})
}

// sender has an exchange, the queue behind it, a schema with nothing in it, and the settings that a relay needs, that
// of the schema first.
type sender struct {
	*shell
	logs program.Log
}

func newSender(t *testing.T) *sender {
	t.Helper()
	s := &sender{shell: newShell(t)}
	exchange := s.broker.Name("stock")
	s.broker.DeclareExchange(exchange, "topic")
	s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum"})
	s.broker.Bind(s.queue, "stock.rollback", exchange)
	s.environ = []string{
		"ROLLBACKD_MYSQL_DSN=" + s.dsn, "ROLLBACKD_AMQP_URL=" + s.broker.URL, "ROLLBACKD_EXCHANGE=" + exchange,
		"ROLLBACKD_LOG_FORMAT=json", "ROLLBACKD_ROUTING_KEYS=stock.rollback,other.#", "ROLLBACKD_HTTP_ADDR=127.0.0.1:0",
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last lines of the relays' log:\n%s", s.logs.Tail(40))
		}
	})
	return s
}

// relay starts the real program, with settings besides.
func (s *sender) relay(more ...string) *program.Process {
	s.t.Helper()
	p := require.Get(program.Start(program.Options{Path: program.Shared(s.t), Args: []string{"relay"},
		Env: append(s.environ[:len(s.environ):len(s.environ)], more...), Log: &s.logs}))(s.t)
	s.t.Cleanup(func() { _ = p.Kill() })
	return p
}

// between puts proxies between a relay and its servers, and starts it; the outbox is there.
func (s *sender) between() (p *program.Process, database, broker *stack.TCPProxy) {
	s.t.Helper()
	s.quietly("", "migrate", "--outbox")
	database, broker = stack.Proxy(s.t, stack.Addr(s.t, s.dsn)), stack.Proxy(s.t, stack.Addr(s.t, s.broker.URL))
	p = s.relay("ROLLBACKD_MYSQL_DSN="+database.Through(s.dsn), "ROLLBACKD_AMQP_URL="+broker.Through(s.broker.URL))
	return p, database, broker
}

// leaseEnds lets the claims of relays that are dead or frozen be over.
func (s *sender) leaseEnds() {
	s.t.Helper()
	s.exec("UPDATE rollbackd_outbox SET next_at = UTC_TIMESTAMP(6) WHERE owner IS NOT NULL")
}

// stopped tells a relay to stop, which must end well.
func (s *sender) stopped(p *program.Process) {
	s.t.Helper()
	code, err := p.Stop(context.WithoutCancel(s.t.Context()))
	assert.That(s.t, err == nil && code == exitDone, "after SIGTERM: exit %d, %v", code, err)
}

// finish lets another relay send what is left, and says how often each message came.
func (s *sender) finish() (copies map[string]int, sum int) {
	s.t.Helper()
	last := s.relay()
	require.Get(last.Addr(s.t.Context()))(s.t) // so that it can be told to stop
	s.eventually(0, "SELECT COUNT(*) FROM rollbackd_outbox")
	s.stopped(last)
	copies = map[string]int{}
	all := s.broker.GetAll(s.queue)
	for _, d := range all {
		copies[d.MessageId]++
	}
	return copies, len(all)
}

// said matches the piece with the last of these words, once all before were said; then it calls do.
func said(do func(), words ...string) func(piece []byte) bool {
	return func(piece []byte) bool {
		if len(words) == 0 || !bytes.Contains(piece, []byte(words[0])) {
			return false
		}
		if words = words[1:]; len(words) > 0 {
			return false
		}
		do()
		return true
	}
}

// listen lets everything pass, and calls do at the last of these words; then the channel is closed.
func listen(wire *stack.TCPProxy, do func(), words ...string) (heard chan struct{}) {
	heard = make(chan struct{})
	hear := said(func() { do(); close(heard) }, words...)
	wire.DropRequest(func(piece []byte) bool { hear(piece); return false })
	return heard
}

func freeze(p *program.Process) func() {
	return func() { _ = p.Signal(syscall.SIGSTOP) } // one that has ended fails the test otherwise
}

// What a relay says to its servers, in the order in which it does.
const (
	readsClaim    = " FOR UPDATE SKIP LOCKED"
	writesClaim   = "SET owner = "
	publishes     = `"order_sn":"m-`
	readsSettled  = " AND owner = "
	deletes       = "DELETE o FROM"
	commits       = "\x03COMMIT"
	rollsBack     = "\x03ROLLBACK"
	batchOfSender = 20
)

// Given messages of which a relay claims, publishes and deletes all at once, when it is killed with SIGKILL at any
// moment, before a server gets what it says or before it gets the server's answer, then another relay sends what is
// left: none is lost, and those come twice that RabbitMQ had and the outbox did not know of.
func TestARelayKilledAtAnyMomentLosesNothing(t *testing.T) {
	t.Parallel()
	const n = batchOfSender
	for _, c := range []struct {
		name             string
		says             []string
		before, answered int // how many messages come in all, at least, where it dies before it is heard, or answered
	}{
		{"claim: read", []string{readsClaim}, n, n},
		{"claim: write", []string{writesClaim}, n, n},
		{"claim: commit", []string{writesClaim, commits}, n, n},
		{"publish", []string{publishes}, n, n + 1},
		{"delete: read", []string{readsSettled}, 2 * n, 2 * n},
		{"delete", []string{deletes}, 2 * n, 2 * n},
		{"delete: commit", []string{deletes, commits}, 2 * n, n},
	} {
		for _, answered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the server has heard it %v", c.name, answered), func(t *testing.T) {
				s := newSender(t)
				victim, wire, broker := s.between()
				if c.says[0] == publishes {
					wire = broker
				}
				drop, want := wire.DropRequest, c.before
				if answered {
					drop, want = wire.DropReply, c.answered
				}
				there := drop(said(freeze(victim), c.says...))
				s.put("m", n, "")
				poll.Receive(t, "it is there", there)
				require.OK(t, victim.Kill())
				s.leaseEnds()
				copies, sum := s.finish()
				most := want
				if c.says[0] == publishes && answered { // some were on their way behind the first
					most = 2 * n
				}
				for key, times := range copies {
					assert.AtMost(t, times, 2, "%s came times", key)
				}
				assert.That(t, len(copies) == n && sum >= want && sum <= most,
					"%d messages came, %d of %d different ones; want %d to %d in all", sum, len(copies), n, want, most)
			})
		}
	}
}

// Given a relay that is frozen while its messages are under way, and another that claims them when the lease is over,
// when the first one goes on, with RabbitMQ's confirms or without an answer, then it changes nothing of what is now the
// other's: the rows stay until that one has sent them, and no message comes more than twice.
func TestAFrozenRelayChangesNothingOfWhatAnotherHasTaken(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"its messages are confirmed": false, "it gets no answer": true} {
		t.Run(name, func(t *testing.T) {
			const n = batchOfSender
			s := newSender(t)
			first, itsDatabase, itsBroker := s.between()
			frozen := listen(itsBroker, freeze(first), publishes)
			settled := listen(itsDatabase, func() {}, readsSettled, rollsBack)
			s.put("m", n, "")
			poll.Receive(t, "the first is frozen", frozen)
			if cut {
				itsBroker.Cut()
			}
			second, _, broker := s.between()
			frozen = listen(broker, freeze(second), publishes)
			s.leaseEnds()
			poll.Receive(t, "the second is frozen, too", frozen)
			rows := func() string {
				return stack.One[string](t, s.db(), "SELECT CONCAT_WS(' ', COUNT(*), COUNT(DISTINCT owner), MIN(owner), "+
					"MIN(next_at), MAX(next_at), SUM(tries), COUNT(reason)) FROM rollbackd_outbox")
			}
			before := rows()

			require.OK(t, first.Signal(syscall.SIGCONT))
			poll.Receive(t, "the first has looked for what it may settle, and found nothing", settled)
			assert.Is(t, rows(), before, "the rows of the second were, and")
			require.OK(t, second.Signal(syscall.SIGCONT))
			copies, _ := s.finish()
			for key, times := range copies {
				assert.AtMost(t, times, 2, "%s came times", key)
			}
			assert.Is(t, len(copies), n, "messages came")
		})
	}
}
