package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
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

// checkOldLogs refuses to begin beside an old consumer that is still at work: both would give stock back for copies of
// one message. While the database is away it waits; a stop meanwhile is none of its errors.
func (d *Daemon) checkOldLogs(ctx context.Context) error {
	if d.ignoreOldLog {
		return nil
	}
	s, err := OpenStore(ctx, d.cfg, "check", dedup.OpenOptions{MaxOpen: 1})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // nothing is left in it
	defer d.unchecked.Store(nil)
	for said := false; ; {
		err := d.lookAtOldLogs(ctx, s)
		switch {
		case err == nil, errors.Is(err, ErrOldLog):
			return err
		case ctx.Err() != nil, mysqldb.NoTable(err), mysqldb.NoDatabase(err): // the engine says what is missing
			return nil
		}
		why := consumer.DependencyMySQL + ": " + err.Error()
		d.unchecked.Store(&why)
		if !said {
			d.log.WarnContext(ctx, "cannot look yet whether an old log was taken over, nothing is consumed", "err", err)
		}
		said = true
		if wait.For(ctx, oldLogPause) != nil {
			return nil
		}
	}
}

func (d *Daemon) lookAtOldLogs(ctx context.Context, s *Store) error {
	doubts, err := legacyimport.Doubts(ctx, s.Records, s.Pool, d.cfg.Group, oldLogTime)
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
