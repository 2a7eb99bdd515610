// Package store opens what the settings name for whoever works beside the engine, a command or the pages: the consumer
// log on a pool of its own, the letters of the queue, and the lock to look at. It must not decide what is done with
// them.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

// Options say how the pool is opened.
type Options = dedup.OpenOptions

// Store is the consumer log, and the letters of the queue.
type Store struct {
	operator.Lookup

	Pool     *sql.DB // that of DB
	Letters  *deadletter.Letters
	Warnings []string // of ROLLBACKD_MYSQL_DSN

	cfg  config.Config
	name string // of its connections
	lock io.Closer
}

// Open makes a store for a command, which is named beside its connections. It asks no server yet.
func Open(ctx context.Context, cfg config.Config, command string, o Options) (*Store, error) {
	s := &Store{Lookup: operator.Lookup{Group: cfg.Group}, cfg: cfg, name: rabbit.ConnectionName(command)}
	o.Program, o.CurrentDSN = s.name, cfg.Config.Fresh.MySQLDSN
	var err error
	if s.DB, s.Warnings, err = dedup.Open(ctx, cfg.MySQLDSN, o); err != nil {
		return nil, fmt.Errorf("ROLLBACKD_MYSQL_DSN: %w", err)
	}
	if s.Pool, err = s.DB.DB(); err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	of, err := s.Of(cfg)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return of, nil
}

// Of is the store of another queue on the same pool, which s closes.
func (s *Store) Of(cfg config.Config) (*Store, error) {
	of := *s
	of.cfg, of.Group, of.OrderOf = cfg, cfg.Group, handler.OrderOf(cfg.Handler)
	var err error
	if of.Records, err = dedup.NewLog(s.DB, cfg.LogOptions()); err == nil {
		of.Letters, err = deadletter.New(deadletter.Options{
			Records: of.Records, AMQPURLs: cfg.AMQPURLs, CurrentAMQPURLs: s.cfg.Config.Fresh.AMQPURLs, Name: s.name,
			Group: cfg.Group, Queue: cfg.Queue, KeyFrom: cfg.KeyFrom, Retention: cfg.Retention(), MaxReplays: cfg.MaxReplays,
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
	servers := s.cfg.LockServers(s.name)
	if servers.None() {
		return func(context.Context, dedup.Identity) string { return operator.NoLock }, nil
	}
	servers.CurrentRedisURL, servers.CurrentMySQLDSN = s.cfg.Config.Fresh.RedisURL, s.cfg.Config.Fresh.MySQLDSN
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
