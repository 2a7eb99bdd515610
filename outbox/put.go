package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

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
