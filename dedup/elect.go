package dedup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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

// Post is what one process of several does.
type Post struct {
	// Records and Group say who stands for it: all processes that name the same log and group.
	Records *Log
	Group   string
	// Lead is run by whoever is elected. Its context ends with ErrLeadershipLost when the lock is lost.
	Lead func(ctx context.Context)
}

// Campaign is the function of that name, for one post.
func (l *Log) Campaign(ctx context.Context, group string, log *slog.Logger, lead func(ctx context.Context)) {
	Campaign(ctx, log, Post{l, group, lead})
}

// Campaign stands for these posts until ctx ends: it runs the Lead of each in one process, the leader, of all that
// stand for the post, and in another one when that is gone. It waits for an election while there is no database, and
// calls Lead again when elected again; before it stands again it waits for all that it runs.
//
// The locks are those of GET_LOCK on one connection of the first post's pool, which is kept for them; they die with its
// session: killed, closed, or silent for longer than a transaction may be ([OpenOptions.Idle]). That is noticed within
// seconds, so for so long two processes may lead. Nothing is fenced, because nothing need be: Lead may do only what is
// a conditional update of the log, or may happen twice. A pool must have a connection to spare. A proxy that shares
// sessions between clients cannot be used.
func Campaign(ctx context.Context, log *slog.Logger, posts ...Post) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, leadRetryMax
	for ctx.Err() == nil {
		elected, err := term(ctx, log, posts)
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
	defer wrap(&err, "ask who is elected")
	name, err := l.leadName(ctx, l.db, group)
	if err != nil {
		return 0, err
	}
	err = sqlOf("SELECT IS_USED_LOCK(?)", name).scan(ctx, l.db, mysqldb.OrZero(&connection))
	return connection, err
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
	return cmp.Or(p.Host, fmt.Sprint("connection ", id)), nil
}

// term is one session: it waits for elections, and serves those posts that it wins.
func term(ctx context.Context, log *slog.Logger, posts []Post) (elected bool, err error) {
	conn, err := posts[0].Records.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		// ends the session: the pool must not lend it, nor keep the locks
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}()
	locks := make([]string, len(posts))
	for i, p := range posts {
		if locks[i], err = p.Records.leadName(ctx, conn, p.Group); err != nil {
			return false, err
		}
	}
	serving, end := context.WithCancelCause(ctx)
	var leads sync.WaitGroup
	defer func() { // before the session ends
		end(err)
		leads.Wait()
	}()
	ended := make(chan struct{}, len(posts))
	leading := make([]bool, len(posts))
	tick := time.Tick(leadCheck)
	waits := 0 // for a lock: two processes that wait for each other's would both lose what they have
	if len(posts) == 1 {
		waits = leadWait
	}
	for {
		for i, p := range posts {
			was := leading[i]
			if leading[i], err = serves(serving, conn, locks[i], was, waits); err != nil && elected {
				return true, fmt.Errorf("%w: %w", ErrLeadershipLost, err)
			} else if err != nil {
				return false, fmt.Errorf("wait for an election: %w", err)
			}
			if leading[i] && !was {
				elected = true
				log.InfoContext(ctx, "elected", "group", p.Group)
				leads.Go(func() {
					defer func() { ended <- struct{}{} }()
					p.Lead(serving)
				})
			}
		}
		if len(posts) == 1 && !elected {
			continue // it has waited
		}
		select {
		case <-ctx.Done():
			return elected, context.Cause(ctx)
		case <-ended:
			return elected, errors.New("the leader's work has ended")
		case <-tick:
		}
	}
}

// serves reports whether a post's lock is this connection's. What was ours and is not any more is an error.
func serves(ctx context.Context, conn *sql.Conn, name string, ours bool, wait int) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leadTimeout)
	defer cancel()
	if ours {
		return true, stillElected(ctx, conn, name)
	}
	return tryLock(ctx, conn, name, wait)
}

// waitForLock waits until a named lock of the server is this connection's.
func waitForLock(ctx context.Context, conn *sql.Conn, name string) error {
	for {
		if got, err := tryLock(ctx, conn, name, leadWait); got || err != nil {
			return err
		}
	}
}

// tryLock reports whether a named lock of the server is this connection's now, after so many seconds at most.
func tryLock(ctx context.Context, conn *sql.Conn, name string, wait int) (bool, error) {
	var got sql.NullBool
	err := sqlOf("SELECT GET_LOCK(?, ?)", name, wait).scan(ctx, conn, &got)
	if err == nil && !got.Valid {
		err = errors.New("the server broke it off")
	}
	return got.Bool, err
}

// stillElected fails when the lock is not certainly ours any more.
func stillElected(ctx context.Context, conn *sql.Conn, name string) error {
	var ours sql.NullBool
	err := sqlOf("SELECT IS_USED_LOCK(?) = CONNECTION_ID()", name).scan(ctx, conn, &ours)
	if err == nil && !ours.Bool {
		err = errors.New("the lock is not ours")
	}
	return err
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

func schemaOf(ctx context.Context, on Execer) (name string, err error) {
	err = sqlOf("SELECT DATABASE()").scan(ctx, on, &name)
	return name, err
}
