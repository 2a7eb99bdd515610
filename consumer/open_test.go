package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox"
)

// opened is what a program of 15 lines says: everything else is a default.
func (w *world) opened(dsn string) consumer.Config {
	return consumer.Config{
		MySQLDSN: dsn, AMQPURLs: []string{w.amqpURL}, RedisURL: w.redisURL, Migrate: true,
		Exchange: w.cfg.Exchange, Queue: w.cfg.Queue, Logger: slog.New(slog.NewTextHandler(w.logs, nil)),
	}
}

func TestMigrateSaysWhatTheServerRefuses(t *testing.T) {
	w := newWorld(t)
	dsn := stack.Restricted(t, stack.MySQL(t), "SELECT ON *") // may read and nothing else
	c := require.Get(consumer.Open(t.Context(), w.opened(dsn), w.handler))(t)
	assert.Has(t, fmt.Sprint(c.Run(t.Context())), "denied", "Run says what MySQL refused:")
}

func TestAPanicOfWhoObservesIsSaidAndHarmsNobody(t *testing.T) {
	w := newWorld(t)
	w.cfg.Observe = func(e consumer.Ended) {
		assert.That(t, e.MessageID == e.Key && e.Took > 0, "%s has the message id %s and took %v", e.Key, e.MessageID, e.Took)
		panic("no such gauge")
	}
	w.startWith(keys("order", 20)...)
	w.ended(dedup.Success, keys("order", 20)...)
	w.end(map[string]int{"applied": 20})
	w.logged("no such gauge")
}

// Given a handler that computes between two statements for nearly HandlerTimeout, which is longer than the server would
// let a silent session be by default, then it is not disturbed: the message is applied with one attempt.
func TestAHandlerMayComputeBetweenTwoStatementsForAllOfItsTime(t *testing.T) {
	w := newWorld(t)
	cfg := w.opened(w.dsn)
	cfg.Group, cfg.HandlerTimeout, cfg.Lease = group, 17*time.Second, 51*time.Second
	w.doing(func(tx *gorm.DB, m consumer.Message) error {
		_ = wait.For(tx.Statement.Context, cfg.HandlerTimeout-2*time.Second)
		return insert(tx, "after "+m.Key)
	})
	c := require.Get(consumer.Open(t.Context(), cfg, w.handler))(t)
	w.publish("{}", "slow")
	stop := w.run(c).drained
	w.eventually("it has ended", func() bool { return w.over() > 0 })
	w.wantRow("slow", wanted{Status: dedup.Success, Attempts: 1})
	w.want("effects", w.effects(), once("slow", "after slow"))
	require.OK(t, stop())
}

func TestEveryMetricAndLabelIsThereFromTheStart(t *testing.T) {
	w := newWorld(t)
	w.calling(consumer.CallOptions{})
	w.start()
	got := map[string]int{} // series of each
	for _, f := range require.Get(w.regs[0].Gather())(t) {
		got[f.GetName()] = len(f.GetMetric())
	}
	want := map[string]int{
		"rollbackd_deliveries_total":         len(consumer.Outcomes()),
		"rollbackd_dead_lettered_total":      7, // reasons
		"rollbackd_batch_size":               1,
		"rollbackd_batch_duration_seconds":   5, // phases
		"rollbackd_lag_seconds":              1,
		"rollbackd_lock_attempts_total":      len(lock.Results()),
		"rollbackd_publishes_total":          6, // kinds and results
		"rollbackd_dependency_up":            4,
		"rollbackd_calls_total":              8, // results
		"rollbackd_paused":                   7, // dependencies, the brake, held deliveries, a person
		"rollbackd_held_deliveries":          1,
		"rollbackd_degraded":                 5, // why and queue
		"rollbackd_contention_total":         1,
		"rollbackd_dependency_lost_total":    4,
		"rollbackd_handler_duration_seconds": 2, // results
		"rollbackd_connections_opened_total": 1, // RabbitMQ: the pools are the caller's
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		assert.Is(t, got[name], want[name], "%s has series", name)
	}
}

// Given the end of a delivery, when a program that observes prints or logs it, then the line says how it ended, not
// only whose end it is; what a cause holds stays in its line.
func TestTheEndOfADeliveryIsPrintedWithItsOutcome(t *testing.T) {
	t.Parallel()
	seat := dedup.Identity{Group: "seats", Tag: "release", Key: "b1"}
	dead := consumer.Ended{
		Identity: seat, Outcome: consumer.DeadLettered, Attempt: 2, Reason: dedup.ReasonPermanent,
		Cause: "nobody has\nthis booking", Took: time.Second,
	}
	for _, c := range []struct {
		end             consumer.Ended
		printed, logged string
	}{
		{dead, `seats/release/"b1" dead_lettered, attempt 2, permanent: "nobody has\nthis booking"`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=dead_lettered end.attempt=2 ` +
				`end.reason=permanent end.err="nobody has\nthis booking" end.took=1s`},
		{consumer.Ended{Identity: seat, Outcome: consumer.Retried, Attempt: 1, Delay: time.Minute, Cause: "no"},
			`seats/release/"b1" retried, attempt 1, again in 1m0s: "no"`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=retried end.attempt=1 ` +
				`end.again_in=1m0s end.err=no end.took=0s`},
		{consumer.Ended{Identity: seat, Outcome: consumer.Applied, Took: time.Second}, `seats/release/"b1" applied`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=applied end.took=1s`},
	} {
		assert.Is(t, fmt.Sprintf("%+v", c.end), c.printed, "printed")
		var line strings.Builder
		slog.New(slog.NewTextHandler(&line, nil)).Info("ended", "end", c.end)
		_, got, _ := strings.Cut(strings.TrimSuffix(line.String(), "\n"), "msg=ended ")
		assert.That(t, got == c.logged, "logged: %s\nwant:   %s", got, c.logged)
	}
}

// pair is a program with consumers of two queues.
type pair struct {
	*consumer.Consumers
	process
	one, other consumer.Config // with routing keys tag and otherTag
}

const otherTag = "points.refund"

// pairOn makes it; change changes both configurations and handlers.
func pairOn(w *world, change func(one, other *consumer.Member)) *pair {
	w.t.Helper()
	cfg := w.opened(w.dsn)
	cfg.Registerer, cfg.RoutingKeys, cfg.DrainTimeout = prometheus.NewRegistry(), []string{tag}, w.cfg.DrainTimeout
	cfg.MaxAttempts, cfg.RetryDelays = w.cfg.MaxAttempts, w.cfg.RetryDelays
	one := consumer.Member{Config: cfg, Handler: effectsOf("one ")}
	other := consumer.Member{Config: cfg, Handler: effectsOf("other ")}
	other.Queue, other.RoutingKeys = w.broker.Name("points.refund"), []string{otherTag}
	if change != nil {
		change(&one, &other)
	}
	w.broker.Track(topologyOf(other.Config).Queues()...)
	w.declare()
	all := require.Get(consumer.OpenAll(w.t.Context(), one, other))(w.t)
	return &pair{all, w.run(all), one.Config, other.Config}
}

func effectsOf(prefix string) consumer.Handler {
	return by(false, func(tx *gorm.DB, m consumer.Message) error { return insert(tx, prefix+m.Key) })
}

// prefixed are the names under which a pair's handlers write what they do.
func prefixed(prefix string, keys []string) (names []string) {
	for _, key := range keys {
		names = append(names, prefix+key)
	}
	return names
}

// Given a program of two queues in two groups that has nothing to do, then it has eight connections at most to both
// servers together, and is elected for both groups.
func TestAnIdleProgramOfTwoQueuesHasEightConnections(t *testing.T) {
	w := newWorld(t)
	dsn := stack.MySQL(t) // where the test has no connection of its own
	schema := require.Get(mysql.ParseDSN(dsn))(t).DBName
	open := func() (database, rabbit int) {
		database = w.number("SELECT COUNT(*) FROM " + stack.Processes + " WHERE db = '" + schema + "'")
		return database, w.broker.Connections()
	}
	w.declare()
	_, before := open()
	p := pairOn(w, func(one, other *consumer.Member) { one.MySQLDSN, other.MySQLDSN = dsn, dsn })
	w.eventually("both are consumed", func() bool { return p.State().Consuming })
	leads := func(group string) bool { return strings.Contains(w.logs.String(), "msg=elected group="+group+"\n") }
	w.eventually("it is elected for both groups", func() bool { return leads(p.one.Queue) && leads(p.other.Queue) })
	w.eventually("eight connections are left", func() bool {
		database, rabbit := open()
		return database > 0 && rabbit-before == 5 && database+rabbit-before <= 8
	})
}

// Given a program of two queues, when the handler of one never returns, or writes into a table that is not there, then
// the other queue is consumed as ever, and the state names the queue with the trouble until it is over.
func TestTheTroubleOfOneQueueStopsNoOther(t *testing.T) {
	each(t, named("stuck", "no table"), func(t *testing.T, w *world, way string) {
		mended := make(chan struct{})
		p := pairOn(w, func(one, other *consumer.Member) {
			other.HandlerTimeout, other.Lease = 2*time.Second, 4*time.Second
			other.Handler = by(false, func(tx *gorm.DB, m consumer.Message) error {
				if way == "stuck" {
					<-mended
					return nil
				}
				return tx.Exec("INSERT INTO not_there VALUES (?)", m.Key).Error
			})
		})
		inTrouble := func() bool {
			s := p.State()
			return names(slices.Concat(s.Paused, s.Degraded), p.other.Queue)
		}
		w.eventually("both are consumed", func() bool { return p.State().Consuming })
		w.publishTo(otherTag, "{}", "trouble")
		w.eventually("the trouble is told of", inTrouble)
		all := keys("order", 20)
		w.publishTo(tag, "{}", all...)
		w.eventually("the others are applied", func() bool { return len(w.effects()) == len(all) })
		w.want("effects", w.effects(), once(prefixed("one ", all)...))
		is(w, "the first queue is consumed", p.Members()[0].State().Consuming, true)
		w.exec("CREATE TABLE not_there (k VARBINARY(255) NOT NULL)")
		close(mended)
		w.eventually("the trouble is over", func() bool { return !inTrouble() })
		require.OK(t, p.drained())
	})
}

// Given a program of two queues, one of which has a log that was never made, then Run drains the other and ends with an
// error that names the queue.
func TestWhatEndsOneQueueEndsTheProgramAndIsNamed(t *testing.T) {
	w := newWorld(t)
	p := pairOn(w, func(one, other *consumer.Member) {
		one.Migrate, other.Migrate, other.LogTable = false, false, "other_log"
	})
	err := p.ends(w)
	assert.That(t, errors.Is(err, dedup.ErrSchema) && strings.Contains(err.Error(), p.other.Queue) &&
		!strings.Contains(err.Error(), p.one.Queue+":"), "Run = %v, want the schema, and the queue that lacks it", err)
}

// Given a program of two queues whose messages fail once and are dead-lettered, then the letters of both come back by
// themselves, whether the queues have one group or two.
func TestLettersOfAllQueuesComeBackByThemselves(t *testing.T) {
	one, two := [2]string{"g", "g"}, [2]string{"g", "h"}
	each(t, named(one, two), func(t *testing.T, w *world, groups [2]string) {
		w.cfg.MaxAttempts, w.cfg.RetryDelays = 1, w.cfg.RetryDelays[:1]
		var mended atomic.Bool
		p := pairOn(w, func(one, other *consumer.Member) {
			for i, m := range []*consumer.Member{one, other} {
				effect := m.Handler
				m.Group, m.CompensateAfter, m.MaxDeadWindow = groups[i], time.Second, time.Second
				m.Handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
					if !mended.Load() {
						return errors.New("not yet")
					}
					return effect.Handle(ctx, tx, msgs)
				})
			}
		})
		w.eventually("both are consumed", func() bool { return p.State().Consuming })
		one, other := keys("one", 10), keys("other", 10)
		w.publishTo(tag, "{}", one...)
		w.publishTo(otherTag, "{}", other...)
		w.eventually("all are dead", func() bool {
			return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3") == 20
		})
		mended.Store(true)
		w.eventually("all are applied", func() bool { return len(w.effects()) == 20 })
		w.want("effects", w.effects(), once(slices.Concat(prefixed("one ", one), prefixed("other ", other))...))
		acts := column[string](w, "SELECT DISTINCT queue FROM consumer_log_act WHERE kind = 'compensate' ORDER BY queue")
		assert.Equal(t, acts, slices.Sorted(slices.Values([]string{p.one.Queue, p.other.Queue})), "the acts name the queues")
		require.OK(t, p.drained())
	})
}

// What one Open opens, its end closes, also where nothing ran: goleak looks at the goroutines of the pools.
func TestMembersThatDoNotFitAreRefusedAndAConsumerThatIsNeverRunIsClosed(t *testing.T) {
	w := newWorld(t)
	one := consumer.Member{Config: w.opened(w.dsn), Handler: w.handler}
	other := one
	other.Queue = "points.refund"
	for says, change := range map[string]func(m *consumer.Member){
		"two members consume it": func(m *consumer.Member) { m.Queue = one.Queue },
		"MySQLDSN differs":       func(m *consumer.Member) { m.MySQLDSN += "2" },
		"CompensateAfter":        func(m *consumer.Member) { m.CompensateAfter = time.Hour },
		"no Handler":             func(m *consumer.Member) { m.Handler = nil },
	} {
		m := other
		change(&m)
		_, err := consumer.OpenAll(t.Context(), one, m)
		assert.That(t, err != nil && strings.Contains(err.Error(), says) && strings.Contains(err.Error(), m.Queue),
			"OpenAll = %v, want an error that says %q and names the queue", err, says)
	}
	_, err := consumer.OpenAll(t.Context())
	assert.That(t, err != nil, "no member is no error")
	c := require.Get(consumer.Open(t.Context(), one.Config, w.handler))(t)
	require.OK(t, c.Close(), c.Close(), require.Get(consumer.OpenAll(t.Context(), one, other))(t).Close())
}

// minutes are the sums of what the fleet wrote down since the last time that minutes were moved away.
func (w *world) minutes() (sum dedup.Minute) {
	w.t.Helper()
	sum.Dead = map[dedup.Reason]int64{}
	for _, m := range require.Get(w.records.Minutes(w.t.Context(), group, w.cfg.Queue, 10*time.Minute))(w.t) {
		sum.Applied, sum.Retried = sum.Applied+m.Applied, sum.Retried+m.Retried
		for r, n := range m.Dead {
			sum.Dead[r] += n
		}
		for i, n := range m.Lag {
			sum.Lag[i] += n
		}
		if m.Waiting.V > sum.Waiting.V || !sum.Waiting.Valid {
			sum.Waiting = m.Waiting
		}
	}
	return sum
}

// Given two daemons, of which one writes while it works and the other at its end, when messages flow for a minute and
// fail for another one, then both minutes say what the two did together: applied, retried, dead by reason, and lags.
func TestTheMinutesOfDaemonsAddUp(t *testing.T) {
	w := newWorld(t)
	w.minute = 100 * time.Millisecond
	writing := w.start()
	w.minute = 0
	ending := w.start()
	var late []rabbit.Message
	for i := range 300 {
		m := message(fmt.Sprint("good-", i), "{}")
		m.Headers = rabbit.Table{"x-published-at-ms": time.Now().Add(-11 * time.Second).UnixMilli()}
		late = append(late, m)
	}
	w.publishMessages(late...)
	w.settled(300)
	require.OK(t, ending.drained())
	w.eventually("300 are written down as applied", func() bool { return w.minutes().Applied == 300 })
	m := w.minutes()
	assert.That(t, m.Lag[13] == 300 && m.Retried == 0 && len(m.Dead) == 0,
		"the first minute is %+v, want 300 with a lag of 10 to 30 seconds", m)
	w.eventually("the queue was looked at", func() bool { return w.minutes().Waiting.Valid })

	w.exec("UPDATE consumer_log_minute SET minute = minute - 30")
	w.hopeless("bad-1", "bad-2")
	w.failing("worse")
	w.publish("{}", "bad-1", "bad-2", "worse", "fine")
	w.eventually("what failed is written down", func() bool {
		m = w.minutes()
		return m.Dead[dedup.ReasonPermanent] == 2 && m.Dead[dedup.ReasonExhausted] == 1 && m.Applied == 1
	})
	assert.That(t, m.Applied == 1 && m.Retried == 2 && len(m.Dead) == 2, "the minute of the faults is %+v", m)
	require.OK(t, writing.drained())
	m = w.minutes()
	assert.That(t, m.Applied == 1 && m.Retried == 2, "after both have ended it is %+v", m)
}

// Given a daemon whose table of minutes is gone, or may not be written, then messages are consumed, and it says once
// what is missing.
func TestADaemonThatCannotWriteMinutesConsumesAndSaysItOnce(t *testing.T) {
	each(t, map[string]func(w *world){
		"no table": func(w *world) { w.exec("DROP TABLE consumer_log_minute") },
		"no right": func(w *world) {
			w.dsn = stack.Restricted(w.t, w.dsn, "SELECT, INSERT, UPDATE, DELETE ON consumer_log",
				"SELECT, INSERT, UPDATE, DELETE ON consumer_log_event", "SELECT, INSERT, UPDATE ON rollbackd_meta",
				"SELECT ON rollbackd_schema", "SELECT, INSERT, UPDATE, DELETE ON effect", "SELECT ON consumer_log_minute")
		},
	}, func(t *testing.T, w *world, spoil func(w *world)) {
		spoil(w)
		w.minute = 20 * time.Millisecond
		r := w.start()
		const says, lost = "the charts of the pages lack", "figures of a minute are lost"
		w.eventually("several minutes were lost", func() bool { return strings.Count(w.logs.String(), lost) > 2 })
		w.publish("{}", keys("order", 10)...)
		w.settled(10)
		require.OK(t, r.drained())
		assert.Is(t, strings.Count(w.logs.String(), says), 1, "times it is said that minutes are not written")
		assert.Is(t, len(w.effects()), 10, "effects")
	})
}

// eventOf is the event of a message.
func eventOf(m consumer.Message) outbox.Message {
	return outbox.Message{Tag: "shelf.filled", Key: m.Key, Body: m.Body, RoutingKey: "shelf.filled"}
}

// Given a Config with an Outbox and an empty schema, when a handler puts messages, then Run has made the table and
// sends them; without the table, and without Migrate, Run ends and says who makes it.
func TestAConsumerRelaysItsOutbox(t *testing.T) {
	w := newWorld(t)
	events := w.broker.Name("events")
	w.broker.DeclareExchange(w.cfg.Exchange, "topic")
	w.broker.DeclareQueue(events, nil)
	w.broker.Bind(events, "shelf.filled", w.cfg.Exchange)
	cfg := w.opened(stack.MySQL(t))
	cfg.Outbox = true
	put := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		return outbox.Put(ctx, consumer.SQL(tx), eventOf(m))
	}
	c := require.Get(consumer.Open(t.Context(), cfg, consumer.Each(put)))(t)
	stop := w.run(c).drained
	w.eventually("it consumes", func() bool { return c.State().Consuming })
	w.publish("{}", "a", "b")
	w.eventually("the events", func() bool { return w.broker.Depth(events) == 2 })
	require.OK(t, w.open(cfg.MySQLDSN).Exec("DROP TABLE rollbackd_outbox").Error)
	w.eventually("the outbox is named", func() bool { return names(c.State().Degraded, "outbox") })
	require.OK(t, stop())

	cfg.MySQLDSN, cfg.Migrate = w.direct, false // the log alone is there
	err := require.Get(consumer.Open(t.Context(), cfg, consumer.Each(put)))(t).Run(t.Context())
	assert.That(t, errors.Is(err, outbox.ErrSchema) && strings.Contains(err.Error(), "rollbackd migrate --outbox"),
		"Run = %v, want an error that says who makes the table of the outbox", err)
}

// Given a table that is missing when a message comes, whoever's it is, then the log names it, the message stays in the
// queue and has no row; once the table is there the message is applied by its first attempt.
func TestATableThatIsMissingIsNamedAndWaitedFor(t *testing.T) {
	each(t, map[string]struct{ table, made string }{
		"the handler's":    {"effect", "CREATE TABLE effect (k VARBINARY(255) NOT NULL, body MEDIUMBLOB NOT NULL)"},
		"the outbox":       {"rollbackd_outbox", ""},
		"the consumer log": {"consumer_log", "RENAME TABLE gone TO consumer_log"},
	}, func(t *testing.T, w *world, missing struct{ table, made string }) {
		w.doing(func(tx *gorm.DB, m consumer.Message) error {
			if missing.table != "rollbackd_outbox" {
				return nil
			}
			return outbox.Put(tx.Statement.Context, consumer.SQL(tx), eventOf(m))
		})
		w.cfg.GiveBackAfter = 200 * time.Millisecond
		r := w.start()
		w.recovered(r)
		switch missing.table {
		case "consumer_log":
			w.exec("RENAME TABLE consumer_log TO gone")
		case "effect":
			w.exec("DROP TABLE effect")
		}
		w.publish("{}", "order")
		w.eventually("the log says what is missing", func() bool {
			log := w.logs.String()
			return strings.Contains(log, "waiting for mysql") && strings.Contains(log, "."+missing.table+"' doesn't exist") &&
				strings.Contains(log, "do=\"make it: `rollbackd migrate`")
		})
		w.eventually("the delivery was given back, and waits", func() bool {
			return strings.Contains(w.logs.String(), `msg="deliveries given back"`) &&
				w.broker.Depth(w.cfg.Queue)+w.broker.Unacked(w.cfg.Queue) == 1
		})
		if missing.table != "consumer_log" {
			is(w, "rows", w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status <> 0"), 0)
		}
		if missing.made != "" {
			w.exec(missing.made)
		} else {
			require.OK(t, outbox.Migrate(t.Context(), w.open(stack.ForMigrations(t, w.direct))))
		}
		w.recovered(r)
		w.applied("order")
		w.wantRow("order", wanted{Attempts: 1})
	})
}
