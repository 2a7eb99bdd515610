package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
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
	t.Parallel()
	w := newWorld(t)
	dsn := stack.MySQL(t) // without any table
	var mu sync.Mutex
	ended := map[string]consumer.Ended{}
	count := map[consumer.Outcome]int{}
	cfg := w.opened(dsn)
	cfg.Observe = func(e consumer.Ended) {
		mu.Lock()
		defer mu.Unlock()
		ended[e.Key+" "+e.Outcome.String()] = e
		count[e.Outcome]++
	}
	db := w.open(dsn)
	if err := db.Exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL)").Error; err != nil {
		t.Fatal(err)
	}
	c, err := consumer.Open(t.Context(), cfg,
		consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			if m.Key == "wrong" {
				return consumer.Permanent(errors.New("no such shelf"))
			}
			return tx.WithContext(ctx).Exec("INSERT INTO effect VALUES (?)", m.Key).Error
		}))
	if err != nil {
		t.Fatal(err)
	}
	w.publish("{}", "a", "b", "wrong")
	stop := w.run(c)
	w.eventually("all three have ended", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return count[consumer.Applied] == 2 && count[consumer.DeadLettered] == 1
	})
	w.publish("{}", "a")
	w.eventually("its copy is a duplicate", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return count[consumer.Duplicate] == 1
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(w.logs.String(), "msg=consuming queue="+cfg.Queue+"\n"); n != 1 {
		t.Errorf("the log says %d times that it consumes, want once", n)
	}
	var effects []string
	if err := db.Raw("SELECT k FROM effect ORDER BY k").Scan(&effects).Error; err != nil ||
		!slices.Equal(effects, []string{"a", "b"}) {
		t.Errorf("effects %v, %v; want a and b, once each", effects, err)
	}
	mu.Lock()
	defer mu.Unlock()
	e := ended["wrong dead_lettered"]
	if e.Reason != dedup.ReasonPermanent || !strings.Contains(e.Cause, "no such shelf") || e.MessageID != "wrong" ||
		e.Group != cfg.Queue || e.Took <= 0 {
		t.Errorf("observed %+v; want its reason, cause and identity in the group of the queue's name", e)
	}
	records := w.log(db)
	for key, status := range map[string]dedup.Status{"a": dedup.Success, "b": dedup.Success, "wrong": dedup.Dead} {
		row, err := records.Read(t.Context(), dedup.Identity{Group: cfg.Queue, Tag: tag, Key: key})
		if err != nil || row.Status != status {
			t.Errorf("row of %s: %v, %v; want %v", key, row.Status, err, status)
		}
	}
}

func TestMigrateSaysWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dsn := stack.Restricted(t, stack.MySQL(t), "SELECT ON *") // may read and nothing else
	c, err := consumer.Open(t.Context(), w.opened(dsn), w.handler)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "denied") {
		t.Errorf("Run = %v, want what MySQL refused", err)
	}
}

func TestAPanicOfWhoObservesIsSaidAndHarmsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Observe = func(consumer.Ended) { panic("no such gauge") }
	w.publish("{}", keys("order", 20)...)
	w.start()
	w.ended(dedup.Success, keys("order", 20)...)
	w.end(map[string]int{"applied": 20})
	if !strings.Contains(w.logs.String(), "no such gauge") {
		t.Error("the log does not say that Observe panicked")
	}
}

// What one Open opens, its end closes: goleak looks at the goroutines of the pools.
func TestAConsumerThatIsNeverRunIsClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, err := consumer.Open(t.Context(), w.opened(w.dsn), w.handler)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
}

// Letters need a pool and no server; what their Config says wrong is refused at once.
func TestLettersOfAConfigRefuseWhatCannotWork(t *testing.T) {
	t.Parallel()
	if _, err := (consumer.Config{}).Letters(nil); err == nil {
		t.Error("no pool was taken")
	}
	w := newWorld(t)
	db := w.open("nobody@tcp(127.0.0.1:1)/nothing")
	cfg := w.opened(w.dsn)
	cfg.LogRetention = consumer.Off
	letters, err := cfg.Letters(db)
	if err != nil {
		t.Fatal(err)
	}
	if want := cfg.Queue + ".dead"; letters.Queue() != want {
		t.Errorf("letters of %s, want %s", letters.Queue(), want)
	}
	cfg.KeyFrom = "nowhere"
	if _, err := cfg.Letters(db); err == nil {
		t.Error("keys from nowhere were taken")
	}
}

// Given a handler that computes between two statements for nearly HandlerTimeout, which is longer than the server would
// let a silent session be by default, then it is not disturbed: the message is applied with one attempt.
func TestAHandlerMayComputeBetweenTwoStatementsForAllOfItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.opened(w.dsn)
	cfg.Group, cfg.HandlerTimeout, cfg.Lease = group, 17*time.Second, 51*time.Second
	c, err := consumer.Open(t.Context(), cfg,
		consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			if err := tx.WithContext(ctx).Exec("INSERT INTO effect VALUES (?, 'before')", m.Key).Error; err != nil {
				return err
			}
			_ = wait.For(ctx, cfg.HandlerTimeout-2*time.Second)
			return tx.WithContext(ctx).Exec("INSERT INTO effect VALUES (?, 'after')", m.Key).Error
		}))
	if err != nil {
		t.Fatal(err)
	}
	w.publish("{}", "slow")
	stop := w.run(c)
	w.eventually("it has ended", func() bool {
		return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (1, 3)") > 0
	})
	if row := w.row("slow"); row.Status != dedup.Success || row.Attempts != 1 {
		t.Errorf("it is %v after %d attempts: %s", row.Status, row.Attempts, row.Remark)
	}
	if n := w.number("SELECT COUNT(*) FROM effect"); n != 2 {
		t.Errorf("%d effects, want both statements' once", n)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
