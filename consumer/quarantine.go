package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// quarantine finds the delivery that ends each connection on which it comes: a filter on the way, or something that the
// client library cannot read. Each end charges a delivery to everything in hand, innocents as well. So after two in a
// row the queue's next sessions are one lane with one delivery at a time. RabbitMQ delivers first what came back: the
// innocents among it pass, and then the culprit stands alone and is charged alone, until the delivery limit takes it to
// the backstop. The first delivery that was in no dead session's hands ends the quarantine.
//
// So much is a precaution, and says nothing. A delivery is blamed aloud when there was one: something came that was not
// acked, or messages waited in the queue when a session began after such an end. Neither is exact: the bytes of a
// delivery may never arrive here, and RabbitMQ puts it back when it notices the end, which a link that only falls
// silent delays by its heartbeats. That is why the precaution is taken in any case; on an idle queue it costs nothing.
//
// It belongs to the goroutine of its source's sessions.
type quarantine struct {
	ends int  // sessions in a row that ended so
	seen bool // and one of them had, or left in the queue, what may have ended it
}

const (
	// endsForgiven is how many connections in a row may end early before a delivery is suspected.
	endsForgiven = 1
	// early is how soon after its begin a session must end to be suspicious: what kills is delivered soon.
	early = time.Minute
	// calm is how long nothing must come before nothing is suspected any more: the culprit is somebody else's by now.
	calm = 10 * time.Second
	// fastEnds is how many ends are followed by the next session at once: enough for the delivery limit of the main queue.
	fastEnds = 250
)

func (q *quarantine) active() bool { return q.ends > endsForgiven }

// quarantined is one lane with one delivery at a time, until its queue is cleared of suspicion.
func quarantined(c *engine, next halfOpen) halfOpen {
	return halfOpen{lanes: 1, size: 1, patience: max(next.patience, c.cfg.GiveBackAfter), quarantine: true}
}

// endedByDelivery takes in that a session of s ended, and reports whether that is put down to a delivery: the
// connection is gone, soon after it was made, and less was acked than it could hold, so that the same deliveries come
// again; and there was one.
func (s *source) endedByDelivery(ctx context.Context, err error, lived time.Duration) bool {
	if !s.stood || !rabbit.IsBroken(err) {
		return false // it says nothing
	}
	if lived < early && s.acked < uint64(s.lanes*s.prefetch) {
		s.quarantine.ends++
		s.quarantine.seen = s.quarantine.seen || s.came > s.acked || s.waited > 0
	} else {
		s.quarantine = quarantine{}
	}
	if !s.quarantine.active() || !s.quarantine.seen {
		return false
	}
	s.stands(ctx) // it is not RabbitMQ that is missing
	s.c.health.degraded(ctx, endsConnections, s.queue, fmt.Errorf("something in it ended the last %d connections on "+
		"which it was delivered; one message is taken at a time until it stands alone. %s: %w",
		s.quarantine.ends, s.advice(), err))
	return true
}

func (s *source) advice() string {
	if s.main {
		return "RabbitMQ moves it to " + rabbit.BackstopQueue(s.queue) + " after its delivery limit; look for what cuts " +
			"the connection, a filter or a proxy on the way"
	}
	return "Look for what cuts the connection, a filter or a proxy on the way, or take the first message of the queue " +
		"out by hand"
}

// cleared ends the quarantine.
func (s *source) cleared(ctx context.Context) {
	s.quarantine = quarantine{}
	s.c.health.sound(ctx, endsConnections, s.queue)
}

// errCalm ends the wait of a lane in quarantine for the next delivery.
var errCalm = errors.New("nothing was delivered for a while")

// fromNobody reports whether a batch was in nobody's hands before, which clears its queue of suspicion.
func (b *batch) fromNobody() bool { return len(b.all) > 0 && b.all[0].delivery.Count == 0 }
