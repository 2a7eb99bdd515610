package deadletter

import (
	"context"
	"slices"

	"github.com/rollbackd/rollbackd/dedup"
)

// sweep drops from the dead-letter queue the letters of messages that a run has published from elsewhere, as far as
// they were there before.
type sweep struct {
	r     *run
	queue *queue
	depth int // letters in the queue when the run began

	// Of the messages that are confirmed: the replays that the run gave their rows, and what they say they are.
	sent   map[dedup.Identity]int
	owners map[dedup.Identity]bool
}

func newSweep(ctx context.Context, r *run, q *queue) (*sweep, error) {
	depth, _, err := q.conn.Depth(ctx, q.name)
	if err != nil {
		return nil, brokerError(err)
	}
	return &sweep{r: r, queue: q, depth: depth, sent: map[dedup.Identity]int{}, owners: map[dedup.Identity]bool{}}, nil
}

// confirmed notes a letter whose message is confirmed in the main queue.
func (s *sweep) confirmed(lt *letter) {
	s.sent[lt.id.Identity], s.owners[lt.own.Identity] = lt.row.Replays, true
}

// run drops them.
func (s *sweep) run(ctx context.Context) (err error) {
	if len(s.sent) == 0 {
		return nil
	}
	defer func() { s.queue.leave(context.WithoutCancel(ctx), s.depth-s.queue.acked()) }()
	for seen := 0; seen < s.depth; {
		taken, err := s.queue.next(ctx, min(window, s.depth-seen))
		if err != nil || len(taken) == 0 {
			return brokerError(err)
		}
		seen += len(taken)
		var letters []*letter
		for _, t := range taken {
			if lt := s.r.l.find.read(t); s.owners[lt.own.Identity] {
				letters = append(letters, lt)
			}
		}
		if err := s.drop(ctx, letters); err != nil {
			return err
		}
		s.r.tally.report()
	}
	return nil
}

func (s *sweep) drop(ctx context.Context, letters []*letter) error {
	if len(letters) == 0 {
		return nil
	}
	ctx, cancel := s.r.finishing(ctx)
	defer cancel()
	if err := s.r.l.find.lookUp(ctx, letters, false); err != nil {
		return err
	}
	letters = slices.DeleteFunc(letters, func(lt *letter) bool {
		return !isDoneWith(lt.row, lt.info.Replays, s.sent[lt.id.Identity])
	})
	if err := s.r.ackAll(letters); err != nil {
		return err
	}
	s.r.tally.Duplicates += len(letters)
	return s.r.l.hook(pointAcked)
}

// isDoneWith reports whether a letter that was made when its row had so many replays may go, now that a run has
// published its message with more. One that the daemon has made since has as many: it is the message's only copy, also
// for the moment in which its row does not say dead yet.
func isDoneWith(row dedup.Row, replays, sent int) bool {
	switch row.Status {
	case dedup.Success, dedup.Discarded:
		return true
	case dedup.Failed, dedup.Processing:
		return sent > 0 && row.Replays == sent && replays < sent
	}
	return false
}
