package sql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	m.Value = d
	return err
}

// Handle runs the statements for each message, or joined for all of them where that means the same (join.go). Most
// batches have no message that fails, so they pay for one savepoint. When a message fails that has written something,
// all is undone up to there and run again with a savepoint for each message: so one call finds everybody who is to
// blame, and nobody is judged by what another left behind.
func (h *handler) Handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	b := batch{file: h.file, conn: consumer.SQL(tx), msgs: msgs}
	if len(msgs) == 1 {
		_, err := b.single(ctx, false)
		return b.blame(err)
	}
	if err := b.exec(ctx, "SAVEPOINT rollbackd_sql"); err != nil {
		return err
	}
	if p := h.file.plan.Load(); p.joins() && h.single.Add(-1) < 0 {
		h.single.Store(0)
		if p.apart {
			h.gate.enter(ctx, b.conn)
		} else {
			h.gate.pass(ctx, b.conn)
		}
		ok, err := b.joined(ctx, p)
		undo := errors.Is(err, errNotJoined)
		if undo || mysqldb.Misworded(err) || mysqldb.Refuses(err) { // whose it is shows when its halves run one by one
			h.single.Store(singleBatches)
		}
		if undo {
			err = b.undo(ctx)
		} else if ok {
			return b.blame(err)
		}
		if err != nil {
			return err
		}
	}
	h.gate.enter(ctx, b.conn)
	again, err := b.single(ctx, false)
	if again && err == nil {
		if err = b.undo(ctx); err == nil {
			_, err = b.single(ctx, true)
		}
	}
	return b.blame(err)
}

// batch is one call of the handler.
type batch struct {
	file   *File
	conn   gorm.ConnPool
	msgs   []consumer.Message
	failed []consumer.BlamedMessage
}

func (b *batch) fail(i int, err error) {
	b.failed = append(b.failed, consumer.BlamedMessage{Index: i, Err: err})
}

func (b *batch) blame(err error) error {
	if err != nil {
		return err
	}
	return consumer.Blame(b.failed...)
}

// undo takes all statements back. InnoDB keeps their locks.
func (b *batch) undo(ctx context.Context) error {
	b.failed = nil
	return b.exec(ctx, "ROLLBACK TO SAVEPOINT rollbackd_sql")
}

func (b *batch) exec(ctx context.Context, text string) error {
	if _, err := b.conn.ExecContext(ctx, text); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// single runs the messages one by one. With a savepoint for each, whoever fails is undone; without, again says that
// somebody failed who had written, and the others have not run. The error is one of a statement, after which the
// transaction takes no other.
func (b *batch) single(ctx context.Context, savepoints bool) (again bool, err error) {
	for i := range b.msgs {
		if savepoints {
			if err := b.exec(ctx, "SAVEPOINT rollbackd_sql_message"); err != nil {
				return false, err
			}
		}
		end, err := b.file.run(ctx, b.conn, &b.msgs[i], nil)
		switch {
		case mysqldb.Refuses(err): // the message's own; all else is the database's, or nobody's
			return false, consumer.Blame(consumer.BlamedMessage{Index: i, Err: err})
		case err != nil:
			return false, err
		case end.err == nil:
			continue
		}
		b.fail(i, end.err)
		if !end.wrote {
			continue
		}
		if !savepoints {
			return true, nil
		}
		if err := b.exec(ctx, "ROLLBACK TO SAVEPOINT rollbackd_sql_message"); err != nil {
			return false, err
		}
	}
	return false, nil
}

// outcome is how a message's way through the file ended: at its end, by "done", or with an error.
type outcome struct {
	by    *Statement // nil: at its end
	err   error
	wrote bool
}

// run runs the statements for one message. Saw, if there is one, is told of each run.
func (f *File) run(ctx context.Context, conn gorm.ConnPool, m *consumer.Message, saw func(*Statement, run, int64)) (
	end outcome, err error,
) {
	d, ok := m.Value.(decoded)
	if !ok {
		return end, errors.New("the message was not validated")
	}
	for _, r := range slices.Concat(d...) {
		r.msg = m
		for _, s := range r.in.statements {
			rows, err := s.execute(ctx, conn, r)
			if err != nil {
				return end, fmt.Errorf("%s: %w", r.where(s), err)
			}
			if saw != nil {
				saw(s, r, rows)
			}
			end.wrote = end.wrote || s.writes() && (rows > 0 || s.verb == "CALL" || f.triggers.Load())
			if s.expect != nil && !s.expect.met(rows) {
				end.by, end.err = s, r.unexpected(s, rows)
				return end, nil
			}
		}
	}
	return end, nil
}

// execute runs a statement and counts the rows that it changed, or that a SELECT found.
func (s *Statement) execute(ctx context.Context, conn gorm.ConnPool, r run) (rows int64, err error) {
	var w statement
	w.parts(s.parts, r.value)
	if s.verb != "SELECT" {
		return w.exec(ctx, conn)
	}
	found, err := conn.QueryContext(ctx, w.String(), w.args...)
	if err != nil {
		return 0, err
	}
	for found.Next() {
		rows++
	}
	return rows, errors.Join(found.Err(), found.Close())
}

func (w *statement) exec(ctx context.Context, conn gorm.ConnPool) (int64, error) {
	res, err := conn.ExecContext(ctx, w.String(), w.args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// itemName names the item; "" in a section that runs once.
func (r run) itemName() string {
	if !r.in.each {
		return ""
	}
	return r.in.list.String() + "[" + strconv.Itoa(r.item) + "]"
}

// where names the run of a statement for the person who finds the message among the dead letters.
func (r run) where(of *Statement) string {
	w := "line " + strconv.Itoa(of.At.Line)
	if r.in.each {
		w += ", " + r.itemName()
	}
	return w
}

// unexpected is what a number of rows means that is not among the expected; nil for done.
func (r run) unexpected(of *Statement, rows int64) error {
	did := "changed"
	if !of.writes() {
		did = "found"
	}
	what := fmt.Sprintf("%s: %s %d rows, expected %v", r.where(of), did, rows, of.expect)
	if of.expect.text != "" {
		what = of.expect.text + " (" + what + ")"
	}
	switch {
	case of.expect.other == Retry:
		return errors.New(what)
	case of.expect.other == Permanent:
		return consumer.Permanent(errors.New(what))
	case of.writes() && rows > 0: // a guard that is done has changed nothing; this one did, and must be undone
		return consumer.Permanent(errors.New(what +
			`, and "else done" means no row: the statement is not what it was taken for`))
	}
	return nil
}

// outboxTable is the one table of rollbackd's that a file may write, by an INSERT of these columns. The others are the
// relay's: what it has sent is told by them.
const outboxTable = "rollbackd_outbox"

var outboxColumns = []string{
	"msg_tag", "msg_key", "body", "content_type", "headers", "exchange", "routing_key", "due_at",
}

// besidesOutbox are the tokens without the name of the outbox, if the statement does no more to it than to put messages
// in. ON DUPLICATE KEY UPDATE would change one that a relay may have sent, and IGNORE would lose one whose key another
// body has, or cut it (traps D5).
func (s *Statement) besidesOutbox() []token {
	r := &reader{tokens: s.tokens}
	r.word("INSERT")
	r.try(r.has("LOW_PRIORITY", "HIGH_PRIORITY"))
	r.word("INTO")
	if at := r.at; at+1 < len(s.tokens) && s.tokens[at+1].mark(".") {
		r.name()
		r.mark(".")
	}
	named := r.at
	r.take(r.peek().isColumn() && strings.EqualFold(r.peek().text, outboxTable))
	r.mark("(")
	r.list(",", func() { r.take(r.peek().isColumn() && containsFold(outboxColumns, r.peek().text)) })
	r.mark(")")
	for !r.bad && !r.end() {
		r.take(!r.has("DUPLICATE"))
	}
	if r.bad {
		return s.tokens
	}
	return slices.Delete(slices.Clone(s.tokens), named, named+1)
}

// gate lets one transaction of this process at a time run its messages one by one. Each takes its locks in the order of
// its messages, so two of them that meet in the same rows deadlock, again and again where these are many; and who waits
// for locks gets nothing done anyway. It only saves work: what happens without it is right too.
type gate struct {
	room chan struct{} // of one
	free sync.Map      // transactions that need not wait, by their gorm.ConnPool: the one inside, and the joined
}

func newGate() *gate { return &gate{room: make(chan struct{}, 1)} }

// partOfTime is how much of a transaction's time it may wait at the gate: it must have the most of it for its work.
const partOfTime = 4

// enter waits until conn's transaction may go on, and keeps the others out until ctx ends, which is when the
// transaction has ended; so a transaction may enter again, with the locks that it has. When that takes too long it goes
// on beside the others.
func (g *gate) enter(ctx context.Context, conn gorm.ConnPool) {
	if _, free := g.free.Load(conn); free {
		return
	}
	patience := ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		patience, cancel = context.WithTimeout(ctx, time.Until(end)/partOfTime)
		defer cancel()
	}
	select {
	case g.room <- struct{}{}:
		g.pass(ctx, conn)
		context.AfterFunc(ctx, func() { <-g.room })
	case <-patience.Done():
	}
}

// pass lets conn's transaction by until ctx ends: it takes its locks in an order. When it must run its messages one by
// one in the end, it has locks for which the one inside may wait, and must not wait for that one.
func (g *gate) pass(ctx context.Context, conn gorm.ConnPool) {
	if _, known := g.free.LoadOrStore(conn, true); !known {
		context.AfterFunc(ctx, func() { g.free.Delete(conn) })
	}
}
