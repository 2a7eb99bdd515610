package operator

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Options are what an operator works with.
type Options struct {
	Lookup // its pool has [Connections] at least

	// Letters are those of the group and queue; nil where nothing is run.
	Letters *deadletter.Letters
	Queue   string // the daemon's, as the group
	// Expected names the messages that should have come; without a text nobody knows.
	Expected Query
	// Rehearse is that of a process that consumes; nil: this one does not.
	Rehearse Rehearse
	// Retention is how long success rows are kept; 0: for ever.
	Retention time.Duration
	// Unwritten, if set, is told why something that [Operator.Do] does is not written down, or not how it ended.
	Unwritten func(error)
	// Drain bounds how long Work goes on to write down how acts have ended, after its context has. Default: 25s.
	Drain time.Duration
	// Logger gets a line for each act that begins or ends, and for what runs wait for. Default: none.
	Logger *slog.Logger
}

const defaultDrain = 25 * time.Second

// Connections is how many its pool should have: a run reads and writes with eight, and there are its lease and the
// requests beside it.
const Connections = 12

// Pool is how a pool is opened that persons act on: what they do gives way to messages.
func Pool() dedup.OpenOptions {
	const answer = 10 * time.Second
	return dedup.OpenOptions{
		MaxOpen: Connections, LockWait: time.Second, ReadTimeout: answer, WriteTimeout: answer,
	}
}

// RehearsalPool is how a pool is opened that a queue's handler is rehearsed on, which may take so long: apart from the
// one that acts need, of which a slow handler would hold all connections.
func RehearsalPool(handler time.Duration) dedup.OpenOptions {
	o := Pool()
	o.MaxOpen, o.Idle = atOnce*rehearsedAtOnce, handler
	o.ReadTimeout, o.WriteTimeout = handler+time.Second, handler+time.Second
	return o
}

// Operator is where persons act. It is safe for many goroutines and keeps nothing: all state is in MySQL.
type Operator struct {
	o     Options
	wake  chan struct{} // holds one word that a run was written down here
	db    *sql.DB
	acts  string // table, quoted
	once  string // table, quoted
	name  string // of this process: host/pid/random
	log   *slog.Logger
	look  time.Duration // tests change it
	tasks map[Kind]func(context.Context, Task) (report any, err error)
}

// New makes an operator. It asks no server.
func New(o Options) (*Operator, error) {
	if o.DB == nil || o.Records == nil || o.Group == "" || o.Queue == "" {
		return nil, errors.New("operator: it needs DB, Records, Group and Queue")
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	d := &Operator{
		o: o, db: o.Records.Pool(), acts: o.Records.ActTable(), once: o.Records.OnceTable(), look: lookEvery,
		log:  cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
		name: fmt.Sprintf("%.40s/%d/%s", host, os.Getpid(), uuid.NewString()[:8]), wake: make(chan struct{}, 1),
	}
	d.o.Drain = cmp.Or(o.Drain, defaultDrain)
	d.tasks = map[Kind]func(context.Context, Task) (any, error){
		KindReconcile: d.reconcile, KindMend: asked(d.mend), KindOutboxRetry: asked(d.changeOutbox),
		KindOutboxDrop: asked(d.changeOutbox),
	}
	if o.Expected.Text != "" {
		d.tasks[KindExpected] = asked(d.expected)
	}
	if o.Rehearse != nil {
		d.tasks[KindRehearse] = asked(d.rehearse)
	}
	return d, nil
}

// Actor is who acts: user@host of a command, the name of a token, or the identity that a proxy vouches for.
type Actor struct{ Name string }

// maxActor is how many characters of a name are kept: it stands in the story of each letter, before the act's id.
const maxActor = 150

// name is the actor's, on one line.
func (a Actor) name() (string, error) {
	name := Plain(a.Name)
	return name, cmp.Or(refuseIf(name == "", "nobody is named who does it"),
		refuseIf(utf8.RuneCountInString(name) > maxActor, "a name of over %d characters", maxActor))
}

// Errors of what was asked for. The errors of servers are none of these.
var (
	// ErrRequest: what is asked for cannot be done by anybody; the error says what is wrong with it.
	ErrRequest = errors.New("this cannot be done")
	// ErrNoAct: no act has this id, in this group and queue.
	ErrNoAct = errors.New("no act has this id")
	// ErrEnded: a run that has ended cannot be stopped.
	ErrEnded = errors.New("it has ended already")
)

// refuseIf is an ErrRequest when something is so, and nil else.
func refuseIf(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrRequest, fmt.Errorf(format, args...))
}

// Busy reports whether a server let something wait in vain for a lock of somebody else's, or chose it to give way:
// asked again in a moment it may be done.
func Busy(err error) bool { return mysqldb.Classify(err) == mysqldb.FaultContention }

// Forbidden reports whether MySQL said that the account may not do this.
func Forbidden(err error) bool { return mysqldb.Denied(err) }

// newID is a UUID that sorts by time.
func newID() string { return uuid.Must(uuid.NewV7()).String() } // crypto/rand has no errors

// asJSON is a column that holds a value as JSON; it is read into a pointer, which NULL leaves alone.
type asJSON struct{ v any }

// Value writes it.
func (a asJSON) Value() (driver.Value, error) { return json.Marshal(a.v) }

// Scan reads it.
func (a asJSON) Scan(column any) error {
	text, _ := column.([]byte)
	if text == nil {
		return nil
	}
	return json.Unmarshal(text, a.v)
}

// exec runs one statement, and says how many rows it has changed.
func (d *Operator) exec(ctx context.Context, text string, args ...any) (int64, error) {
	res, err := d.db.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
