package consumer_test

import (
	"context"
	"errors"
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
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given one Registerer, when a program opens consumers of two queues on it, and asks for a second one of the first
// queue, then what each queue's messages come to is told apart, and the second one is refused with the queue's name.
func TestConsumersOfTwoQueuesShareARegisterer(t *testing.T) {
	w := newWorld(t)
	reg := prometheus.NewRegistry()
	cfg := w.opened(w.dsn)
	cfg.Registerer, cfg.RoutingKeys = reg, []string{tag}
	other := cfg
	other.Queue = w.broker.Name("other")
	other.RoutingKeys = []string{"other"}
	w.broker.Track(topologyOf(other).Queues()...)
	for _, one := range []consumer.Config{cfg, other} {
		c := require.Get(consumer.Open(t.Context(), one, by(false, func(tx *gorm.DB, m consumer.Message) error {
			return insert(tx, one.Queue+m.Key)
		})))(t)
		w.run(c)
	}
	_, err := consumer.Open(t.Context(), cfg, w.handler)
	if err == nil || !strings.Contains(err.Error(), cfg.Queue) {
		t.Errorf("Open = %v, want an error that names the queue", err)
	}
	for _, queue := range []string{cfg.Queue, other.Queue} {
		w.eventually("consumers of "+queue, func() bool {
			return ofQueue(t, reg, "rollbackd_queue_consumers", "main", queue) > 0
		})
	}
	w.publish("{}", "a", "b")
	w.publishTo("other", "{}", "c")
	w.eventually("all are applied", func() bool {
		return ofQueue(t, reg, "rollbackd_deliveries_total", "applied", cfg.Queue) == 2 &&
			ofQueue(t, reg, "rollbackd_deliveries_total", "applied", other.Queue) == 1
	})
	w.want("effects", w.effects(), once(cfg.Queue+"a", cfg.Queue+"b", other.Queue+"c"))
}

// ofQueue is a metric of a queue with another label's value.
func ofQueue(t *testing.T, reg prometheus.Gatherer, metric, value, queue string) (sum float64) {
	t.Helper()
	for _, f := range require.Get(reg.Gather())(t) {
		for _, m := range f.GetMetric() {
			var is, of bool
			for _, l := range m.GetLabel() {
				is = is || l.GetValue() == value
				of = of || l.GetName() == "queue" && l.GetValue() == queue
			}
			if f.GetName() == metric && is && of {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// pair is a program with consumers of two queues.
type pair struct {
	*consumer.Consumers
	w      *world
	one    consumer.Config // with routing key tag
	other  consumer.Config // with routing key otherTag
	reg    *prometheus.Registry
	ctx    context.Context
	cancel context.CancelFunc
	done   chan error
}

const otherTag = "points.refund"

// pairOn makes it; change changes both configurations and handlers.
func pairOn(w *world, change func(one, other *consumer.Member)) *pair {
	w.t.Helper()
	p := &pair{w: w, reg: prometheus.NewRegistry(), done: make(chan error, 1)}
	cfg := w.opened(w.dsn)
	cfg.Registerer, cfg.RoutingKeys, cfg.DrainTimeout = p.reg, []string{tag}, w.cfg.DrainTimeout
	cfg.MaxAttempts, cfg.RetryDelays = w.cfg.MaxAttempts, w.cfg.RetryDelays
	one := consumer.Member{Config: cfg, Handler: effectsOf("one ")}
	other := consumer.Member{Config: cfg, Handler: effectsOf("other ")}
	other.Queue, other.RoutingKeys = w.broker.Name("points.refund"), []string{otherTag}
	if change != nil {
		change(&one, &other)
	}
	p.one, p.other = one.Config, other.Config
	w.broker.Track(topologyOf(other.Config).Queues()...)
	w.declare()
	p.Consumers = require.Get(consumer.OpenAll(w.t.Context(), one, other))(w.t)
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(w.t.Context()))
	go func() { p.done <- p.Run(p.ctx) }()
	w.t.Cleanup(func() { _ = p.stop() })
	return p
}

func effectsOf(prefix string) consumer.Handler {
	return by(false, func(tx *gorm.DB, m consumer.Message) error { return insert(tx, prefix+m.Key) })
}

// stop stops it, and returns what Run has returned; nil when it was asked before.
func (p *pair) stop() error {
	p.cancel()
	err, first := <-p.done
	if first {
		close(p.done)
	}
	return err
}

func (p *pair) consuming() {
	p.w.t.Helper()
	p.w.eventually("both are consumed", func() bool { return p.State().Consuming })
}

// publish publishes to the first queue and to the other.
func (p *pair) publish(one, other []string) {
	p.w.t.Helper()
	p.w.publishTo(tag, "{}", one...)
	p.w.publishTo(otherTag, "{}", other...)
}

// prefixed are the names under which a pair's handlers write what they do.
func prefixed(prefix string, keys []string) (names []string) {
	for _, key := range keys {
		names = append(names, prefix+key)
	}
	return names
}

// Given two programs of the same two queues, when messages come to both queues, all of them twice and under the same
// keys in both, and one of the programs is stopped meanwhile, then each has its effect once, by the handler of its
// queue, and both programs drain.
func TestTwoProgramsOfTwoQueuesApplyEachMessageOnce(t *testing.T) {
	w := newWorld(t)
	first, second := pairOn(w, nil), pairOn(w, nil)
	first.consuming()
	second.consuming()
	all := keys("order", 300)
	first.publish(all, all)
	first.publish(all, all)
	w.eventually("some are applied", func() bool { return len(w.effects()) > 0 })
	require.OK(t, first.stop())
	want := once(slices.Concat(prefixed("one ", all), prefixed("other ", all))...)
	w.eventually("all are applied", func() bool { return len(w.effects()) == len(want) })
	w.eventually("the queues are empty", func() bool {
		return w.broker.Unacked(second.one.Queue, second.other.Queue) == 0 &&
			w.broker.Depth(second.one.Queue)+w.broker.Depth(second.other.Queue) == 0
	})
	require.OK(t, second.stop())
	w.want("effects", w.effects(), want)
	if s := second.State(); s.Consuming || !s.Draining {
		t.Errorf("after its end it is %+v", s)
	}
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
	p.consuming()
	leads := func(group string) bool {
		return strings.Contains(w.logs.String(), "msg=elected group="+group+"\n")
	}
	w.eventually("it is elected for both groups", func() bool { return leads(p.one.Queue) && leads(p.other.Queue) })
	w.eventually("eight connections are left", func() bool {
		database, rabbit := open()
		return database > 0 && rabbit-before == 5 && database+rabbit-before <= 8
	})
}

// Given a program of two queues, when the handler of one never returns, or writes into a table that is not there, then
// the other queue is consumed as ever, and the state names the queue with the trouble until it is over.
func TestTheTroubleOfOneQueueStopsNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		handle func(mended <-chan struct{}, tx *gorm.DB, m consumer.Message) error
		mend   func(w *world)
	}{
		"stuck": {func(mended <-chan struct{}, _ *gorm.DB, _ consumer.Message) error {
			<-mended
			return nil
		}, func(*world) {}},
		"no table": {func(_ <-chan struct{}, tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("INSERT INTO not_there VALUES (?)", m.Key).Error
		}, func(w *world) { w.exec("CREATE TABLE not_there (k VARBINARY(255) NOT NULL)") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			mended := make(chan struct{})
			p := pairOn(w, func(one, other *consumer.Member) {
				other.HandlerTimeout, other.Lease = 2*time.Second, 4*time.Second
				other.Handler = by(false, func(tx *gorm.DB, m consumer.Message) error { return c.handle(mended, tx, m) })
			})
			inTrouble := func() bool {
				s := p.State()
				return slices.ContainsFunc(slices.Concat(s.Paused, s.Degraded), func(why string) bool {
					return strings.HasPrefix(why, p.other.Queue)
				})
			}
			p.consuming()
			p.publish(nil, []string{"trouble"})
			w.eventually("the trouble is told of", inTrouble)
			all := keys("order", 20)
			p.publish(all, nil)
			w.eventually("the others are applied", func() bool { return len(w.effects()) == len(all) })
			w.want("effects", w.effects(), once(prefixed("one ", all)...))
			if !p.Members()[0].State().Consuming {
				t.Error("the first queue is not consumed")
			}
			c.mend(w)
			close(mended)
			w.eventually("the trouble is over", func() bool { return !inTrouble() })
			require.OK(t, p.stop())
		})
	}
}

// Given a program of two queues, one of which has a log that was never made, then Run drains the other and ends with an
// error that names the queue.
func TestWhatEndsOneQueueEndsTheProgramAndIsNamed(t *testing.T) {
	w := newWorld(t)
	p := pairOn(w, func(one, other *consumer.Member) {
		one.Migrate, other.Migrate, other.LogTable = false, false, "other_log"
	})
	select {
	case err := <-p.done:
		close(p.done)
		if !errors.Is(err, dedup.ErrSchema) || !strings.Contains(err.Error(), p.other.Queue) ||
			strings.Contains(err.Error(), p.one.Queue+":") {
			t.Errorf("Run = %v, want the schema, and the queue that lacks it", err)
		}
	case <-time.After(w.patience):
		t.Fatal("it goes on")
	}
}

// Given a program of two queues whose messages fail once and are dead-lettered, then the letters of both come back by
// themselves, whether the queues have one group or two.
func TestLettersOfAllQueuesComeBackByThemselves(t *testing.T) {
	for name, groups := range map[string][2]string{"one group": {"g", "g"}, "two groups": {"g", "h"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
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
			p.consuming()
			one, other := keys("one", 10), keys("other", 10)
			p.publish(one, other)
			w.eventually("all are dead", func() bool {
				return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3") == 20
			})
			mended.Store(true)
			w.eventually("all are applied", func() bool { return len(w.effects()) == 20 })
			w.want("effects", w.effects(), once(slices.Concat(prefixed("one ", one), prefixed("other ", other))...))
			acts := column[string](w, "SELECT DISTINCT queue FROM consumer_log_act WHERE kind = 'compensate' ORDER BY queue")
			assert.Equal(t, acts, slices.Sorted(slices.Values([]string{p.one.Queue, p.other.Queue})), "the acts name the queues")
			require.OK(t, p.stop())
		})
	}
}

func TestMembersThatDoNotFitAreRefused(t *testing.T) {
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
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), m.Queue) {
			t.Errorf("OpenAll = %v, want an error that says %q and names the queue", err, says)
		}
	}
	if _, err := consumer.OpenAll(t.Context()); err == nil {
		t.Error("no member is no error")
	}
	require.OK(t, require.Get(consumer.OpenAll(t.Context(), one, other))(t).Close())
}
