package dedup

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// report prints what happened how often.
func (l *lab) report(t *testing.T) {
	t.Logf("sequences %d, messages %d, random steps %d (shortest sequence %d), healing steps %d", l.sequences, l.messages,
		l.steps, l.shortest, l.healing)
	for _, what := range slices.Sorted(maps.Keys(l.happened)) {
		t.Logf("%7d %s", l.happened[what], what)
	}
	if l.violation != "" {
		t.Logf("first violation: %s", l.violation)
	}
}

// add counts what happened in another lab.
func (l *lab) add(other *lab) {
	l.sequences, l.messages, l.steps = l.sequences+other.sequences, l.messages+other.messages, l.steps+other.steps
	l.healing, l.violation = l.healing+other.healing, cmp.Or(l.violation, other.violation)
	if l.shortest == 0 || other.shortest > 0 && other.shortest < l.shortest {
		l.shortest = other.shortest
	}
	for what, n := range other.happened {
		l.happened[what] += n
	}
}

// wanted is what a run must have met at least once: a fault that never happened has tested nothing.
var wanted = []string{
	"crash", "stall", "session lost", "redelivery", "took a redelivery", "delivery limit", "sent again",
	"time passes", "lease expired", "live lease not heeded", "delay not heeded", "maximum not heeded",
	string(lostAfter), string(lostBefore), string(undecided), "decided later, committed true",
	"decided later, committed false",
	"answer forgotten", "confirm lost",
	"letter refused", "held too long", "letter tried again", "ended while held", "reason not heeded",
	"applied", "duplicate", "duplicate of dead", "fast path met a row", "fast path of a row", "takeover",
	"attempt fails", "attempt permanent", "attempt dependency away",
	"unknown COMMIT was done", "unknown COMMIT is repeated", "unknown COMMIT given up",
	string(atClaim), string(atFail), string(atUnclaim), string(atExhaust), string(atDead), string(atCondemn),
	string(atBlame),
	string(atBlame) + " in company", string(atClaim) + " in company", string(atCommit) + " in company",
	string(atFail) + " in company", string(atUnclaim) + " in company",
	"lost: " + string(atClaim), "lost: " + string(atCommit), "lost: " + string(atFail), "lost: " + string(atUnclaim),
	"lost: " + string(atFast),
	"lost: " + string(atExhaust), "lost: " + string(atCondemn), "lost: " + string(atDead), "lost: reopen", "lost: discard",
	"replay", "stale letter", "letter moved by hand", "letter moved by hand is reopened",
	"reopen from absent", "reopen from processing", "reopen from failed", "reopen from dead", "reopen from discarded",
	"discard from absent", "discard from processing", "discard from failed", "discard from dead",
}

// missing lists what has not happened yet in a full run; a short one owes nothing.
func (l *lab) missing() []string {
	const full = 200
	if l.t.Failed() || l.sequences < full {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(what string) bool { return l.happened[what] > 0 })
}

// wantAll fails a full run that missed a fault.
func (l *lab) wantAll(t *testing.T) {
	for _, what := range l.missing() {
		t.Errorf("%q never happened in %d sequences", what, l.sequences)
	}
	assert.That(t, l.shortest >= minSteps || t.Failed(), "a sequence had only %d steps", l.shortest)
}
