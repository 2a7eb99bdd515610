package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

func TestADrainFinishesWhatIsInHandAndAcksIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.BatchSize, w.cfg.Prefetch = 20, 40
	all := keys("order", 600)
	w.publish("{}", all...)
	first := w.launch()
	w.eventually("it is at work", func() bool { return w.outcomes()["applied"] > 100 })
	if err := first.drained(); err != nil {
		t.Fatalf("Run = %v, want nil", err)
	}
	if s := first.State(); !s.Draining || s.Consuming {
		t.Errorf("state %+v after a drain", s)
	}
	applied := w.outcomes()["applied"]
	if n := len(w.effects()); n != applied {
		t.Errorf("%d effects and %d outcomes", n, applied)
	}
	w.start()
	w.ended(dedup.Success, all...)
	w.end(map[string]int{"applied": 600}) // so nothing that was finished came again
}

// What a message waits for whose copy is refused makes the lane ack the others of its batch one by one. RabbitMQ holds
// back acks for a quorum queue that comes in such numbers, and forgets those with the channel that it holds back then.
func TestADrainLosesNoAckOfManySingleOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(601)
	w.cfg.Prefetch = 1300 // a lane takes half of it at once
	// Time for all of them in one transaction on a loaded machine: in halves it would be another test.
	w.cfg.HandlerTimeout, w.cfg.Lease = 20*time.Second, 30*time.Second
	w.unreadable("bad")
	w.declare()
	room := w.full(rabbit.DeadQueue(w.cfg.Queue))
	good := keys("good", 600)
	reached, release := w.blockAt(consumer.PointCommitted)
	// given a batch whose first message stays open, while the others are committed
	w.publish("{}", append([]string{"bad"}, good...)...)
	r := w.launch()
	await(t, reached, "the good ones are committed")
	// when the daemon is to stop, and acks them
	r.stop()
	w.eventually("it drains", func() bool { return r.State().Draining })
	release()
	if err := r.drained(); err != nil {
		t.Fatalf("Run = %v, want nil", err)
	}
	w.ended(dedup.Success, good...)
	// then only the other one comes again
	w.eventually("nothing is in anybody's hands", func() bool { return w.broker.Unacked(w.cfg.Queue) == 0 })
	if n := w.broker.Depth(w.cfg.Queue); n != 1 {
		t.Errorf("%d messages are in the queue again, want the one that is not done", n)
	}
	w.cfg.Hook = nil
	room()
	w.start()
	w.ended(dedup.Dead, "bad")
	w.end(map[string]int{"applied": 600, "abandoned": 1, "dead_lettered": 1})
}

// 450 messages failed once and are claimed again, 200 at a time. A stop lets the claims that are made come to their
// end, and charges nobody else.
func TestADrainGivesBackWhatItHasNotStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(450)
	w.cfg.Prefetch = 450
	w.cfg.RetryDelays = []time.Duration{time.Second, time.Hour}
	all := keys("order", 450)
	for _, k := range all {
		w.rejecting(k, func() error { return errors.New("shelf is locked") })
	}
	w.publish("{}", all...)
	reached, release := w.blockAt(consumer.PointClaimed)
	// given a lane in the middle of its first group
	r := w.launch()
	await(t, reached, "the first group is claimed")
	// when it is to stop
	r.stop()
	w.eventually("it drains", func() bool { return r.State().Draining })
	release()
	if err := r.drained(); err != nil {
		t.Fatalf("Run = %v, want nil", err)
	}
	// then that group had its second attempt, and the others still have it
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0"); n != 0 {
		t.Errorf("%d claims are left", n)
	}
	once := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND consumer_times = 1")
	twice := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND consumer_times = 2")
	if once+twice != 450 || twice == 0 || twice > 200 {
		t.Errorf("%d rows with one attempt, %d with two; want 450 in all, and one group with two", once, twice)
	}
	if got := w.outcomes(); got["retried"] != 450+twice || got["applied"]+got["dead_lettered"] != 0 {
		t.Errorf("outcomes %v, want %d retried", got, 450+twice)
	}
}

func TestADrainThatCannotFinishEndsInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.DrainTimeout = 300 * time.Millisecond
	l := w.proxied()
	w.publish("{}", keys("order", 10)...)
	reached, release := w.blockAt(consumer.PointEffect)
	r := w.launch()
	await(t, reached, "a transaction is open")
	l.mysql.Hold(true) // as a frozen MySQL
	release()
	began := time.Now()
	if err := r.drained(); !errors.Is(err, consumer.ErrDrainTimeout) {
		t.Errorf("Run = %v, want ErrDrainTimeout", err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v, want 300ms and at most 2s for lanes that are stuck", took)
	}
	l.mysql.Hold(false)
	l.mysql.Cut()
	w.eventually("the stuck lane has ended", func() bool { return l.mysql.Links() == 0 })
	// then nothing is lost
	w.cfg.Hook = nil
	w.start()
	w.ended(dedup.Success, keys("order", 10)...)
	w.want("effects", w.effects(), once(keys("order", 10)...))
}

func TestADrainWhileServersAreAwayIsClean(t *testing.T) {
	t.Parallel()
	for name, sever := range map[string]func(links){
		"rabbitmq": func(l links) { l.amqp.Refuse(true); l.amqp.Cut() },
		"mysql":    func(l links) { l.mysql.Refuse(true); l.mysql.Cut() },
		"redis":    func(l links) { l.redis.Refuse(true); l.redis.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := w.proxied()
			w.rejecting("bad", func() error { return errors.New("shelf is locked") })
			w.publish("{}", "good", "bad")
			r := w.launch()
			w.ended(dedup.Dead, "bad")
			w.quiet()
			sever(l)
			if err := r.drained(); err != nil {
				t.Errorf("Run = %v, want nil: nothing was in hand", err)
			}
		})
	}
}

func TestStartingAndStoppingUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.BatchSize, w.cfg.Prefetch, w.cfg.Lease, w.cfg.HandlerTimeout = 10, 20, 3*time.Second, 2*time.Second
	all := keys("order", 600)
	for i, k := range all {
		if i%40 == 0 {
			w.rejecting(k, func() error { return errors.New("shelf is locked") })
		}
	}
	w.publish("{}", all...)
	w.publish("{}", all...)
	for range 30 {
		r := w.launch()
		time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, r.stop)
		if err := <-r.done; err != nil {
			t.Fatalf("Run = %v, want nil", err)
		}
	}
	w.start()
	var bad, good []string
	for i, k := range all {
		if i%40 == 0 {
			bad = append(bad, k)
		} else {
			good = append(good, k)
		}
	}
	w.ended(dedup.Success, good...)
	w.ended(dedup.Dead, bad...)
	w.quiet()
	w.want("effects", w.effects(), once(good...))
	for _, k := range bad {
		if row := w.row(k); row.Attempts != 3 || row.Reason != "exhausted" {
			t.Errorf("%s is dead after %d attempts because %q, want 3, exhausted", k, row.Attempts, row.Reason)
		}
	}
}

func TestTwoEnginesShareAQueueOfCopies(t *testing.T) {
	t.Parallel()
	for name, redis := range map[string]bool{"with the lock": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.BatchSize = 20
			if !redis {
				w.redisURL = ""
			}
			all := keys("order", 300)
			for range 5 {
				w.publish("{}", all...)
			}
			w.start()
			w.start()
			w.ended(dedup.Success, all...)
			w.quiet()
			w.want("effects", w.effects(), once(all...))
			got := w.outcomes()
			if got["applied"] != 300 || got["applied"]+got["duplicate"] != 1500 {
				t.Errorf("outcomes %v, want 300 applied and 1200 duplicates, whatever came back later", got)
			}
		})
	}
}

func TestRunTwiceIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare()
	r := w.start()
	w.recovered(r)
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "before") {
		t.Errorf("the second Run = %v, want an error", err)
	}
}

func TestASchemaThatWasNeverMadeEndsTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("DROP TABLE consumer_log")
	r := w.launch()
	select {
	case err := <-r.done:
		if !errors.Is(err, dedup.ErrSchema) {
			t.Errorf("Run = %v, want ErrSchema", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Run goes on")
	}
	r.stop()
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.AMQPURLs = []string{w.amqpURL}
	good := consumer.Options{DB: w.open(w.dsn)}
	if _, err := consumer.New(w.cfg, w.handler, good); err != nil {
		t.Fatal(err)
	}
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
		"timeout too short": {func(c *consumer.Config) {
			c.HandlerTimeout = 1999 * time.Millisecond
		}, "HandlerTimeout 1.999s"},
		"negative budget":    {func(c *consumer.Config) { c.MemoryBudget = -1 }, "MemoryBudget"},
		"negative drain":     {func(c *consumer.Config) { c.DrainTimeout = -1 }, "DrainTimeout"},
		"negative give back": {func(c *consumer.Config) { c.GiveBackAfter = -1 }, "GiveBackAfter"},
		"short lock":         {func(c *consumer.Config) { c.LockTTL = time.Millisecond }, "LockTTL"},
		"unknown policy":     {func(c *consumer.Config) { c.LockOnError = "hope" }, "LockOnError"},
		"negative window":    {func(c *consumer.Config) { c.MaxDeadWindow = -1 }, "MaxDeadWindow"},
		"negative brake":     {func(c *consumer.Config) { c.MaxDead = -2 }, "MaxDead"},
		"negative retention": {func(c *consumer.Config) { c.LogRetention = -2 }, "LogRetention"},
		"negative replays":   {func(c *consumer.Config) { c.MaxReplays = -1 }, "MaxReplays"},
		"no broker":          {func(c *consumer.Config) { c.AMQPURLs = nil }, "AMQPURLs"},
		"not an AMQP URL":    {func(c *consumer.Config) { c.AMQPURLs = []string{"http://x"} }, "AMQPURLs"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := w.cfg
			tc.change(&cfg)
			if _, err := consumer.New(cfg, w.handler, good); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("New = %v, want an error that names %s", err, tc.says)
			}
		})
	}
	for name, got := range map[string]func() (*consumer.Consumer, error){
		"Handler": func() (*consumer.Consumer, error) { return consumer.New(w.cfg, nil, good) },
		"DB":      func() (*consumer.Consumer, error) { return consumer.New(w.cfg, w.handler, consumer.Options{}) },
		"Lock": func() (*consumer.Consumer, error) {
			client := redis.NewClient(&redis.Options{})
			defer client.Close()
			both := consumer.Options{DB: good.DB, Redis: client, Lock: lock.None{}}
			return consumer.New(w.cfg, w.handler, both)
		},
		"MySQLDSN": func() (*consumer.Consumer, error) { return consumer.Open(t.Context(), w.cfg, w.handler) },
	} {
		if _, err := got(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want an error that names %s", err, name)
		}
	}
	t.Run("metrics registered twice", func(t *testing.T) {
		cfg := w.cfg
		cfg.Registerer = prometheus.NewRegistry()
		_, first := consumer.New(cfg, w.handler, good)
		_, second := consumer.New(cfg, w.handler, good)
		if first != nil || second == nil {
			t.Errorf("New = %v, then %v; want an error the second time", first, second)
		}
	})
}

func TestDeliveriesHeldTooLongAreGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.HoldLimit = 1, 300*time.Millisecond
	w.handler = consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		if len(msgs) > 1 {
			return errors.New("one at a time, please")
		}
		<-time.After(50 * time.Millisecond)
		return insert(tx, msgs[0].Key)
	})
	all := keys("order", 10)
	w.publish("{}", all...)
	r := w.start()
	w.ended(dedup.Success, all...)
	w.recovered(r)
	w.want("effects", w.effects(), once(all...))
	w.eventually("all are counted", func() bool { return w.outcomes()["applied"] == 10 })
	got := w.outcomes()
	if got["applied"] != 10 || got["abandoned"] == 0 || got["duplicate"] > 0 {
		t.Errorf("outcomes %v, want 10 applied, some abandoned, and what was applied acked", got)
	}
	if s := fmt.Sprint(w.counts("rollbackd_paused")); s != "map[]" {
		t.Errorf("paused: %s", s)
	}
}

// A lane that waits for a server is not stuck, however long that takes; one whose handler never comes back is, whatever
// else is missing.
func TestOnlyALaneThatDoesNotMoveIsStill(t *testing.T) {
	t.Parallel()
	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
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
	})
	t.Run("does not move", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		release := make(chan struct{})
		w.handler = consumer.HandlerFunc(func(context.Context, *gorm.DB, []consumer.Message) error {
			<-release // whatever its context says
			return nil
		})
		l := w.proxied()
		w.cfg.Lanes = 1
		r := w.start()
		w.recovered(r)
		w.publish("{}", "a")
		w.eventually("the lane is in the handler", func() bool { return r.State().Still > 0 })
		l.redis.Refuse(true)
		l.redis.Cut()
		w.eventually("redis is missing", func() bool { return degraded(r, "redis") })
		w.eventually("the lane stands still", func() bool { return r.State().Still > 3*w.cfg.HandlerTimeout })
		close(release)
		w.ended(dedup.Success, "a")
	})
}
