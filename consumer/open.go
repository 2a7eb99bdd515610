package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// Open checks cfg and makes a consumer that hands messages to h, with everything that it needs: the pools, the consumer
// log, the lock, exchange and queues, and the keeper that deletes old rows. It asks no server yet, so it succeeds while
// they are away, and Run waits for them. Run closes what Open has opened.
func Open(ctx context.Context, cfg Config, h Handler) (*Consumer, error) {
	b, all, err := openAll(ctx, []Member{{cfg, h}})
	if err != nil {
		return nil, err
	}
	all[0].beside = b
	return all[0], nil
}

// Run is [Open] and then [Consumer.Run], for a program that needs nothing else of its consumer.
func Run(ctx context.Context, cfg Config, h Handler) error {
	c, err := Open(ctx, cfg, h)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// OpenAll is [Open] for several queues. Each member has its Config as for Open, best a copy of the first one's in which
// Queue, Group, RoutingKeys, KeyFrom, LogTable, sizes or times differ. Servers, lock, outbox, retention and
// compensation are the first one's, and the others must say the same; a Registerer that they leave out is the first
// one's too.
//
// What is shared: the pools of MySQL (of those with the same HandlerTimeout), the lock's connections, the connection
// that watches the queues, and the keeper, which is elected for each Group and replays the letters of all its queues.
// Each queue has its own connections to RabbitMQ, its own MemoryBudget and its own brake: what goes wrong with one
// stops no other.
func OpenAll(ctx context.Context, members ...Member) (*Consumers, error) {
	b, all, err := openAll(ctx, members)
	if err != nil {
		return nil, err
	}
	return &Consumers{all, b}, nil
}

// openAll makes consumers with everything that they need.
func openAll(ctx context.Context, members []Member) (b *beside, all []*Consumer, err error) {
	cfgs, err := completeAll(members)
	if err != nil {
		return nil, nil, err
	}
	first, opened := cfgs[0], &opening{}
	defer func() {
		if err != nil {
			err = errors.Join(err, (&beside{closers: opened.closers}).close())
		}
	}()
	pools := map[time.Duration]*gorm.DB{}
	for timeout, o := range lanesPools(cfgs) {
		if pools[timeout], err = opened.mysql(ctx, first, o); err != nil {
			return nil, nil, err
		}
	}
	o := Options{}
	if !first.WithoutKeeper {
		if o.KeeperDB, err = opened.mysql(ctx, first, keeperPool()); err != nil {
			return nil, nil, err
		}
	}
	if err := opened.lock(ctx, cfgs, &o); err != nil {
		return nil, nil, err
	}
	if first.Outbox {
		if o.relayDB, err = opened.mysql(ctx, first, relayPool()); err != nil {
			return nil, nil, err
		}
	}
	for i, cfg := range cfgs {
		o.DB = pools[cfg.HandlerTimeout]
		c, err := newConsumer(cfg, members[i].Handler, o)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, c)
		o.relayDB = nil // the first one relays
	}
	if b, err = newBeside(all, o.KeeperDB, o.Lock); err != nil {
		return nil, nil, err
	}
	b.closers = opened.closers
	return b, all, nil
}

// opening is what was opened so far.
type opening struct{ closers []io.Closer }

// lock makes the lock that the first of cfgs names, for all.
func (p *opening) lock(ctx context.Context, cfgs []Config, o *Options) error {
	cfg := cfgs[0]
	servers := cfg.lockServers()
	if servers.None() {
		return nil
	}
	for _, other := range cfgs[1:] {
		servers.Connections += other.Lanes
	}
	o.lockName = servers.Asks()
	servers.Opened, servers.Warn = cfg.opened(o.lockName), cfg.warnOf(o.lockName)
	locker, err := lockers.Open(ctx, servers, cfg.lockOptions())
	if err != nil {
		return fmt.Errorf("the lock (%s): %w", cfg.Lock, err)
	}
	p.closers = append(p.closers, locker)
	o.Lock = locker
	return nil
}

// lockServers are those of the lock that [Open] makes.
func (c Config) lockServers() lockers.Servers {
	return lockers.Servers{
		Kind: c.Lock, RedisURL: c.RedisURL, MySQLDSN: c.MySQLDSN, ZooKeeperURL: c.ZooKeeperURL,
		Name: rabbit.ConnectionName("run"), Connections: c.Lanes + 4,
		CurrentRedisURL: c.Fresh.RedisURL, CurrentMySQLDSN: c.Fresh.MySQLDSN,
		RedisTLS: c.RedisTLS, MySQLTLS: c.MySQLTLS,
	}
}

// mysql makes a pool.
func (p *opening) mysql(ctx context.Context, cfg Config, o dedup.OpenOptions) (*gorm.DB, error) {
	o.CurrentDSN, o.Opened, o.TLS = cfg.Fresh.MySQLDSN, cfg.opened(DependencyMySQL), cfg.MySQLTLS
	if len(p.closers) == 0 { // the second pool has nothing new to say
		o.Warn = cfg.warnOf(DependencyMySQL)
	}
	db, warnings, err := dedup.Open(ctx, cfg.MySQLDSN, o)
	if err != nil {
		return nil, fmt.Errorf("MySQLDSN: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("MySQLDSN: the database handle: %w", err)
	}
	if len(p.closers) == 0 {
		for _, w := range warnings {
			cfg.Logger.WarnContext(ctx, "MySQLDSN: "+w)
		}
	}
	p.closers = append(p.closers, pool)
	return db, nil
}

// MySQLConnections is how many connections of MySQL the consumer that [Open] makes has at most: those of its lanes,
// those of what it may be elected for, those of a relay, and those of a lock in MySQL.
func (c Config) MySQLConnections() int {
	c = c.withDefaults()
	n := lanesPool(c).MaxOpen
	if !c.WithoutKeeper {
		n += keeperPool().MaxOpen
	}
	if c.Outbox {
		n += relay.Connections
	}
	if c.Lock == lock.KindMySQL {
		n += c.lockServers().Connections
	}
	return n
}

// lanesPools are the settings of the pools in which lanes work, by HandlerTimeout, on which they depend.
func lanesPools(cfgs []Config) map[time.Duration]dedup.OpenOptions {
	pools := map[time.Duration]dedup.OpenOptions{}
	for _, cfg := range cfgs {
		o := lanesPool(cfg)
		o.MaxOpen += pools[cfg.HandlerTimeout].MaxOpen
		pools[cfg.HandlerTimeout] = o
	}
	return pools
}

// lanesPool are the settings of the pool in which lanes look up, claim, and run the handler.
func lanesPool(cfg Config) dedup.OpenOptions {
	return dedup.OpenOptions{
		Program: rabbit.ConnectionName("run"), MaxOpen: 2*cfg.Lanes + 4, LockWait: cfg.lockWait(),
		Idle: cfg.HandlerTimeout, ReadTimeout: cfg.statementTimeout(), WriteTimeout: cfg.statementTimeout(),
	}
}

// keeperPool are those of the keeper's.
func keeperPool() dedup.OpenOptions {
	const lockWait, timeout = time.Second, 10 * time.Second // the first is the shortest that MySQL knows
	return dedup.OpenOptions{
		Program: rabbit.ConnectionName("keeper"), MaxOpen: operator.Connections, LockWait: lockWait,
		ReadTimeout: timeout, WriteTimeout: timeout,
	}
}

// relayPool are those of the relay's.
func relayPool() dedup.OpenOptions {
	return dedup.OpenOptions{Program: rabbit.ConnectionName("relay"), MaxOpen: relay.Connections}
}
