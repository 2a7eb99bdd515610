package dedup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// begin is the change by the arrow of an action that starts from a row. If anything is wrong with what it is called
// with, it has an err, and is not made. It keeps the version but for the status: what else the arrow does is its
// caller's.
func (l *Log) begin(a action, from Row, wrong ...error) *change {
	if from.Status == Absent {
		from = absent(from.Identity)
	}
	step, ok := transitionOf(a, from.Status)
	c := &change{step: step, was: &from, key: from.Identity, from: from.Version, to: from.Version}
	c.to.Status = step.To
	c.err = cmp.Or(append(wrong, from.Identity.Validate())...)
	switch {
	case c.err != nil:
	case !ok:
		c.err = fmt.Errorf("%w from %v", ErrTransition, from.Status)
	case step.Guard&guardOwner != 0 && !from.claimed:
		c.err = fmt.Errorf("%w from %v without its claim", ErrTransition, from.Status)
	}
	return c
}

// failure says what hinders the change; nil when nothing does, or did.
func (c *change) failure() error {
	if c.err == nil {
		return nil
	}
	return fmt.Errorf("%s %v: %w", c.step.Action, c.key, c.err)
}

// left is the row as a change left it.
func (l *Log) left(c *change) Row {
	r := Row{Identity: c.key, Version: c.from, BodyHash: c.was.BodyHash, Reason: c.was.Reason, Remark: c.was.Remark}
	c.leave(&r)
	l.judge(&r)
	return r
}

// leave makes of a row, as it is, what the change leaves of it, but for its message and times.
func (c *change) leave(r *Row) {
	owner := r.Owner
	if r.Version = c.to; c.keepsOwner() {
		r.Owner = owner
	}
	r.Age, r.due = c.backdate, c.due
	r.LeaseLive, r.Due, r.Wait = false, false, 0 // until it is judged
	if c.replace {
		r.BodyHash = nil
	}
	if c.entry != nil && r.BodyHash == nil && c.entry.BodyHash != ([32]byte{}) {
		r.BodyHash = slices.Clone(c.entry.BodyHash[:])
	}
	if c.reason.Valid {
		r.Reason = c.reason.V
	}
	if c.remark.Valid {
		r.Remark = c.remark.V
	}
}

// moveAll makes the change of each of all that may begin, in one transaction, each with its event, in the order of
// their keys. Those of one shape share statements; when these do not find every row as it was read, all is undone and
// each has statements of its own.
//
// Rows, as they are left, and errs are as long as all. One that is lost does not hinder the others; any other error is
// one of all. It may be repeated after ErrUnknown: when a row stands as this very call would leave it, under a token
// that nobody else uses, its change is done. So an answer that got lost costs neither an attempt nor a lease.
func moveAll[T any](ctx context.Context, l *Log, all []T, begin func(T) *change) (rows []Row, errs []error) {
	changes := mapped(all, begin)
	l.move(ctx, inOrder(slices.DeleteFunc(slices.Clone(changes), func(c *change) bool { return c.err != nil })))
	rows, errs = make([]Row, len(all)), make([]error, len(all))
	for i, c := range changes {
		if errs[i] = c.failure(); errs[i] == nil {
			rows[i] = l.left(c)
		}
	}
	return rows, errs
}

// mapped is what f makes of each of all.
func mapped[T, U any](all []T, f func(T) U) []U {
	made := make([]U, len(all))
	for i, one := range all {
		made[i] = f(one)
	}
	return made
}

// inOrder sorts changes by their keys.
func inOrder(changes []*change) []*change {
	slices.SortFunc(changes, func(a, b *change) int { return a.key.Compare(b.key) })
	return changes
}

// first is what a call for many says of its only one.
func first[T any](all []T, errs []error) (T, error) { return all[0], errs[0] }

func (l *Log) move(ctx context.Context, changes []*change) {
	if len(changes) == 0 {
		return
	}
	err := ErrLost
	if len(changes) > 1 {
		err = l.inTx(ctx, func(tx Execer) error { return l.applyAll(ctx, tx, changes) })
	}
	if errors.Is(err, ErrLost) { // one by one tells which
		err = l.inTx(ctx, func(tx Execer) error {
			for i, c := range changes {
				c.err = l.apply(ctx, tx, changes[i:i+1])
				if c.err != nil && !errors.Is(c.err, ErrLost) {
					return c.err
				}
			}
			return nil
		})
	}
	for _, c := range changes {
		c.err = cmp.Or(err, c.err)
	}
	l.recognise(ctx, changes)
}

// moveIn makes one change as a part of tx.
func (l *Log) moveIn(ctx context.Context, tx Execer, c *change) error {
	if c.err == nil {
		c.err = l.apply(ctx, tx, []*change{c})
	}
	return c.failure()
}

// recognise clears the errors of changes that were lost, or whose answer was, and whose rows stand as they would have
// left them.
func (l *Log) recognise(ctx context.Context, changes []*change) {
	doubtful := slices.DeleteFunc(slices.Clone(changes), func(c *change) bool {
		return !c.own() || !errors.Is(c.err, ErrLost) && !errors.Is(c.err, ErrUnknown)
	})
	if len(doubtful) == 0 {
		return
	}
	rows, err := l.LookUp(ctx, mapped(doubtful, (*change).identity))
	for _, c := range doubtful {
		switch {
		case err == nil && holds(rows[c.key], c.to):
			c.err = nil
		case err != nil && errors.Is(c.err, ErrLost):
			c.err = err // whether it is lost is not known: an earlier call of ours may have moved the row
		}
	}
}

// maxSameShape is how many changes share an UPDATE at most: each remark is looked for among those before it.
const maxSameShape = 200

// shape is what changes must have in common to share a statement: all but what is the row's own. By its pointers, one
// that writes what a row may have already of its message, has a time of its own, or changes a second row, is like no
// other.
func (c *change) shape() change {
	s := *c
	s.was, s.key.Key, s.remark.V, s.why = nil, "", "", ""
	switch {
	case c.from.Status == Absent && c.also == nil: // an INSERT says all of each row
		return change{from: c.from}
	case c.keepsOwner() && c.from.Status != Processing: // then the statement does not name it
		s.from.Owner, s.to.Owner = "", ""
	case c.from.Status != Processing:
		s.from.Owner = ""
	}
	return s
}

// runsOf cuts changes, which are in the order of their keys, into runs of one shape each.
func runsOf(changes []*change) (runs [][]*change) {
	type open struct{ at, bytes int }
	of := map[change]open{}
	for _, c := range changes {
		s, size, most := c.shape(), c.size(), maxSameShape
		if c.from.Status == Absent {
			most = maxRows
		}
		run, ok := of[s]
		if !ok || len(runs[run.at]) >= most || run.bytes+size > maxBytes {
			run = open{at: len(runs)}
			runs = append(runs, nil)
		}
		runs[run.at] = append(runs[run.at], c)
		of[s] = open{run.at, run.bytes + size}
	}
	return runs
}

// size is how many bytes a change takes in a statement at most.
func (c *change) size() int {
	n := rowOverhead + 4*(len(c.key.Group)+len(c.key.Tag)+len(c.key.Key)) + 8*len(c.why)
	if e := c.entry; e != nil {
		n += 2*min(len(e.Body), MaxBody) + 2*min(len(e.Properties), MaxProperties) + 2*len(e.MessageID)
	}
	return n
}

// applyAll makes all changes, which are in the order of their keys, inside tx by few statements, or none if one of them
// cannot be made. ErrLost: one of them found its row moved, and the transaction must be rolled back: whoever wants to
// know which makes them one by one.
func (l *Log) applyAll(ctx context.Context, tx Execer, changes []*change) error {
	for _, c := range changes {
		if c.err != nil {
			return c.failure()
		}
	}
	for _, run := range runsOf(changes) {
		if err := l.apply(ctx, tx, run); err != nil {
			return err
		}
	}
	return nil
}

// apply makes changes of one shape inside tx, each with its event. After ErrLost of a single one the transaction may go
// on; after any other error it must be rolled back.
func (l *Log) apply(ctx context.Context, tx Execer, run []*change) error {
	if l.memory != nil {
		return l.memory.write(l, l.memory.in(tx), run)
	}
	insert := run[0].from.Status == Absent
	write := l.update
	if insert {
		write = l.insert
	}
	affected, err := write(run).exec(ctx, tx)
	if insert && l.exists(err) {
		return ErrLost
	}
	if err != nil {
		return err
	}
	if affected != int64(len(run)) {
		return ErrLost
	}
	told := slices.DeleteFunc(slices.Clone(run), func(c *change) bool { return c.silent })
	if len(told) > 0 {
		if _, err := l.event(told...).exec(ctx, tx); err != nil {
			return fmt.Errorf("write %d events: %w", len(told), err)
		}
	}
	if run[0].also != nil {
		if err := l.apply(ctx, tx, []*change{run[0].also}); !errors.Is(err, ErrLost) { // else it is so already
			return err
		}
	}
	return nil
}

// exists reports whether err is a duplicate in the log's own primary key. One of another table, met through a trigger,
// says nothing about our row.
func (l *Log) exists(err error) bool {
	return mysqldb.DuplicateIn(err, l.o.Table, "PRIMARY")
}
