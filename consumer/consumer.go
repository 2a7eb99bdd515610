package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/lock"
)

// Options are what [New] works with in place of what [Open] makes.
type Options struct {
	// DB holds the consumer log and the handler's tables; [dedup.Open] makes one with the settings that are needed. Its
	// pool must allow more than 2 × Lanes connections, and twelve more unless KeeperDB is set.
	DB *gorm.DB
	// KeeperDB is the keeper's pool. Nil: DB, so that what it does may take connections from lanes, and a statement of its
	// waits for locks as long as a handler's.
	KeeperDB *gorm.DB
	// Redis holds the lock; [lock.OpenRedis] makes a client with the settings that are needed. Nil: no lock, the consumer
	// log alone keeps the promise.
	Redis redis.UniversalClient
	// Lock is another lock in place of Redis; lock/locktest says what it must hold. Its own settings take the place of
	// Config.LockTTL and DoneTTL.
	Lock lock.Locker

	lockName string // of the dependency that the lock's server is; empty: DependencyRedis
}

// Consumer consumes a queue. Make one with [Open] or [New], run it once.
type Consumer struct {
	*engine
	db      *gorm.DB              // to migrate
	keeper  *operator.Maintenance // nil: WithoutKeeper
	closers []io.Closer           // what Open opened, in that order
	depths  *depths
	ran     atomic.Bool
}

// New checks cfg and makes a consumer that hands messages to h, on pools of the caller's own, which it leaves open. It
// touches no server. [Open] makes the pools too.
func New(cfg Config, h Handler, o Options) (*Consumer, error) {
	cfg, err := cfg.complete(h)
	if err != nil {
		return nil, err
	}
	if o.DB == nil {
		return nil, errors.New("consumer configuration: Options need a DB; Open makes one")
	}
	return newConsumer(cfg, h, o)
}

// newConsumer joins an engine, and what is done beside it, from a Config that was checked.
func newConsumer(cfg Config, h Handler, o Options) (*Consumer, error) {
	reg := &registry{Registerer: cfg.Registerer}
	e, err := newEngine(cfg, h, o, reg)
	if err != nil {
		return nil, err
	}
	c := &Consumer{engine: e, db: o.DB, depths: newDepths(cfg, reg, e.health.blocked)}
	if reg.err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", reg.err)
	}
	if !cfg.WithoutKeeper {
		c.keeper, err = newKeeper(cfg, cmp.Or(o.KeeperDB, o.DB), o.Lock, e.health)
	}
	return c, err
}

// Run consumes until ctx ends, then drains: it takes nothing new, finishes what is in hand and returns nil, or
// [ErrDrainTimeout] after DrainTimeout. Servers that are away are waited for, at the start as later. A schema that was
// never migrated is an error at the start. Run may be called once; what [Open] opened is closed with its end.
//
// A handler that does not return is left behind. While there are few such calls all else goes on, and the end of Run is
// an [ErrStuck] that names their messages; when there are many, Run ends by itself. The process must end then.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.ran.CompareAndSwap(false, true) {
		return errors.New("consumer: Run was called before; make a new Consumer")
	}
	var wg sync.WaitGroup
	keeping, stopKeeper := context.WithCancel(ctx) // it ends with the intake
	defer stopKeeper()
	wg.Go(func() { c.depths.run(keeping) })
	if c.keeper != nil {
		wg.Go(func() { c.keeper.Run(keeping) })
	}
	err := c.run(ctx)
	stopKeeper()
	wg.Wait()
	return errors.Join(err, c.runner.Left(), c.Close())
}

// Close closes what [Open] opened. Run does it at its end; it is for a Consumer that is never run.
func (c *Consumer) Close() error {
	var errs []error
	for _, closer := range slices.Backward(c.closers) {
		errs = append(errs, closer.Close())
	}
	c.closers = nil
	return errors.Join(errs...)
}

// State says what the engine is doing.
func (c *Consumer) State() State {
	s := c.health.state(c.contention.Stand())
	s.Still = max(s.Still, c.runner.Still())
	if err := c.locks.down(); err != nil && !c.health.names(c.locks.name) {
		without := c.locks.name + ": " + err.Error()
		names := &s.Degraded // the lanes go on without it
		if c.cfg.LockOnError == lock.Pause {
			names = &s.Paused
		}
		*names = append(*names, without)
		slices.Sort(*names)
	}
	return s
}

func newKeeper(cfg Config, db *gorm.DB, locker lock.Locker, h *health) (*operator.Maintenance, error) {
	records, letters, err := cfg.letters(db, "keeper")
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
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
	acts, err := operator.New(operator.Options{
		Lookup: operator.Lookup{Records: records, Group: cfg.Group, DB: db}, Letters: letters, Queue: cfg.Queue,
		Retention: cfg.LogRetention, Unwritten: func(err error) {
			once.Do(func() {
				cfg.Logger.Warn("letters are replayed by themselves, and the record of acts lacks that: see docs/rights.md",
					"err", err)
			})
		},
	})
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	o := operator.MaintenanceOptions{
		Compensate: compensate, Overdue: max(cfg.Lease, slices.Max(cfg.RetryDelays)) + overdueAfter, Logger: cfg.Logger,
		Clocks: h.clocks,
	}
	if ours, ok := locker.(*lockers.Lock); ok {
		o.Clean = ours.Clean
	}
	return acts.Maintenance(o, cfg.Registerer)
}

// overdueAfter is how long past the end of its lease, or past its due time, a row may stand before it is worth a
// warning.
const overdueAfter = time.Minute
