package relay_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// start runs a relay until stop is called, which says how it ended.
func (w *world) start(cfg relay.Config) (r *relay.Relay, stop func() error) {
	w.Helper()
	r = require.Get(relay.New(cfg))(w)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return r, func() error {
		cancel()
		return <-ended
	}
}

// misses waits until the relay says that it misses something with these words; "" is nothing.
func (w *world) misses(r *relay.Relay, words string) {
	w.Helper()
	poll.Until(w.T, "the relay to miss "+words, func() bool {
		said := strings.Join(r.State().Misses, "\n")
		return said == words || words != "" && strings.Contains(said, words)
	})
}

// Given a broker that blocks publishers by an alarm, or is frozen, when a producer puts and cancels, then that is as
// quick as ever and in time, the relay says what it misses, and everything is sent afterwards. A relay that is stopped
// while its broker is frozen ends in time.
func TestABrokerThatTakesNothingHoldsUpNoProducer(t *testing.T) {
	rabbit := stack.OwnRabbit(t)
	w := newWorldIn(t, rabbit.Broker(t), stack.MySQL(t))
	cfg := w.config()
	cfg.Lease = 6 * time.Second
	r, stop := w.start(cfg)
	w.put(messages("before", 10)...)
	w.isEmpty()
	alarm := func(call string) { w.broker.Eval("rabbit_alarm:" + call) }
	for name, fault := range map[string]struct{ begin, end func() }{
		"it blocks publishers": {func() { alarm("set_alarm({{resource_limit, memory, node()}, []})") },
			func() { alarm("clear_alarm({resource_limit, memory, node()})") }},
		"cannot be reached": {func() { require.OK(w, rabbit.Freeze()) }, func() { require.OK(w, rabbit.Thaw()) }},
	} {
		fault.begin()
		w.put(messages(name, 10)...)
		w.misses(r, name)
		inTime, began := 0, time.Now()
		for i := range 20 {
			key := fmt.Sprintf("%s-%d", name, i)
			w.put(outbox.Message{Tag: "t", Key: key, Value: i})
			tx := require.Get(w.db.BeginTx(t.Context(), nil))(w)
			soon := require.Get(outbox.Cancel(t.Context(), tx, "t", key))(w)
			require.OK(w, tx.Commit())
			if soon {
				inTime++
			}
		}
		assert.AtMost(t, time.Since(began), 20*time.Second, "20 times Put and Cancel took")
		assert.AtLeast(t, inTime, 15, "%s: of 20, beside what is tried now and then, cancelled in time", name)
		fault.end()
		w.isEmpty()
		w.misses(r, "")
	}
	require.OK(w, stop())
	// it is stopped with messages under way to a frozen broker, and what it had is sent by the next one
	cfg.DrainTimeout = 300 * time.Millisecond
	_, stop = w.start(cfg)
	w.put(messages("last", 10)...)
	w.isEmpty()
	require.OK(w, rabbit.Freeze())
	w.put(messages("m", 10)...)
	poll.Until(t, "a claim", func() bool { return w.count("owner IS NOT NULL") > 0 })
	began := time.Now()
	assert.Error(t, stop(), relay.ErrDrainTimeout, "it ended with")
	assert.AtMost(t, time.Since(began), cfg.Lease, "it took")
	require.OK(w, rabbit.Thaw())
	w.relay(w.config())
	w.isEmpty()
}

// Given a relay with nothing to do, then the database sees at most one statement of it in a second, and what is put
// then is sent within a second and a half.
func TestAnIdleRelayAsksOnceASecond(t *testing.T) {
	w := newWorldIn(t, stack.AMQP(t), stack.OwnMySQL(t).Database(t))
	w.relay(w.config())
	questions := func() (n int) {
		var name string
		require.OK(w, w.db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n))
		return n
	}
	rest := func(d time.Duration) { <-time.After(d) } // the time is what is measured
	rest(4 * time.Second)
	const seconds = 8
	rested := time.Now()
	before := questions()
	rest(seconds * time.Second)
	asked := questions() - before - 1
	assert.AtMost(t, asked, int(time.Since(rested).Seconds())+1, "statements in %d seconds and more", seconds)
	var took []time.Duration
	for i := range 3 {
		rest(3 * time.Second)
		began := time.Now()
		w.put(messages(fmt.Sprint("m", i), 1)...)
		w.isEmpty()
		took = append(took, time.Since(began))
	}
	t.Logf("after idleness: %v", took)
	assert.AtMost(t, slices.Min(took), 1500*time.Millisecond, "messages are sent %v after idleness", took)
}

// Latency from when a message is committed to its confirm, at 1,000 messages a second. It is printed; what is asserted
// holds on a machine that does much beside.
func TestLatencyAtAThousandASecond(t *testing.T) {
	w := newWorld(t)
	cfg, reg := w.config(), prometheus.NewRegistry()
	cfg.Metrics = reg
	w.relay(cfg)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	const rounds = 100
	for i := range rounds {
		<-tick.C
		w.put(messages(fmt.Sprintf("m%d", i), 10)...)
	}
	w.isEmpty()
	families := require.Get(reg.Gather())(w)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return *f.Name == "rollbackd_outbox_lag_seconds" })
	lag := families[i].GetMetric()[0].GetHistogram()
	t.Log(lag)
	i = slices.IndexFunc(lag.GetBucket(), func(b *dto.Bucket) bool { return b.GetUpperBound() == 1 })
	all, within := lag.GetSampleCount(), lag.GetBucket()[i].GetCumulativeCount()
	assert.That(t, all >= rounds*10 && within*10 >= all*9, "of %d messages %d were confirmed within a second", all, within)
}

// Given accounts with exactly the rights of the list, then a producer puts and cancels and a relay sends; without any
// one of them, that fails.
func TestProducerAndRelayNeedTheRightsOfTheListAndNoOthers(t *testing.T) {
	w := newWorld(t)
	names := rights.Names{Outbox: true}
	produce := func(db *sql.DB) error {
		return mysqldb.InTx(t.Context(), db, func(tx *sql.Tx) error {
			m := outbox.Message{Tag: "t", Key: "k", Value: 1}
			_, err := outbox.Cancel(t.Context(), tx, "t", "k")
			return errors.Join(err, outbox.Put(t.Context(), tx, m), outbox.Put(t.Context(), tx, m))
		})
	}
	all := rights.MySQL(names, rights.Producer)
	require.OK(w, produce(w.restricted(all)))
	for i, r := range all {
		assert.That(t, produce(w.restricted(slices.Delete(slices.Clone(all), i, i+1))) != nil,
			"a producer puts and cancels without %s on %s", r.Privilege, r.Table)
	}
	all = rights.MySQL(names, rights.Relay)
	for i, r := range all {
		w.put(outbox.Message{Tag: "t", Key: fmt.Sprint(i), Value: 1})
		cfg := w.config()
		cfg.DB = w.restricted(slices.Delete(slices.Clone(all), i, i+1))
		one, stop := w.start(cfg)
		w.misses(one, "denied")
		t.Logf("without %s on %s: %v", r.Privilege, r.Table, stop())
	}
	w.exec("UPDATE rollbackd_outbox SET next_at = UTC_TIMESTAMP(6)") // what was claimed without the right to delete it
	cfg := w.config()
	cfg.DB = w.restricted(all)
	w.relay(cfg)
	w.isEmpty()
}

// Given messages that are parked for longer than the retention and one that is not, then a relay deletes the former and
// says so in its log, also when the database's clock is 40 days ahead.
func TestParkedMessagesGoWithTheRetention(t *testing.T) {
	const day = 24 * time.Hour
	for name, ahead := range map[string]time.Duration{"the clock is right": 0, "the clock is ahead": 40 * day} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at) VALUES " +
				"('t', 'old', '', '9999-12-31', UTC_TIMESTAMP(6) - INTERVAL 31 DAY), " +
				"('t', 'older', '', '9999-12-31', UTC_TIMESTAMP(6) - INTERVAL 1 YEAR), " +
				"('t', 'young', '', '9999-12-31', UTC_TIMESTAMP(6) - INTERVAL 29 DAY)")
			var log program.Log
			cfg := w.config()
			cfg.Retention, cfg.Logger = 30*day, slog.New(slog.NewJSONHandler(&log, nil))
			if ahead > 0 {
				account := require.Get(mysql.ParseDSN(w.dsn))(w)
				account.Params = map[string]string{"timestamp": fmt.Sprint(time.Now().Add(ahead).Unix())}
				cfg.DB = w.open(account.FormatDSN())
			}
			w.relay(cfg)
			poll.Until(t, "the old ones to be deleted, and a line about them", func() bool {
				return w.count("msg_key <> 'young'") == 0 && len(times(&log, slog.LevelWarn)) == 1
			})
			assert.That(t, w.count("TRUE") == 1, "the young one is gone")
		})
	}
}

// open opens a pool under another DSN.
func (w *world) open(dsn string) *sql.DB {
	w.Helper()
	g := require.First(mysqldb.Open(w.Context(), dsn, mysqldb.Options{}))(w)
	db := require.Get(g.DB())(w)
	w.Cleanup(func() { _ = db.Close() })
	return db
}

// restricted is a pool of an account that has these rights alone.
func (w *world) restricted(all []rights.TableRight) *sql.DB {
	w.Helper()
	var grants []string
	for _, r := range all {
		grants = append(grants, r.Privilege+" ON "+r.Table)
	}
	return w.open(stack.Restricted(w, w.dsn, grants...))
}

// tryPut puts messages, in a transaction of their own.
func (w *world) tryPut(msgs ...outbox.Message) error {
	return mysqldb.InTx(w.Context(), w.db, func(tx *sql.Tx) error { return outbox.Put(w.Context(), tx, msgs...) })
}

func message(key, body string) outbox.Message {
	return outbox.Message{Tag: "t", Key: key, Body: []byte(body)}
}

// sent is what the queue holds, as key=body, with how often it came.
func (w *world) sent() map[string]int {
	w.Helper()
	came := map[string]int{}
	for _, d := range w.broker.GetAll(w.queue) {
		came[d.MessageId+"="+string(d.Body)]++
	}
	return came
}

// gate lets a client's bytes wait in a proxy from the first piece on with the last of these words, once the others were
// said, until it is opened.
func gate(wire *stack.TCPProxy, words ...string) (reached <-chan struct{}, opened chan struct{}) {
	opened = make(chan struct{})
	return wire.HoldRequest(func(piece []byte) bool {
		if bytes.Contains(piece, []byte(words[0])) {
			words = words[1:]
		}
		return len(words) == 0
	}, opened), opened
}

// Given a message that a relay has under way, when its key is put once more, then with the same body nothing is to be
// done, and another body is a conflict until the row is gone.
func TestAKeyIsTakenWhileItsMessageIsUnderWay(t *testing.T) {
	w := newWorld(t)
	wire := stack.Proxy(t, stack.Addr(t, w.broker.URL))
	cfg := w.config()
	cfg.AMQPURLs = []string{wire.Through(w.broker.URL)}
	under, opened := gate(wire, "the first body")
	w.put(message("k", "the first body"))
	w.relay(cfg)
	poll.Receive(t, "the message to be under way", under)
	again := w.tryPut(message("k", "the first body"))
	other := w.tryPut(message("k", "another"))
	close(opened)
	assert.That(t, again == nil && errors.Is(other, outbox.ErrConflict), "the same body: %v; another one: %v", again,
		other)
	w.isEmpty()
	w.put(message("k", "another"))
	w.isEmpty()
	came := w.sent()
	assert.That(t, len(came) == 2 && came["k=the first body"] == 1 && came["k=another"] == 1, "%v came", came)
}

// Given a relay that has deleted a row and is about to commit that, when the key is put again, with the same body or
// another one, then Put waits for the commit, and what it puts is a message of its own, which is sent.
func TestAKeyThatIsPutWhileItsRowIsDeletedIsANewMessage(t *testing.T) {
	for _, body := range []string{"the first body", "another"} {
		t.Run(body, func(t *testing.T) {
			w := newWorld(t)
			wire := stack.Proxy(t, stack.Addr(t, w.dsn))
			cfg := w.config()
			cfg.DB = w.open(wire.Through(w.dsn))
			deleted, opened := gate(wire, "DELETE o FROM", "COMMIT")
			w.put(message("k", "the first body"))
			w.relay(cfg)
			poll.Receive(t, "the row to be deleted", deleted)

			tx := require.Get(w.db.BeginTx(t.Context(), nil))(w)
			defer func() { _ = tx.Rollback() }() // after a commit it does nothing
			conn := stack.Number(t, tx, "SELECT CONNECTION_ID()")
			put := make(chan error, 1)
			go func() { put <- outbox.Put(t.Context(), tx, message("k", body)) }()
			// Less than Put waits for a lock, and so seldom that MariaDB makes its view anew for both cases at once.
			waits := poll.During(t.Context(), 3*time.Second, 400*time.Millisecond, func() (waits bool) {
				return w.db.QueryRowContext(t.Context(), "SELECT waits FROM "+stack.Transactions+" WHERE conn = ?", conn).
					Scan(&waits) == nil && waits
			})
			close(opened)
			err := <-put
			require.That(t, err == nil && waits, "put: %v, it had waited for the relay: %v", err, waits)
			require.OK(w, tx.Commit())
			w.isEmpty()
			came := w.sent()
			assert.That(t, (body != "the first body" || came["k="+body] == 2) && came["k=the first body"] != 0 &&
				came["k="+body] != 0, "%v came", came)
		})
	}
}

// times is how often each message of a level was written to a log.
func times(log *program.Log, level slog.Level) map[string]int {
	all := map[string]int{}
	for line := range strings.Lines(log.String()) {
		var said struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Level == level.String() {
			all[said.Msg]++
		}
	}
	return all
}

// Given messages under way, when the producer's MySQL is killed and comes back, or takes no writes for a while as a
// primary does that is demoted, then the relay goes on by itself, all that was committed arrives, and the log says once
// what is away.
func TestTheProducersMySQLFailsOver(t *testing.T) {
	for name, fault := range map[string]struct {
		begin, end func(w *world, server *stack.Server)
	}{
		"killed": { // what fails has failed the test already
			func(_ *world, server *stack.Server) { _ = server.Kill() },
			func(_ *world, server *stack.Server) { _ = server.Start() },
		},
		"read-only": {
			func(w *world, _ *stack.Server) { w.exec("SET GLOBAL read_only = 1") },
			func(w *world, _ *stack.Server) { w.exec("SET GLOBAL read_only = 0") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := stack.OwnMySQL(t)
			w := newWorldIn(t, stack.AMQP(t), server.Database(t))
			var log program.Log
			cfg := w.config()
			cfg.Lease = 6 * time.Second
			cfg.DB = w.restricted(rights.MySQL(rights.Names{Outbox: true}, rights.Relay)) // which a read-only server refuses
			cfg.Logger = slog.New(slog.NewJSONHandler(&log, nil))
			r, stop := w.start(cfg)
			const batches, each = 40, 25
			for i := range batches {
				if i == batches/2 {
					poll.Until(t, "the first to be sent", func() bool { return w.count("TRUE") < each*batches/4 })
					w.put(messages("under way", 1000)...)
					fault.begin(w, server)
					w.misses(r, "mysql: ")
					fault.end(w, server)
				}
				w.put(messages(fmt.Sprint("m", i), each)...)
			}
			w.isEmpty()
			w.misses(r, "")
			require.OK(w, stop())
			assert.Is(t, len(w.sent()), batches*each+1000, "messages came")
			said := times(&log, slog.LevelError)
			for what, n := range said {
				if n != 1 && !strings.HasPrefix(what, "RabbitMQ") { // which a busy machine makes wait for a confirm
					t.Errorf("the log says %d times: %s", n, what)
				}
			}
			assert.That(t, len(said) != 0, "the log says nothing of it")
		})
	}
}

// Given a table that a newer release has changed in a way that this one can live with, then relay and Put work as
// before; and one that this release cannot use is said with what to do.
func TestATableOfAnotherReleaseIsUsedOrRefusedInWords(t *testing.T) {
	const (
		newer = "INSERT INTO rollbackd_schema (set_name, version, applied_at, oldest) VALUES ('outbox', 2, UTC_TIMESTAMP(6), "
		more  = "ALTER TABLE rollbackd_outbox ADD COLUMN more INT "

		migrate = "rollbackd migrate --outbox"
	)
	for name, c := range map[string]struct {
		change []string
		words  []string // empty: it works
	}{
		"a column more, that may be NULL":           {[]string{more + "NULL FIRST", newer + "1)"}, nil},
		"a column more, with a default":             {[]string{more + "NOT NULL DEFAULT 7 AFTER msg_key", newer + "1)"}, nil},
		"a step that this release cannot live with": {[]string{newer + "2)"}, []string{"install a newer rollbackd"}},
		"a step less":   {[]string{"DELETE FROM rollbackd_schema"}, []string{migrate, "0001_outbox.sql is not applied"}},
		"a column less": {[]string{"ALTER TABLE rollbackd_outbox DROP COLUMN failed_at"}, []string{migrate, "failed_at"}},
		"no table":      {[]string{"DROP TABLE rollbackd_outbox"}, []string{migrate, "rollbackd_outbox"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			change := func() {
				for _, statement := range c.change {
					w.exec(statement)
				}
			}
			if len(c.words) == 0 {
				stop := w.relay(w.config())
				change()
				for i, prefix := range []string{"before", "after"} { // when the relay was started
					w.put(messages(prefix, 10)...)
					w.put(outbox.Message{Tag: "t", Key: prefix, RoutingKey: "nowhere"})
					poll.Until(t, "the others to be sent", func() bool {
						return w.count("msg_tag <> 't'") == 0 && w.count("reason IS NOT NULL") == i+1
					})
					stop()
					stop = w.relay(w.config())
				}
				assert.Is(t, w.broker.Depth(w.queue), 20, "messages came")
				return
			}
			change()
			r := require.Get(relay.New(w.config()))(w)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := r.Run(ctx)
			require.That(t, errors.Is(err, outbox.ErrSchema), "the relay says %v", err)
			for _, words := range c.words {
				assert.Has(t, err.Error(), words, "the relay says %q", err)
			}
		})
	}
}
