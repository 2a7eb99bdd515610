package consumer_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

func TestADrainFinishesWhatIsInHandAndAcksIt(t *testing.T) {
	w := newWorld(t)
	w.cfg.BatchSize, w.cfg.Prefetch = 20, 40
	all := keys("order", 300)
	w.publish("{}", all...)
	first := w.launch()
	w.eventually("it is at work", func() bool { return w.outcomes()["applied"] > 40 })
	require.OK(t, first.drained())
	s := first.State()
	assert.That(t, s.Draining && !s.Consuming, "state %+v after a drain", s)
	assert.Has(t, fmt.Sprint(first.Run(t.Context())), "before", "a second Run")
	is(w, "effects", len(w.effects()), w.outcomes()["applied"])
	w.start()
	w.ended(dedup.Success, all...)
	w.end(map[string]int{"applied": 300}) // so nothing that was finished came again
}

// What a message waits for whose copy is refused makes the lane ack the others of its batch one by one. RabbitMQ holds
// back acks for a quorum queue that comes in such numbers, and forgets those with the channel that it holds back then.
func TestADrainLosesNoAckOfManySingleOnes(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(601)
	w.cfg.Prefetch = 1300 // a lane takes half of it at once
	w.unreadable("bad")
	room := w.full(w.deadQueue())
	good := keys("good", 600)
	// given a batch whose first message stays open, while the others are committed
	w.publish("{}", append([]string{"bad"}, good...)...)
	r, release := w.into(consumer.PointCommitted, w.launch)
	// when the daemon is to stop, and acks them
	r.stop()
	w.eventually("it drains", func() bool { return r.State().Draining })
	release()
	require.OK(t, r.drained())
	w.ended(dedup.Success, good...)
	// then only the other one comes again
	w.eventually("nothing is in anybody's hands", func() bool { return w.broker.Unacked(w.cfg.Queue) == 0 })
	is(w, "messages are in the queue again", w.broker.Depth(w.cfg.Queue), 1)
	w.cfg.Hook = nil
	room()
	w.start()
	w.ended(dedup.Dead, "bad")
	w.end(map[string]int{"applied": 600, "abandoned": 1, "dead_lettered": 1})
}

// 450 messages failed once and are claimed again, 200 at a time. A stop lets the claims that are made come to their
// end, and charges nobody else.
func TestADrainGivesBackWhatItHasNotStarted(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(450)
	w.cfg.Prefetch = 450
	w.cfg.RetryDelays = []time.Duration{time.Second, time.Hour}
	all := keys("order", 450)
	w.failing(all...)
	w.publish("{}", all...)
	// given a lane in the middle of its first group
	r, release := w.into(consumer.PointClaimed, w.launch)
	// when it is to stop
	r.stop()
	w.eventually("it drains", func() bool { return r.State().Draining })
	release()
	require.OK(t, r.drained())
	// then that group had its second attempt, and the others still have it
	is(w, "claims are left", w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0"), 0)
	once := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND consumer_times = 1")
	twice := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND consumer_times = 2")
	assert.That(t, once+twice == 450 && twice != 0 && twice <= 200,
		"%d rows with one attempt, %d with two; want 450 in all, and one group with two", once, twice)
	is(w, "retried", w.outcomes()["retried"], 450+twice)
	is(w, "applied or dead", w.outcomes()["applied"]+w.outcomes()["dead_lettered"], 0)
}

func TestADrainThatCannotFinishEndsInTime(t *testing.T) {
	w := newWorld(t)
	w.cfg.DrainTimeout, w.answer = 300*time.Millisecond, time.Minute
	l := w.proxied()
	w.publish("{}", keys("order", 10)...)
	r, release := w.into(consumer.PointEffect, w.launch)
	l.mysql.Hold(true) // as a frozen MySQL
	release()
	began := time.Now()
	assert.Error(t, r.drained(), consumer.ErrDrainTimeout, "Run")
	assert.AtMost(t, time.Since(began), 8*time.Second, "it took") // MySQL is waited for longer, and so is the handler
	l.mysql.Hold(false)
	l.mysql.Cut()
	w.eventually("the stuck lane has ended", func() bool { return l.mysql.Links() == 0 })
	// then nothing is lost
	w.cfg.Hook = nil
	w.start()
	w.applied(keys("order", 10)...)
}

// Given a group of claims that waits for somebody's lock, when the engine is to stop and that lasts longer than it may
// drain, then nobody has paid an attempt for it.
func TestAStopThatDoesNotWaitForALockCostsNoAttempt(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(200)
	w.cfg.Prefetch, w.cfg.DrainTimeout = 400, 300*time.Millisecond
	all := keys("order", 200)
	w.blamed(all...)
	w.publish("{}", all...)
	other := w.conn()
	w.execOn(other, "LOCK TABLES effect WRITE")
	r, release := w.into(consumer.PointClaimed, w.launch)
	r.stop()
	w.eventually("it drains", func() bool { return r.State().Draining })
	release()
	assert.Error(t, r.drained(), consumer.ErrDrainTimeout, "Run")
	w.execOn(other, "UNLOCK TABLES")
	w.ended(dedup.Failed, all...)
	w.wantRows(wanted{Attempts: 1}, all...)
}

func TestADrainWhileServersAreAwayIsClean(t *testing.T) {
	each(t, map[string]func(links){
		"rabbitmq": func(l links) { l.amqp.Refuse(true); l.amqp.Cut() },
		"mysql":    func(l links) { l.mysql.Refuse(true); l.mysql.Cut() },
		"redis":    func(l links) { l.redis.Refuse(true); l.redis.Cut() },
	}, func(t *testing.T, w *world, sever func(links)) {
		l := w.proxied()
		w.failing("bad")
		w.publish("{}", "good", "bad")
		r := w.launch()
		w.died("bad")
		sever(l)
		is(w, "Run", r.drained(), nil)
	})
}

func TestStartingAndStoppingUnderLoadLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.cfg.BatchSize, w.cfg.Prefetch = 10, 20
	good, bad := keys("good", 300), keys("bad", 10)
	w.failing(bad...)
	all := append(bad[:5:5], good...)
	for range 2 {
		w.publish("{}", append(all, bad[5:]...)...)
	}
	for range 15 {
		r := w.launch()
		time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, r.stop)
		is(w, "Run", r.ends(w), nil)
	}
	w.start()
	w.ended(dedup.Dead, bad...)
	w.quiet()
	w.applied(good...)
	w.wantRows(wanted{Attempts: 3, Reason: "exhausted"}, bad...)
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	w := newWorld(t)
	w.cfg.AMQPURLs = []string{w.amqpURL}
	good := consumer.Options{DB: w.open(w.dsn)}
	require.Get(consumer.New(w.cfg, w.handler, good))(t)
	for name, tc := range map[string]struct {
		change func(*consumer.Config)
		says   string
	}{
		"long group":           {func(c *consumer.Config) { c.Group = strings.Repeat("x", 101) }, "Group"},
		"long queue":           {func(c *consumer.Config) { c.Queue = strings.Repeat("x", 201) }, "Queue"},
		"long exchange":        {func(c *consumer.Config) { c.Exchange = strings.Repeat("x", 201) }, "Exchange"},
		"unknown key source":   {func(c *consumer.Config) { c.KeyFrom = "cookie:x" }, "KeyFrom"},
		"a table's injection":  {func(c *consumer.Config) { c.LogTable = "x; DROP TABLE y" }, "table"},
		"negative attempts":    {func(c *consumer.Config) { c.MaxAttempts = -1 }, "MaxAttempts"},
		"too few delays":       {func(c *consumer.Config) { c.MaxAttempts = 9 }, "RetryDelays"},
		"delays that shrink":   {func(c *consumer.Config) { c.RetryDelays = []time.Duration{2e9, 1e9} }, "grow"},
		"half a millisecond":   {func(c *consumer.Config) { c.RetryDelays = []time.Duration{5e5, 1e9} }, "milliseconds"},
		"negative lanes":       {func(c *consumer.Config) { c.Lanes = -1 }, "Lanes"},
		"batch over prefetch":  {func(c *consumer.Config) { c.BatchSize = c.Prefetch + 1 }, "BatchSize"},
		"negative batch":       {func(c *consumer.Config) { c.BatchSize = -1 }, "BatchSize"},
		"prefetch over 16 bit": {func(c *consumer.Config) { c.Prefetch = 65536 }, "Prefetch"},
		"negative linger":      {func(c *consumer.Config) { c.BatchLinger = -2 }, "BatchLinger"},
		"lease below timeout":  {func(c *consumer.Config) { c.Lease = c.HandlerTimeout }, "Lease"},
		"timeout too short":    {func(c *consumer.Config) { c.HandlerTimeout = 1999e6 }, "HandlerTimeout 1.999s"},
		"negative budget":      {func(c *consumer.Config) { c.MemoryBudget = -1 }, "MemoryBudget"},
		"negative drain":       {func(c *consumer.Config) { c.DrainTimeout = -1 }, "DrainTimeout"},
		"negative give back":   {func(c *consumer.Config) { c.GiveBackAfter = -1 }, "GiveBackAfter"},
		"short lock":           {func(c *consumer.Config) { c.LockTTL = time.Millisecond }, "LockTTL"},
		"unknown policy":       {func(c *consumer.Config) { c.LockOnError = "hope" }, "LockOnError"},
		"negative window":      {func(c *consumer.Config) { c.MaxDeadWindow = -1 }, "MaxDeadWindow"},
		"negative brake":       {func(c *consumer.Config) { c.MaxDead = -2 }, "MaxDead"},
		"negative retention":   {func(c *consumer.Config) { c.LogRetention = -2 }, "LogRetention"},
		"negative replays":     {func(c *consumer.Config) { c.MaxReplays = -1 }, "MaxReplays"},
		"no broker":            {func(c *consumer.Config) { c.AMQPURLs = nil }, "AMQPURLs"},
		"not an AMQP URL":      {func(c *consumer.Config) { c.AMQPURLs = []string{"http://x"} }, "AMQPURLs"},
		"TLS to a plain URL":   {func(c *consumer.Config) { c.AMQPTLS = &tls.Config{} }, "write amqps://"},
	} {
		cfg := w.cfg
		tc.change(&cfg)
		_, err := consumer.New(cfg, w.handler, good)
		assert.Has(t, fmt.Sprint(err), tc.says, "New, %s", name)
	}
	calls := consumer.Calls(func(context.Context, consumer.Message) error { return nil }, consumer.CallOptions{})
	for says, h := range map[string]consumer.Handler{
		"Handler":                  nil,
		"a Mux without handlers":   consumer.Mux{},
		`Mux, tag "a": no Handler`: consumer.Mux{"a": nil},
		`Mux, tag "a": Mux, tag "b": a handler made by Calls`: consumer.Mux{"a": consumer.Mux{"b": calls}},
	} {
		_, err := consumer.New(w.cfg, h, good)
		assert.Has(t, fmt.Sprint(err), says, "New")
	}
	for name, got := range map[string]func() (*consumer.Consumer, error){
		"DB": func() (*consumer.Consumer, error) { return consumer.New(w.cfg, w.handler, consumer.Options{}) },
		"Lock": func() (*consumer.Consumer, error) {
			client := redis.NewClient(&redis.Options{})
			defer client.Close()
			both := consumer.Options{DB: good.DB, Redis: client, Lock: lock.None{}}
			return consumer.New(w.cfg, w.handler, both)
		},
		"MySQLDSN": func() (*consumer.Consumer, error) { return consumer.Open(t.Context(), w.cfg, w.handler) },
	} {
		_, err := got()
		assert.Has(t, fmt.Sprint(err), name, "the error")
	}
	noKeys := w.cfg
	noKeys.KeyFrom = "nowhere"
	_, err := noKeys.Letters(good.DB)
	assert.That(t, err != nil, "letters with keys from nowhere were taken")
	_, err = w.cfg.Letters(nil)
	assert.That(t, err != nil, "letters without a pool were taken")
	cfg := w.cfg // whose metrics are registered twice
	cfg.Registerer = prometheus.NewRegistry()
	_, first := consumer.New(cfg, w.handler, good)
	_, second := consumer.New(cfg, w.handler, good)
	cfg.Queue = "another"
	_, other := consumer.New(cfg, w.handler, good)
	require.OK(t, first, other)
	assert.Has(t, fmt.Sprint(second), w.cfg.Queue, "the second time, New")
}

func TestDeliveriesHeldTooLongAreGivenBack(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.HoldLimit = 1, 300*time.Millisecond
	w.handler = handling(func(tx *gorm.DB, msgs []consumer.Message) error {
		if len(msgs) > 1 {
			return errors.New("one at a time, please")
		}
		<-time.After(50 * time.Millisecond)
		return insert(tx, msgs[0].Key)
	})
	all := keys("order", 10)
	r := w.startWith(all...)
	w.recovered(r)
	w.applied(all...)
	w.eventually("all are counted", func() bool { return w.outcomes()["applied"] == 10 })
	assert.AtLeast(t, w.outcomes()["abandoned"], 1, "abandoned")
	is(w, "duplicates of what was applied", w.outcomes()["duplicate"], 0)
	is(w, "paused", fmt.Sprint(w.counts("rollbackd_paused")), "map[]")
}

// A lane that waits for a server is not stuck, however long that takes.
func TestALaneThatWaitsForAServerIsNotStill(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	l := w.proxied()
	w.cfg.Lanes = 1
	r := w.start()
	w.recovered(r)
	l.mysql.Refuse(true)
	l.mysql.Cut()
	w.publish("{}", "a")
	w.paused(r, "mysql")
	w.eventually("the lane rests between two questions", func() bool { return r.State().Still == 0 })
	l.mysql.Refuse(false)
	w.ended(dedup.Success, "a")
}

// order pauses the fleet as a person does; the test's database is the one that everybody asks.
func (w *world) order(id, why string, lasts time.Duration) {
	w.t.Helper()
	require.Get(w.records.SetPause(w.t.Context(), w.db, group, w.cfg.Queue, dedup.Pause{ID: id, By: "anna", Why: why},
		lasts, ""))(w.t)
}

func pausedByAnna(r *running) bool { return !r.State().Consuming && knowsPause(r) }

// knowsPause reports whether the daemon has read anna's order, also while its work in hand is being finished.
func knowsPause(r *running) bool {
	return slices.ContainsFunc(r.State().Paused, func(why string) bool {
		return strings.HasPrefix(why, consumer.PausedByPerson+": paused by anna until ")
	})
}

// Given two daemons in the middle of a backlog, when a person pauses the fleet, then what is in hand is finished,
// the rest is in the queue again, and no message is charged more than one delivery.
func TestAPauseStopsEachDaemonOfTheFleetAndChargesNoMessageMoreThanOneDelivery(t *testing.T) {
	w := newWorld(t)
	w.cfg.BatchSize, w.cfg.Prefetch = 10, 100
	w.publish("{}", keys("order", 600)...)
	reached, release := w.blockAt(consumer.PointCommitted)
	// given two daemons in the middle of a backlog
	first, second := w.start(), w.start()
	await(t, reached, "a batch is in hand")
	// when a person pauses the fleet
	w.order("p1", "the shelves are counted", time.Hour)
	w.eventually("both know of it", func() bool { return knowsPause(first) && knowsPause(second) })
	release()
	// then both stop, what was in hand is finished, the rest is in the queue again
	w.eventually("both are paused", func() bool { return pausedByAnna(first) && pausedByAnna(second) })
	w.eventually("nobody holds anything", func() bool {
		return w.broker.Unacked(w.cfg.Queue) == 0 && w.broker.Consumers(w.cfg.Queue) == 0
	})
	applied := len(w.effects())
	require.That(t, applied != 0 && applied+w.broker.Depth(w.cfg.Queue) == 600,
		"%d effects and %d messages in the queue, want 600 in all", applied, w.broker.Depth(w.cfg.Queue))
	is(w, "daemons that say so", w.counts("rollbackd_paused")["person"], 2)
	for range 20 {
		d, ok := w.broker.Get(w.cfg.Queue)
		require.That(t, ok, "the queue is empty")
		n, _ := d.Headers["x-delivery-count"].(int64)
		assert.That(t, n <= 1, "a message that was given back is charged %d deliveries, want 1 at most", n)
		w.publish(string(d.Body), d.MessageId) // it was taken out by this test
	}
	// and a daemon that starts meanwhile takes nothing
	third := w.start()
	w.eventually("the third is paused", func() bool { return pausedByAnna(third) })
	is(w, "effects while it is paused", len(w.effects()), applied)
	// when the pause is ended, all go on
	require.Get(w.records.EndPause(t.Context(), w.db, group, w.cfg.Queue, "p1"))(t)
	w.applied(keys("order", 600)...)
	w.eventually("all consume", func() bool {
		return first.State().Consuming && second.State().Consuming && third.State().Consuming
	})
	is(w, "rollbackd_paused", w.counts("rollbackd_paused")["person"], 0)
}

func TestAPauseEndsByItselfAlsoWhileMySQLIsAway(t *testing.T) {
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	w.dsn = proxy.Through(w.dsn)
	r := w.start()
	w.eventually("it consumes", func() bool { return r.State().Consuming })
	// given a pause that it has heard of
	w.order("p1", "the shelves are counted", 5*time.Second)
	ends := time.Now().Add(5 * time.Second)
	w.eventually("it is paused", func() bool { return pausedByAnna(r) })
	w.publish("{}", "order-1")
	// when MySQL is away and the order is taken back
	proxy.Refuse(true)
	proxy.Cut()
	require.Get(w.records.EndPause(t.Context(), w.db, group, w.cfg.Queue, "p1"))(t)
	// then it keeps to what it knew until the end, and then waits for MySQL alone
	w.eventually("its end", func() bool {
		paused := waitsFor(r, consumer.PausedByPerson)
		require.That(t, paused || time.Now().After(ends.Add(-time.Second)),
			"it went on before the end, although nobody could tell it so")
		return !paused
	})
	proxy.Refuse(false)
	w.ended(dedup.Success, "order-1")
}

// breaks makes the world's handler fail, or its calls, each message by itself, until that is mended: by an ordinary
// error, a permanent one, or a mixture.
func (w *world) breaks(kind string, calls bool) (mended *atomic.Bool) {
	mended = new(atomic.Bool)
	failing := func(m consumer.Message) error {
		err := errors.New("no such column")
		switch {
		case mended.Load():
			return nil
		case kind == "permanent", kind == "mixed" && strings.ContainsAny(m.Key[len(m.Key)-1:], "05"):
			return consumer.Permanent(err)
		}
		return err
	}
	if calls {
		w.calling(consumer.CallOptions{}).answering(func(_ context.Context, m consumer.Message) error { return failing(m) })
	} else {
		w.batch(func(_ *gorm.DB, msgs []consumer.Message) error { return blaming(msgs, failing) })
	}
	return mended
}

// spent is how many attempts there were in all.
func (w *world) spent() int {
	w.t.Helper()
	return w.number("SELECT COALESCE(SUM(consumer_times), 0) FROM consumer_log")
}

// over is how many messages have ended.
func (w *world) over() int {
	w.t.Helper()
	return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (1, 3)")
}

// Given many messages and a deployment that fails all of them, in whatever way, when one daemon or four take them, then
// the fleet publishes no more letters than one window allows, most messages keep their attempts, and each daemon says
// that the brake holds it.
func TestABrokenDeploymentStopsAtTheFleetsLimit(t *testing.T) {
	type one struct {
		kind    string
		calls   bool
		daemons int
	}
	each(t, named(one{"ordinary", false, 4}, one{"ordinary", true, 1}, one{"permanent", false, 1},
		one{"permanent", true, 4}, one{"mixed", false, 4}, one{"mixed", true, 1}), func(t *testing.T, w *world, tc one) {
		const messages, limit = 1000, 20
		w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = limit, time.Hour, time.Hour
		w.breaks(tc.kind, tc.calls)
		w.publish("{}", keys("order", messages)...)
		var fleet []*running
		for range tc.daemons {
			fleet = append(fleet, w.start())
		}
		for _, r := range fleet {
			w.paused(r, "max_dead_rate")
		}
		w.eventually("the retries that were on their way are back", func() bool {
			return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0") == 0
		})
		assert.AtMost(t, w.dead(), limit, "letters")
		assert.AtMost(t, w.spent(), messages, "attempts for messages: it is not braked")
	})
}

// Given a broken deployment whose attempts are spaced out, or whose letters are held back, when it is mended, then it
// goes on by itself with all messages; until then it says so, and tries from time to time.
func TestAMendedDeploymentGoesOnByItself(t *testing.T) {
	type one struct {
		kind  string
		calls bool
		dead  int // at most: a window's limit, or several
	}
	each(t, named(one{"ordinary", false, 20}, one{"ordinary", true, 20}, one{"permanent", false, 80}),
		func(t *testing.T, w *world, tc one) {
			const messages = 300
			w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 20, time.Minute, 2*time.Second
			mended := w.breaks(tc.kind, tc.calls)
			r := w.startWith(keys("order", messages)...)
			w.paused(r, "max_dead_rate")
			w.eventually("rollbackd_paused", func() bool { return w.counts("rollbackd_paused")["max_dead_rate"] == 1 })
			assert.AtMost(t, w.dead(), 20, "letters before the pause")
			before := w.spent()
			w.eventually("it has tried again", func() bool { return w.spent() > before })
			w.paused(r, "max_dead_rate")
			mended.Store(true)
			w.eventually("all have ended", func() bool { return w.over() == messages })
			w.recovered(r)
			assert.AtMost(t, w.dead(), tc.dead, "letters")
		})
}

// Given claims whose letters the brake holds back, when it pauses for much longer than a lease, then they are given
// back before that.
func TestTheBrakesDebtsArePaidBeforeItsPause(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.oneBatch(40)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 1, time.Minute, time.Hour
	all := keys("order", 40)
	w.failedOnce(all...)
	w.breaks("permanent", false)
	r := w.startWith(all...)
	w.paused(r, "max_dead_rate")
	w.eventually("nothing is claimed", func() bool {
		return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0") == 0
	})
	assert.That(t, waitsFor(r, "max_dead_rate"), "the pause is over")
	assert.AtLeast(t, w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND owner IS NOT NULL AND "+
		"consumer_times = 1"), 1, "claims given back, of which the brake held letters")
}
