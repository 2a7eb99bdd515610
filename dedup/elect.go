package dedup

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// ErrLeadershipLost is the cause with which a leader's context ends when the lock is lost before the caller's context
// does.
var ErrLeadershipLost = errors.New("no longer elected")

const (
	// leadWait is how long one GET_LOCK waits, in whole seconds: the successor has the lock as soon as it is free. It is
	// shorter than any useful readTimeout.
	leadWait = 1
	// leadCheck is how often whoever is elected makes sure of it, and how long that may take.
	leadCheck   = 2 * time.Second
	leadTimeout = 5 * time.Second
	// leadRetryMax bounds the pause before a database that is away is asked again.
	leadRetryMax = 10 * time.Second
)

// Campaign runs lead in one process, the leader, of all that call it for the same log and group, and in another one
// when that is gone, until ctx ends. It waits for an election while there is no database, and calls lead again when
// elected again; lead's context ends with ErrLeadershipLost when the lock is lost, and Campaign waits for lead before
// it stands again.
//
// The lock is GET_LOCK on a connection that is kept for it, and dies with its session: killed, closed, or silent for
// longer than a transaction may be ([OpenOptions.Idle]). That is noticed within seconds, so for so long two processes
// may lead. Nothing is fenced, because nothing need be: lead may do only what is a conditional update of the log, or
// may happen twice. A pool must have a connection to spare. A proxy that shares sessions between clients cannot be
// used.
func (l *Log) Campaign(ctx context.Context, group string, log *slog.Logger, lead func(ctx context.Context)) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, leadRetryMax
	for ctx.Err() == nil {
		elected, err := l.term(ctx, group, log, lead)
		if elected {
			pause.Reset()
		}
		if ctx.Err() != nil {
			return
		}
		if elected {
			log.WarnContext(ctx, "no longer elected", "err", err)
		} else {
			log.DebugContext(ctx, "no election", "err", err) // the engine says so when MySQL is away
		}
		_ = wait.For(ctx, pause.NextBackOff()) // the loop looks at ctx
	}
}

// Leader is the connection that holds the lock of Campaign for a group; 0 when nobody does.
func (l *Log) Leader(ctx context.Context, group string) (connection int64, err error) {
	name, err := l.leadName(ctx, l.db, group)
	var id sql.NullInt64
	if err == nil {
		err = l.db.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", name).Scan(&id)
	}
	if err != nil {
		return 0, fmt.Errorf("ask who is elected: %w", err)
	}
	return id.Int64, nil
}

// LeaderAddress says where the connection of the elected process comes from, as the server sees it: host and port, or
// its number when the server does not tell. "" when nobody is elected.
func (l *Log) LeaderAddress(ctx context.Context, group string) (string, error) {
	id, err := l.Leader(ctx, group)
	if err != nil || id == 0 {
		return "", err
	}
	p, err := mysqldb.ProcessOf(ctx, l.db, id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("ask who is elected: %w", err)
	}
	if p.Host == "" {
		return fmt.Sprintf("connection %d", id), nil
	}
	return p.Host, nil
}

// term waits for one election and serves it.
func (l *Log) term(
	ctx context.Context, group string, log *slog.Logger, lead func(context.Context),
) (elected bool, err error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		// ends the session: the pool must not lend it, nor keep the lock
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}()
	name, err := l.leadName(ctx, conn, group)
	if err != nil {
		return false, err
	}
	if err := waitForLock(ctx, conn, name); err != nil {
		return false, fmt.Errorf("wait for an election: %w", err)
	}
	log.InfoContext(ctx, "elected", "group", group)
	term, end := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lead(term)
	}()
	err = holdLeadership(term, conn, name, done)
	end(err)
	<-done
	return true, err
}

// waitForLock waits until a named lock of the server is this connection's.
func waitForLock(ctx context.Context, conn *sql.Conn, name string) error {
	for {
		var got sql.NullBool
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, leadWait).Scan(&got); err != nil || got.Bool {
			return err
		}
		if !got.Valid {
			return errors.New("the server broke it off")
		}
	}
}

// holdLeadership returns when ctx ends, when lead has returned, or when the lock is not certainly ours any more.
func holdLeadership(ctx context.Context, conn *sql.Conn, name string, done <-chan struct{}) error {
	tick := time.NewTicker(leadCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-done:
			return errors.New("the leader's work has ended")
		case <-tick.C:
		}
		if err := stillElected(ctx, conn, name); err != nil {
			return fmt.Errorf("%w: %w", ErrLeadershipLost, err)
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

// leadName is the lock's name. Named locks are the server's and have at most 64 characters, so the name is a hash of
// all that tells one fleet from another.
func (l *Log) leadName(ctx context.Context, on Execer, group string) (string, error) {
	schema, err := schemaOf(ctx, on)
	if err != nil {
		return "", err
	}
	var fleet []byte
	for _, part := range []string{schema, l.o.Table, group} {
		fleet = fmt.Appendf(fleet, "%d:%s", len(part), part)
	}
	hash := sha256.Sum256(fleet)
	return "rollbackd.keeper." + hex.EncodeToString(hash[:20]), nil
}

func schemaOf(ctx context.Context, on Execer) (string, error) {
	names, err := list(ctx, on, sqlOf("SELECT DATABASE()"), value[string])
	return strings.Join(names, ""), err
}
