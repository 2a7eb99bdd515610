package daemon

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
	stockhandler "github.com/rollbackd/rollbackd/internal/handler/stock"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

// Store is the consumer log on a pool of its own, and the letters of the queue, as the settings say.
type Store struct {
	operator.Lookup

	Pool     *sql.DB // that of DB
	Letters  *deadletter.Letters
	Warnings []string // of ROLLBACKD_MYSQL_DSN
}

// OpenStore makes a store for a command, which is named beside its connections. It asks no server yet.
func OpenStore(ctx context.Context, cfg config.Config, command string, o dedup.OpenOptions) (*Store, error) {
	s := &Store{Lookup: operator.Lookup{Group: cfg.Group}}
	o.Program, o.CurrentDSN = rabbit.ConnectionName(command), cfg.Config.Fresh.MySQLDSN
	var err error
	if s.DB, s.Warnings, err = dedup.Open(ctx, cfg.MySQLDSN, o); err != nil {
		return nil, fmt.Errorf("ROLLBACKD_MYSQL_DSN: %w", err)
	}
	if s.Pool, err = s.DB.DB(); err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	if s.Records, err = dedup.NewLog(s.DB, cfg.LogOptions()); err == nil {
		s.Letters, err = deadletter.New(deadletter.Options{
			Records: s.Records, AMQPURLs: cfg.AMQPURLs, CurrentAMQPURLs: cfg.Config.Fresh.AMQPURLs, Name: o.Program,
			Group: cfg.Group, Queue: cfg.Queue, KeyFrom: cfg.KeyFrom, Retention: cfg.Retention(), MaxReplays: cfg.MaxReplays,
		})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if cfg.Handler == config.HandlerStock {
		s.OrderOf = stockhandler.OrderOf
	}
	return s, nil
}

// Close ends its pool.
func (s *Store) Close() error { return s.Pool.Close() }

// LockWords says in words who holds a lock. Close it in the end.
func (s *Store) LockWords(ctx context.Context, servers lockers.Servers) (
	func(context.Context, dedup.Identity) string, io.Closer, error,
) {
	if servers.None() {
		return func(context.Context, dedup.Identity) string { return operator.NoLock }, io.NopCloser(nil), nil
	}
	locker, err := lockers.Open(ctx, servers, lock.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
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
	}, locker, nil
}
