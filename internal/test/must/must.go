// Package must lets a step of the rig stop at the first thing that cannot be done, as t.Fatal does in a test: whoever
// begins a step catches what has stopped it. What steps do most is here too: statements, rows, and steps side by side.
// Nothing of the product may live here or use it.
package must

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// stopped is what a step panics with.
type stopped struct{ error }

// OK stops the step unless err is nil. The words, if there are any, say what could not be done.
func OK(err error, words ...any) {
	if err == nil {
		return
	}
	if len(words) > 0 {
		err = fmt.Errorf("%s: %w", fmt.Sprint(words...), err)
	}
	panic(stopped{err})
}

// Get returns v, or stops the step.
func Get[T any](v T, err error) T {
	OK(err)
	return v
}

// Catch does a step and returns what has stopped it.
func Catch(step func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case stopped:
			err = r.error
		default:
			panic(r)
		}
	}()
	step()
	return nil
}

// Side does so many steps side by side, and stops when all have ended and one was stopped.
func Side(n int, step func(i int)) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = Catch(func() { step(i) }) })
	}
	wg.Wait()
	OK(errors.Join(errs...))
}

// Together does these steps side by side, as Side does.
func Together(steps ...func()) { Side(len(steps), func(i int) { steps[i]() }) }

// database is a pool, a connection, or a transaction.
type database interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Exec runs statements.
func Exec(ctx context.Context, db database, statements ...string) {
	for _, s := range statements {
		_, err := db.ExecContext(ctx, s)
		OK(err, s)
	}
}

// Rows calls see for each row that a query finds, with what reads the row.
func Rows(ctx context.Context, db database, query string, see func(scan func(...any)), args ...any) {
	rows, err := db.QueryContext(ctx, query, args...)
	OK(err, query)
	defer rows.Close()
	for rows.Next() {
		see(func(into ...any) { OK(rows.Scan(into...), query) })
	}
	OK(rows.Err(), query)
}

// Value is the one value that a query finds.
func Value[T any](ctx context.Context, db database, query string, args ...any) (v T) {
	found := false
	Rows(ctx, db, query, func(scan func(...any)) { scan(&v); found = true }, args...)
	if !found {
		OK(sql.ErrNoRows, query)
	}
	return v
}
