package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

// Open checks cfg and makes a consumer that hands messages to h, with everything that it needs: the pools, the consumer
// log, the lock, exchange and queues, and the keeper that deletes old rows. It asks no server yet, so it succeeds while
// they are away, and Run waits for them. Run closes what Open has opened.
func Open(ctx context.Context, cfg Config, h Handler) (c *Consumer, err error) {
	if cfg, err = cfg.complete(h); err != nil {
		return nil, err
	}
	if cfg.MySQLDSN == "" {
		return nil, errors.New("consumer configuration: MySQLDSN is empty; New takes a pool instead")
	}
	opened := &Consumer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.Close())
		}
	}()
	o := Options{}
	if o.DB, err = opened.openMySQL(ctx, cfg, lanesPool(cfg)); err != nil {
		return nil, err
	}
	if !cfg.WithoutKeeper {
		if o.KeeperDB, err = opened.openMySQL(ctx, cfg, keeperPool()); err != nil {
			return nil, err
		}
	}
	if err := opened.openLock(ctx, cfg, &o); err != nil {
		return nil, err
	}
	if c, err = newConsumer(cfg, h, o); err != nil {
		return nil, err
	}
	c.closers = opened.closers
	return c, nil
}

// openLock makes the lock that cfg names.
func (c *Consumer) openLock(ctx context.Context, cfg Config, o *Options) error {
	servers := cfg.lockServers()
	if servers.None() {
		return nil
	}
	o.lockName = servers.Asks()
	servers.Opened, servers.Warn = cfg.opened(o.lockName), cfg.warnOf(o.lockName)
	locker, err := lockers.Open(ctx, servers, cfg.lockOptions())
	if err != nil {
		return fmt.Errorf("the lock (%s): %w", cfg.Lock, err)
	}
	c.closers = append(c.closers, locker)
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

func (c *Consumer) openMySQL(ctx context.Context, cfg Config, o dedup.OpenOptions) (*gorm.DB, error) {
	o.CurrentDSN, o.Opened, o.TLS = cfg.Fresh.MySQLDSN, cfg.opened(DependencyMySQL), cfg.MySQLTLS
	if len(c.closers) == 0 { // the second pool has nothing new to say
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
	if len(c.closers) == 0 {
		for _, w := range warnings {
			cfg.Logger.WarnContext(ctx, "MySQLDSN: "+w)
		}
	}
	c.closers = append(c.closers, pool)
	return db, nil
}

// MySQLConnections is how many connections of MySQL the consumer that [Open] makes has at most: those of its lanes,
// those of what it may be elected for, and those of a lock in MySQL.
func (c Config) MySQLConnections() int {
	c = c.withDefaults()
	n := lanesPool(c).MaxOpen
	if !c.WithoutKeeper {
		n += keeperPool().MaxOpen
	}
	if c.Lock == lock.KindMySQL {
		n += c.lockServers().Connections
	}
	return n
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
