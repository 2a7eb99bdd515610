package deadletter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// rowSource is rows of the log whose messages have no copy any more: each message is made anew from what its row keeps.
type rowSource struct {
	*run
	rows []dedup.Row // as they were judged by somebody else, and not taken yet
}

func fromRows(r *run, rows []dedup.Row) source {
	r.tally.Found = len(rows)
	return &rowSource{r, rows}
}

func (s *rowSource) next(ctx context.Context) ([]*letter, error) {
	if len(s.rows) == 0 {
		return nil, io.EOF
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	some := s.rows[:min(window, len(s.rows))]
	s.rows = s.rows[len(some):]
	letters := make([]*letter, len(some))
	for i, row := range some {
		letters[i] = &letter{id: wire.Identified{Identity: row.Identity}, row: row, formerRow: absent, stored: true}
	}
	s.tally.Seen += len(letters)
	return letters, nil
}

// lookUp reads the rows again, several at a time. Its error is that of a database that does not answer.
func (s *rowSource) lookUp(ctx context.Context, letters []*letter) error {
	var wg sync.WaitGroup
	next := make(chan *letter)
	for range min(writers, len(letters)) {
		wg.Go(func() {
			for lt := range next {
				lt.blockedBy, lt.err = s.remake(ctx, lt)
			}
		})
	}
	for _, lt := range letters {
		next <- lt
	}
	close(next)
	wg.Wait()
	for _, lt := range letters {
		if isFault(lt.err) {
			return lt.err
		}
	}
	return nil
}

// judge leaves the rest to the compare-and-set of the row, which was just found as it was judged.
func (s *rowSource) judge(lt *letter) (verdict, Why) {
	if lt.blockedBy != "" {
		return leave, lt.blockedBy
	}
	return act, ""
}

func (s *rowSource) close(_ context.Context, err error) error { return err }

// remake makes the message of a row anew, or says why it cannot be sent again.
func (s *rowSource) remake(ctx context.Context, lt *letter) (Why, error) {
	row, err := s.l.o.Records.Read(ctx, lt.row.Identity)
	if err != nil {
		return WhyFailed, err
	}
	if row.Version != lt.row.Version {
		return WhyMoved, fmt.Errorf("it was %v and is %v now: %w", lt.row.Status, row.Status, dedup.ErrLost)
	}
	return s.fill(ctx, lt, row)
}

// fill makes a letter of what a row keeps of its message, or says why that cannot be sent again.
func (r *run) fill(ctx context.Context, lt *letter, row dedup.Row) (Why, error) {
	d, id, err := r.l.find.kept(row)
	if err != nil {
		return WhyCut, err
	}
	if row.Tag == wire.TagConflict {
		if why, err := r.stillConflict(ctx, d); err != nil {
			return why, err
		}
	}
	lt.Delivery, lt.id, lt.row = d, id, row
	return "", nil
}

// stillConflict makes sure that another body still has the key of a message that is filed as conflict: else the daemon
// would apply it, or take it for a duplicate, and its row would never end.
func (r *run) stillConflict(ctx context.Context, d rabbit.Delivery) (Why, error) {
	own, _ := r.l.find.identify(d)
	rows, err := r.l.o.Records.LookUp(ctx, []dedup.Identity{own.Identity})
	if err != nil {
		return WhyFailed, err
	}
	switch row := rows[own.Identity]; {
	case row.Status == dedup.Absent:
		return WhyKeyTaken, fmt.Errorf("another body had the key of %v, and that row is gone: replay it from an export "+
			"with force", own.Identity)
	case bytes.Equal(row.BodyHash, own.BodyHash[:]):
		return WhyKeyTaken, fmt.Errorf("by now the row of %v has its body: this one stands for nothing", own.Identity)
	}
	return "", nil
}
