package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// Activity knows what a transaction's time went by with, and whether it ended while a statement was in the hands of the
// database. It is of one transaction, on a connection of [Open].
type Activity struct {
	conn   atomic.Int64 // the server's number of the transaction's connection, 0 before it begins
	waited atomic.Bool  // Watch has seen that it may wait for a lock
	cut    atomic.Pointer[CutStatement]
	inside atomic.Int64 // nanoseconds in the hands of the database
}

type activityKey struct{}

// WithActivity makes a context; the transaction that begins with it is observed.
func WithActivity(ctx context.Context) (context.Context, *Activity) {
	a := &Activity{}
	return context.WithValue(ctx, activityKey{}, a), a
}

// Cut is the statement that was cut off because its context ended, nil if none was.
func (a *Activity) Cut() *CutStatement { return a.cut.Load() }

// Inside is how long the transaction was in the hands of the database, and whether [Activity.Watch] has seen that
// it may have waited for a lock of somebody else's meanwhile.
func (a *Activity) Inside() (took time.Duration, waited bool) {
	return time.Duration(a.inside.Load()), a.waited.Load()
}

// Watch looks from time to time whether the transaction may be waiting for a lock, from after on until stop is
// called or it has seen that. It needs a connection of db, which only a slow transaction asks for. As in
// [CutStatement.End] only a server on which no transaction waits for a row says no.
func (a *Activity) Watch(ctx context.Context, db *sql.DB, after time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	timer := time.AfterFunc(after, func() {
		defer close(done)
		a.watch(ctx, db, after/watchesPerWait)
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-done
		}
	}
}

// watchesPerWait is how often Watch looks in the time after which it begins.
const watchesPerWait = 4

func (a *Activity) watch(ctx context.Context, db *sql.DB, every time.Duration) {
	began := int64(-1) // waits for rows that had begun on the whole server when last looked
	for {
		var p Process
		if conn := a.conn.Load(); conn != 0 { // what it cannot see is no wait: the next look may
			p, _ = ProcessOf(ctx, db, conn)
		}
		begun, waiting, err := rowLockWaits(ctx, db)
		if waitsForTable(p.State) || err == nil && (waiting > 0 || began >= 0 && begun > began) {
			a.waited.Store(true)
			return
		}
		if err == nil {
			began = begun
		}
		if wait.For(ctx, every) != nil {
			return
		}
	}
}

// rowLockWaits counts the waits for rows on the whole server: those that ever were, and those of now.
func rowLockWaits(ctx context.Context, db *sql.DB) (ever, now int64, err error) {
	found := map[string]int64{}
	_, err = List(ctx, db, func(rows *sql.Rows) (name string, err error) {
		var n int64
		err = rows.Scan(&name, &n)
		found[strings.ToLower(name)] = n
		return name, err
	}, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_row_lock_waits', 'Innodb_row_lock_current_waits')")
	if err == nil && len(found) != 2 {
		err = errors.New("the server does not count waits for rows")
	}
	return found["innodb_row_lock_waits"], found["innodb_row_lock_current_waits"], err
}

// waitsForTable reads a connection's state: "Waiting for table metadata lock" and the like.
func waitsForTable(state string) bool { return strings.HasPrefix(state, "Waiting for") }

// on says on which connection the transaction is.
func (a *Activity) on(conn int64) {
	if a != nil {
		a.conn.Store(conn)
	}
}

// stint is a time in the hands of the database. It is a value, because each row is one.
type stint struct {
	*Activity // nil: nobody asks
	ctx       context.Context
	conn      int64
	text      string
	began     time.Time
}

// begin is called before the driver is asked to do something, and end after that. A context that had ended before is
// nobody's wait.
func (a *Activity) begin(ctx context.Context, conn int64, text string) stint {
	if a == nil || ctx.Err() != nil {
		return stint{}
	}
	return stint{a, ctx, conn, text, time.Now()}
}

func (s stint) end(err error) {
	if s.Activity == nil {
		return
	}
	took := time.Since(s.began)
	s.inside.Add(int64(took))
	if err != nil && s.ctx.Err() != nil { // the first one is it
		s.cut.CompareAndSwap(nil, &CutStatement{conn: s.conn, beginning: s.text[:min(len(s.text), cutBeginning)], Took: took})
	}
}

// CutStatement is a statement whose caller has hung up. The server does not notice that before it answers: until
// then the statement runs on, or waits, and keeps the locks of its transaction.
type CutStatement struct {
	// Took is how long its answer was waited for.
	Took time.Duration

	conn      int64 // the server's number of its connection
	beginning string
}

// cutBeginning is how much of a statement tells it from what another client may run under its connection's number.
const cutBeginning = 40

// String is how the statement begins.
func (c *CutStatement) String() string {
	return fmt.Sprintf("%q…, after %v", c.beginning, c.Took.Round(time.Millisecond))
}

// End ends the statement on the server, so that nobody waits for its locks, and reports whether it may have waited
// for a lock of somebody else's when it was cut off: then it says nothing of its message. Only a server that has
// the statement at work, while no transaction at all waits for a row, says no. An error means that the server does
// not answer.
//
// No right is needed: every user sees and may kill its own connections.
func (c *CutStatement) End(ctx context.Context, db *sql.DB) (waited bool, err error) {
	p, err := ProcessOf(ctx, db, c.conn)
	if errors.Is(err, sql.ErrNoRows) || err == nil && !c.is(p.Statement) {
		return true, nil // it is over, or behind a proxy
	}
	if Answered(err) {
		return true, nil // a server that will not tell
	}
	if err != nil {
		return false, err
	}
	_, now, err := rowLockWaits(ctx, db)
	waited = err != nil || now > 0 || waitsForTable(p.State)
	if _, err := db.ExecContext(ctx, fmt.Sprintf("KILL %d", c.conn)); err != nil && ctx.Err() != nil {
		return false, err // else it has ended by itself
	}
	return waited, nil
}

// is compares up to the first placeholder, because the server shows values in their places.
func (c *CutStatement) is(text string) bool {
	beginning, _, _ := strings.Cut(c.beginning, "?")
	return text != "" && strings.HasPrefix(text, beginning)
}

// Process is what a server tells of a connection.
type Process struct {
	Host      string // where it comes from, mostly with its port
	State     string // what it is at, in the server's words
	Statement string // its first 100 characters; "" when it has none at work
}

// ProcessOf looks at the connection of this number: sql.ErrNoRows when there is none, or when this user may not see it.
// Everybody sees its own.
//
// It asks by SHOW PROCESSLIST. information_schema.PROCESSLIST fails on MySQL 9 as a whole, whatever is selected of it,
// while any visible connection has bytes in its statement that are no text, such as our keys and hashes (error 3854).
func ProcessOf(ctx context.Context, db *sql.DB, connection int64) (Process, error) {
	type row struct {
		id int64
		Process
	}
	all, err := List(ctx, db, func(rows *sql.Rows) (r row, err error) {
		var skip sql.RawBytes
		into := []any{&r.id, &skip, OrZero(&r.Host), &skip, &skip, &skip, OrZero(&r.State), OrZero(&r.Statement)}
		columns, err := rows.Columns()
		for range len(columns) - len(into) { // MariaDB has one more than MySQL
			into = append(into, &skip)
		}
		return r, errors.Join(err, rows.Scan(into...))
	}, "SHOW PROCESSLIST")
	if err != nil {
		return Process{}, fmt.Errorf("look at connection %d: %w", connection, err)
	}
	for _, r := range all {
		if r.id == connection {
			return r.Process, nil
		}
	}
	return Process{}, sql.ErrNoRows
}
