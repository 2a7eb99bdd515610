package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
)

// opened is what a program of 15 lines says: everything else is a default.
func (w *world) opened(dsn string) consumer.Config {
	return consumer.Config{
		MySQLDSN: dsn, AMQPURLs: []string{w.amqpURL}, RedisURL: w.redisURL, Migrate: true,
		Exchange: w.cfg.Exchange, Queue: w.cfg.Queue, Logger: slog.New(slog.NewTextHandler(w.logs, nil)),
	}
}

func (w *world) run(c *consumer.Consumer) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	w.t.Cleanup(func() { _ = stop() })
	return stop
}

// Given an empty schema and no queues, when a program names its servers and its queue, then messages are applied, once
// each, and each end is observed.
func TestOpenNeedsServersAndAQueueAndNothingElse(t *testing.T) {
	w := newWorld(t)
	dsn := stack.MySQL(t) // without any table
	ended := make(chan consumer.Ended, 10)
	cfg := w.opened(dsn)
	cfg.Observe = func(e consumer.Ended) { ended <- e }
	db := w.open(dsn)
	require.OK(t, db.Exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL)").Error)
	c := require.Get(consumer.Open(t.Context(), cfg, by(false, func(tx *gorm.DB, m consumer.Message) error {
		if m.Key == "wrong" {
			return consumer.Permanent(errors.New("no such shelf"))
		}
		return tx.Exec("INSERT INTO effect VALUES (?)", m.Key).Error
	})))(t)
	w.publish("{}", "a", "b", "wrong")
	stop := w.run(c)
	got := map[string]int{}
	var wrong consumer.Ended
	for i := range 4 {
		if i == 3 { // all have ended: a copy
			w.publish("{}", "a")
		}
		e := <-ended
		if got[e.Key+" "+e.Outcome.String()]++; e.Key == "wrong" {
			wrong = e
		}
	}
	require.OK(t, stop())
	w.want("ends", got, once("a applied", "b applied", "wrong dead_lettered", "a duplicate"))
	assert.Is(t, strings.Count(w.logs.String(), "msg=consuming queue="+cfg.Queue+"\n"), 1,
		"the log says times that it consumes")
	var effects []string
	require.OK(t, db.Raw("SELECT k FROM effect ORDER BY k").Scan(&effects).Error)
	is(w, "effects", strings.Join(effects, " "), "a b")
	if wrong.Reason != dedup.ReasonPermanent || !strings.Contains(wrong.Cause, "no such shelf") ||
		wrong.MessageID != "wrong" || wrong.Group != cfg.Queue || wrong.Took <= 0 {
		t.Errorf("observed %+v; want its reason, cause and identity in the group of the queue's name", wrong)
	}
}

func TestMigrateSaysWhatTheServerRefuses(t *testing.T) {
	w := newWorld(t)
	dsn := stack.Restricted(t, stack.MySQL(t), "SELECT ON *") // may read and nothing else
	c := require.Get(consumer.Open(t.Context(), w.opened(dsn), w.handler))(t)
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "denied") {
		t.Errorf("Run = %v, want what MySQL refused", err)
	}
}

func TestAPanicOfWhoObservesIsSaidAndHarmsNobody(t *testing.T) {
	w := newWorld(t)
	w.cfg.Observe = func(consumer.Ended) { panic("no such gauge") }
	w.startWith(keys("order", 20)...)
	w.ended(dedup.Success, keys("order", 20)...)
	w.end(map[string]int{"applied": 20})
	w.logged("no such gauge")
}

// What one Open opens, its end closes: goleak looks at the goroutines of the pools.
func TestAConsumerThatIsNeverRunIsClosed(t *testing.T) {
	w := newWorld(t)
	c := require.Get(consumer.Open(t.Context(), w.opened(w.dsn), w.handler))(t)
	require.OK(t, errors.Join(c.Close(), c.Close()))
}

// Letters need a pool and no server; what their Config says wrong is refused at once.
func TestLettersOfAConfigRefuseWhatCannotWork(t *testing.T) {
	if _, err := (consumer.Config{}).Letters(nil); err == nil {
		t.Error("no pool was taken")
	}
	w := newWorld(t)
	db := w.open("nobody@tcp(127.0.0.1:1)/nothing")
	cfg := w.opened(w.dsn)
	cfg.LogRetention = consumer.Off
	letters := require.Get(cfg.Letters(db))(t)
	assert.Is(t, letters.Queue(), cfg.Queue+".dead", "letters")
	cfg.KeyFrom = "nowhere"
	if _, err := cfg.Letters(db); err == nil {
		t.Error("keys from nowhere were taken")
	}
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
	stop := w.run(c)
	w.eventually("it has ended", func() bool { return w.over() > 0 })
	w.wantRow("slow", wanted{Status: dedup.Success, Attempts: 1})
	w.want("effects", w.effects(), once("slow", "after slow"))
	require.OK(t, stop())
}

func TestAConfigurationForAPlainURLIsRefused(t *testing.T) {
	t.Parallel()
	ca := stack.NewAuthority(t, "CA")
	cfg := consumer.Config{MySQLDSN: "u:p@tcp(h)/d", AMQPURLs: []string{"amqp://h/"}, Queue: "q", AMQPTLS: ca.Client(nil)}
	_, err := consumer.Open(t.Context(), cfg, consumer.Each(
		func(context.Context, *gorm.DB, consumer.Message) error { return nil }))
	if err == nil || !strings.Contains(err.Error(), "write amqps://") {
		t.Errorf("Open = %v, want that amqp:// is not encrypted", err)
	}
}

func TestEveryMetricAndLabelIsThereFromTheStart(t *testing.T) {
	w := newWorld(t)
	db := w.open(w.dsn)
	client := require.Get(lock.OpenRedis(w.redisURL, lock.RedisOptions{}))(t)
	defer client.Close()
	reg := prometheus.NewRegistry()
	w.cfg.AMQPURLs, w.cfg.Registerer = []string{w.amqpURL}, reg
	w.calling(consumer.CallOptions{})
	require.Get(consumer.New(w.cfg, w.handler, consumer.Options{DB: db, Redis: client}))(t)
	families := require.Get(reg.Gather())(t)
	got := map[string]int{} // series of each
	for _, f := range families {
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
		{
			dead, `seats/release/"b1" dead_lettered, attempt 2, permanent: "nobody has\nthis booking"`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=dead_lettered end.attempt=2 ` +
				`end.reason=permanent end.err="nobody has\nthis booking" end.took=1s`,
		},
		{
			consumer.Ended{Identity: seat, Outcome: consumer.Retried, Attempt: 1, Delay: time.Minute, Cause: "no"},
			`seats/release/"b1" retried, attempt 1, again in 1m0s: "no"`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=retried end.attempt=1 ` +
				`end.again_in=1m0s end.err=no end.took=0s`,
		},
		{
			consumer.Ended{Identity: seat, Outcome: consumer.Applied, Took: time.Second}, `seats/release/"b1" applied`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=applied end.took=1s`,
		},
	} {
		assert.Is(t, fmt.Sprintf("%+v", c.end), c.printed, "printed")
		var line strings.Builder
		slog.New(slog.NewTextHandler(&line, nil)).Info("ended", "end", c.end)
		if _, got, _ := strings.Cut(strings.TrimSuffix(line.String(), "\n"), "msg=ended "); got != c.logged {
			t.Errorf("logged: %s\nwant:   %s", got, c.logged)
		}
	}
}
