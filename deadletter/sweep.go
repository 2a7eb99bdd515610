package deadletter

import (
	"context"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/dedup"
)

// Two walks drop stale letters from the queue: the end of a run over a file knows what that has published and needs no
// more; [Letters.Sweep] comes later, knows nothing, and asks more of the rows.

// sweep walks once through so many letters of the queue and drops those that are stale by their rows. Only those rows
// are looked up whose letters may be.
func (r *run) sweep(ctx context.Context, depth int, may, stale func(*letter) bool) (seen, dropped int, err error) {
	defer func() { r.queue.leave(context.WithoutCancel(ctx), depth-r.queue.acked()) }()
	for seen < depth {
		taken, err := r.queue.next(ctx, min(window, depth-seen))
		if err != nil || len(taken) == 0 {
			return seen, dropped, brokerError(err)
		}
		seen += len(taken)
		letters := slices.DeleteFunc(r.l.readAll(taken), func(lt *letter) bool { return !may(lt) })
		n, err := r.sweepSome(ctx, letters, stale)
		if dropped += n; err != nil {
			return seen, dropped, err
		}
		r.tally.report()
	}
	return seen, dropped, nil
}

func (r *run) sweepSome(ctx context.Context, letters []*letter, stale func(*letter) bool) (dropped int, err error) {
	if len(letters) == 0 {
		return 0, nil
	}
	ctx, cancel := r.finishing(ctx)
	defer cancel()
	if err := r.l.lookUp(ctx, letters, false); err != nil {
		return 0, err
	}
	letters = slices.DeleteFunc(letters, func(lt *letter) bool { return !stale(lt) })
	if err := r.ackAll(letters); err != nil {
		return 0, err
	}
	return len(letters), r.l.hook(pointAcked)
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
	r := newRun(l, Filter{All: true}, ReplayOptions{})
	err = r.connected(ctx, func() (err error) {
		if err = r.dial(ctx); err == nil {
			res.Found, _, err = r.queue.depth(ctx)
		}
		if err == nil {
			res.Seen, res.Dropped, err = r.sweep(ctx, res.Found, func(*letter) bool { return true },
				func(lt *letter) bool { return isSuperfluous(lt.row, lt.info.Replays) })
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("sweep the dead-letter queue: %w", err)
	}
	return res, err
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
