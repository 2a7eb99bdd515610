package dedup

import "strconv"

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

// words are the states' words in the readable view, metrics and lists, from Absent on.
var words = []string{"absent", "processing", "success", "failed", "dead", "discarded"}

// String is the state's word.
func (s Status) String() string {
	if s < Absent || s > Discarded {
		return "status " + strconv.Itoa(int(s))
	}
	return words[s-Absent]
}

// Version is what every conditional statement compares before it changes a row. Attempts alone repeat after a replay,
// and attempts with replays repeat after a claim was given back; so all are compared, and in Processing the owner too.
type Version struct {
	Status   Status
	Attempts int // since the row was made or reopened
	Replays  int // how often the row was reopened
	// Owner is the token of the claim or replay that wrote the row last; empty when none did.
	Owner string
}

// action names a way to change an identity's state.
type action string

// The actions. Each may start from several states; the table of transitions says from which, and under which guards.
const (
	actionInsert   action = "fast path"
	actionBlame    action = "blamed"
	actionClaim    action = "claim"
	actionSuccess  action = "success"
	actionFail     action = "fail"
	actionUnclaim  action = "unclaim"
	actionForgive  action = "forgive"
	actionExhaust  action = "exhaust"
	actionCondemn  action = "condemn"
	actionDead     action = "dead"
	actionReopen   action = "reopen"
	actionDiscard  action = "discard"
	actionTakeDone action = "taken over, done"
	actionTakeOpen action = "taken over, open"
)

// guard is a set of conditions that a transition's statement checks beside the version.
type guard uint8

// The guards. Leases and delays are judged by the database's clock in the statement itself. One that began further
// ahead of that clock than it lasts is over: the clock has gone back.
const (
	guardOwner   guard = 1 << iota // the caller holds the claim
	guardExpired                   // the lease is over
	guardDue                       // the retry delay, less 10 %, has passed, or the handler's own
	guardLeft                      // attempts are left: fewer than the maximum were made, and the row is not condemned
	guardSpent                     // no attempt is left
	guardAsked                     // the person asked for discarded ones too
	guardTaken                     // the row is as it was taken over: nobody of ours has moved it since
)

// transition is one arrow of the diagram.
type transition struct {
	Action action
	From   Status
	To     Status
	Guard  guard
	Note   string // what the arrow does to the version, or what the caller must have done before
}

// transitions is the whole protocol: what is not in it cannot happen. Whoever changes it changes the model in
// docs/model first. Prune is no arrow: it forgets identities that ended so long ago that no copy of their messages can
// be left.
var transitions = []transition{
	{actionInsert, Absent, Success, 0, "in the effect's transaction, attempts 1"},
	{actionInsert, Failed, Success, guardDue | guardLeft, "in the effect's transaction, attempts+1"},

	{actionBlame, Absent, Failed, 0, "by the handler in the fast path, attempts 1"},
	{actionBlame, Failed, Failed, guardDue | guardLeft, "by the handler in the fast path, attempts+1"},
	{actionClaim, Absent, Processing, 0, "attempts 1"},
	{actionClaim, Processing, Processing, guardExpired | guardLeft, "attempts+1"},
	{actionClaim, Failed, Processing, guardDue | guardLeft, "attempts+1"},

	{actionSuccess, Processing, Success, guardOwner, "in the effect's transaction"},
	{actionFail, Processing, Failed, guardOwner, ""},
	{actionUnclaim, Processing, Failed, guardOwner, "never ran, or put off, attempts-1, due at once or when asked for"},
	{actionForgive, Processing, Failed, guardExpired | guardSpent,
		"claimed with others, attempts-1, to run alone; a take-over with others: always"},
	{actionExhaust, Processing, Failed, guardExpired | guardSpent, "no attempt"},

	{actionCondemn, Absent, Failed, 0, "letter refused for now, reason kept, no attempt left"},
	{actionCondemn, Processing, Failed, guardOwner, "letter refused for now, reason kept, no attempt left"},
	{actionCondemn, Failed, Failed, 0, "letter refused for now, reason kept, no attempt left"},

	{actionDead, Absent, Dead, 0, "letter confirmed"},
	{actionDead, Processing, Dead, guardOwner, "letter confirmed"},
	{actionDead, Failed, Dead, 0, "letter confirmed"},

	{actionReopen, Absent, Failed, 0, "attempts 0, replays+1, due at once"},
	{actionReopen, Processing, Failed, guardExpired, "attempts 0, replays+1, due at once"},
	{actionReopen, Failed, Failed, 0, "attempts 0, replays+1, due at once"},
	{actionReopen, Dead, Failed, 0, "attempts 0, replays+1, due at once"},
	{actionReopen, Discarded, Failed, guardAsked, "attempts 0, replays+1, due at once"},

	{actionDiscard, Absent, Discarded, 0, ""},
	{actionDiscard, Processing, Discarded, guardExpired, ""},
	{actionDiscard, Failed, Discarded, 0, ""},
	{actionDiscard, Dead, Discarded, 0, ""},

	{actionTakeDone, Absent, Success, 0, "another log says so"},
	{actionTakeDone, Dead, Success, guardTaken, "another log says so by now"},
	{actionTakeOpen, Absent, Dead, 0, "another log left it open, effect unknown, no letter"},
	{actionTakeOpen, Dead, Dead, guardTaken, "another log has moved it"},
}

// transitionOf finds the arrow of an action that starts from a state.
func transitionOf(a action, from Status) (transition, bool) {
	for _, t := range transitions {
		if t.Action == a && t.From == from {
			return t, true
		}
	}
	return transition{Action: a}, false
}
