package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"go.opentelemetry.io/otel/propagation"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Tx is a transaction: a *sql.Tx, or the ConnPool of gorm's (tx.Statement.ConnPool). In a handler of package consumer
// that is consumer.SQL(tx). A pool or a bare connection has the method too, and is refused with [ErrNoTransaction].
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Errors that errors.Is tells.
var (
	// ErrNoTransaction says that Put or Cancel was given a pool or a connection: the message would be committed by
	// itself, whatever becomes of the business change.
	ErrNoTransaction = errors.New("outbox: want a transaction, such as *sql.Tx; a pool or a connection commits each " +
		"statement by itself")
	// ErrConflict says that a message with the same tag and key and another body waits in the outbox. Roll back.
	ErrConflict = errors.New("a message with this tag and key and another body waits in the outbox")
)

// A statement holds at most so many rows, and about so many bytes: what servers take by default is 16 MiB.
const (
	rowsPerStatement  = 500
	bytesPerStatement = 2 << 20
)

// Put writes messages into the outbox within tx: a relay sends them after tx is committed, and never if it is rolled
// back. What already waits with the same tag, key and body is there once, and keeps its time; with another body it is
// an [ErrConflict]. After any error tx must be rolled back. A trace in ctx goes with the messages.
func Put(ctx context.Context, tx Tx, msgs ...Message) error {
	if err := checkTx(tx); err != nil {
		return err
	}
	rows, err := rowsOf(ctx, msgs)
	if err != nil {
		return err
	}
	for part := range parts(rows) {
		err := insert(ctx, tx, part)
		if mysqldb.NoTable(err) {
			err = fmt.Errorf("%w (`rollbackd migrate --outbox` makes it, and so does a consumer with Migrate and Outbox)", err)
		}
		if err != nil {
			return fmt.Errorf("outbox: put: %w", err)
		}
	}
	return nil
}

// checkTx refuses what is known not to be a transaction.
func checkTx(tx Tx) error {
	switch tx.(type) {
	case nil, interface {
		BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	}, gorm.ConnPoolBeginner:
		return ErrNoTransaction
	}
	return nil
}

// rowsOf are the rows of messages in the order of the primary key, each once.
func rowsOf(ctx context.Context, msgs []Message) ([]row, error) {
	rows := make([]row, len(msgs))
	for i, m := range msgs {
		var err error
		m.Headers = withTrace(ctx, m.Headers)
		if rows[i], err = m.row(); err != nil {
			return nil, fmt.Errorf("outbox: %w", err)
		}
	}
	slices.SortStableFunc(rows, row.compare)
	last := 0
	for i := 1; i < len(rows); i++ {
		switch {
		case rows[last].compare(rows[i]) != 0:
			last++
			rows[last] = rows[i]
		case !bytes.Equal(rows[last].body, rows[i].body):
			return nil, fmt.Errorf("outbox: put %s/%q twice: %w", rows[i].tag, rows[i].key, ErrConflict)
		}
	}
	return rows[:min(len(rows), last+1)], nil
}

// parts cuts rows into what one statement may hold.
func parts(rows []row) func(yield func([]row) bool) {
	return func(yield func([]row) bool) {
		for len(rows) > 0 {
			n, size := 0, 0
			for n < min(len(rows), rowsPerStatement) && (n == 0 || size < bytesPerStatement) {
				size += len(rows[n].body) + len(rows[n].headers) + 1024
				n++
			}
			if !yield(rows[:n]) {
				return
			}
			rows = rows[n:]
		}
	}
}

const insertInto = "INSERT INTO rollbackd_outbox " +
	"(msg_tag, msg_key, body, content_type, headers, exchange, routing_key, due_at) VALUES "

const insertRow = "(?, ?, ?, ?, ?, ?, ?, COALESCE(?, UTC_TIMESTAMP(6)) + INTERVAL ? MICROSECOND)"

// EXP leaves the numbers that the server knows when the bodies differ, which is an error in every SQL mode; when they
// are equal the row keeps what it has. It is decided where the row is locked, and needs no second statement, whose
// snapshot might be too old to see the row.
const onDuplicate = " ON DUPLICATE KEY UPDATE tries = tries + EXP(1000 * (body <> VALUES(body))) - 1"

// outOfRange is the server's number for it.
const outOfRange = 1690

func insert(ctx context.Context, tx Tx, rows []row) error {
	args := make([]any, 0, 9*len(rows))
	for _, r := range rows {
		args = append(args, r.tag, r.key, r.body, r.contentType, r.headers, r.exchange, r.routingKey, r.notBefore, r.delay)
	}
	_, err := tx.ExecContext(ctx, insertInto+strings.Repeat(insertRow+", ", len(rows)-1)+insertRow+onDuplicate, args...)
	if !isConflict(err) {
		return err
	}
	return fmt.Errorf("%s: %w", conflicting(ctx, tx, rows, err), ErrConflict)
}

func isConflict(err error) bool {
	server, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && server.Number == outOfRange
}

// conflicting names the message whose body differs from what waits, by looking at one after the other. A handler's
// transaction takes no statement after the first that failed, and answers with what that one said.
func conflicting(ctx context.Context, tx Tx, rows []row, said error) string {
	first, _ := errors.AsType[*mysql.MySQLError](said)
	for _, r := range rows {
		_, err := tx.ExecContext(ctx, "UPDATE rollbackd_outbox SET tries = tries + EXP(1000 * (body <> ?)) - 1 "+
			"WHERE msg_tag = ? AND msg_key = ?", r.body, r.tag, r.key)
		if again, _ := errors.AsType[*mysql.MySQLError](err); again == first && len(rows) > 1 {
			break
		}
		if isConflict(err) {
			return fmt.Sprintf("%s/%q", r.tag, r.key)
		}
	}
	return fmt.Sprintf("one of %d messages", len(rows))
}

// cancelled is the owner of the row that a Cancel makes and removes again.
const cancelled = "cancel"

// Cancel takes back, within tx, the message with this tag and key, if no relay has taken it up. It reports whether it
// was in time: then, once tx is committed, the message is never sent. If not, it was sent, or is perhaps being sent, or
// was never there (a Put that is not committed yet is waited for). After an error tx must be rolled back.
//
// A key that is absent is no reason to lock its neighbours: a plain DELETE of it would keep others from inserting
// beside it, and two that cancel and then put would deadlock (under REPEATABLE READ, MySQL's default). So the row is
// made first, which locks one record, and removed. Where that waits for a row which a relay deletes meanwhile, InnoDB
// may have purged it when Cancel goes on, and have moved its lock to the gap, under READ COMMITTED too (seen on MariaDB
// 10.11): an INSERT beside it waits for tx then. A deadlock (error 1213) is answered by doing tx again.
func Cancel(ctx context.Context, tx Tx, tag, key string) (inTime bool, err error) {
	if err := checkTx(tx); err != nil {
		return false, err
	}
	if err := (dedup.Identity{Group: "-", Tag: tag, Key: key}).Validate(); err != nil {
		return false, fmt.Errorf("outbox: cancel: %w", err)
	}
	defer func() {
		if err != nil {
			inTime, err = false, fmt.Errorf("outbox: cancel %s/%q: %w", tag, key, err)
		}
	}()
	_, err = tx.ExecContext(ctx, "INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner, next_at) "+
		"VALUES (?, ?, '', ?, ?) ON DUPLICATE KEY UPDATE tries = tries", []byte(tag), []byte(key), cancelled, never)
	if err != nil {
		return false, err
	}
	for _, owner := range []string{"owner IS NULL", "owner = '" + cancelled + "'"} {
		res, err := tx.ExecContext(ctx, "DELETE FROM rollbackd_outbox WHERE msg_tag = ? AND msg_key = ? AND "+owner,
			[]byte(tag), []byte(key))
		if err != nil {
			return false, err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err == nil && owner == "owner IS NULL", err
		}
	}
	return false, nil
}

// never is the next_at of what no relay looks at.
const never = "9999-12-31 00:00:00"

// withTrace adds the trace of ctx to headers, as W3C Trace Context, unless they have one.
func withTrace(ctx context.Context, headers map[string]any) map[string]any {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if _, ok := headers["traceparent"]; ok || len(carrier) == 0 {
		return headers
	}
	headers = maps.Clone(headers)
	if headers == nil {
		headers = map[string]any{}
	}
	for name, v := range carrier {
		headers[name] = v
	}
	return headers
}
