package oracle

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rollbackd/rollbackd/dedup"
)

// Counters are those that RabbitMQ's own Jepsen tests print, and what belongs to dead letters.
type Counters struct {
	Attempt            int // publishes tried
	Acknowledged       int // publishes confirmed
	Applied            int // messages whose effect is committed
	Lost               int // confirmed messages that are nowhere
	DuplicatedEffects  int // reservations released more than once
	DeadLettered       int // messages dead, with a letter
	Discarded          int // messages discarded by a person
	Queued             int // messages still in a queue
	DuplicatesAbsorbed int // confirmed further copies of messages that have ended
	Recovered          int // messages applied although no publish of them was confirmed
	Stale              int // copies and letters in queues whose message has ended otherwise
	AttemptsSpent      int // claimed attempts of messages that must be applied, beyond the first of each
}

// Report is the verdict on a run.
type Report struct {
	Counters
	DeadByReason  map[dedup.Reason]int
	Before, After Stock
	Findings      []string // what is wrong, each kind with examples; empty when the promise was kept

	more map[string]int // findings of a kind that were left out
}

// examples is how many findings of one kind are told.
const examples = 5

// find notes what is wrong. kind says what, and more of it than examples are only counted.
func (r *Report) find(kind, format string, args ...any) {
	if r.more == nil {
		r.more = map[string]int{}
	}
	r.more[kind]++
	if n := r.more[kind]; n <= examples {
		r.Findings = append(r.Findings, kind+": "+fmt.Sprintf(format, args...))
	}
}

// Err is nil when the promise was kept.
func (r *Report) Err() error {
	if len(r.Findings) == 0 {
		return nil
	}
	lines := append([]string(nil), r.Findings...)
	for kind, n := range r.more {
		if n > examples {
			lines = append(lines, fmt.Sprintf("%s: %d in all", kind, n))
		}
	}
	return errors.New("the promise is broken:\n  " + strings.Join(lines, "\n  "))
}

// String is the counters on one line.
func (c Counters) String() string {
	return fmt.Sprintf("attempt %d, acknowledged %d, applied %d, lost %d, duplicated effects %d, dead-lettered %d, "+
		"discarded %d, still queued %d, duplicates absorbed %d, recovered %d, stale %d, attempts spent on dependencies %d",
		c.Attempt, c.Acknowledged, c.Applied, c.Lost, c.DuplicatedEffects, c.DeadLettered, c.Discarded, c.Queued,
		c.DuplicatesAbsorbed, c.Recovered, c.Stale, c.AttemptsSpent)
}
