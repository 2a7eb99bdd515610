// Package producer is what stands behind those examples of the public packages that consume: servers, a producer, and a
// consumer that makes dead letters.
package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/example"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// patience bounds what an example may wait for.
const patience = time.Minute

// Servers are those of an example, and a producer.
type Servers struct {
	*example.Servers

	publisher *rabbit.Publisher
	declared  map[string]bool // queues
}

// All starts RabbitMQ and MySQL.
func All() *Servers {
	s := &Servers{Servers: example.All(), declared: map[string]bool{}}
	s.publisher = rabbit.NewPublisher(rabbit.Config{URLs: []string{s.AMQPURL}, Name: "example"})
	s.Cleanup(func() { _ = s.publisher.Close(context.Background()) })
	return s
}

// Publish is the producer: it publishes a message of this key for a queue whose consumer leaves everything else at its
// default. The exchange and the queues are made first, as a consumer that has run before has made them.
func (s *Servers) Publish(queue, key, body string) { s.PublishAs(queue, "", key, body, nil) }

// PublishAs is Publish of a message that has a tag, or headers.
func (s *Servers) PublishAs(queue, tag, key, body string, headers map[string]any) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := consumer.Defaults()
	s.declare(ctx, rabbit.TopologyConfig{
		Exchange: d.Exchange, Queue: queue, RoutingKeys: []string{queue}, Delays: d.RetryDelays,
	})
	m := rabbit.Message{Type: tag, MessageID: key, Body: []byte(body), Headers: headers, DeliveryMode: rabbit.Persistent}
	for _, err := range s.publisher.Publish(ctx, []rabbit.Publishing{{Exchange: d.Exchange, Key: queue, Message: m}}) {
		must.OK(err, "publish ", key)
	}
}

func (s *Servers) declare(ctx context.Context, topology rabbit.TopologyConfig) {
	if s.declared[topology.Queue] {
		return
	}
	s.declared[topology.Queue] = true
	s.Broker.Track(topology.Queues()...)
	conn := must.Get(rabbit.Dial(ctx, rabbit.Config{URLs: []string{s.AMQPURL}, Name: "example"}))
	defer func() { _ = conn.Close() }()
	must.Get(rabbit.Declare(ctx, conn, topology))
}

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
	if n := left.Load(); n > 0 {
		must.OK(fmt.Errorf("%d of %d messages are not dead after %v", n, len(keys), patience))
	}
}

// Consume runs a consumer of the queue that applies everything, until stop is called. It returns when that consumes: a
// replay does not watch letters that nobody would take.
func (s *Servers) Consume(queue string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	apply := func(context.Context, *gorm.DB, consumer.Message) error { return nil }
	var running sync.WaitGroup
	running.Go(func() { s.run(ctx, queue, consumer.Each(apply), nil) })
	if !poll.Within(patience, func() bool { return s.Broker.Consumers(queue) > 0 }) {
		must.OK(fmt.Errorf("nobody consumes %s after %v", queue, patience))
	}
	return func() { cancel(); running.Wait() }
}

func (s *Servers) run(ctx context.Context, queue string, h consumer.Handler, ended func(consumer.Ended)) {
	c := must.Get(consumer.Open(ctx, consumer.Config{
		MySQLDSN: s.MySQLDSN, AMQPURLs: []string{s.AMQPURL}, Queue: queue, Migrate: true,
		Observe: ended, MaxDead: consumer.Off, WithoutKeeper: true, Logger: slog.New(slog.DiscardHandler),
	}, h))
	must.OK(c.Run(ctx))
}

// bookmark is put where a keeper that has run before has put it: only letters that die from now on are news.
func (s *Servers) bookmark(ctx context.Context, group string) {
	db := s.Opened(dedup.Open(ctx, s.MySQLDSN, dedup.OpenOptions{}))
	d := consumer.Defaults()
	must.OK(dedup.Migrate(ctx, db, dedup.MigrateOptions{Table: d.LogTable}))
	_, err := must.Get(dedup.NewLog(db, d.LogOptions())).Bookmark(ctx, group)
	must.OK(err, "put the bookmark")
}
