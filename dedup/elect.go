package dedup

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// ErrDeposed is the cause with which a duty's context ends when the lock is lost before the caller's context ends.
var ErrDeposed = errors.New("no longer elected")

const (
	// leadWait is how long one GET_LOCK waits, in whole seconds: the successor has the lock as soon as it is free. It is
	// shorter than any useful readTimeout.
	leadWait = 1
	// leadCheck is how often whoever is elected makes sure of it, and how long that may take.
	leadCheck   = 2 * time.Second
	leadTimeout = 5 * time.Second
	// leadIdle ends a session whose machine is gone without a word, and with it the lock: the server would keep it for
	// wait_timeout, eight hours by default.
	leadIdle = time.Minute
	// leadRetryMax bounds the pause before a database that is away is asked again.
	leadRetryMax = 10 * time.Second
)

// Lead runs duty in one process of all that call it for the same log and group, and in another one when the first is gone,
// until ctx ends. It waits for an election while there is no database, and calls duty again when elected again; duty's
// context ends with ErrDeposed when the lock is lost, and Lead waits for duty before it stands again.
//
// The lock is GET_LOCK on a connection that is kept for it, and dies with its session: killed, closed, or silent for a
// minute. That is noticed within seconds, so for so long two processes may be on duty. Nothing is fenced, because nothing
// need be: duty may do only what is a conditional update of the log, or may happen twice. A pool must have a connection to
// spare. A proxy that shares sessions between clients cannot be used.
func (l *Log) Lead(ctx context.Context, group string, log *slog.Logger, duty func(ctx context.Context)) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, leadRetryMax
	for ctx.Err() == nil {
		elected, err := l.term(ctx, group, log, duty)
		if elected {
			wait.Reset()
		}
		if ctx.Err() != nil {
			return
		}
		if elected {
			log.WarnContext(ctx, "no longer elected", "err", err)
		} else {
			log.DebugContext(ctx, "no election", "err", err) // the engine says so when MySQL is away
		}
		pause(ctx, wait.NextBackOff())
	}
}

// Leader is the connection that holds the lock of Lead for a group; 0 when nobody does.
func (l *Log) Leader(ctx context.Context, group string) (connection int64, err error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask who is elected: %w", err)
	}
	defer conn.Close()
	name, err := l.leadName(ctx, conn, group)
	if err != nil {
		return 0, fmt.Errorf("ask who is elected: %w", err)
	}
	var id sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", name).Scan(&id); err != nil {
		return 0, fmt.Errorf("ask who is elected: %w", err)
	}
	return id.Int64, nil
}

// term waits for one election and serves it.
func (l *Log) term(ctx context.Context, group string, log *slog.Logger, duty func(context.Context)) (elected bool, err error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // ends the session: the pool must not lend it, nor keep the lock
		_ = conn.Close()
	}()
	name, err := l.leadName(ctx, conn, group)
	if err != nil {
		return false, err
	}
	if err := boundSession(ctx, conn); err != nil {
		return false, err
	}
	if err := waitForLock(ctx, conn, name); err != nil {
		return false, err
	}
	log.InfoContext(ctx, "elected", "group", group)
	term, depose := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		duty(term)
	}()
	err = keepLead(term, conn, name, done)
	depose(err)
	<-done
	return true, err
}

func boundSession(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = ?", int(leadIdle/time.Second)); err != nil {
		return fmt.Errorf("bound the session of the election: %w", err)
	}
	return nil
}

func waitForLock(ctx context.Context, conn *sql.Conn, name string) error {
	for {
		var got sql.NullInt64
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, leadWait).Scan(&got); err != nil {
			return fmt.Errorf("wait for an election: %w", err)
		}
		if got.Int64 == 1 {
			return nil
		}
		if !got.Valid {
			return errors.New("wait for an election: the server broke it off")
		}
	}
}

// keepLead returns when ctx ends, when duty is done, or when the lock is not certainly ours any more.
func keepLead(ctx context.Context, conn *sql.Conn, name string, done <-chan struct{}) error {
	tick := time.NewTicker(leadCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-done:
			return errors.New("the duty has ended")
		case <-tick.C:
		}
		if err := stillElected(ctx, conn, name); err != nil {
			return fmt.Errorf("%w: %w", ErrDeposed, err)
		}
	}
}

func stillElected(ctx context.Context, conn *sql.Conn, name string) error {
	ctx, cancel := context.WithTimeout(ctx, leadTimeout)
	defer cancel()
	var ours sql.NullBool
	if err := conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?) = CONNECTION_ID()", name).Scan(&ours); err != nil {
		return err
	}
	if !ours.Bool {
		return errors.New("the lock is not ours")
	}
	return nil
}

// leadName is the lock's name. Named locks are the server's and have at most 64 characters, so the name is a hash of all
// that tells one fleet from another.
func (l *Log) leadName(ctx context.Context, conn *sql.Conn, group string) (string, error) {
	var schema string
	if err := conn.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&schema); err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, part := range []string{schema, l.o.Table, group} {
		_, _ = fmt.Fprintf(hash, "%d:", len(part)) // a hash takes everything
		_, _ = io.WriteString(hash, part)
	}
	return "rollbackd.keeper." + hex.EncodeToString(hash.Sum(nil)[:20]), nil
}
