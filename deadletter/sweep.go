package deadletter

import (
	"context"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Two walks drop stale letters from the queue: a sweep knows what its run has published and needs no more than that;
// [Letters.Sweep] comes later, knows nothing, and asks more of the rows.

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

// SweepResult is what a sweep met.
type SweepResult struct{ Found, Seen, Dropped int }

// Sweep walks once through the letters that are in the dead-letter queue when it begins and drops those that stand for
// nothing any more: their identity has ended; or its row was reopened after they were made, and claimed since, so that
// its message has reached a worker. A row that was reopened and not claimed may stand for a message that nobody has
// published, and its letter stays, for a later sweep or replay. It holds what stays until its end, so nobody else sees
// that meanwhile, and RabbitMQ counts it as a delivery.
func (l *Letters) Sweep(ctx context.Context) (res SweepResult, err error) {
	r := newRun(l, Filter{All: true}, ReplayOptions{}, "sweep")
	err = r.connected(ctx, func(q *queue, _ *rabbit.Publisher) error {
		depth, _, err := q.conn.Depth(ctx, q.name)
		if err != nil {
			return brokerError(err)
		}
		res.Found = depth
		defer func() { q.leave(context.WithoutCancel(ctx), depth-q.acked()) }()
		for res.Seen < depth {
			taken, err := q.next(ctx, min(window, depth-res.Seen))
			if err != nil || len(taken) == 0 {
				return brokerError(err)
			}
			res.Seen += len(taken)
			n, err := r.sweepSome(ctx, taken)
			res.Dropped += n
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("sweep the dead-letter queue: %w", err)
	}
	return res, err
}

func (r *run) sweepSome(ctx context.Context, taken []taken) (dropped int, err error) {
	ctx, cancel := r.finishing(ctx)
	defer cancel()
	letters := make([]*letter, len(taken))
	for i, t := range taken {
		letters[i] = r.l.find.read(t)
	}
	if err := r.l.find.lookUp(ctx, letters, false); err != nil {
		return 0, err
	}
	letters = slices.DeleteFunc(letters, func(lt *letter) bool {
		return !isSuperfluous(lt.row, lt.info.Replays)
	})
	if err := r.ackAll(letters); err != nil {
		return 0, err
	}
	return len(letters), r.l.hook(pointAcked)
}

// isSuperfluous reports whether a letter that was made when its row had so many replays may go. A row that was reopened
// since and has been claimed has a copy that reached a worker, and that copy carries the message on.
func isSuperfluous(row dedup.Row, replays int) bool {
	switch row.Status {
	case dedup.Success, dedup.Discarded:
		return true
	case dedup.Processing:
		return row.Replays > replays
	case dedup.Failed:
		return row.Replays > replays && row.Attempts > 0
	}
	return false
}
