package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/locking"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

// firstAnswer is how long a command waits for MySQL's first answer: a server that is frozen gives none.
const firstAnswer = 8 * time.Second

// openDatabase makes a pool for a command; close it. It sends nothing yet.
func (a *app) openDatabase(
	ctx context.Context, cfg config.Config, command string,
) (db *gorm.DB, closeDB func(), err error) {
	return a.openDatabaseWith(ctx, cfg, dedup.OpenOptions{Program: rabbit.ConnectionName(command)})
}

func (a *app) openDatabaseWith(
	ctx context.Context, cfg config.Config, o dedup.OpenOptions,
) (db *gorm.DB, closeDB func(), err error) {
	db, warnings, err := dedup.Open(ctx, cfg.MySQLDSN, o)
	if err != nil {
		return nil, nil, fmt.Errorf("ROLLBACKD_MYSQL_DSN: %w", err)
	}
	for _, w := range warnings {
		fmt.Fprintf(a.stderr, "%s: warning: ROLLBACKD_MYSQL_DSN: %s\n", a.name, w)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, fmt.Errorf("database handle: %w", err)
	}
	return db, func() { _ = pool.Close() }, nil // nothing is left in it that closing could lose
}

// openLog opens the consumer log and makes sure that its tables are there.
func (a *app) openLog(ctx context.Context, cfg config.Config, command string) (*dedup.Log, func(), error) {
	db, closeDB, err := a.openDatabase(ctx, cfg, command)
	if err != nil {
		return nil, nil, err
	}
	records, err := a.newLog(ctx, cfg, db)
	if err != nil {
		closeDB()
		return nil, nil, err
	}
	return records, closeDB, nil
}

// newLog makes the consumer log and makes sure that its tables are there.
func (a *app) newLog(ctx context.Context, cfg config.Config, db *gorm.DB) (*dedup.Log, error) {
	records, err := dedup.NewLog(db, dedup.LogOptions{
		Table: cfg.LogTable, Lease: cfg.Lease, Delays: cfg.RetryDelays, MaxAttempts: cfg.MaxAttempts,
	})
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	err = records.CheckSchema(asking)
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("MySQL cannot be used: no answer within %v\nROLLBACKD_MYSQL_DSN is %s", firstAnswer,
			shown(cfg, "ROLLBACKD_MYSQL_DSN"))
	}
	return records, a.mysqlError(cfg, err)
}

// sayUnknownGroup says that no message was ever filed under this group, and which groups there are: the setting may be
// another daemon's, or misspelt.
func (a *app) sayUnknownGroup(ctx context.Context, records *dedup.Log, group string) {
	const most = 20
	groups, err := records.Groups(ctx, most)
	if err != nil || slices.Contains(groups, group) || len(groups) == most {
		return // the list itself is right
	}
	known := "it is empty"
	if len(groups) > 0 {
		known = "it has " + printable(strings.Join(groups, ", "))
	}
	fmt.Fprintf(a.stderr, "%s: %s has no row of group %s (ROLLBACKD_GROUP); %s\n", a.name, records.Options().Table,
		printable(group), known)
}

// openLetters opens what the dlq commands work with.
func (a *app) openLetters(ctx context.Context, cfg config.Config, command string) (*deadletter.Letters, func(), error) {
	records, closeLog, err := a.openLog(ctx, cfg, command)
	if err != nil {
		return nil, nil, err
	}
	letters, err := newLetters(cfg, records, command)
	if err != nil {
		closeLog()
		return nil, nil, err
	}
	return letters, closeLog, nil
}

func newLetters(cfg config.Config, records *dedup.Log, command string) (*deadletter.Letters, error) {
	return deadletter.New(deadletter.Options{
		Records: records, AMQPURLs: cfg.AMQPURLs, Name: rabbit.ConnectionName(command),
		Group: cfg.Group, Queue: cfg.Queue, KeyFrom: cfg.KeyFrom, Retention: cfg.Retention(), MaxReplays: cfg.MaxReplays,
	})
}

// openDesk opens the desk, at which the commands do what changes something, on a pool on the schema of the log.
func (a *app) openDesk(cfg config.Config, db *gorm.DB, records *dedup.Log) (*operator.Operator, error) {
	return operator.New(operator.Options{
		DB: db, Records: records, Group: cfg.Group, Queue: cfg.Queue, Unwritten: func(err error) {
			fmt.Fprintf(a.stderr, "%s: the record of acts lacks this, which is done all the same: %s%s\n", a.name,
				printable(err.Error()), a.recordHint(err))
		},
	})
}

// recordHint says what to do when MySQL refuses the table of acts.
func (a *app) recordHint(err error) string {
	if !mysqldb.Answered(err) {
		return ""
	}
	return fmt.Sprintf("; '%s migrate' makes the table of acts, and docs/rights.md names the rights on it", a.name)
}

// act does what changes something, as an act that is written down. A dry run changes nothing, and is none.
func (a *app) act(
	ctx context.Context, d *operator.Operator, who string, dry bool, r operator.TaskRequest,
	work func(context.Context, operator.Task) (operator.Result, error),
) error {
	if dry {
		_, err := work(ctx, operator.Task{By: who, Progress: func(string, int) {}, Letters: func(deadletter.Progress) {}})
		return err
	}
	err := d.Do(ctx, operator.Actor{Name: who}, r, work)
	if errors.Is(err, operator.ErrRequest) {
		return usageErrorf("%w", err)
	}
	return err
}

// openLock makes the lock, to look at.
func (a *app) openLock(ctx context.Context, cfg config.Config, command string) (lock.Locker, func(), error) {
	locker, closer, err := locking.Open(ctx, cfg.LockServers(rabbit.ConnectionName(command)), lock.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", lockSetting(cfg), err)
	}
	return locker, func() { _ = closer.Close() }, nil
}

// lockSetting is the one that says where the lock is.
func lockSetting(cfg config.Config) string {
	switch cfg.Lock {
	case lock.KindMySQL:
		return "ROLLBACKD_MYSQL_DSN"
	case lock.KindZooKeeper:
		return "ROLLBACKD_ZOOKEEPER_URL"
	}
	return "ROLLBACKD_REDIS_URL"
}

func rabbitConfig(cfg config.Config, command string) rabbit.Config {
	return rabbit.Config{URLs: cfg.AMQPURLs, Name: rabbit.ConnectionName(command)}
}

func topology(cfg config.Config) rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: cfg.Exchange, Queue: cfg.Queue, RoutingKeys: cfg.RoutingKeys, Delays: cfg.RetryDelays,
		TakeMain: cfg.Topology == consumer.TopologyCheck,
	}
}

// mysqlError says beside err what to do about it.
func (a *app) mysqlError(cfg config.Config, err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, dedup.ErrSchema): // which says it already
		return err
	case mysqldb.NoDatabase(err):
		return fmt.Errorf("MySQL has no such database, or not for this user: %w\n%s\nROLLBACKD_MYSQL_DSN names it: %s", err,
			doctor.NoDatabase, shown(cfg, "ROLLBACKD_MYSQL_DSN"))
	case mysqldb.Classify(err) == mysqldb.FaultUnavailable:
		return fmt.Errorf("MySQL cannot be used: %w\nROLLBACKD_MYSQL_DSN is %s", err, shown(cfg, "ROLLBACKD_MYSQL_DSN"))
	}
	return err
}

// rabbitError says beside err what to do about it.
func (a *app) rabbitError(cfg config.Config, err error) error {
	const notFound = 404
	broker, told := errors.AsType[*rabbit.BrokerError](err)
	switch {
	case err == nil, errors.Is(err, context.Canceled), told && errors.Is(err, rabbit.ErrUnroutable):
		// which says it already
		return err
	case told && broker.Code == notFound, errors.Is(err, rabbit.ErrUnroutable):
		return fmt.Errorf("%w\n'%s migrate' makes exchange and queues", err, a.name)
	case !told && mysqldb.Classify(err) != mysqldb.FaultOther || errors.Is(err, rabbit.ErrClosed):
		return fmt.Errorf("RabbitMQ cannot be used: %w\nROLLBACKD_AMQP_URL is %s", err, shown(cfg, "ROLLBACKD_AMQP_URL"))
	}
	return err
}

// lettersError is mysqlError or rabbitError, whichever server the error came from.
func (a *app) lettersError(cfg config.Config, err error) error {
	if errors.Is(err, deadletter.ErrBroker) {
		return a.rabbitError(cfg, err)
	}
	return a.mysqlError(cfg, err)
}

// shown is a setting's value, secrets masked.
func shown(cfg config.Config, name string) string {
	for _, s := range cfg.Settings() {
		if s.Name == name {
			return s.Value
		}
	}
	return "not set"
}

// person is who runs the command, for the story of a row.
func person() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
