package relay_test

import (
	"context"
	"database/sql"
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

// produce puts and cancels messages while RabbitMQ takes nothing, which must be quick, and says how many were in time.
func (w *world) produce(prefix string) (inTime int) {
	w.Helper()
	began := time.Now()
	for i := range 20 {
		key := fmt.Sprintf("%s-%d", prefix, i)
		w.put(outbox.Message{Tag: "t", Key: key, Value: i})
		tx := require.Get(w.db.BeginTx(w.Context(), nil))(w)
		soon := require.Get(outbox.Cancel(w.Context(), tx, "t", key))(w)
		w.must(tx.Commit())
		if soon {
			inTime++
		}
	}
	assert.AtMost(w, time.Since(began), 20*time.Second, "20 times Put and Cancel took")
	return inTime
}

// Given a broker that blocks publishers by an alarm, or is frozen, when a producer puts and cancels, then that is as
// quick as ever and in time, the relay says what it misses, and everything is sent afterwards. A relay that is stopped
// while its broker is frozen ends in time.
func TestABrokerThatTakesNothingHoldsUpNoProducer(t *testing.T) {
	rabbit := stack.OwnRabbit(t)
	w := newWorldOn(t, rabbit.Broker(t))
	cfg := w.config()
	cfg.Lease = 6 * time.Second
	r, stop := w.start(cfg)
	w.put(messages("before", 10)...)
	poll.Until(t, "the first", func() bool { return w.count("TRUE") == 0 })
	alarm := func(call string) { w.broker.Eval("rabbit_alarm:" + call) }
	for name, fault := range map[string]struct{ begin, end func() }{
		"it blocks publishers": {func() { alarm("set_alarm({{resource_limit, memory, node()}, []})") },
			func() { alarm("clear_alarm({resource_limit, memory, node()})") }},
		"cannot be reached": {func() { w.must(rabbit.Freeze()) }, func() { w.must(rabbit.Thaw()) }},
	} {
		fault.begin()
		w.put(messages(name, 10)...)
		w.misses(r, name)
		if n := w.produce(name); n < 15 { // beside what is tried now and then
			t.Errorf("%s: %d of 20 were cancelled in time", name, n)
		}
		fault.end()
		poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
		w.misses(r, "")
	}
	w.must(stop())
	w.drainsInTime(rabbit)
}

// drainsInTime stops a relay with messages under way to a frozen broker: it ends in time and says so, and what it had
// is sent by the next one.
func (w *world) drainsInTime(rabbit *stack.Server) {
	t, cfg := w.T, w.config()
	cfg.Lease, cfg.DrainTimeout = 6*time.Second, 300*time.Millisecond
	_, stop := w.start(cfg)
	w.put(messages("last", 10)...)
	poll.Until(t, "the last before the freeze", func() bool { return w.count("TRUE") == 0 })
	w.must(rabbit.Freeze())
	w.put(messages("m", 10)...)
	poll.Until(t, "a claim", func() bool { return w.count("owner IS NOT NULL") > 0 })
	began := time.Now()
	if err := stop(); !errors.Is(err, relay.ErrDrainTimeout) || time.Since(began) > cfg.Lease {
		t.Errorf("it ended with %v after %v", err, time.Since(began))
	}
	w.must(rabbit.Thaw())
	w.relay(w.config())
	poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
}

// Given a relay with nothing to do, then the database sees at most one statement of it in a second, and what is put
// then is sent within a second and a half.
func TestAnIdleRelayAsksOnceASecond(t *testing.T) {
	w := newWorldIn(t, stack.AMQP(t), stack.OwnMySQL(t).Database(t))
	w.relay(w.config())
	questions := func() (n int) {
		var name string
		w.must(w.db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n))
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
		poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
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
	poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
	families := require.Get(reg.Gather())(w)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "rollbackd_outbox_lag_seconds"
	})
	lag := families[i].GetMetric()[0].GetHistogram()
	var text []string
	within := 0.0
	for _, b := range lag.GetBucket() {
		share := float64(b.GetCumulativeCount()) / float64(lag.GetSampleCount())
		text = append(text, fmt.Sprintf("%v ≤ %v s", share, b.GetUpperBound()))
		if b.GetUpperBound() == 1 {
			within = share
		}
	}
	t.Logf("%d messages: %s", lag.GetSampleCount(), strings.Join(text, ", "))
	if lag.GetSampleCount() < rounds*10 || within < 0.9 {
		t.Errorf("of %d messages %v were confirmed within a second", lag.GetSampleCount(), within)
	}
}

// Given accounts with exactly the rights of the list, then a producer puts and cancels and a relay sends; without any
// one of them, that fails.
func TestProducerAndRelayNeedTheRightsOfTheListAndNoOthers(t *testing.T) {
	w := newWorld(t)
	names := rights.Names{Outbox: true}
	open := func(all []rights.TableRight) *sql.DB {
		var grants []string
		for _, r := range all {
			grants = append(grants, r.Privilege+" ON "+r.Table)
		}
		g := require.First(mysqldb.Open(t.Context(), stack.Restricted(t, w.dsn, grants...), mysqldb.Options{}))(w)
		db := require.Get(g.DB())(w)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	produce := func(db *sql.DB) error {
		tx := require.Get(db.BeginTx(t.Context(), nil))(w)
		defer func() { _ = tx.Rollback() }()
		m := outbox.Message{Tag: "t", Key: "k", Value: 1}
		_, cancelErr := outbox.Cancel(t.Context(), tx, "t", "k")
		if err := errors.Join(cancelErr, outbox.Put(t.Context(), tx, m), outbox.Put(t.Context(), tx, m)); err != nil {
			return err
		}
		return tx.Commit()
	}
	all := rights.MySQL(names, rights.Producer)
	w.must(produce(open(all)))
	for i, r := range all {
		assert.That(t, produce(open(slices.Delete(slices.Clone(all), i, i+1))) != nil,
			"a producer puts and cancels without %s on %s", r.Privilege, r.Table)
	}
	all = rights.MySQL(names, rights.Relay)
	for i, r := range all {
		w.put(outbox.Message{Tag: "t", Key: fmt.Sprint(i), Value: 1})
		cfg := w.config()
		cfg.DB = open(slices.Delete(slices.Clone(all), i, i+1))
		one, stop := w.start(cfg)
		w.misses(one, "denied")
		t.Logf("without %s on %s: %v", r.Privilege, r.Table, stop())
	}
	w.exec("UPDATE rollbackd_outbox SET next_at = UTC_TIMESTAMP(6)") // what was claimed without the right to delete it
	cfg := w.config()
	cfg.DB = open(all)
	w.relay(cfg)
	poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
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
			var log told
			cfg := w.config()
			cfg.Retention, cfg.Logger = 30*day, slog.New(slog.NewJSONHandler(&log, nil))
			if ahead > 0 {
				account := require.Get(mysql.ParseDSN(w.dsn))(w)
				account.Params = map[string]string{"timestamp": fmt.Sprint(time.Now().Add(ahead).Unix())}
				cfg.DB = w.open(account.FormatDSN())
			}
			w.relay(cfg)
			poll.Until(t, "the old ones to be deleted, and a line about them", func() bool {
				return w.count("msg_key <> 'young'") == 0 && len(log.times(slog.LevelWarn)) == 1
			})
			assert.That(t, w.count("TRUE") == 1, "the young one is gone")
		})
	}
}
