package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// effects runs the handler inside transactions.
type effects struct {
	*engine
	db      *gorm.DB
	pool    *sql.DB
	handler Handler
	checks  *checks // nil: nobody looks
}

// errHandlerTimeout is the cause of a handler's context that ended because of HandlerTimeout.
var errHandlerTimeout = errors.New("handler timeout")

// marker writes the rows of messages in the transaction of their effect: success of all who have no row, or one that
// was reopened, before it; or of all who are claimed and not blamed, behind it, while the rows are held.
type marker struct {
	records *dedup.Log
	entries []dedup.Entry
	opened  []dedup.Row   // instead: rows that were reopened and not tried since
	claims  []dedup.Claim // instead
}

// one reports whether the transaction is of one claimed message.
func (m marker) one() bool { return len(m.claims) == 1 }

func (m marker) mark(ctx context.Context, tx dedup.Execer) error {
	if m.claims != nil {
		return m.records.Hold(ctx, tx, m.claims)
	}
	if m.opened != nil {
		return m.records.ApplyAll(ctx, tx, m.opened)
	}
	return m.records.InsertSuccess(ctx, tx, m.entries)
}

// unmark takes the rows of the blamed out again.
func (m marker) unmark(ctx context.Context, tx dedup.Execer, blamed map[int]error) error {
	if m.claims != nil {
		return nil
	}
	keys := make([]dedup.Identity, 0, len(blamed))
	for i := range blamed {
		keys = append(keys, m.entries[i].Identity)
	}
	return m.records.TakeBack(ctx, tx, keys)
}

// seal writes, after the effect, what mark has not: the rows of all messages but the blamed.
func (m marker) seal(ctx context.Context, tx dedup.Execer, blamed map[int]error) error {
	done := make([]dedup.Claim, 0, len(m.claims))
	for i, c := range m.claims {
		if blamed[i] == nil {
			done = append(done, c)
		}
	}
	return m.records.SuccessAll(ctx, tx, done)
}

// apply runs mark and then the handler in one transaction and commits it. mark comes first, so that a row which moved
// costs no run of the handler and the row's lock is held while it runs. Messages that the handler blames may leave the
// transaction while the others are committed, or their COMMIT is unknown; they are returned.
func (e *effects) apply(ctx context.Context, msgs []Message, m marker) decide.Told {
	limit := e.cfg.HandlerTimeout
	bounded, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: over %v", errHandlerTimeout, limit))
	defer cancel()
	bounded, activity := mysqldb.WithActivity(bounded)
	defer activity.Watch(ctx, e.pool, limit/4)()
	tx, err := e.pool.BeginTx(bounded, nil)
	if err != nil {
		return e.unrun(e.explain(ctx, bounded, activity, fmt.Errorf("begin: %w", err), &guardedTx{ours: true}))
	}
	guard := &guardedTx{tx: tx, ours: true, alone: m.one()}
	if err := m.mark(bounded, guard); err != nil {
		_ = tx.Rollback() // whatever it says, the transaction is over: the connection is dropped if it fails
		if errors.Is(err, dedup.ErrExists) || errors.Is(err, dedup.ErrLost) {
			return decide.Told{End: decide.Moved, Err: err}
		}
		return e.unrun(e.explain(ctx, bounded, activity, err, guard))
	}
	blamed, err := e.effect(bounded, guard, msgs, m)
	if guard.left { // the transaction ends with bounded, and the rest of guard belongs to the handler
		return e.explain(ctx, bounded, activity, err, &guardedTx{})
	}
	if err == nil && m.claims != nil {
		guard.ours = true
		if err = m.seal(bounded, guard, blamed); errors.Is(err, dedup.ErrLost) {
			_ = tx.Rollback()
			return decide.Told{End: decide.Moved, Err: err}
		}
	}
	if err != nil {
		_ = tx.Rollback()
		if by := blameOf(err, len(msgs)); m.one() && by != nil {
			err = by[0] // alone: what it is blamed for may be the database's
		}
		if guard.over {
			return decide.Told{End: decide.Failed, Err: err}
		}
		return e.explain(ctx, bounded, activity, err, guard)
	}
	e.at(PointEffect)
	if err := tx.Commit(); err != nil {
		if errors.Is(err, mysqldb.ErrNotCommitted) { // the handler overlooked an error that came with rows
			return e.explain(ctx, bounded, activity, err, &guardedTx{})
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone) {
			return e.explain(ctx, bounded, activity, fmt.Errorf("commit: %w", err), guard) // nothing was sent
		}
		err = fmt.Errorf("%w: commit of %d messages: %w", dedup.ErrUnknown, len(msgs)-len(blamed), err)
		return decide.Told{End: decide.Unsure, Blamed: blamed, Err: err}
	}
	e.at(PointCommitted)
	return decide.Told{End: decide.Committed, Blamed: blamed}
}

// effect calls the handler. When it blames some and has applied the others, the rows of the blamed are taken out. When
// it blames some of many otherwise, what it wrote is undone up to a savepoint, the rows of the blamed are taken out,
// and it is called again with the others, so that failing messages do not cost their neighbours their transaction. That
// is repeated while there is time and most are not blamed; otherwise the blame is the error.
func (e *effects) effect(
	bounded context.Context, guard *guardedTx, msgs []Message, m marker,
) (blamed map[int]error, err error) {
	began := time.Now()
	if err := guard.save(bounded); err != nil {
		return nil, err
	}
	rest, at := msgs, make([]int, len(msgs)) // at: where each of rest stands in msgs
	for i := range at {
		at[i] = i
	}
	for {
		guard.ours = false
		begun, err := e.call(bounded, guard, rest)
		var now map[int]error // whom it blames, by its place among msgs: err counts from the first of rest
		for i, cause := range blameOf(err, len(rest)) {
			if now == nil {
				now = map[int]error{}
			}
			now[at[i]] = cause
		}
		if guard.left {
			return nil, blameAll(now)
		}
		do := "ROLLBACK TO" // InnoDB keeps the locks of what is undone until the end of the transaction
		if err == nil && guard.failed == nil || appliedOthers(err) {
			do = "RELEASE"
		}
		asked := guard.returned(bounded, do)
		if err == nil {
			err = guard.failed // an error that the handler swallowed: MySQL may have rolled back
		}
		switch {
		case guard.over: // whoever had begun may have done anything; what had not is tried anew
			blamed = map[int]error{}
			for _, i := range at[:begun] {
				blamed[i] = Permanent(asked)
			}
			return nil, blameAll(blamed)
		case err == nil:
			return blamed, asked
		case now == nil && len(blamed) > 0 && bounded.Err() == nil && guard.failed == nil:
			return nil, blameAll(blamed) // it holds; what is wrong with the others shows when they are tried anew
		case now == nil, m.one() && !appliedOthers(err):
			return nil, err
		}
		if blamed == nil {
			blamed = make(map[int]error, len(now))
		}
		maps.Copy(blamed, now)
		if bounded.Err() != nil || guard.failed != nil {
			return nil, blameAll(blamed)
		}
		guard.ours = true
		switch {
		case asked != nil:
			return nil, fmt.Errorf("undo what was written before %v: %w", err, asked) //nolint:errorlint // trouble, not blame
		case appliedOthers(err) && !m.one() && m.opened == nil && len(blamed) < len(msgs):
			return blamed, m.unmark(bounded, guard, now)
		case m.one(), m.opened != nil, 2*len(blamed) > len(msgs), time.Since(began) > e.cfg.HandlerTimeout/3:
			return nil, blameAll(blamed)
		}
		if err := m.unmark(bounded, guard, now); err != nil {
			return nil, err
		}
		if err := guard.save(bounded); err != nil { // behind what was just taken out: the next undoing must not bring it back
			return nil, err
		}
		rest, at = nil, at[:0]
		for i := range msgs {
			if blamed[i] == nil {
				rest, at = append(rest, msgs[i]), append(at, i)
			}
		}
	}
}

// appliedOthers reports whether the handler has applied all messages that err does not blame.
func appliedOthers(err error) bool {
	blame, ok := errors.AsType[*BlameError](err)
	return ok && blame.OthersApplied
}

// blameAll is the blame of all these messages.
func blameAll(blamed map[int]error) error {
	msgs := make([]BlamedMessage, 0, len(blamed))
	for i, err := range blamed {
		msgs = append(msgs, BlamedMessage{Index: i, Err: err})
	}
	return Blame(msgs...)
}

// call calls the handler. One that does not return although its time is over keeps its transaction, which nobody
// commits; blamed is whom it was at, as far as that is known. Begun is how many of msgs it had begun with.
func (e *effects) call(ctx context.Context, guard *guardedTx, msgs []Message) (begun int, err error) {
	began, given := time.Now(), slices.Clone(msgs)
	at, err := e.runner.Run(ctx, calling(given), func(ctx context.Context) error {
		if e.checks == nil {
			return e.handler.Handle(ctx, gormOver(ctx, e.db, guard), given)
		}
		return e.checks.handle(ctx, guard, e.handler, given, func(tx gorm.ConnPool) error {
			return e.handler.Handle(ctx, gormOver(ctx, e.db, tx), given)
		})
	})
	err = inPlace(err, given, msgs)
	if begun = at + 1; begun == 0 {
		begun = len(msgs)
	}
	if stuck, ok := errors.AsType[*runner.StuckError](err); ok {
		guard.left = true
		err = blameStuck(stuck, len(msgs))
	} else if errors.Is(guard.failed, errUnread) {
		return begun, guard.failed // whatever the handler made of it: it is called again
	} else if errors.Is(guard.failed, ErrEndsTransaction) && blameOf(err, len(msgs)) == nil {
		err = guard.failed
	}
	if guard.changed == nil {
		e.metrics.handled(began, err)
	}
	return begun, ofEach(err, len(msgs))
}

// blameStuck blames whom a call was at, or all n messages that it was called with.
func blameStuck(stuck *runner.StuckError, n int) error {
	all := map[int]error{}
	for i := range n {
		if stuck.At < 0 || stuck.At == i {
			all[i] = stuck
		}
	}
	return blameAll(all)
}

// calling are the messages that the engine calls a handler with.
type calling []Message

// Name names the message that a call was at, or of how many it is one.
func (c calling) Name(at int) string {
	if at >= 0 || len(c) == 1 {
		return c[max(at, 0)].Identity.String()
	}
	return fmt.Sprintf("one of %d messages, the first is %v", len(c), c[0].Identity)
}

// explain sorts an error of an uncommitted transaction. The first statement's error that the guard saw outweighs what
// the handler made of it.
func (e *effects) explain(
	ctx, bounded context.Context, activity *mysqldb.Activity, err error, guard *guardedTx,
) decide.Told {
	switch cut := activity.Cut(); {
	case cut == nil || bounded.Err() == nil:
	case ctx.Err() != nil: // the engine stops, and has claims to give back whose rows this statement's transaction locks
		e.end(ctx, cut)
		return decide.Told{End: decide.Stopped, Err: context.Cause(ctx)}
	default:
		return e.cutOff(ctx, context.Cause(bounded), activity, cut)
	}
	fault := mysqldb.FaultNone
	for _, one := range []error{err, guard.failed} {
		of := mysqldb.Classify(one)
		if guard.ours && mysqldb.Refuses(one) { // a trigger on the log, or a table of ours that is not what it was
			of = mysqldb.FaultUnavailable
		}
		if isNobodys(of) {
			fault, err = of, one
		}
	}
	contended := fault == mysqldb.FaultNone && errors.Is(err, signContention) && guard.failed == nil
	switch {
	case ctx.Err() != nil: // not the database's fault
		return decide.Told{End: decide.Stopped, Err: context.Cause(ctx)}
	case fault == mysqldb.FaultTooLarge:
		return decide.Told{End: decide.TooLarge, Err: err}
	case fault == mysqldb.FaultUnavailable && bounded.Err() == nil:
		return decide.Told{End: decide.Away, Err: err}
	case contended, fault == mysqldb.FaultContention:
		return decide.Told{End: decide.Met, Err: err}
	case bounded.Err() == nil:
		return decide.Told{End: decide.Failed, Err: err}
	}
	// Too slow, or stuck on a server that does not answer, or did the driver cut the connection because time was over? Ask
	// the server.
	asking, cancel := context.WithTimeoutCause(ctx, signOfLife, fmt.Errorf("no answer to a ping within %v", signOfLife))
	defer cancel()
	if down := e.pool.PingContext(asking); down != nil {
		return decide.Told{End: decide.Away, Err: fmt.Errorf("%w, and the database does not answer: %w", err, down)}
	}
	if took, waited := activity.Inside(); waited && took > e.cfg.HandlerTimeout/2 { // in several statements, none cut off
		err := fmt.Errorf("%w, of which locks of others took a part of %v", context.Cause(bounded), took)
		return decide.Told{End: decide.Met, Err: err}
	}
	return decide.Told{End: decide.Failed, Late: true, Err: fmt.Errorf("%w (%w)", context.Cause(bounded), err)}
}

// isNobodys reports whether a fault says something about a server, or that transactions met.
func isNobodys(f mysqldb.Fault) bool {
	return f == mysqldb.FaultContention || f == mysqldb.FaultTooLarge || f == mysqldb.FaultUnavailable
}

// excuses reports whether the error of a blamed message says something about a server, or that transactions met:
// although a handler made it blame, it is none.
func excuses(err error) bool {
	return errors.Is(err, signContention) || isNobodys(mysqldb.Classify(err)) || errors.Is(err, errUnread)
}

// cutOff is the error of a transaction whose time ended inside a statement. Whether that waits for a lock is asked of
// the server while it is still at it, and it may have waited before; then it is ended, because the next try would have
// to wait for its locks.
func (e *effects) cutOff(
	ctx context.Context, cause error, activity *mysqldb.Activity, cut *mysqldb.CutStatement,
) decide.Told {
	ctx, cancel := context.WithTimeoutCause(ctx, signOfLife, fmt.Errorf("no answer within %v", signOfLife))
	defer cancel()
	waits, err := cut.End(ctx, e.pool)
	_, waited := activity.Inside()
	switch {
	case err != nil:
		err = fmt.Errorf("%w in %v, and the database does not answer: %w", cause, cut, err)
		return decide.Told{End: decide.Away, Err: err}
	case waits || waited:
		return decide.Told{End: decide.Met, Err: fmt.Errorf("%w, of which locks of others took a part: %v", cause, cut)}
	}
	return decide.Told{End: decide.Slow, Err: fmt.Errorf("time ran out inside a statement: %w: %v", cause, cut)}
}

// end ends a statement that was cut off because the engine stops, if the server answers at once.
func (e *effects) end(ctx context.Context, cut *mysqldb.CutStatement) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace/2)
	defer cancel()
	_, _ = cut.End(ctx, e.pool) // else the claims stay until their leases end
}

// unrun is what is told of a call that never came to its handler: time that was lost to a full pool or a slow server is
// no failure of the messages.
func (e *effects) unrun(t decide.Told) decide.Told {
	if errors.Is(t.Err, errHandlerTimeout) && t.End != decide.Met {
		return decide.Told{End: decide.Away, Err: fmt.Errorf("before the handler was called: %w", t.Err)}
	}
	return t
}

// signOfLife is how long a server may take to show that it is there.
const signOfLife = 2 * time.Second
