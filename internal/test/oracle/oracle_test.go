package oracle_test

import (
	"crypto/sha256"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/stock"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is what a perfect run leaves: message a applied (order A released), message d dead with its letter.
type world struct {
	t      *testing.T
	broker *stack.Broker
	db     *sql.DB
	oracle oracle.World
	ledger *oracle.Ledger
	before oracle.Stock
}

const (
	group = "g"
	tag   = "stock.rollback"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, broker: stack.AMQP(t)}
	handle := require.First(dedup.Open(t.Context(), stack.MySQL(t), dedup.OpenOptions{}))(t)
	w.db = require.Get(handle.DB())(t)
	t.Cleanup(func() { _ = w.db.Close() })
	require.OK(t, dedup.Migrate(t.Context(), handle, dedup.MigrateOptions{
		Table: "consumer_log", Extra: []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}},
	}))
	w.oracle = oracle.World{
		DB: w.db, LogTable: "consumer_log", Group: group, KeyFrom: "property:message_id", AMQPURL: w.broker.URL,
		Queue: w.broker.Name("main"), Delays: []time.Duration{time.Hour},
		Unacked: func(queue string) (int, error) { return w.broker.Unacked(queue), nil },
	}
	w.ledger = require.Get(w.oracle.NewLedger())(t)
	conn := w.dial()
	topology := rabbit.TopologyConfig{
		Exchange: w.broker.Name("x"), Queue: w.oracle.Queue, RoutingKeys: []string{tag}, Delays: w.oracle.Delays,
	}
	w.broker.Track(topology.Queues()...)
	w.broker.TrackExchanges(topology.Exchange)
	require.Get(rabbit.Declare(t.Context(), conn, topology))(t)
	w.perfect()
	return w
}

func (w *world) dial() *rabbit.Conn {
	w.t.Helper()
	conn := require.Get(rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"}))(w.t)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *world) perfect() {
	w.t.Helper()
	w.exec("INSERT INTO stock (sku_id, amount) VALUES (1, 8), (2, 10)")
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('A', 1, 2, 1)")
	require.OK(w.t, oracle.Audit(w.t.Context(), w.db))
	w.before = require.Get(oracle.ReadStock(w.t.Context(), w.db))(w.t)
	w.record("a", "body a", "A", oracle.ToBeApplied(), 2)
	w.record("d", "body d", "", oracle.ToDie(dedup.ReasonPermanent), 1)
	w.exec("UPDATE stock_reservation SET status = 2, rollback_tag = ?, rollback_key = 'a'", tag)
	w.exec("UPDATE stock SET amount = amount + 2 WHERE sku_id = 1")
	w.row("a", "body a", 1, 1, "")
	w.row("d", "body d", 3, 1, "permanent")
	w.copyTo(rabbit.DeadQueue(w.oracle.Queue), "d", "body d", wire.CopyOptions{Reason: dedup.ReasonPermanent})
}

// record says that a message was published and confirmed so many times.
func (w *world) record(key, body, order string, fate oracle.Fate, times int) {
	for range times {
		w.ledger.Record(oracle.Sent{Publishing: w.publishing(key, body), Order: order, Fate: fate}, nil)
	}
}

// nameless says that a message with this body was published whose name nobody knows, and that must be dead.
func (w *world) nameless(body string) {
	w.ledger.RecordNameless([]byte(body), oracle.ToDie(dedup.ReasonUnidentified), nil)
}

func (w *world) publishing(key, body string) rabbit.Publishing {
	return rabbit.Publishing{Key: tag, Message: rabbit.Message{MessageID: key, Body: []byte(body), Type: tag}}
}

func (w *world) row(key, body string, status, attempts int, reason string) {
	w.t.Helper()
	hash := sha256.Sum256([]byte(body))
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, body_hash, consumer_status, consumer_times, reason, "+
		"consumer_timestamp, created_at) VALUES (?, ?, ?, ?, ?, ?, NULLIF(?, ''), NOW(6), NOW(6))",
		group, tag, key, hash[:], status, attempts, reason)
}

// copyTo puts a copy of a message into a queue.
func (w *world) copyTo(queue, key, body string, o wire.CopyOptions) {
	w.t.Helper()
	copied := wire.Copy(rabbit.Delivery{Message: w.publishing(key, body).Message, RoutingKey: tag}, w.oracle.Queue, o)
	w.broker.Publish("", queue, stack.Message{
		MessageId: copied.MessageID, Type: copied.Type, Body: copied.Body, Headers: copied.Headers,
	})
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.db, query, args...)
}

// check judges, wants these counters, and findings of this kind alone; empty: none.
func (w *world) check(allow oracle.Allowance, kind string, want oracle.Counters) *oracle.Report {
	w.t.Helper()
	report := require.Get(w.oracle.Check(w.t.Context(), w.before, w.ledger, allow))(w.t)
	if err := report.Err(); kind != "" && (err == nil || !strings.Contains(err.Error(), "  "+kind+": ")) ||
		kind == "" && err != nil {
		w.t.Errorf("the oracle says %v, want a finding of kind %q", err, kind)
	}
	if kind == "" {
		assert.Is(w.t, report.Counters, want, "counters")
	}
	return report
}

var perfect = oracle.Counters{Attempt: 3, Acknowledged: 3, Applied: 1, DeadLettered: 1, DuplicatesAbsorbed: 1}

func TestOracleFindsEveryBrokenPromise(t *testing.T) {
	sql := func(statements ...string) func(*world) {
		return func(w *world) {
			for _, s := range statements {
				w.exec(s)
			}
		}
	}
	published := func(key string) func(*world) { return func(w *world) { w.record(key, "b", "", oracle.Fate{}, 1) } }
	nameless := func(then func(*world)) func(*world) { return func(w *world) { w.nameless("odd"); then(w) } }
	row := func(key, body string, status, attempts int, reason string) func(*world) {
		return func(w *world) { w.row(key, body, status, attempts, reason) }
	}
	unidentified := row("x", "odd", 3, 0, "unidentified")
	for name, tt := range map[string]struct {
		kind  string // of the finding
		spoil func(*world)
	}{
		"stock from nothing":           {"stock", sql("UPDATE stock SET amount = amount + 1 WHERE sku_id = 2")},
		"one sku's stock in another's": {"stock", sql("UPDATE stock SET amount = amount + 3 - 2 * sku_id")},
		"a message lost":               {"lost", published("lost")},
		"a failed row without a copy":  {"lost", func(w *world) { published("f")(w); w.row("f", "b", 2, 1, "") }},
		"a message still in a queue": {"still queued", func(w *world) {
			published("q")(w)
			w.copyTo(w.oracle.Queue, "q", "b", wire.CopyOptions{})
		}},
		"a stale copy left behind": {"left behind", func(w *world) {
			w.copyTo(rabbit.RetryQueue(w.oracle.Queue, time.Hour), "a", "body a", wire.CopyOptions{})
		}},
		"a dead row without a letter": {"letter missing", func(w *world) {
			w.broker.Purge(rabbit.DeadQueue(w.oracle.Queue))
		}},
		"an innocent dead": {"innocent",
			sql("UPDATE consumer_log SET consumer_status = 3, reason = 'exhausted' WHERE msg_key = 'a'")},
		"a death of another reason": {"fate", sql("UPDATE consumer_log SET reason = 'exhausted' WHERE msg_key = 'd'")},
		"an attempt too many":       {"attempts", sql("UPDATE consumer_log SET consumer_times = 2 WHERE msg_key = 'a'")},
		"a release without a success": {"half batch",
			sql("UPDATE consumer_log SET consumer_status = 2 WHERE msg_key = 'a'")},
		"a success without the release": {"half batch",
			sql("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('A', 2, 1, 1)")},
		"a release that happened twice": {"duplicated effect", sql("UPDATE stock_reservation SET status = 1",
			"UPDATE stock_reservation SET status = 2")},
		"a release that nobody saw":             {"audit", sql("DELETE FROM oracle_release")},
		"a nameless message lost":               {"lost", nameless(sql())},
		"a nameless message without its letter": {"letter missing", nameless(unidentified)},
		"a nameless message still in a queue": {"still queued", nameless(func(w *world) {
			w.copyTo(w.oracle.Queue, "x", "odd", wire.CopyOptions{})
		})},
		"a nameless message that ended otherwise": {"fate", nameless(row("x", "odd", 1, 1, ""))},
		"a nameless message under two names": {"two names", nameless(func(w *world) {
			unidentified(w)
			w.row("y", "odd", 3, 0, "unidentified")
		})},
		"a row of nobody's message": {"unexpected", row("stranger", "b", 1, 1, "")},
		"a conflict without its row": {"lost", func(w *world) {
			w.record("a", "another body", "", oracle.ToDie(dedup.ReasonConflict), 1)
		}},
		"a delivery that somebody holds": {"unacked", func(w *world) {
			w.copyTo(w.oracle.Queue, "a", "body a", wire.CopyOptions{})
			sub := require.Get(w.dial().Consume(w.t.Context(), w.oracle.Queue, "holder", 1))(w.t)
			require.Get(sub.Collect(w.t.Context(), 1, 0, nil))(w.t)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.spoil(w)
			w.check(oracle.Allowance{}, tt.kind, perfect)
		})
	}
}

// Given a shop whose messages came by an outbox and told of themselves, then the oracle is content with it, and finds
// whatever does not fit between its orders, its outbox, the stock and the events.
func TestOracleFindsWhatIsWrongAtTheEndsOfTheChain(t *testing.T) {
	for kind, spoil := range map[string]string{
		"":                     "DO 0",
		"order":                "UPDATE orders SET status = 'paid'",
		"left in the outbox":   "INSERT INTO letters VALUES ('t', 'k', NULL)",
		"event missing":        "DELETE FROM told",
		"event double-applied": "INSERT INTO told VALUES ('stock.rollback/a')",
		"event of nothing":     "INSERT INTO told VALUES ('stock.rollback/b')",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec("CREATE TABLE orders SELECT CAST('A' AS BINARY) AS order_sn, CAST('open' AS CHAR(9)) AS status")
			w.exec("CREATE TABLE letters (msg_tag VARBINARY(9), msg_key VARBINARY(9), reason VARCHAR(9))")
			w.exec("CREATE TABLE told SELECT CAST('stock.rollback/a' AS BINARY(16)) AS event")
			w.oracle.Chain = &oracle.Chain{Orders: "orders", Outbox: "letters", Told: "told"}
			w.exec(spoil)
			report := w.check(oracle.Allowance{}, kind, perfect)
			want := (oracle.Ends{Orders: 1, Events: 1})
			assert.That(t, kind != "" || *report.Ends == want, "counted are %v, want %v", report.Ends, want)
		})
	}
}

// Given a run that was cut short, then what is still queued is counted and no fault; a nameless message is known by its
// body; and what was never confirmed but applied is recovered, what is nowhere without a confirmation not lost.
func TestOracleCountsWhatIsNoFault(t *testing.T) {
	w := newWorld(t)
	w.record("q", "b", "", oracle.ToBeApplied(), 1)
	w.copyTo(w.oracle.Queue, "q", "b", wire.CopyOptions{})
	w.copyTo(rabbit.DeadQueue(w.oracle.Queue), "a", "body a", wire.CopyOptions{Reason: dedup.ReasonExhausted})
	w.ledger.Record(oracle.Sent{Publishing: w.publishing("unsure", "u")}, rabbit.ErrUnconfirmed)
	w.ledger.Record(oracle.Sent{Publishing: w.publishing("arrived", "r")}, rabbit.ErrUnconfirmed)
	w.row("arrived", "r", 1, 1, "")
	w.nameless("odd")
	w.row("x", "odd", 3, 0, "unidentified")
	w.copyTo(rabbit.DeadQueue(w.oracle.Queue), "x", "odd", wire.CopyOptions{Reason: dedup.ReasonUnidentified})
	for range 2 { // looking changes nothing
		w.check(oracle.Allowance{Queued: true}, "", oracle.Counters{
			Attempt: 7, Acknowledged: 5, Applied: 2, DeadLettered: 2, Queued: 1, DuplicatesAbsorbed: 1, Recovered: 1, Stale: 1,
		})
	}
}
