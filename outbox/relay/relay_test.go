package relay_test

import (
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is a fresh outbox, and a queue behind an exchange where its messages go.
type world struct {
	*testing.T
	db              *sql.DB
	broker          *stack.Broker
	dsn             string
	exchange, queue string
}

const routingKey = "stock.rollback"

func newWorld(t *testing.T) *world { return newWorldIn(t, stack.AMQP(t), stack.MySQL(t)) }

func newWorldIn(t *testing.T, broker *stack.Broker, dsn string) *world {
	t.Helper()
	t.Parallel()
	w := &world{T: t, broker: broker, dsn: dsn}
	g := require.First(mysqldb.Open(t.Context(), dsn, mysqldb.Options{}))(t)
	w.db = require.Get(g.DB())(t)
	t.Cleanup(func() { _ = w.db.Close() })
	stack.Tables(t, dsn, "outbox", func() { require.OK(t, outbox.Migrate(t.Context(), g)) })
	w.exchange, w.queue = w.broker.Name("stock"), w.broker.Name("stock.rollback")
	w.broker.DeclareExchange(w.exchange, "topic")
	w.broker.DeclareQueue(w.queue, map[string]any{"x-queue-type": "quorum"})
	w.broker.Bind(w.queue, routingKey, w.exchange)
	return w
}

func (w *world) config() relay.Config {
	return relay.Config{DB: w.db, AMQPURLs: []string{w.broker.URL}, Exchange: w.exchange, RoutingKey: routingKey,
		Retention: 720 * time.Hour, Logger: slog.New(slog.NewTextHandler(w.Output(), nil))}
}

// relay runs one until stop is called, or the test ends.
func (w *world) relay(cfg relay.Config) (stop func()) {
	w.Helper()
	_, end := w.start(cfg)
	stop = sync.OnceFunc(func() { assert.OK(w, end(), "the relay ended with:") })
	w.Cleanup(stop)
	return stop
}

func (w *world) put(msgs ...outbox.Message) {
	w.Helper()
	require.OK(w, w.tryPut(msgs...))
}

func (w *world) exec(statement string, args ...any) {
	w.Helper()
	stack.Exec(w, w.db, statement, args...)
}

func (w *world) count(where string) int {
	w.Helper()
	return stack.Number(w, w.db, "SELECT COUNT(*) FROM rollbackd_outbox WHERE "+where)
}

func (w *world) isEmpty() {
	w.Helper()
	poll.Until(w.T, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
}

func messages(prefix string, n int) []outbox.Message {
	all := make([]outbox.Message, n)
	for i := range all {
		key := fmt.Sprintf("%s-%05d", prefix, i)
		all[i] = outbox.Message{Tag: "order.cancelled", Key: key, Value: map[string]int{"n": i}}
	}
	return all
}

func TestWhatIsPutArrivesOnceAndLeavesTheOutbox(t *testing.T) {
	w := newWorld(t)
	w.put(messages("m", 2500)...)
	w.put(outbox.Message{Tag: "order.cancelled", Key: "with headers", Body: []byte("not JSON"), ContentType: "text/plain",
		Headers: map[string]any{"tenant": "a", "n": 3, "f": 1.5, "on": true}, RoutingKey: "stock.rollback"})
	w.relay(w.config())
	w.isEmpty()
	assert.Is(t, w.broker.Depth(w.queue), 2501, "the queue holds messages")
	all := w.broker.GetAll(w.queue)
	i := slices.IndexFunc(all, func(d stack.Delivery) bool { return d.MessageId == "with headers" })
	require.That(t, i >= 0, "the message with headers did not arrive")
	d := all[i]
	assert.That(t, d.Type == "order.cancelled" && d.ContentType == "text/plain" && d.Headers["tenant"] == "a" &&
		d.Headers["n"] == int64(3) && d.Headers["f"] == 1.5 && d.Headers["on"] == true &&
		d.Headers["x-message-key"] == "with headers" && string(d.Body) == "not JSON", "it arrived as %+v", d)
}

func TestAMessageThatNobodyTakesHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	cfg.ParkAfter = 3 * time.Second
	w.put(outbox.Message{Tag: "t", Key: "lost", RoutingKey: "nowhere"}, outbox.Message{Tag: "t", Key: "no exchange",
		Exchange: "there.is.none"})
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) VALUES ('', 'no tag', 'x'), (?, 'long', 'x'), "+
		"('t', 'big', ?)", strings.Repeat("t", 600), make([]byte, outbox.MaxBody+1))
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, headers) VALUES ('t', 'headers', 'x', '[1]')")
	w.put(messages("m", 100)...)
	w.relay(cfg)
	poll.Until(t, "the others", func() bool { return w.count("msg_tag = 'order.cancelled'") == 0 })
	first := w.broker.Depth(w.queue) // twice, where the channel was closed over what has no exchange
	poll.Until(t, "the 4 that can never be sent to be parked at once", func() bool {
		return w.count("parked_at IS NOT NULL") == 4
	})
	w.put(messages("later", 10)...)
	poll.Until(t, "the later ones", func() bool { return w.count("msg_tag = 'order.cancelled'") == 0 })
	assert.AtLeast(t, first, 100, "messages in the queue after the first 100")
	assert.AtLeast(t, w.broker.Depth(w.queue), first+10, "messages in the queue after 10 more")
	poll.Until(t, "the refused to be parked", func() bool {
		return w.count("parked_at IS NOT NULL AND reason IS NOT NULL AND next_at > '9000-01-01'") == 6
	})
	for key, words := range map[string]string{
		"lost": "no queue takes this message", "no exchange": "there.is.none", "no tag": "the tag is empty",
		"long": "the tag has 600 bytes", "big": "262145 bytes", "headers": "not a JSON object",
	} {
		reason := stack.One[string](t, w.db, "SELECT reason FROM rollbackd_outbox WHERE msg_key = ?", key)
		assert.Has(t, reason, words, "%s is parked because", key)
	}
}

// Given messages that were refused two days ago, when one of them has not been tried since, because RabbitMQ or every
// relay was away, then it is tried on, and the other is parked.
func TestWhileNobodyTriesAMessageItsDayStands(t *testing.T) {
	w := newWorld(t)
	w.put(outbox.Message{Tag: "t", Key: "tried", RoutingKey: "nowhere"}, outbox.Message{Tag: "t", Key: "rested",
		RoutingKey: "nowhere"})
	w.exec("UPDATE rollbackd_outbox SET tries = 1, failed_at = UTC_TIMESTAMP(6) - INTERVAL 2 DAY, next_at = " +
		"IF(msg_key = 'tried', UTC_TIMESTAMP(6), failed_at + INTERVAL 1 SECOND)")
	w.relay(w.config())
	poll.Until(t, "both to be refused", func() bool { return w.count("tries > 1") == 2 })
	got := stack.One[string](t, w.db, "SELECT GROUP_CONCAT(msg_key) FROM rollbackd_outbox WHERE parked_at IS NOT NULL")
	assert.Is(t, got, "tried", "parked is")
}

// Given a queue that was full and refuses no more, because its limit was lifted and nothing has left it, then what it
// refused arrives. RabbitMQ 3.10 goes on refusing on a channel that it has told so.
func TestAQueueWhoseLimitIsLiftedTakesMessagesAgain(t *testing.T) {
	w := newWorld(t)
	w.broker.Policy("full", w.queue, map[string]any{"max-length": 1, "overflow": "reject-publish"})
	w.relay(w.config())
	n := 0
	poll.Until(t, "a message to be refused", func() bool {
		w.put(messages(fmt.Sprint("m", n), 10)...)
		n++
		return w.count("reason IS NOT NULL") > 0
	})
	w.broker.Policy("full", w.queue, nil)
	w.isEmpty()
	assert.AtLeast(t, w.broker.Depth(w.queue), 10*n, "the queue holds messages, were put")
}

func TestRowsThatOthersHaveLockedHoldUpNoLaterOnes(t *testing.T) {
	w := newWorld(t)
	locked := messages("locked", 500)
	w.put(locked...)
	tx := require.Get(w.db.BeginTx(t.Context(), nil))(w)
	defer func() { _ = tx.Rollback() }()
	require.OK(w, outbox.Put(t.Context(), tx, locked...))
	w.put(messages("later", 150)...)
	cfg := w.config()
	cfg.BatchSize = 100
	w.relay(cfg)
	poll.Until(t, "the later ones to be sent", func() bool { return w.count("msg_key LIKE 'later%'") == 0 })
	assert.Is(t, w.count("TRUE"), 500, "rows are left")
	require.OK(w, tx.Rollback())
	w.isEmpty()
}

// fill makes rows that are due in an hour and later, a thousand of them at each moment, 50 ms apart.
func (w *world) fill(rows int) {
	w.Helper()
	for from := 0; from < rows; from += 1000 {
		w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, due_at) WITH RECURSIVE d AS (SELECT 0 AS n UNION ALL "+
			"SELECT n + 1 FROM d WHERE n < 9) SELECT 't', LPAD(? + a.n + 10*b.n + 100*c.n, 7, '0'), '{}', "+
			"UTC_TIMESTAMP(6) + INTERVAL 1 HOUR + INTERVAL ? * 50 MICROSECOND FROM d a, d b, d c", from, from)
	}
}

// polls measures polls. A message is put before each tenth, which must find it, and nothing else may be found. median
// is that of all but the first twenty.
func (w *world) polls(r *relay.Relay, when string, n int) (median time.Duration) {
	w.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		var want []string
		if i%10 == 9 {
			want = []string{fmt.Sprint(when, i)}
			w.put(outbox.Message{Tag: "new", Key: want[0], Value: 1})
		}
		began := time.Now()
		keys, err := r.Poll(w.Context())
		took[i] = time.Since(began)
		require.OK(w, err)
		assert.Equal(w, keys, want, "%s, poll %d found", when, i)
		for _, key := range keys {
			w.exec("DELETE FROM rollbackd_outbox WHERE msg_tag = 'new' AND msg_key = ?", key)
		}
		<-time.After(10 * time.Millisecond) // the rest of a relay that is at work
	}
	late := slices.Sorted(slices.Values(took[20:]))
	at := func(percent int) time.Duration { return late[len(late)*percent/100].Round(10 * time.Microsecond) }
	w.Logf("%s: a poll takes %v, 90 %% up to %v, 99 %% up to %v; the first 20 up to %v", when, at(50), at(90), at(99),
		slices.Max(took[:20]).Round(10*time.Microsecond))
	return late[len(late)/2]
}

// Given rows that wait for later, and then are claimed and removed while a transaction is open that is older, then each
// poll finds what was put before it, what was put before all that by a transaction that commits only now is found soon,
// and a poll takes 10 ms at most. ROLLBACKD_TEST_BIG=1 makes a million of them, and prints what a poll takes.
func TestAPollIsCheapWhateverWaitsOrWasRemoved(t *testing.T) {
	w := newWorld(t)
	n := 10_000
	if os.Getenv("ROLLBACKD_TEST_BIG") != "" {
		n = 1_000_000
	}
	r := require.Get(relay.New(w.config()))(w)
	w.polls(r, "empty", 100)
	w.fill(n)
	worst := w.polls(r, fmt.Sprint("beside ", n, " that wait"), 220)

	patient := require.Get(sql.Open("mysql", w.dsn))(w) // whose transactions may send nothing for as long as they like
	defer patient.Close()
	late := require.Get(patient.BeginTx(t.Context(), nil))(w)
	defer func() { _ = late.Rollback() }()
	require.OK(w, outbox.Put(t.Context(), late, outbox.Message{Tag: "late", Key: "late", Value: 1}))
	each := func(do string) {
		for i := 0; i < n; i += 1000 {
			w.exec(fmt.Sprintf("%s WHERE msg_tag = 't' AND msg_key BETWEEN '%07d' AND '%07d'", do, i, i+999))
		}
	}
	each("UPDATE rollbackd_outbox SET next_at = next_at - INTERVAL 2 HOUR")
	old := require.Get(patient.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead}))(w)
	defer func() { _ = old.Rollback() }()
	stack.Number(w, old, "SELECT COUNT(*) FROM rollbackd_outbox WHERE msg_tag = ''") // its snapshot
	each("UPDATE rollbackd_outbox SET owner = 'x', next_at = UTC_TIMESTAMP(6) + INTERVAL 5 SECOND")
	each("DELETE FROM rollbackd_outbox")
	worst = max(worst, w.polls(r, fmt.Sprint("after ", n, " were removed"), 500))
	require.OK(w, late.Commit())
	committed := time.Now()
	for found := []string{}; !slices.Contains(found, "late"); <-time.After(10 * time.Millisecond) {
		require.That(t, time.Since(committed) <= 5*time.Minute, "what was committed late is not found within five minutes")
		found = require.Get(r.Poll(t.Context()))(w)
	}
	t.Logf("what was committed late is found after %v", time.Since(committed).Round(time.Millisecond))
	assert.That(t, worst <= 10*time.Millisecond || n <= 10_000, "a poll takes %v, want 10ms at most", worst)
}

// Given a look that took long by chance, when a transaction commits whose message was due long before it, then polls
// find that when fifty times as long as the look took is over.
func TestALateCommitIsFoundSoonAfterOneSlowLook(t *testing.T) {
	w := newWorld(t)
	r := require.Get(relay.New(w.config()))(w)
	other := require.Get(w.db.Conn(t.Context()))(w)
	defer other.Close()
	stack.Exec(t, other, "LOCK TABLES rollbackd_outbox WRITE")
	slow := make(chan error, 1)
	go func() {
		_, err := r.Poll(t.Context())
		slow <- err
	}()
	waits := func() int {
		return stack.Number(t, other, "SELECT COUNT(*) FROM information_schema.processlist "+
			"WHERE state LIKE 'Waiting for table metadata lock' AND db = DATABASE()")
	}
	poll.Until(t, "the look to wait", func() bool { return waits() > 0 })
	for began := time.Now(); time.Since(began) < 100*time.Millisecond && waits() > 0; { // so that it is dear for sure
	}
	stack.Exec(t, other, "UNLOCK TABLES")
	require.OK(w, <-slow)
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, due_at) " +
		"VALUES ('t', 'late', '{}', UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE)")
	poll.Until(t, "the message to be found", func() bool {
		return slices.Equal(require.Get(r.Poll(t.Context()))(w), []string{"late"})
	})
}
