package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
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

func (c Config) lockOptions() lock.Options {
	return lock.Options{LockTTL: c.LockTTL, DoneTTL: c.DoneTTL, OnError: c.LockOnError, Log: c.Logger}
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

// lockWait bounds a wait for somebody else's lock, so that it ends before the handler's time does.
func (c Config) lockWait() time.Duration { return (c.HandlerTimeout / 2).Truncate(time.Second) }

// statementTimeout is how long a statement's answer is waited for. It is longer than a handler may take: which one ends
// a handler's statement is then no matter of chance, and that statement is known and can be ended on the server.
func (c Config) statementTimeout() time.Duration { return c.HandlerTimeout + time.Second }

// LogOptions are those of the consumer log of a consumer with this Config, to read it with [dedup.NewLog].
func (c Config) LogOptions() dedup.LogOptions {
	c = c.withDefaults()
	return dedup.LogOptions{Table: c.LogTable, Lease: c.Lease, Delays: c.RetryDelays, MaxAttempts: c.MaxAttempts}
}

func (c Config) amqp(command string) rabbit.Config {
	return rabbit.Config{
		URLs: c.AMQPURLs, Current: c.Fresh.AMQPURLs, Name: rabbit.ConnectionName(command), TLS: c.AMQPTLS, Certs: c.certs,
		Opened: c.opened(DependencyRabbitMQ),
	}
}

// Letters are the dead letters of the queue that a consumer with this Config consumes, to list, replay or discard them
// from code. db is a pool on the schema of MySQLDSN, best one from [dedup.Open], for ten connections at least; it stays
// the caller's. No server is asked yet.
func (c Config) Letters(db *gorm.DB) (*deadletter.Letters, error) {
	if db == nil {
		return nil, errors.New("dead letters: no pool is given; dedup.Open makes one")
	}
	_, letters, err := c.withDefaults().letters(db, "letters")
	return letters, err
}

// letters makes log and letters; c has its defaults. The command is shown beside their connections.
func (c Config) letters(db *gorm.DB, command string) (*dedup.Log, *deadletter.Letters, error) {
	records, err := dedup.NewLog(db, c.LogOptions())
	if err != nil {
		return nil, nil, err
	}
	letters, err := deadletter.New(deadletter.Options{
		Records: records, AMQPURLs: c.AMQPURLs, CurrentAMQPURLs: c.Fresh.AMQPURLs, Name: rabbit.ConnectionName(command),
		AMQPTLS: c.AMQPTLS, Warn: c.warnOf(DependencyRabbitMQ),
		Group: c.Group, Queue: c.Queue, KeyFrom: c.KeyFrom, Retention: c.LogRetention, MaxReplays: c.MaxReplays,
	})
	return records, letters, err
}

// overdueAfter is how long past the end of its lease, or past its due time, a row may stand before it is worth a
// warning.
const overdueAfter = time.Minute

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

// migrate makes or updates the tables of the log. MySQL is waited for; what it answers is for a person.
func (c *Consumer) migrate(ctx context.Context) error {
	for pause := newBackOff(); ; {
		err := dedup.Migrate(ctx, c.db, dedup.MigrateOptions{
			Table: c.cfg.LogTable, Extra: lockTables(c.cfg.Lock),
			Waiting: func(err error) {
				c.log.WarnContext(ctx, "migrate: waiting for somebody else's lock", "err", err)
			},
		})
		if err == nil || mysqldb.Answered(err) || ctx.Err() != nil {
			return err
		}
		c.health.missing(ctx, DependencyMySQL, err)
		if err := wait.For(ctx, pause.NextBackOff()); err != nil {
			return err
		}
	}
}

// lockTables are those of a lock that is in MySQL.
func lockTables(kind lock.Kind) []dedup.MigrationSet {
	if kind != lock.KindMySQL {
		return nil
	}
	return []dedup.MigrationSet{{Name: lockers.MigrationSet, Files: lockers.Migrations()}}
}
