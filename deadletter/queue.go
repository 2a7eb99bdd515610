package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

const (
	// prefetch is how many letters one channel may hold unacked. What a run does not take it must hold until its end,
	// because what is given back earlier is delivered again at once; so it opens a channel more whenever one is half full.
	prefetch = 1000
	// idle is how long nothing comes before the broker is asked whether anything is left: another run may have taken it.
	idle = 300 * time.Millisecond
	// patience is how long nothing may come although the queue has letters.
	patience = 30 * time.Second
)

// errIdle ends a wait for letters that nobody sends.
var errIdle = errors.New("no letter came")

// queue reads a queue without giving anything back before its end.
type queue struct {
	conn *rabbit.Conn
	name string
	now  *channel // the one that is read; nil before the first read
	buf  []rabbit.Delivery
}

// channel is a subscription with what it holds.
type channel struct {
	sub  *rabbit.Subscription
	held int  // unacked, of those collected
	full bool // cancelled: the rest of what was delivered is collected, then another channel is opened
}

// taken is a delivery and the channel on which it must be acked.
type taken struct {
	rabbit.Delivery
	from *channel
}

// ack tells the broker to forget a letter.
func (t *taken) ack() error {
	if err := t.from.sub.Ack(t.Tag, false); err != nil {
		return err
	}
	t.from.held--
	return nil
}

// next takes up to n letters, at least one while there are some; none at the end of the queue.
func (q *queue) next(ctx context.Context, n int) ([]taken, error) {
	began := time.Now()
	for {
		if err := q.advance(ctx); err != nil {
			return nil, err
		}
		wait, cancel := context.WithTimeoutCause(ctx, idle, errIdle)
		got, err := q.now.sub.Collect(wait, n, 2*time.Millisecond, q.buf)
		cancel()
		q.buf = got
		switch {
		case len(got) > 0:
			return q.hold(got), nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, rabbit.ErrCancelled) && q.now.full:
			q.now = nil // it stays open with what it holds
		case errors.Is(err, errIdle):
			ready, _, err := q.conn.Depth(ctx, q.name)
			if err != nil || ready == 0 {
				return nil, err
			}
			if time.Since(began) > patience {
				return nil, fmt.Errorf("queue %q has %d letters, but RabbitMQ delivered none in %v", q.name, ready, patience)
			}
		default:
			return nil, err
		}
	}
}

// advance makes sure that there is a channel with room.
func (q *queue) advance(ctx context.Context) error {
	if q.now == nil {
		sub, err := q.conn.Consume(ctx, q.name, rabbit.ConsumerTag(0), prefetch)
		if err != nil {
			return err
		}
		q.now = &channel{sub: sub}
	}
	if q.now.held < prefetch/2 || q.now.full {
		return nil
	}
	q.now.full = true
	return q.now.sub.Cancel(ctx)
}

func (q *queue) hold(got []rabbit.Delivery) []taken {
	q.now.held += len(got)
	letters := make([]taken, len(got))
	for i, d := range got {
		letters[i] = taken{d, q.now}
	}
	return letters
}
