package consumer

// Outcome says how one delivery ended. Metric label, log attribute and word in the documents are its String.
type Outcome uint8

// The outcomes. Their counts add up to every delivery a lane has taken.
const (
	// Applied: this delivery's effect is committed.
	Applied Outcome = iota + 1
	// Duplicate: the identity was success already, or another copy in the same batch was applied; no effect.
	Duplicate
	// DuplicateOfDead: the identity is dead-lettered or discarded; no effect, the letter stays where it is.
	DuplicateOfDead
	// InProgress: another worker owns the identity, its retry is not due, or its handler has said [Later]; a copy comes
	// back later, no attempt counted.
	InProgress
	// Retried: a counted attempt failed and a confirmed copy waits in a retry queue.
	Retried
	// DeadLettered: a copy is confirmed in the dead-letter queue and the row says dead.
	DeadLettered
	// LeaseLost: the row was moved by somebody else during the attempt; nothing was committed, a copy comes back later.
	LeaseLost
	// Abandoned: given back to the broker unsettled; it will be delivered again.
	Abandoned
)

var outcomeNames = [...]string{
	"open", "applied", "duplicate", "duplicate_of_dead", "in_progress", "retried", "dead_lettered", "lease_lost",
	"abandoned",
}

// String is the outcome's name in metrics, logs and documents.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// Outcomes lists every outcome, for whoever prepares a counter for each.
func Outcomes() []Outcome {
	return []Outcome{Applied, Duplicate, DuplicateOfDead, InProgress, Retried, DeadLettered, LeaseLost, Abandoned}
}

// ofFollower is how a copy ends whose leader, a copy with the same body in the same batch, ended as o.
func (o Outcome) ofFollower() Outcome {
	switch o {
	case Applied, Duplicate:
		return Duplicate
	case DeadLettered, DuplicateOfDead:
		return DuplicateOfDead
	default:
		return InProgress // the leader's confirmed copy carries this one too
	}
}
