package site

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/admin"
)

// A lane that stands still for so many handler timeouts, and at least for so long, counts as stuck. Whatever it asks of
// a server has an end before that, also with the shortest timeouts; while it waits between two such questions it is not
// counted. So a server that is away does not get the process restarted, and a stuck lane does, whatever else is away.
const (
	stuckAfter = 3
	stuckLeast = 30 * time.Second
)

// ReadinessOf joins what the consumers of a process say of themselves; the first one's is its name.
func ReadinessOf(members []*consumer.Consumer) Readiness {
	r := Readiness{Consuming: true}
	for _, m := range members {
		s, of := m.State(), m.Config()
		r.Group, r.Queue = cmp.Or(r.Group, of.Group), cmp.Or(r.Queue, of.Queue)
		if len(members) > 1 {
			s = named(s, of.Queue)
			r.Queues = append(r.Queues, admin.QueueReadiness{
				Group: of.Group, Queue: of.Queue, Ready: s.Consuming && !s.Draining && len(s.Paused) == 0,
			})
		}
		r.Consuming, r.Draining = r.Consuming && s.Consuming, r.Draining || s.Draining
		r.Waiting, r.Degraded = append(r.Waiting, s.Paused...), append(r.Degraded, s.Degraded...)
		r.Stuck = cmp.Or(r.Stuck, stuck(s.Still, of.HandlerTimeout))
	}
	slices.Sort(r.Waiting)
	slices.Sort(r.Degraded)
	return r
}

// named says of what is amiss with one of several queues of which. What is said of a queue begins with its name, and
// the outbox is that of all.
func named(s consumer.State, queue string) consumer.State {
	for _, all := range [][]string{s.Paused, s.Degraded} {
		for i, text := range all {
			if what, why, _ := strings.Cut(text, ": "); what != "outbox" && !strings.HasPrefix(what, queue) {
				all[i] = what + " of " + queue + ": " + why
			}
		}
	}
	return s
}

// stuck is why the process should be restarted; empty while it need not be.
func stuck(still, handlerTimeout time.Duration) string {
	limit := max(stuckAfter*handlerTimeout, stuckLeast)
	if still <= limit {
		return ""
	}
	return fmt.Sprintf("a lane, or a call of the handler, has not moved for %v, over %v (%d × ROLLBACKD_HANDLER_TIMEOUT, "+
		"at least %v)", still.Round(time.Second), limit, stuckAfter, stuckLeast)
}
