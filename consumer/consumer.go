package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// Options are what [New] works with in place of what [Open] makes.
type Options struct {
	// DB holds the consumer log and the handler's tables; [dedup.Open] makes one with the settings that are needed. Its
	// pool must allow more than 2 × Lanes connections, twelve more unless KeeperDB is set, and those of the relay of an
	// Outbox.
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

	lockName string   // of the dependency that the lock's server is; empty: DependencyRedis
	relayDB  *gorm.DB // nil: no relay
}

// Consumer consumes a queue. Make one with [Open] or [New], run it once.
type Consumer struct {
	*engine
	db     *gorm.DB // to migrate
	beside *beside  // nil: [Consumers] have it
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
	if cfg.Outbox {
		o.relayDB = o.DB
	}
	c, err := newConsumer(cfg, h, o)
	if err != nil {
		return nil, err
	}
	c.beside, err = newBeside([]*Consumer{c}, cmp.Or(o.KeeperDB, o.DB), o.Lock)
	return c, err
}

// newConsumer makes an engine from a Config that was checked.
func newConsumer(cfg Config, h Handler, o Options) (*Consumer, error) {
	reg := newRegistry(cfg)
	e, err := newEngine(cfg, h, o, reg)
	if err != nil {
		return nil, err
	}
	if reg.err != nil {
		return nil, fmt.Errorf("consumer metrics of queue %s, of which a Registerer takes one consumer: %w", cfg.Queue,
			reg.err)
	}
	if o.relayDB != nil {
		pool, err := o.relayDB.DB()
		if err == nil {
			e.relay, err = relay.New(cfg.Relay(pool))
		}
		if err != nil {
			return nil, fmt.Errorf("consumer: the relay of the outbox: %w", err)
		}
	}
	return &Consumer{engine: e, db: o.DB}, nil
}

// Run consumes until ctx ends, then drains: it takes nothing new, finishes what is in hand and returns nil, or
// [ErrDrainTimeout] after DrainTimeout. Servers that are away are waited for, at the start as later. A schema that was
// never migrated is an error at the start. Run may be called once; what [Open] opened is closed with its end.
//
// A handler that does not return is left behind. While there are few such calls all else goes on, and the end of Run is
// an [ErrStuck] that names their messages; when there are many, Run ends by itself. The process must end then.
func (c *Consumer) Run(ctx context.Context) error { return c.beside.while(ctx, c.work) }

func (c *Consumer) work(ctx context.Context) error { return errors.Join(c.run(ctx), c.runner.Left()) }

// Config is what c works by: what it was given, with the defaults filled in.
func (c *Consumer) Config() Config {
	cfg := c.cfg
	for _, number := range cfg.numbers() {
		number.Keep()
	}
	return cfg
}

// Close closes what [Open] opened. Run does it at its end; it is for a Consumer that is never run.
func (c *Consumer) Close() error { return c.beside.close() }

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
	if c.relay != nil {
		for _, miss := range c.relay.State().Misses {
			s.Degraded = append(s.Degraded, "outbox: "+miss)
		}
		slices.Sort(s.Degraded)
	}
	return s
}
