package mysqldb

import (
	"context"
	"database/sql/driver"
	"errors"
)

// Repeated makes a context for a statement with placeholders that is run again and again, word for word. A connection
// of [Open] prepares it when it comes for the second time in a row, and keeps it until another one does: the server
// then reads the values alone, and no text. It is for statements of many rows, because the second run costs a round
// trip more. On other connections the context changes nothing.
func Repeated(ctx context.Context) context.Context { return context.WithValue(ctx, repeating, true) }

// repeated is what one connection knows of repeated statements. It keeps one: of 1,000 rows, that takes the server some
// MiB.
type repeated struct {
	last    string // the last one that came
	text    string // the one that is prepared
	stmt    driver.Stmt
	refused bool // the server prepares none
}

// exec executes a repeated statement, prepared if it came before.
func (r *repeated) exec(ctx context.Context, conn wholeConn, text string, args []driver.NamedValue) (
	driver.Result, error,
) {
	again := text == r.last
	r.last = text
	if again && text != r.text && !r.refused {
		if err := r.prepare(ctx, conn, text); err != nil {
			return nil, err
		}
	}
	if text != r.text {
		return conn.ExecContext(ctx, text, args)
	}
	return r.stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

// prepare puts text in the place of what was prepared. A server that refuses is not asked again on this connection: it
// has too many, or is a proxy that knows none, or will say of the text too what is wrong with it.
func (r *repeated) prepare(ctx context.Context, conn driver.ConnPrepareContext, text string) error {
	var closed error
	if r.stmt != nil {
		closed = r.stmt.Close()
	}
	r.text, r.stmt = "", nil
	stmt, err := conn.PrepareContext(ctx, text)
	switch {
	case err == nil:
		r.text, r.stmt = text, stmt
	case Answered(err) && Classify(err) != FaultContention: // which may have ended the transaction
		r.refused, err = true, nil
	}
	return errors.Join(closed, err)
}
