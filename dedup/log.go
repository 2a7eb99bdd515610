package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/limits"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// What the log says when a statement did not do what was asked.
var (
	// ErrLost: the row is not as it was read. Somebody else moved it, or it is not yet due, or its lease lives. Whoever
	// gets it has no claim: roll back, and come back later.
	ErrLost = errors.New("the row was moved by somebody else")
	// ErrExists: a row that was to be inserted is there already.
	ErrExists = errors.New("the row exists already")
	// ErrUnknown: the answer to COMMIT was lost. It may be committed, or not, or be committed later. Repeat the same call
	// with the same arguments, or look with Holds; never assume.
	ErrUnknown = mysqldb.ErrUnknown
	// ErrStale: the identity has ended (success, or discarded), there is nothing to reopen or to discard.
	ErrStale = errors.New("the identity has ended already")
	// ErrTransition: no arrow of the diagram leads there. A fault of the caller.
	ErrTransition = errors.New("no such transition")
)

// Execer runs statements; *sql.DB, *sql.Tx, *sql.Conn and gorm's ConnPool are some. The log uses the caller's
// transaction through it.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// LogOptions say where the log is and how long its rows wait.
type LogOptions struct {
	// Table is the consumer log's name; events stand in Table_event. It must be an identifier of at most 41 characters.
	Table string
	// Lease protects a claimed row from other workers. At least a millisecond; longer than any attempt may take.
	Lease time.Duration
	// Delays are the pauses after attempt 1, 2, …; the last one holds for all further attempts. At least one.
	Delays []time.Duration
	// MaxAttempts is how many counted attempts an identity gets per opening. At least 1.
	MaxAttempts int
}

func validateTable(table string) error {
	if !limits.Identifier.MatchString(table) || len(table) > limits.MostTable {
		return fmt.Errorf("table %q: want a letter or _, then letters, digits or _, at most %d in all", table,
			limits.MostTable)
	}
	return nil
}

func (o LogOptions) validate() error {
	errs := []error{
		validateTable(o.Table), limits.Lease.Check("lease", o.Lease), limits.MaxAttempts.Check("max attempts", o.MaxAttempts),
	}
	if len(o.Delays) == 0 {
		errs = append(errs, errors.New("no delays are given"))
	}
	for _, d := range o.Delays {
		errs = append(errs, limits.RetryDelay.Check("delay", d))
	}
	return errors.Join(errs...)
}

// Log is the consumer log. It is safe for many goroutines and holds nothing but its settings and what it knows of this
// process's clock: all state is in MySQL.
type Log struct {
	db     *sql.DB
	o      LogOptions
	table  string // quoted
	events string // quoted

	clocks *clocks
	memory *Memory // in place of the tables; nil: MySQL has them
}

// NewLog makes a log over db's pool, best one from [Open]. It sends nothing; [CheckSchema] says whether the tables are
// there.
func NewLog(db *gorm.DB, o LogOptions) (*Log, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("consumer log: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("consumer log: take the pool from gorm: %w", err)
	}
	return &Log{
		db: pool, o: o, table: "`" + o.Table + "`", events: "`" + eventTable(o.Table) + "`",
		clocks: &clocks{made: time.Now()},
	}, nil
}

// Pool is that of the log, for what is read and written beside it; nil of one in memory.
func (l *Log) Pool() *sql.DB { return l.db }

// Options are what the log was made with.
func (l *Log) Options() LogOptions { return l.o }

// Tables are the names of a log's own tables, if it is called table.
func Tables(table string) []string {
	return []string{table, eventTable(table), table + "_act", table + "_once", table + "_minute", metaTable, versionTable}
}

func eventTable(table string) string { return table + "_event" }

// delay is how long a row with so many attempts waits before the next. No attempt: not at all. It is 90 % of the
// configured delay, so that a copy which leaves its retry queue a little early by the database's clock is not sent
// back.
func (l *Log) delay(attempts int) time.Duration {
	if attempts <= 0 {
		return 0
	}
	d := l.o.Delays[min(attempts, len(l.o.Delays))-1]
	return d - d/10
}

// untilDue is how long a failed row waits yet; below 0 when it is due. A time that is further away than any handler may
// name is over: the clock has gone back.
func (l *Log) untilDue(r Row) time.Duration {
	switch own := time.Duration(r.due.Int64) * time.Microsecond; {
	case !r.due.Valid:
		return l.delay(r.Attempts) - r.Age
	case own > limits.MaxDelay.High:
		return 0
	default:
		return own
	}
}

// judge fills in what follows from a row's age.
func (l *Log) judge(r *Row) {
	switch r.Status {
	case Processing:
		r.Wait = max(0, l.o.Lease-r.Age)
		r.LeaseLive = r.Wait > 0
	case Failed:
		r.Wait = max(0, l.untilDue(*r))
		r.Due = r.Wait == 0
	}
}

// inTx runs f in a transaction. An error of f means that nothing was committed; an error of COMMIT is ErrUnknown.
func (l *Log) inTx(ctx context.Context, f func(Execer) error) error {
	if l.memory != nil {
		return l.memory.inTx(f)
	}
	return mysqldb.InTx(ctx, l.db, func(tx *sql.Tx) error { return f(tx) })
}
