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
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
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

func TestADrainGivesBackWhatItHasNotStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(50)
	// given 50 messages that all fail in the fast path, so each waits for an attempt of its own
	for _, k := range keys("order", 50) {
		w.rejecting(k, func() error { return errors.New("shelf is locked") })
	}
	w.publish("{}", keys("order", 50)...)
	reached, release := w.blockAt(consumer.PointClaimed)
	r := w.launch()
	await(t, reached, "the first is claimed")
	r.stop()
	w.eventually("it drains", func() bool { return r.State().Draining })
	release()
	if err := r.drained(); err != nil {
		t.Fatalf("Run = %v, want nil", err)
	}
	w.end(map[string]int{"retried": 1, "abandoned": 49})
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0"); n != 0 {
		t.Errorf("%d claims are left", n)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log"); n != 1 {
		t.Errorf("%d rows, want that of the one that was started", n)
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
	w.cfg.BatchSize, w.cfg.Prefetch, w.cfg.Lease, w.cfg.HandlerTimeout = 10, 20, 1500*time.Millisecond, time.Second
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
	db := w.open(w.dsn)
	good := consumer.Options{AMQPURLs: []string{w.amqpURL}, DB: db, Records: w.log(db)}
	if _, err := consumer.New(w.cfg, w.handler, good); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*consumer.Config, *consumer.Options, *consumer.Handler)
		says   string
	}{
		"no group":           {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Group = "" }, "Group"},
		"long group":         {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Group = strings.Repeat("x", 101) }, "Group"},
		"no queue":           {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Queue = "" }, "Queue"},
		"no exchange":        {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Exchange = "" }, "exchange"},
		"unknown key source": {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.KeyFrom = "cookie:x" }, "KeyFrom"},
		"no attempts":        {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.MaxAttempts = 0 }, "MaxAttempts"},
		"too few delays":     {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.MaxAttempts = 9 }, "RetryDelays"},
		"delays that shrink": {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) {
			c.RetryDelays = []time.Duration{2e9, 1e9}
		}, "grow"},
		"half a millisecond": {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) {
			c.RetryDelays = []time.Duration{5e5, 1e9}
		}, "milliseconds"},
		"no lanes":              {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Lanes = 0 }, "Lanes"},
		"batch over prefetch":   {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.BatchSize = c.Prefetch + 1 }, "BatchSize"},
		"no batch":              {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.BatchSize = 0 }, "BatchSize"},
		"prefetch over 16 bit":  {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Prefetch = 65536 }, "Prefetch"},
		"negative linger":       {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.BatchLinger = -1 }, "BatchLinger"},
		"lease below timeout":   {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Lease = c.HandlerTimeout }, "Lease"},
		"no timeout":            {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.HandlerTimeout = 0 }, "HandlerTimeout"},
		"no drain":              {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.DrainTimeout = 0 }, "DrainTimeout"},
		"negative give back":    {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.GiveBackAfter = -1 }, "GiveBackAfter"},
		"short lock":            {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.LockTTL = time.Millisecond }, "LockTTL"},
		"unknown policy":        {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.LockOnError = "hope" }, "LockOnError"},
		"brake without window":  {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.MaxDead = 1 }, "MaxDeadWindow"},
		"negative brake":        {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.MaxDead = -1 }, "MaxDead"},
		"no handler":            {func(_ *consumer.Config, _ *consumer.Options, h *consumer.Handler) { *h = nil }, "Handler"},
		"no database":           {func(_ *consumer.Config, o *consumer.Options, _ *consumer.Handler) { o.DB = nil }, "DB"},
		"no log":                {func(_ *consumer.Config, o *consumer.Options, _ *consumer.Handler) { o.Records = nil }, "Records"},
		"a log of other limits": {func(c *consumer.Config, _ *consumer.Options, _ *consumer.Handler) { c.Lease++ }, "the log was made with"},
		"no broker":             {func(_ *consumer.Config, o *consumer.Options, _ *consumer.Handler) { o.AMQPURLs = nil }, "AMQPURLs"},
		"not an AMQP URL":       {func(_ *consumer.Config, o *consumer.Options, _ *consumer.Handler) { o.AMQPURLs = []string{"http://x"} }, "AMQPURLs"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, o, h := w.cfg, good, w.handler
			tc.change(&cfg, &o, &h)
			if _, err := consumer.New(cfg, h, o); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("New = %v, want an error that names %s", err, tc.says)
			}
		})
	}
	t.Run("metrics registered twice", func(t *testing.T) {
		o := good
		o.Registerer = prometheus.NewRegistry()
		_, first := consumer.New(w.cfg, w.handler, o)
		_, second := consumer.New(w.cfg, w.handler, o)
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
		return insert(tx, msgs[0].Name)
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
