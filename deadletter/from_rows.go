package deadletter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// rowSource is rows of the log: those of a set, or some that somebody else has judged. Each message is made anew from
// what its row keeps.
type rowSource struct {
	*run
	rows  []dedup.Row // listed and not taken yet
	given bool        // nothing is listed

	set   Set
	begun bool      // the rows that were reopened before have been looked for
	now   time.Time // by the database's clock, when that began
	ended bool      // all are listed
	after dedup.Cursor
	// poor are rows that keep too little: they are looked for in the queue.
	poor map[dedup.Identity]dedup.Row
}

// fromRows dials the broker before any row is reopened.
func fromRows(ctx context.Context, r *run, set Set) (source, error) {
	s := &rowSource{run: r, set: set, begun: r.discard || set.Name == "", poor: map[dedup.Identity]dedup.Row{}}
	if r.tally.ByRows = true; r.discard {
		return s, nil
	}
	return s, r.dial(ctx)
}

func (s *rowSource) next(ctx context.Context) ([]*letter, error) {
	for len(s.rows) == 0 {
		if s.given || s.tally.enough() {
			return nil, io.EOF
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if err := s.list(ctx); err != nil {
			return nil, err
		}
	}
	if err := context.Cause(ctx); err != nil && s.given {
		return nil, err
	}
	some := s.rows[:min(window, len(s.rows))]
	s.rows = s.rows[len(some):]
	letters := mapped(some, func(row dedup.Row) *letter {
		id := wire.Identified{Identity: row.Identity}
		return &letter{own: id, id: id, row: row, formerRow: absent, stored: true, info: wire.CopyInfo{Reason: row.Reason}}
	})
	s.tally.Seen += len(letters)
	if s.set.Name == "" && !s.given {
		s.tally.Found = s.tally.Seen
	}
	return letters, nil
}

// list reads the next rows; io.EOF when there are no more.
func (s *rowSource) list(ctx context.Context) (err error) {
	if !s.begun {
		return s.listBegun(ctx)
	}
	s.tally.passed = s.tally.passed || len(s.poor) == 0 // else some of it is met in the queue yet
	if s.ended {
		return io.EOF
	}
	q := s.set.query(s.l.o.Group)
	q.After = s.after
	if s.set.Name == "" { // a replay may have been killed that had reopened its rows, and published nothing
		q.Statuses = append(q.Statuses, dedup.Failed)
	}
	rows, next, err := s.l.o.Records.List(ctx, q)
	if err != nil {
		return err
	}
	s.after, s.ended = next, next == ""
	printed := s.set.Filter.printed()
	s.rows = slices.DeleteFunc(rows, func(row dedup.Row) bool {
		if s.set.Name == "" && row.Reason == dedup.ReasonEffectUnknown { // it has no letter, and may have had its effect
			s.tally.NotSelected++
			return true
		}
		return row.Status == dedup.Failed && !reopenedBy(row, s.set.prefix()) || printed != nil && !printed(row)
	})
	return nil
}

// listBegun reads rows that were reopened before and perhaps not published: the process may have died in between.
func (s *rowSource) listBegun(ctx context.Context) (err error) {
	const some = 1000
	if s.now.IsZero() {
		if s.now, err = s.l.o.Records.Now(ctx); err != nil {
			return err
		}
	}
	s.rows, err = s.l.o.Records.Begun(ctx, s.l.o.Group, s.set.prefix(), s.set.Confirmed, s.now, some)
	if len(s.rows) < some {
		s.begun = true
	}
	if n := len(s.rows); n > 0 {
		s.set.Confirmed = s.rows[n-1].At // what is left has another time, or comes with the next pass
	}
	return err
}

// lookUp reads the rows again, with their messages.
func (s *rowSource) lookUp(ctx context.Context, letters []*letter) error {
	if s.discard {
		return nil // the row as it was listed is compared when it is changed
	}
	rows, err := s.l.o.Records.ReadAll(ctx, unique(mapped(letters, (*letter).identity)))
	if err != nil {
		return err
	}
	for _, lt := range letters {
		if lt.blockedBy, lt.err = s.remake(ctx, lt, rows[lt.row.Identity]); isFault(lt.err) {
			return lt.err
		}
	}
	return nil
}

// remake makes the message of a row anew from what it keeps, or says why that cannot be sent again.
func (s *rowSource) remake(ctx context.Context, lt *letter, row dedup.Row) (Why, error) {
	if row.Version != lt.row.Version || !row.At.Equal(lt.row.At) {
		return WhyMoved, fmt.Errorf("it was %v and is %v now: %w", lt.row.Status, row.Status, dedup.ErrLost)
	}
	d, id, err := s.l.kept(row)
	if err != nil {
		return WhyCut, err
	}
	if row.Tag == wire.TagConflict { // another body must have its key yet: else it would be applied, or end as duplicate
		switch holder, superseded, err := s.l.holder(ctx, d); {
		case err != nil:
			return WhyFailed, err
		case holder.Status == dedup.Absent:
			return WhyKeyTaken, fmt.Errorf("another body had the key of %v, and that row is gone: replay it from an export "+
				"with force", holder.Identity)
		case superseded:
			return WhyKeyTaken, fmt.Errorf("by now the row of %v has its body: this one stands for nothing", holder.Identity)
		}
	}
	lt.Delivery, lt.id, lt.row = d, id, row
	return "", nil
}

func (s *rowSource) judge(lt *letter) (verdict, Why) {
	switch v, why := s.run.judge(lt); {
	case lt.blockedBy == WhyMoved && s.given:
		return leave, WhyMoved
	case lt.blockedBy == WhyMoved:
		return later, "" // somebody else has it
	case why == WhyCut && s.poor != nil:
		s.poor[lt.row.Identity] = lt.row
		return later, ""
	default:
		return v, why
	}
}

// errShared ends a walk through a queue of which others hold a part.
var errShared = errors.New("somebody else is reading the dead-letter queue, and letters that the rows do not keep " +
	"may be among those that he holds")

// close walks through the queue for the letters of rows that keep too little.
func (s *rowSource) close(ctx context.Context, err error) error {
	if err != nil || len(s.poor) == 0 || s.tally.enough() {
		return err
	}
	f := Filter{All: true, due: func(row dedup.Row) bool {
		mine := row.Status == dedup.Dead && !row.At.After(s.set.CutOff) || reopenedBy(row, s.set.prefix())
		_, poor := s.poor[row.Identity]
		return poor && mine
	}}
	if s.tally.limit > 0 {
		f.Limit = s.tally.limit - s.tally.Replayed
	}
	if len(s.poor) <= dedup.MaxListedKeys {
		f.All = false
		for id := range s.poor {
			f.Keys = append(f.Keys, id.Key)
		}
	}
	w := newRun(s.l, s.of, s.o)
	w.named(s.set.prefix())
	w.choose(f)
	w.queue, w.publisher, w.watch, w.within, w.tally.keep = s.queue, s.publisher, s.watch, s.within, s.tally.keep
	w.done = func(lt *letter) { delete(s.poor, lt.id.Identity) }
	if w.source, err = fromQueue(ctx, w); err != nil {
		return err
	}
	err = w.move(ctx)
	s.tally.add(w.tally)
	if err != nil || s.o.DryRun || len(s.poor) == 0 || w.tally.enough() {
		return err
	}
	if w.tally.Others > 0 {
		return errShared
	}
	for id, row := range s.poor {
		s.tally.leave(&letter{id: wire.Identified{Identity: id}, formerRow: absent, row: row}, WhyCut,
			errors.New("its row keeps too little of it, and no letter of it is in the queue"))
	}
	return nil
}
