package sql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// handler is a [consumer.Handler] and [consumer.Validator].
type handler struct {
	file *File
	// single is how many of the next batches are run message by message, because joined statements were undone or refused.
	single atomic.Int32
	gate   *gate
}

// singleBatches are run message by message after a batch that could not be joined to its end.
const singleBatches = 8

// New makes the handler that runs the statements of f.
func New(f *File) consumer.Handler { return &handler{file: f, gate: newGate()} }

// Validate reads the fields that the statements name.
func (h *handler) Validate(m *consumer.Message) error {
	d, err := h.file.decode(m.Body)
	if err != nil {
		return err
	}
	m.Value = d
	return nil
}

// Handle runs the statements for each message, or joined for all of them where that means the same (join.go). Most
// batches have no message that fails, so they pay for one savepoint. When a message fails that has written something,
// all is undone up to there and run again with a savepoint for each message: so one call finds everybody who is to
// blame, and nobody is judged by what another left behind.
func (h *handler) Handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	b := batch{file: h.file, conn: consumer.SQL(tx), msgs: msgs}
	if len(msgs) == 1 {
		_, err := b.one(ctx, 0)
		return blame(b.failed, err)
	}
	if err := b.exec(ctx, "SAVEPOINT rollbackd_sql"); err != nil {
		return err
	}
	if p := h.file.plan.Load(); p != nil && h.single.Add(-1) < 0 {
		h.single.Store(0)
		h.gate.pass(ctx, b.conn)
		switch ok, err := b.joined(ctx, p); {
		case errors.Is(err, errNotJoined):
			h.single.Store(singleBatches)
			b.failed = nil
			if err := b.exec(ctx, "ROLLBACK TO SAVEPOINT rollbackd_sql"); err != nil {
				return err
			}
		case mysqldb.Refuses(err): // whose it is shows when its halves are run message by message
			h.single.Store(singleBatches)
			return err
		case err != nil:
			return err
		case ok:
			return blame(b.failed, nil)
		}
	}
	h.gate.enter(ctx, b.conn)
	for i := range msgs {
		wrote, err := b.one(ctx, i)
		if err != nil {
			return err
		}
		if wrote && b.failed != nil && b.failed[len(b.failed)-1].Index == i {
			return b.again(ctx)
		}
	}
	return blame(b.failed, nil)
}

// batch is one call of the handler.
type batch struct {
	file   *File
	conn   gorm.ConnPool
	msgs   []consumer.Message
	failed []consumer.BlamedMessage
}

func blame(failed []consumer.BlamedMessage, err error) error {
	if err != nil {
		return err
	}
	return consumer.Blame(failed...)
}

// again runs all messages with a savepoint each. InnoDB keeps the locks of what is undone.
func (b *batch) again(ctx context.Context) error {
	if err := b.exec(ctx, "ROLLBACK TO SAVEPOINT rollbackd_sql"); err != nil {
		return err
	}
	b.failed = nil
	for i := range b.msgs {
		if err := b.exec(ctx, "SAVEPOINT rollbackd_sql_message"); err != nil {
			return err
		}
		before := len(b.failed)
		wrote, err := b.one(ctx, i)
		if err != nil {
			return err
		}
		if wrote && len(b.failed) > before {
			if err := b.exec(ctx, "ROLLBACK TO SAVEPOINT rollbackd_sql_message"); err != nil {
				return err
			}
		}
	}
	return blame(b.failed, nil)
}

func (b *batch) exec(ctx context.Context, text string) error {
	if _, err := b.conn.ExecContext(ctx, text); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// one runs the statements for message i. What it fails of is in b.failed; wrote says whether it changed rows. The
// error is one of a statement, after which the transaction takes no other.
func (b *batch) one(ctx context.Context, i int) (wrote bool, err error) {
	flow := flow{conn: b.conn, file: b.file, msg: &b.msgs[i]}
	verdict, err := flow.run(ctx)
	if err == nil {
		if verdict.err != nil {
			b.failed = append(b.failed, consumer.BlamedMessage{Index: i, Err: verdict.err})
		}
		return flow.wrote, nil
	}
	if mysqldb.Refuses(err) { // the message's own; all else is the database's, or nobody's
		return flow.wrote, consumer.Blame(consumer.BlamedMessage{Index: i, Err: err})
	}
	return flow.wrote, err
}

// flow is the way of one message through the file.
type flow struct {
	conn  gorm.ConnPool
	file  *File
	msg   *consumer.Message
	wrote bool
	// saw, if set, is told of each run of a statement.
	saw func(s *Statement, r run, rows int64)
}

// outcome is how the flow ended: at its end, by "done", or with an error.
type outcome struct {
	by  *Statement // nil: at its end
	err error
}

func (f *flow) run(ctx context.Context) (outcome, error) {
	d, ok := f.msg.Value.(*fields)
	if !ok {
		return outcome{}, errors.New("the message was not validated")
	}
	for i := range f.file.sections {
		s := &f.file.sections[i]
		if !s.each {
			if end, err := f.section(ctx, s, run{msg: f.msg, fields: d, item: -1}); err != nil || end.by != nil {
				return end, err
			}
			continue
		}
		for n, values := range d.items[i] {
			if end, err := f.section(ctx, s, run{f.msg, d, values, n}); err != nil || end.by != nil {
				return end, err
			}
		}
	}
	return outcome{}, nil
}

func (f *flow) section(ctx context.Context, in *section, r run) (outcome, error) {
	for _, s := range in.statements {
		rows, err := f.execute(ctx, s, r)
		if err != nil {
			return outcome{}, fmt.Errorf("%s: %w", f.file.where(in, s, r), err)
		}
		if f.saw != nil {
			f.saw(s, r, rows)
		}
		f.wrote = f.wrote || s.writes() && (rows > 0 || s.verb == "CALL")
		if s.expect == nil || s.expect.met(rows) {
			continue
		}
		return outcome{s, f.file.unexpected(in, s, r, rows)}, nil
	}
	return outcome{}, nil
}

// execute runs a statement and counts the rows that it changed, or that a SELECT found.
func (f *flow) execute(ctx context.Context, s *Statement, r run) (rows int64, err error) {
	query, args := s.render(r)
	if s.verb != "SELECT" {
		res, err := f.conn.ExecContext(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
	found, err := f.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	for found.Next() {
		rows++
	}
	return rows, errors.Join(found.Err(), found.Close())
}

// where names a run of a statement for the person who finds the message among the dead letters.
func (f *File) where(in *section, s *Statement, r run) string {
	w := "line " + strconv.Itoa(s.At.Line)
	if r.item >= 0 {
		w += ", " + in.list.String() + "[" + strconv.Itoa(r.item) + "]"
	}
	return w
}

// unexpected is what a number of rows means that is not among the expected; nil for done.
func (f *File) unexpected(in *section, s *Statement, r run, rows int64) error {
	did := "changed"
	if !s.writes() {
		did = "found"
	}
	what := fmt.Sprintf("%s: %s %d rows, expected %v", f.where(in, s, r), did, rows, s.expect)
	if s.expect.text != "" {
		what = s.expect.text + " (" + what + ")"
	}
	switch {
	case s.expect.other == Retry:
		return errors.New(what)
	case s.expect.other == Permanent:
		return consumer.Permanent(errors.New(what))
	case s.writes() && rows > 0: // a guard that is done has changed nothing; this one did, and must be undone
		return consumer.Permanent(fmt.Errorf(`%s, and "else done" means no row: the statement is not what it was taken for`,
			what))
	}
	return nil
}
