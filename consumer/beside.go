package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/lock"
)

// beside is what is done, and kept open, beside the engines of a program.
type beside struct {
	depths  *depths
	minutes []*minutes              // of each engine
	keepers []*operator.Maintenance // none: WithoutKeeper
	closers []io.Closer             // what Open opened, in that order
	ran     atomic.Bool
}

func newBeside(all []*Consumer, db *gorm.DB, locker lock.Locker) (*beside, error) {
	b := &beside{}
	var cfgs []Config
	for _, c := range all {
		cfgs = append(cfgs, c.cfg)
	}
	var err error
	b.depths, err = newDepths(cfgs, func(ctx context.Context, why string) {
		for _, c := range all {
			c.health.blocked(ctx, why)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	for _, c := range all {
		b.minutes = append(b.minutes, &minutes{engine: c.engine, depths: b.depths, every: time.Minute})
	}
	for i, c := range all {
		same := func(other *Consumer) bool {
			return other.cfg.Group == c.cfg.Group && other.cfg.LogTable == c.cfg.LogTable
		}
		if c.cfg.WithoutKeeper || slices.ContainsFunc(all[:i], same) {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(all[i:]), func(other *Consumer) bool { return !same(other) })
		keeper, err := newKeeper(others, db, locker)
		if err != nil {
			return nil, fmt.Errorf("keeper: %w", err)
		}
		b.keepers = append(b.keepers, keeper)
	}
	return b, nil
}

// while does all that until work has ended, and closes what was opened.
func (b *beside) while(ctx context.Context, work func(context.Context) error) error {
	if !b.ran.CompareAndSwap(false, true) {
		return errors.New("consumer: Run was called before; make a new Consumer")
	}
	var wg sync.WaitGroup
	keeping, stopKeeping := context.WithCancel(ctx) // it ends with the intake
	defer stopKeeping()
	wg.Go(func() { b.depths.run(keeping) })
	wg.Go(func() { operator.Keep(keeping, b.keepers...) })
	for _, m := range b.minutes {
		wg.Go(func() { m.run(keeping) })
	}
	err := work(ctx)
	stopKeeping()
	wg.Wait()
	if err == nil { // else a server is perhaps away, and whoever stops has waited long enough
		for _, m := range b.minutes {
			wg.Go(func() { m.end(ctx) })
		}
		wg.Wait()
	}
	return errors.Join(err, b.close())
}

func (b *beside) close() error {
	var errs []error
	for _, closer := range slices.Backward(b.closers) {
		errs = append(errs, closer.Close())
	}
	b.closers = nil
	return errors.Join(errs...)
}

// newKeeper makes what one process of a group does for all, for the consumers of its queues.
func newKeeper(all []*Consumer, db *gorm.DB, locker lock.Locker) (*operator.Maintenance, error) {
	cfg := all[0].cfg
	compensate := deadletter.CompensateOptions{
		After: cfg.CompensateAfter, Notifier: cfg.Notifier, Logger: cfg.Logger,
		// A letter's transaction is an update, an event and a COMMIT, each of which may take as long as an answer may.
		VisibilityDelay: 3 * cfg.statementTimeout(),
	}
	// Half of what trips the brake, so that compensation alone never does.
	if cfg.MaxDead > 0 {
		compensate.Limit, compensate.Per = max(1, cfg.MaxDead/2), cfg.MaxDeadWindow
	}
	var once sync.Once
	var acts []*operator.Operator
	for _, c := range all {
		records, letters, err := c.cfg.letters(db, "keeper")
		if err != nil {
			return nil, err
		}
		act, err := operator.New(operator.Options{
			Lookup: operator.Lookup{Records: records, Group: cfg.Group, DB: db}, Letters: letters, Queue: c.cfg.Queue,
			Retention: cfg.LogRetention, Unwritten: func(err error) {
				once.Do(func() {
					cfg.Logger.Warn("letters are replayed by themselves, and the record of acts lacks that: see docs/rights.md",
						"err", err)
				})
			},
		})
		if err != nil {
			return nil, err
		}
		acts = append(acts, act)
	}
	o := operator.MaintenanceOptions{
		Compensate: compensate, Overdue: max(cfg.Lease, slices.Max(cfg.RetryDelays)) + overdueAfter, Logger: cfg.Logger,
		Beside: acts[1:], Clocks: func(ctx context.Context, err error) {
			for _, c := range all {
				c.health.clocks(ctx, err)
			}
		},
	}
	if ours, ok := locker.(*lockers.Lock); ok {
		o.Clean = ours.Clean
	}
	return acts[0].Maintenance(o, cfg.Registerer)
}

// overdueAfter is how long past the end of its lease, or past its due time, a row may stand before it is worth a
// warning.
const overdueAfter = time.Minute
