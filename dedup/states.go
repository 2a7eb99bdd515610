package dedup

import (
	"slices"
	"strconv"
	"strings"
)

// Status is the state of an identity, as stored in consumer_status.
type Status int8

// The states. The zero Status is Processing, as in the column; an identity without a row is Absent.
const (
	Absent     Status = -1 // no row
	Processing Status = 0  // claimed; protected by its lease
	Success    Status = 1  // the effect is committed
	Failed     Status = 2  // an attempt failed; waits for the next, or for its letter when no attempt is left
	Dead       Status = 3  // a letter is confirmed in the dead-letter queue
	Discarded  Status = 4  // a person ended it
)

// Statuses are all states a row can have, in the order of their numbers.
func Statuses() []Status { return []Status{Processing, Success, Failed, Dead, Discarded} }

// String is the state's word in the readable view, metrics and lists.
func (s Status) String() string {
	switch s {
	case Absent:
		return "absent"
	case Processing:
		return "processing"
	case Success:
		return "success"
	case Failed:
		return "failed"
	case Dead:
		return "dead"
	case Discarded:
		return "discarded"
	}
	return "status " + strconv.Itoa(int(s))
}

// Version is what every conditional statement compares before it changes a row. Attempts alone repeat after a replay, and
// attempts with replays repeat after a claim was given back; so all are compared, and in Processing the owner too.
type Version struct {
	Status   Status
	Attempts int // since the row was made or reopened
	Replays  int // how often the row was reopened
	// Owner is the token of the claim or replay that wrote the row last; empty when none did.
	Owner string
}

// Action names a way to change an identity's state.
type Action string

// The actions. Each may start from several states; the table of [Transitions] says from which, and under which guards.
const (
	ActionInsert  Action = "fast path"
	ActionClaim   Action = "claim"
	ActionSuccess Action = "success"
	ActionFail    Action = "fail"
	ActionUnclaim Action = "unclaim"
	ActionExhaust Action = "exhaust"
	ActionDead    Action = "dead"
	ActionReopen  Action = "reopen"
	ActionDiscard Action = "discard"
)

// Guard is a set of conditions that a transition's statement checks beside the version.
type Guard uint8

// The guards. Leases and delays are judged by the database's clock in the statement itself.
const (
	GuardOwner   Guard = 1 << iota // the caller holds the claim
	GuardExpired                   // the lease is over
	GuardDue                       // the retry delay, less 10 %, has passed
	GuardLeft                      // attempts are left
	GuardSpent                     // no attempt is left
	GuardAsked                     // the person asked for discarded ones too
)

// String lists the guards in words.
func (g Guard) String() string {
	var words []string
	for _, w := range []struct {
		guard Guard
		word  string
	}{
		{GuardOwner, "own claim"}, {GuardExpired, "lease expired"}, {GuardDue, "due"},
		{GuardLeft, "attempts left"}, {GuardSpent, "no attempt left"}, {GuardAsked, "asked for"},
	} {
		if g&w.guard != 0 {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, ", ")
}

// Transition is one arrow of the diagram.
type Transition struct {
	Action Action
	From   Status
	To     Status
	Guard  Guard
	Note   string // what the arrow does to the version, or what the caller must have done before
}

// transitions is the whole protocol: what is not in it cannot happen. Whoever changes it changes the model in docs/model
// first. Prune is no arrow: it forgets identities that ended so long ago that no copy of their messages can be left.
var transitions = []Transition{
	{ActionInsert, Absent, Success, 0, "in the effect's transaction, attempts 1"},

	{ActionClaim, Absent, Processing, 0, "attempts 1"},
	{ActionClaim, Processing, Processing, GuardExpired | GuardLeft, "attempts+1"},
	{ActionClaim, Failed, Processing, GuardDue | GuardLeft, "attempts+1"},

	{ActionSuccess, Processing, Success, GuardOwner, "in the effect's transaction"},
	{ActionFail, Processing, Failed, GuardOwner, ""},
	{ActionUnclaim, Processing, Failed, GuardOwner, "never ran, attempts-1, due at once"},
	{ActionExhaust, Processing, Failed, GuardExpired | GuardSpent, "no attempt"},

	{ActionDead, Absent, Dead, 0, "letter confirmed"},
	{ActionDead, Processing, Dead, GuardOwner, "letter confirmed"},
	{ActionDead, Failed, Dead, 0, "letter confirmed"},

	{ActionReopen, Absent, Failed, 0, "attempts 0, replays+1, due at once"},
	{ActionReopen, Processing, Failed, GuardExpired, "attempts 0, replays+1, due at once"},
	{ActionReopen, Failed, Failed, 0, "attempts 0, replays+1, due at once"},
	{ActionReopen, Dead, Failed, 0, "attempts 0, replays+1, due at once"},
	{ActionReopen, Discarded, Failed, GuardAsked, "attempts 0, replays+1, due at once"},

	{ActionDiscard, Absent, Discarded, 0, ""},
	{ActionDiscard, Processing, Discarded, GuardExpired, ""},
	{ActionDiscard, Failed, Discarded, 0, ""},
	{ActionDiscard, Dead, Discarded, 0, ""},
}

// Transitions is the table of all arrows.
func Transitions() []Transition { return slices.Clone(transitions) }

// transitionOf finds the arrow of an action that starts from a state.
func transitionOf(a Action, from Status) (Transition, bool) {
	for _, t := range transitions {
		if t.Action == a && t.From == from {
			return t, true
		}
	}
	return Transition{}, false
}

// Diagram is the table of transitions as a Mermaid state diagram. ARCHITECTURE.md quotes it, a test compares.
func Diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	for _, s := range Statuses() {
		b.WriteString("    state \"" + strconv.Itoa(int(s)) + " " + s.String() + "\" as " + s.String() + "\n")
	}
	for _, t := range transitions {
		from := t.From.String()
		if t.From == Absent {
			from = "[*]"
		}
		b.WriteString("    " + from + " --> " + t.To.String() + ": " + string(t.Action))
		if t.Guard != 0 {
			b.WriteString(" [" + t.Guard.String() + "]")
		}
		if t.Note != "" {
			b.WriteString(" / " + t.Note)
		}
		b.WriteString("\n")
	}
	return b.String()
}
