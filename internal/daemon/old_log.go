package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/store"
)

// ErrOldLog says that a classic consumer's table, which was taken over, has what is not known here.
var ErrOldLog = errors.New("the log of the old consumer was not taken over to its end")

const (
	// oldLogTime is how long a start looks at an old table. What it has not read by then is not looked at.
	oldLogTime = 5 * time.Second
	// oldLogPause is the pause before a database that is away is asked again.
	oldLogPause = time.Second
)

// checkOldLogs refuses to begin beside an old consumer that is still at work: both would give stock back for copies of
// one message. While the database is away it waits; a stop meanwhile is none of its errors.
func (d *Daemon) checkOldLogs(ctx context.Context) error {
	if d.ignoreOldLog {
		return nil
	}
	for _, queue := range d.cfg.All() {
		queue.Config.Fresh = d.cfg.Config.Fresh
		if err := d.checkOldLog(ctx, queue); err != nil {
			return err
		}
	}
	return nil
}

func (d *Daemon) checkOldLog(ctx context.Context, queue config.Config) error {
	s, err := store.Open(ctx, store.Queue{Config: queue.Config}, "check", store.Options{MaxOpen: 1})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // nothing is left in it
	defer d.unchecked.Store(nil)
	said := false
	look := func() (nothing struct{}, err error) {
		err = d.lookAtOldLogs(ctx, s)
		if errors.Is(err, ErrOldLog) || mysqldb.NoTable(err) || mysqldb.NoDatabase(err) {
			return nothing, backoff.Permanent(err)
		}
		return nothing, err
	}
	_, err = backoff.Retry(ctx, look, backoff.WithBackOff(backoff.NewConstantBackOff(oldLogPause)),
		backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, _ time.Duration) {
			d.waitsForMySQL(err)
			if !said {
				d.log.WarnContext(ctx, "cannot look yet whether an old log was taken over, nothing is consumed", "err", err)
			}
			said = true
		}))
	if errors.Is(err, ErrOldLog) {
		return err
	}
	return nil // it was stopped, or tables are missing, of which the engine tells
}

func (d *Daemon) lookAtOldLogs(ctx context.Context, s *store.Store) error {
	doubts, err := legacyimport.Doubts(ctx, s.Records, s.Pool, s.Group, oldLogTime)
	if err != nil {
		return err
	}
	for _, doubt := range doubts {
		if doubt.Sure {
			return fmt.Errorf("%w: %s. What the old consumer has done since would be done again. End it, then `migrate "+
				"--from %s … --last-pass`; or start with --ignore-old-log, if nobody consumes by that table any more",
				ErrOldLog, doubt, doubt.Table)
		}
		d.log.WarnContext(ctx, "an old log", "table", doubt.Table, "doubt", doubt.Why)
	}
	return nil
}
