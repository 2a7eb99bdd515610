package example

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
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
	require.Is(s.t, left.Load(), 0, "of %d messages are not dead after %v", len(keys), patience)
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
	if !poll.Within(patience, func() bool { return s.broker.Consumers(queue) > 0 }) {
		s.t.Fatalf("nobody consumes %s after %v", queue, patience)
	}
	return func() { cancel(); <-done }
}

func (s *Servers) run(ctx context.Context, queue string, h consumer.Handler, ended func(consumer.Ended)) {
	c := require.Get(consumer.Open(ctx, consumer.Config{
		MySQLDSN: s.MySQLDSN, AMQPURLs: []string{s.AMQPURL}, Queue: queue, Migrate: true,
		Observe: ended, MaxDead: consumer.Off, WithoutKeeper: true, Logger: slog.New(slog.DiscardHandler),
	}, h))(s.t)
	must.OK(c.Run(ctx))
}

// bookmark is put where a keeper that has run before has put it: only letters that die from now on are news.
func (s *Servers) bookmark(ctx context.Context, group string) {
	db, _, err := dedup.Open(ctx, s.MySQLDSN, dedup.OpenOptions{})
	must.OK(err)
	pool := must.Get(db.DB())
	defer func() { _ = pool.Close() }()
	d := consumer.Defaults()
	records := must.Get(dedup.NewLog(db, d.LogOptions()))
	must.OK(dedup.Migrate(ctx, db, dedup.MigrateOptions{Table: d.LogTable}))
	_, err = records.Bookmark(ctx, group)
	must.OK(err, "put the bookmark")
}
