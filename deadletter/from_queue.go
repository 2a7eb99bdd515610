package deadletter

import (
	"context"
	"io"
	"time"
)

// queueSource is the dead-letter queue: the letters that were in it when the run began.
//
// A pass goes through the queue once. After it has held letters for long, they are given back and a new pass begins
// with what is left of the set.
type queueSource struct {
	*run
	// This pass:
	since time.Time
	acked int // when it began
}

func fromQueue(ctx context.Context, r *run) (source, error) {
	if r.queue == nil {
		if err := r.dial(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.queue.count(ctx); err != nil {
		return nil, err
	}
	r.tally.Found, r.tally.Others = r.queue.found, r.queue.others
	return &queueSource{run: r, since: time.Now()}, nil
}

func (s *queueSource) next(ctx context.Context) ([]*letter, error) {
	if time.Since(s.since) > s.l.hold && s.queue.acked() > s.acked { // else it would come no further the next time
		s.queue.leave(context.WithoutCancel(ctx))
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		s.tally.again(s.queue.acked())
		s.since, s.acked = time.Now(), s.queue.acked()
	}
	if s.tally.Seen >= s.tally.Found || s.tally.enough() {
		return nil, io.EOF
	}
	taken, err := s.queue.next(ctx, min(s.handful(), s.tally.Found-s.tally.Seen))
	if err != nil {
		return nil, brokerError(err)
	}
	if len(taken) == 0 {
		return nil, io.EOF // another run took the rest
	}
	s.tally.Seen += len(taken)
	return s.l.readAll(taken), nil
}

// handful is how many letters are taken together: with a low rate no more than go in a minute.
func (s *queueSource) handful() int {
	if s.o.Rate > 0 && s.o.Rate*60 < window {
		return max(1, int(s.o.Rate*60))
	}
	return window
}

func (s *queueSource) lookUp(ctx context.Context, letters []*letter) error {
	return s.look(ctx, letters, s.l.lookUp)
}

func (s *queueSource) close(ctx context.Context, err error) error {
	s.queue.leave(context.WithoutCancel(ctx))
	if err != nil || s.tally.enough() {
		s.tally.Unseen = s.tally.Found - s.tally.Seen
	} else {
		s.tally.missed()
	}
	return err
}
