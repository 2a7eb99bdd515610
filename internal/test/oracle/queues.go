package oracle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// queues is what lies in the broker.
type queues struct {
	waiting map[name]int   // copies in the main, retry and backstop queues
	bodies  map[name]int   // the same by their bodies alone
	letters map[rowKey]int // by the row they belong to
	depth   map[string]int // by queue
	unacked map[string]int // by queue, where it can be asked
}

const (
	// mostRead bounds what is read of one queue: it is held unacked meanwhile, and AMQP counts that in 16 bits.
	mostRead    = 65_535
	readTimeout = 30 * time.Second
)

// readQueues takes everything out of the queues, without acknowledging, and gives it back.
func (w World) readQueues(ctx context.Context) (*queues, error) {
	sources, err := wire.ParseKeySources(w.KeyFrom)
	if err != nil {
		return nil, err
	}
	conn, err := rabbit.Dial(ctx, rabbit.Config{URLs: []string{w.AMQPURL}, Name: "oracle"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	q := &queues{
		waiting: map[name]int{}, bodies: map[name]int{}, letters: map[rowKey]int{},
		depth: map[string]int{}, unacked: map[string]int{},
	}
	for _, queue := range w.topology().Queues() {
		if w.Unacked != nil {
			if q.unacked[queue], err = w.Unacked(queue); err != nil {
				return nil, fmt.Errorf("ask for the unacked messages of %s: %w", queue, err)
			}
		}
		found, err := readQueue(ctx, conn, queue)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", queue, err)
		}
		q.depth[queue] = len(found)
		for _, d := range found {
			id, _ := wire.Identify(w.Group, sources, w.Queue, d) // an unidentified message has a name too
			if queue != rabbit.DeadQueue(w.Queue) {
				q.waiting[name{id.Identity, id.BodyHash}]++
				q.bodies[name{hash: id.BodyHash}]++
				continue
			}
			if wire.ReadCopy(d.Headers).Reason == dedup.ReasonConflict { // filed under a name that its own key is part of
				id, _ = wire.Conflict(id, d.Body)
			}
			q.letters[rowKey{id.Identity.Tag, id.Identity.Key}]++
		}
	}
	return q, nil
}

func readQueue(ctx context.Context, conn *rabbit.Conn, queue string) ([]rabbit.Delivery, error) {
	n, _, err := conn.Depth(ctx, queue)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, nil
	case n > mostRead:
		return nil, fmt.Errorf("it holds %d messages, more than the %d that can be read", n, mostRead)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, fmt.Errorf("%d messages were not all there after %v", n,
		readTimeout))
	defer cancel()
	sub, err := conn.Consume(ctx, queue, "oracle", n)
	if err != nil {
		return nil, err
	}
	found := make([]rabbit.Delivery, 0, n)
	for len(found) < n {
		some, err := sub.Collect(ctx, n-len(found), time.Millisecond, nil)
		if err != nil {
			return nil, errors.Join(err, sub.Close())
		}
		found = append(found, some...)
	}
	return found, sub.Close()
}

// copies counts those of a message that wait.
func (q *queues) copies(n name, m *message) int {
	if m.nameless {
		return q.bodies[n]
	}
	return q.waiting[n]
}

// checkQueues is rule 4.
func (r *Report) checkQueues(rows map[rowKey]row, q *queues, allow Allowance) {
	for queue, n := range q.unacked {
		if n > 0 {
			r.find("unacked", "%d deliveries of %s", n, queue)
		}
	}
	for n, copies := range q.waiting {
		if !allow.Queued {
			r.find("left behind", "%d copies of %v are in the main, retry or backstop queues", copies, n.key)
		}
	}
	for k, n := range q.letters {
		if own := rows[k]; own.status != dead {
			r.Stale += n
		} else if n > 1 {
			r.Stale += n - 1
		}
	}
}
