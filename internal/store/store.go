// Package store opens what a consumer's Config names for whoever works beside the engine, a command or the pages: the
// consumer log on a pool of its own, the letters of the queue, and the lock to look at. It must not decide what is done
// with them, nor know where the Config comes from.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// Options say how the pool is opened.
type Options = dedup.OpenOptions

// Queue is what is opened: a Config that is complete, and how the order is found that a body is about; nil: not at all.
type Queue struct {
	consumer.Config

	OrderOf func(body []byte) (orderSN string, ok bool)
}

// Store is the consumer log, and the letters of the queue.
type Store struct {
	operator.Lookup

	Pool     *sql.DB // that of DB
	Letters  *deadletter.Letters
	Warnings []string // of the DSN

	cfg  consumer.Config
	name string // of its connections
	lock io.Closer
}

// Open makes a store for a command, which is named beside its connections. It asks no server yet.
func Open(ctx context.Context, q Queue, command string, o Options) (*Store, error) {
	s := &Store{Lookup: operator.Lookup{Group: q.Group}, cfg: q.Config, name: rabbit.ConnectionName(command)}
	o.Program, o.CurrentDSN, o.TLS = s.name, q.Fresh.MySQLDSN, q.MySQLTLS
	var err error
	if s.DB, s.Warnings, err = dedup.Open(ctx, q.MySQLDSN, o); err != nil {
		return nil, fmt.Errorf("MySQLDSN: %w", err)
	}
	if s.Pool, err = s.DB.DB(); err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	of, err := s.Of(q)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return of, nil
}

// Of is the store of another queue on the same pool, which s closes.
func (s *Store) Of(q Queue) (*Store, error) {
	of := *s
	of.cfg, of.Group, of.OrderOf = q.Config, q.Group, q.OrderOf
	var err error
	if of.Records, err = dedup.NewLog(s.DB, q.LogOptions()); err == nil {
		of.Letters, err = deadletter.New(deadletter.Options{
			Records: of.Records, AMQPURLs: q.AMQPURLs, CurrentAMQPURLs: s.cfg.Fresh.AMQPURLs, AMQPTLS: q.AMQPTLS, Name: s.name,
			Group: q.Group, Queue: q.Queue, KeyFrom: q.KeyFrom, Retention: max(0, q.LogRetention), MaxReplays: q.MaxReplays,
		})
	}
	return &of, err
}

// Close ends what it has opened.
func (s *Store) Close() error {
	if s.lock != nil {
		_ = s.lock.Close() // it was only looked at
	}
	return s.Pool.Close()
}

// LockWords says in words who holds a lock. It is asked for once at most.
func (s *Store) LockWords(ctx context.Context) (func(context.Context, dedup.Identity) string, error) {
	c := s.cfg
	servers := lockers.Servers{
		Kind: c.Lock, RedisURL: c.RedisURL, MySQLDSN: c.MySQLDSN, ZooKeeperURL: c.ZooKeeperURL, Name: s.name, Connections: 2,
		CurrentRedisURL: c.Fresh.RedisURL, CurrentMySQLDSN: c.Fresh.MySQLDSN, RedisTLS: c.RedisTLS, MySQLTLS: c.MySQLTLS,
	}
	if servers.None() {
		return func(context.Context, dedup.Identity) string { return operator.NoLock }, nil
	}
	locker, err := lockers.Open(ctx, servers, lock.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	s.lock = locker
	return func(ctx context.Context, k dedup.Identity) string {
		schema, err := s.Records.SchemaID(ctx)
		var state lock.State
		if err == nil {
			state, err = locker.Show(ctx, lock.NameOf(schema, k.Group, k.Tag, k.Key))
		}
		if err != nil {
			return "unknown: " + err.Error()
		}
		return operator.LockText(state)
	}, nil
}

// Relay is the relay of the outbox in the schema of the DSN, on a pool of its own, in a process of its own.
type Relay struct {
	*relay.Relay

	Close func() error // once it does not run any more
}

// OpenRelay asks no server yet.
func OpenRelay(
	ctx context.Context, cfg consumer.Config, log *slog.Logger, metrics prometheus.Registerer,
) (*Relay, error) {
	s, err := Open(ctx, Queue{Config: cfg}, "relay", Options{
		MaxOpen: relay.Connections,
		Warn: func(err error) {
			log.WarnContext(ctx, "certificates cannot be read again", "server", "mysql", "err", err)
		},
	})
	if err != nil {
		return nil, err
	}
	for _, w := range s.Warnings {
		log.WarnContext(ctx, "MySQLDSN: "+w)
	}
	cfg.Logger, cfg.Registerer = log, metrics
	told := cfg.Relay(s.Pool)
	told.Retention = max(0, cfg.LogRetention) // beside an engine its keeper deletes what is parked
	r, err := relay.New(told)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Relay{r, s.Close}, nil
}
