package example

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// Dead makes dead letters: it publishes a message of each key and lets a consumer of the queue refuse them for good.
// Whoever is to be notified of new letters finds these new.
func (s *Servers) Dead(queue string, keys ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.bookmark(ctx, queue)
	for _, key := range keys {
		s.Publish(queue, key, "{}")
	}
	var left atomic.Int64
	left.Store(int64(len(keys)))
	refuse := func(context.Context, *gorm.DB, consumer.Message) error {
		return consumer.Permanent(errors.New("the booking office is closed"))
	}
	ended := func(e consumer.Ended) {
		if e.Outcome == consumer.DeadLettered && left.Add(-1) == 0 {
			cancel()
		}
	}
	s.run(ctx, queue, consumer.Each(refuse), ended)
	if n := left.Load(); n != 0 {
		s.t.Fatalf("%d of %d messages are not dead after %v", n, len(keys), patience)
	}
}

// Consume runs a consumer of the queue that applies everything, until stop is called. It returns when that consumes: a
// replay does not watch letters that nobody would take.
func (s *Servers) Consume(queue string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	apply := func(context.Context, *gorm.DB, consumer.Message) error { return nil }
	go func() {
		defer close(done)
		s.run(ctx, queue, consumer.Each(apply), nil)
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); s.broker.Consumers(queue) == 0; {
		select {
		case <-tick.C:
		case <-late:
			s.t.Fatalf("nobody consumes %s after %v", queue, patience)
		}
	}
	return func() { cancel(); <-done }
}

func (s *Servers) run(ctx context.Context, queue string, h consumer.Handler, ended func(consumer.Ended)) {
	c, err := consumer.Open(ctx, consumer.Config{
		MySQLDSN: s.MySQLDSN, AMQPURLs: []string{s.AMQPURL}, Queue: queue, Migrate: true,
		Observe: ended, MaxDead: consumer.Off, WithoutKeeper: true, Logger: slog.New(slog.DiscardHandler),
	}, h)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// bookmark is put where a keeper that has run before has put it: only letters that die from now on are news.
func (s *Servers) bookmark(ctx context.Context, group string) {
	db, _, err := dedup.Open(ctx, s.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if pool, err := db.DB(); err == nil {
		defer func() { _ = pool.Close() }()
	}
	d := consumer.Defaults()
	records, err := dedup.NewLog(db, d.LogOptions())
	err = errors.Join(err, dedup.Migrate(ctx, db, dedup.MigrateOptions{Table: d.LogTable}))
	if err == nil {
		_, err = records.Bookmark(ctx, group)
	}
	if err != nil {
		s.t.Fatal(fmt.Errorf("put the bookmark: %w", err))
	}
}
