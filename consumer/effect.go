package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
)

// effects runs the handler inside transactions. Its errors are of four kinds, told apart by errors.Is and errors.As:
//
//   - dedup.ErrExists, dedup.ErrLost: the row moved; nothing was committed.
//   - dedup.ErrUnknown: the COMMIT's answer was lost; the effect may be committed or not, or be committed later.
//   - *handlerError: the messages failed; nothing was committed.
//   - *troubleError: a dependency failed or two transactions met; nothing was committed, no message is to blame.
type effects struct {
	db      *gorm.DB
	pool    *sql.DB
	handler Handler
	timeout time.Duration
	hook    func(Point)
}

// handlerError is a failure of the messages themselves.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// troubleError is anything that says nothing about this message's data.
type troubleError struct {
	fault dedup.Fault
	err   error
}

func (e *troubleError) Error() string { return e.err.Error() }
func (e *troubleError) Unwrap() error { return e.err }

// errHandlerTimeout is the cause of a handler's context that ended because of HandlerTimeout.
var errHandlerTimeout = errors.New("handler timeout")

// panicError is a handler's panic, with its stack.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("handler panicked: %v\n%s", e.value, e.stack) }

// marker writes the rows of messages in the transaction of their effect.
type marker struct {
	mark func(context.Context, dedup.Execer) error
	// unmark takes the rows of these messages out again; nil when the transaction has only one message.
	unmark func(context.Context, dedup.Execer, map[int]error) error
}

// apply runs mark and then the handler in one transaction and commits it. mark comes first, so that a row which moved
// costs no run of the handler and the row's lock is held while it runs. Messages that the handler blames may leave the
// transaction while the others are committed, or their COMMIT is unknown; they are returned.
func (e *effects) apply(ctx context.Context, msgs []Message, m marker) (blamed map[int]error, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, e.timeout, fmt.Errorf("%w: over %v", errHandlerTimeout, e.timeout))
	defer cancel()
	tx, err := e.pool.BeginTx(bounded, nil)
	if err != nil {
		return nil, e.unrun(e.explain(ctx, bounded, fmt.Errorf("begin: %w", err), nil))
	}
	guard := &guardedTx{tx: tx}
	if err := m.mark(bounded, guard); err != nil {
		_ = tx.Rollback() // whatever it says, the transaction is over: the connection is dropped if it fails
		if errors.Is(err, dedup.ErrExists) || errors.Is(err, dedup.ErrLost) {
			return nil, err
		}
		return nil, e.unrun(e.explain(ctx, bounded, err, guard.failed))
	}
	blamed, err = e.effect(bounded, guard, msgs, m)
	if err == nil {
		err = guard.failed // an error that the handler swallowed: MySQL may have rolled back
	}
	if err != nil {
		_ = tx.Rollback()
		if by := blameOf(err, len(msgs)); m.unmark == nil && by != nil {
			err = by[0] // alone: what it is blamed for may be the database's
		}
		return nil, e.explain(ctx, bounded, err, guard.failed)
	}
	e.at(PointEffect)
	if err := tx.Commit(); err != nil {
		if errors.Is(err, dedup.ErrNotCommitted) {
			return nil, e.explain(ctx, bounded, err, nil) // the handler overlooked an error that came with rows
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone) {
			return nil, e.explain(ctx, bounded, fmt.Errorf("commit: %w", err), nil) // refused before anything was sent
		}
		return blamed, fmt.Errorf("%w: commit of %d messages: %w", dedup.ErrUnknown, len(msgs)-len(blamed), err)
	}
	e.at(PointCommitted)
	return blamed, nil
}

const (
	// A transaction of fewer messages than this is begun anew when one of them is blamed: that costs less than a
	// savepoint in each.
	leastForSavepoint = 16
	// More than this many blamed are a reason to begin anew.
	mostUnmarked = 16
)

// effect calls the handler. When it blames some of many messages, what it wrote is undone up to a savepoint, the rows of
// the blamed are taken out, and it is called once more with the others, so that one poisoned message does not cost its
// neighbours their transaction. That is tried once, and while there is time; otherwise the blame is the error.
func (e *effects) effect(bounded context.Context, guard *guardedTx, msgs []Message, m marker) (blamed map[int]error, err error) {
	began := time.Now()
	saved := m.unmark != nil && len(msgs) >= leastForSavepoint
	if saved {
		if _, err := guard.ExecContext(bounded, "SAVEPOINT rollbackd_batch"); err != nil {
			return nil, fmt.Errorf("savepoint: %w", err)
		}
	}
	err = e.call(bounded, gormOver(bounded, e.db, guard), msgs)
	blamed = blameOf(err, len(msgs))
	few := len(blamed) <= mostUnmarked && len(blamed) < len(msgs)
	if !saved || blamed == nil || !few || guard.failed != nil || time.Since(began) > e.timeout/3 {
		return nil, err
	}
	// InnoDB keeps the locks of what is undone until the end of the transaction.
	if _, undone := guard.ExecContext(bounded, "ROLLBACK TO SAVEPOINT rollbackd_batch"); undone != nil {
		return nil, fmt.Errorf("undo what was written before %w: %w", err, undone)
	}
	if err := m.unmark(bounded, guard, blamed); err != nil {
		return nil, err
	}
	rest := make([]Message, 0, len(msgs))
	for i := range msgs {
		if blamed[i] == nil {
			rest = append(rest, msgs[i])
		}
	}
	if e.call(bounded, gormOver(bounded, e.db, guard), rest) != nil {
		return nil, err // the first blame holds; what is wrong with the others shows when they are tried anew
	}
	return blamed, nil
}

// call calls the handler and turns its panic into an error.
func (e *effects) call(ctx context.Context, tx *gorm.DB, msgs []Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return e.handler.Handle(ctx, tx, msgs)
}

// explain sorts an error of an uncommitted transaction. failed is the first statement's error that the guard saw: it
// outweighs what the handler made of it.
func (e *effects) explain(ctx, bounded context.Context, err, failed error) error {
	for _, err := range []error{failed, err} {
		switch fault := dedup.Classify(err); fault {
		case dedup.FaultContention, dedup.FaultTooLarge, dedup.FaultUnavailable:
			if ctx.Err() != nil {
				return context.Cause(ctx) // the engine stops: not the database's fault
			}
			if fault == dedup.FaultUnavailable && bounded.Err() != nil && e.answers(ctx) == nil {
				return &handlerError{context.Cause(bounded)} // the driver cut the connection because time was over
			}
			return &troubleError{fault, err}
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case bounded.Err() != nil:
		// Too slow, or stuck on a server that does not answer? Ask the server.
		if down := e.answers(ctx); down != nil {
			return &troubleError{dedup.FaultUnavailable, fmt.Errorf("%w, and the database does not answer: %w", err, down)}
		}
		return &handlerError{fmt.Errorf("%w (%w)", context.Cause(bounded), err)}
	}
	return &handlerError{err}
}

// unrun is the error of a call that never came to its handler: time that was lost to a full pool or to others' locks is
// no failure of the messages.
func (e *effects) unrun(err error) error {
	if errors.Is(err, errHandlerTimeout) {
		return &troubleError{dedup.FaultUnavailable, fmt.Errorf("before the handler was called: %w", err)}
	}
	return err
}

// answers asks the database for a sign of life on a connection of its own.
func (e *effects) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("no answer to a ping within 2s"))
	defer cancel()
	return e.pool.PingContext(ctx)
}

func (e *effects) at(p Point) {
	if e.hook != nil {
		e.hook(p)
	}
}
