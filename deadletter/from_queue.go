package deadletter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
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
	return mapped(taken, s.l.read), nil
}

// handful is how many letters are taken together: with a low rate no more than go in a minute. A person's run at full
// speed takes more and more of them while they are small and go fast: what is sent at once fills the batches of the
// daemons.
func (s *queueSource) handful() int {
	switch rate := s.o.Rate; {
	case rate > 0 && rate*60 < window:
		return max(1, int(rate*60))
	case rate > 0, s.watch.window > 0, s.tally.limit > 0, s.filter.due != nil:
		return window
	}
	small := handfulBytes / max(1, s.queue.bytes/max(1, s.queue.read))
	fast := float64(s.tally.Seen) * float64(handfulTime) / float64(time.Since(s.began)+1)
	return max(window, min(s.tally.Seen/2, small, int(min(fast, largest))))
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

const (
	// prefetch is how many letters one channel may hold unacked at least. What a run does not take it must hold until its
	// end, because what is given back earlier is delivered again at once; so it opens a channel more whenever one is full.
	prefetch = 1000
	// largest is how many letters are taken together at most. More than a window of them have no more bytes, by the bodies
	// that came, and take no longer, than this.
	largest      = 4000
	handfulBytes = 4 << 20
	handfulTime  = 10 * time.Second
	// idle is how long nothing comes before the broker is asked whether anything is left: another run may have taken it.
	idle = 300 * time.Millisecond
	// patience is how long nothing may come although the queue has letters.
	patience = 30 * time.Second
	// moment is how long a run waits at its end for what it gave back.
	moment = time.Second
)

// errIdle ends a wait for letters that nobody sends.
var errIdle = errors.New("no letter came")

// queue reads a queue without giving anything back before its end.
type queue struct {
	conn *rabbit.Conn
	name string
	all  []*channel // the last one is read; the others are full, or have handed out all that came
	buf  []rabbit.Delivery
	got  int // letters collected so far

	asked bool // nothing has come since what was missing was called for

	read, bytes int // letters of all passes, and their bodies; what is older counts half, again and again

	found  int // letters that were there when they were counted
	others int // who else read the queue then
}

// channel is a subscription with what it holds.
type channel struct {
	sub  *rabbit.Subscription
	most int  // unacked
	held int  // unacked, of those collected
	over bool // it takes nothing more: what has come is handed out before another one is read
}

// taken is a delivery and the channel on which it must be acked; none if it comes from a file.
type taken struct {
	rabbit.Delivery
	from *channel
}

// next takes up to n letters, at least one while there are some; none at the end of the queue.
func (q *queue) next(ctx context.Context, n int) ([]taken, error) {
	began := time.Now()
	for {
		now, err := q.channel(ctx, n)
		if err != nil {
			return nil, err
		}
		soon, cancel := context.WithTimeoutCause(ctx, idle, errIdle)
		q.buf, err = now.sub.Collect(soon, n, 2*time.Millisecond, q.buf)
		cancel()
		switch {
		case len(q.buf) > 0:
			q.got, q.asked = q.got+len(q.buf), false
			q.read, q.bytes = q.read/2+len(q.buf), q.bytes/2
			for i := range q.buf {
				q.bytes += len(q.buf[i].Body)
			}
			return now.hold(q.buf), nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case now.over && errors.Is(err, rabbit.ErrCancelled):
			now.most = now.held // it is full for good
			continue
		case !errors.Is(err, errIdle):
			return nil, err
		}
		ready, _, err := q.depth(ctx)
		switch {
		case err != nil, ready == 0 && (q.asked || q.got >= q.found):
			return nil, err
		case ready == 0: // the missing ones may be on their way: after a cancel they have come, or are back in the queue
			q.asked, now.over = true, true
			if err := now.sub.Cancel(ctx); err != nil {
				return nil, err
			}
		case time.Since(began) > patience:
			return nil, fmt.Errorf("queue %q has %d letters, but RabbitMQ delivered none in %v", q.name, ready, patience)
		}
	}
}

func (l *Letters) dial(ctx context.Context) (*queue, error) {
	conn, err := rabbit.Dial(ctx, l.o.amqp())
	if err != nil {
		return nil, brokerError(err)
	}
	return &queue{conn: conn, name: l.Queue()}, nil
}

// UnknownQueue says that RabbitMQ has no main queue of this name, to which letters could be replayed; "" when it has.
func (l *Letters) UnknownQueue(ctx context.Context) (string, error) {
	q, err := l.dial(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = q.conn.Close() }() // it was only asked
	const notFound = 404
	_, _, err = q.conn.Depth(ctx, l.o.Queue)
	if broker, ok := errors.AsType[*rabbit.BrokerError](err); ok && broker.Code == notFound {
		return fmt.Sprintf("no queue named %s is in RabbitMQ at %s, which does not tell over AMQP which there are: "+
			"`rabbitmqctl list_queues` does, and `migrate` makes a new one", l.o.Queue, q.conn.Where()), nil
	}
	return "", brokerError(err)
}

// count says how many letters are there now, which are those of a walk.
func (q *queue) count(ctx context.Context) (err error) {
	q.found, q.others, err = q.depth(ctx)
	return err
}

// depth is how many letters are ready, and how many others read the queue.
func (q *queue) depth(ctx context.Context) (ready, consumers int, err error) {
	ready, consumers, err = q.conn.Depth(ctx, q.name)
	return ready, consumers, brokerError(err)
}

// channel is one with room, so wide that the next n letters come while n are in hand. Only one takes letters at a time:
// of two, each would have letters that came after the beginning while older ones wait in the other.
func (q *queue) channel(ctx context.Context, n int) (*channel, error) {
	most := prefetch
	for most < 2*n {
		most *= 2
	}
	if i := len(q.all) - 1; i >= 0 && q.all[i].held < q.all[i].most {
		last := q.all[i]
		if last.over || last.most >= most || q.found-q.got <= last.most {
			return last, nil
		}
		last.over = true
		return last, last.sub.Cancel(ctx) // what has come can be collected
	}
	sub, err := q.conn.Consume(ctx, q.name, rabbit.ConsumerTag(len(q.all)), most)
	if err != nil {
		return nil, err
	}
	q.all = append(q.all, &channel{sub: sub, most: most})
	return q.all[len(q.all)-1], nil
}

// leave gives everything back that was not acked, as far as the connection lives.
//
// It makes sure that every ack has reached the queue: RabbitMQ holds back acks for a quorum queue that is slow to take
// them, and forgets them when their channel closes; the answer to a cancel comes after those that the queue has taken
// and makes the channel send the rest. And it waits for what was given back to be there again, so that the next
// run finds it.
func (q *queue) leave(ctx context.Context) {
	for _, c := range q.all {
		_ = c.sub.Cancel(ctx) // a lost ack brings back a stale letter, which the next run drops
	}
	if len(q.all) == 0 {
		return
	}
	for _, c := range q.all {
		_ = c.sub.Close() // what is still unacked goes back when the connection is closed, whatever this says
	}
	ready := max(q.found, q.got) - q.acked() // if nobody else takes any
	q.got, q.all = q.acked(), nil
	ctx, cancel := context.WithTimeout(ctx, moment)
	defer cancel()
	for {
		if have, _, err := q.depth(ctx); err != nil || have >= ready || wait.For(ctx, 10*time.Millisecond) != nil {
			return
		}
	}
}

// close leaves the queue, and ends the connection.
func (q *queue) close(ctx context.Context) error {
	q.leave(context.WithoutCancel(ctx))
	return q.conn.Close()
}

// acked is how many letters were acked.
func (q *queue) acked() int {
	n := q.got
	for _, c := range q.all {
		n -= c.held
	}
	return n
}

func (c *channel) hold(got []rabbit.Delivery) []taken {
	c.held += len(got)
	return mapped(got, func(d rabbit.Delivery) taken { return taken{d, c} })
}

// ack tells the broker to forget these letters.
func (c *channel) ack(letters []*letter) error {
	tags := mapped(letters, func(lt *letter) uint64 { return lt.Tag })
	slices.Sort(tags)
	if err := c.sub.AckAll(tags); err != nil {
		return err
	}
	c.held -= len(tags)
	return nil
}
