package consumer

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Ended is how one delivery ended, for [Config].Observe.
type Ended struct {
	// Identity is the message's, or the name that was made up for one that nobody can read.
	dedup.Identity
	MessageID string
	Outcome   Outcome
	// Attempt is the counted attempt that this delivery made; 0 when it made none, as in the fast path.
	Attempt int
	// Reason is why it is dead-lettered, when Outcome says so.
	Reason dedup.Reason
	// Cause is what was wrong, when Outcome is Retried or DeadLettered; or why an attempt was put off.
	Cause string
	// Delay is that of the retry queue from which a copy comes back; 0: there is no such copy.
	Delay time.Duration
	// Took is the time since its worker took the delivery.
	Took time.Duration
	// PublishedAt is zero when the producer said nothing of it.
	PublishedAt time.Time
}

// String is for a line of a log: whose end it is and how it ended. Without it the identity's own would hide the rest.
func (e Ended) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", e.Identity, e.Outcome)
	if e.Attempt > 0 {
		fmt.Fprintf(&b, ", attempt %d", e.Attempt)
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, ", %v", e.Reason)
	}
	if e.Delay > 0 {
		fmt.Fprintf(&b, ", again in %v", e.Delay)
	}
	if e.Cause != "" {
		fmt.Fprintf(&b, ": %q", e.Cause)
	}
	return b.String()
}

// LogValue is the same as attributes.
func (e Ended) LogValue() slog.Value {
	attrs := []slog.Attr{slog.Any("message", e.Identity), slog.String("outcome", e.Outcome.String())}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(e.Reason)))
	}
	if e.Delay > 0 {
		attrs = append(attrs, slog.Duration("again_in", e.Delay))
	}
	if e.Cause != "" {
		attrs = append(attrs, slog.String("err", e.Cause))
	}
	return slog.GroupValue(append(attrs, slog.Duration("took", e.Took))...)
}

// ended counts the end of a delivery, and tells who observes.
func (c *engine) ended(it *item, o Outcome) {
	c.metrics.deliveries[o].Inc()
	if c.cfg.Observe != nil {
		c.observe(endedOf(it, o))
	}
}

// endedOf is how a delivery ended, or was given up.
func endedOf(it *item, o Outcome) Ended {
	e := Ended{
		Identity: it.id.Identity, MessageID: it.delivery.MessageID, Outcome: o, PublishedAt: it.msg.PublishedAt,
		Took: time.Since(it.taken),
	}
	e.Reason, e.Cause = it.reason, it.cause
	switch {
	case o == Applied:
		e.Attempt = it.msg.Attempt
	case o == Retried || it.by == byDeadLetter:
		e.Attempt = it.row.Attempts
	}
	if it.by == byRetry && o != Abandoned {
		e.Delay = it.delay
	}
	return e
}

// observe outlives a panic of who observes: it would end the process, and charge a delivery to everything in hand.
func (c *engine) observe(e Ended) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("Config.Observe panicked", "message", e.Identity, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	c.cfg.Observe(e)
}
