package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/store"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// ErrOldLog says that a classic consumer's table, which was taken over, has what is not known here.
var ErrOldLog = errors.New("the log of the old consumer was not taken over to its end")

const (
	// oldLogTime is how long a start looks at an old table. What it has not read by then is not looked at.
	oldLogTime = 5 * time.Second
	// oldLogPause is the pause before a database that is away is asked again.
	oldLogPause = time.Second
)

// oldLog refuses to begin beside an old consumer that is still at work: both would give stock back for copies of one
// message. While the database is away it waits.
func (d *Daemon) oldLog(queue config.Config) handler.Check {
	return func(ctx context.Context, waiting func(error)) error {
		s, err := store.Open(ctx, store.Queue{Config: queue.Config}, "check", store.Options{MaxOpen: 1})
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }() // nothing is left in it
		for said := false; ; said = true {
			err := d.lookAtOldLogs(ctx, s)
			switch {
			case err == nil, errors.Is(err, ErrOldLog):
				return err
			case ctx.Err() != nil, mysqldb.NoTable(err), mysqldb.NoDatabase(err): // of which the engine tells
				return nil
			}
			waiting(err)
			if !said {
				d.log.WarnContext(ctx, "cannot look yet whether an old log was taken over, nothing is consumed", "err", err)
			}
			_ = wait.For(ctx, oldLogPause) // the next look sees its end
		}
	}
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
