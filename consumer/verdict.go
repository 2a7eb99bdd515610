package consumer

import (
	"math"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// verdict says what a message's row asks for.
type verdict uint8

const (
	runFresh verdict = iota + 1 // no row, hardly delivered before: the fast path
	runAgain                    // failed before: claim it, attempt it together with others
	runAlone                    // claim it, attempt it alone
	takeOver                    // claim an expired lease, attempt it while this process holds no other claim
	bury                        // no row, and nobody can ever read it: letter, then a row that says dead
	skipDone                    // success already
	skipDead                    // dead or discarded already
	reopen                      // dead, but this is its letter, moved back by hand, or a copy of a later replay
	comeBack                    // a live lease or a retry not yet due
	giveUp                      // out of attempts, or failed for good: letter, then dead
	forgive                     // likewise, but it was claimed with others: its last attempt is made again, alone
	exhaust                     // an expired lease without attempts left: failed first, then giveUp
)

// circumstances are what decide needs to know of a delivery besides its row.
type circumstances struct {
	// Deliveries is how often the broker delivered it before.
	Deliveries int
	// Unreadable: unidentified, in conflict or malformed.
	Unreadable bool
	// LetterOf is the replays count of the letter this delivery is, -1 when it is none.
	LetterOf int
	// Replays is how often the message had been reopened when this copy was made; 0 where the copy does not say.
	Replays int
}

// maxFastDeliveries is how often a message may have been delivered before and still share a transaction: an ordinary
// reconnect redelivers the whole window once and must not slow the backlog down, while a message that kills the process
// is alone from its third delivery on.
const maxFastDeliveries = 1

// decide is pure: the row and the circumstances in, a verdict out.
func decide(row dedup.Row, c circumstances, maxAttempts int) verdict {
	switch row.Status {
	case dedup.Absent:
		switch {
		case c.Unreadable:
			return bury
		case c.Deliveries <= maxFastDeliveries:
			return runFresh
		}
		return runAlone
	case dedup.Success:
		return skipDone
	case dedup.Discarded:
		return skipDead
	case dedup.Dead:
		if c.reopens(row) {
			return reopen
		}
		return skipDead
	case dedup.Processing:
		switch {
		case row.LeaseLive:
			return comeBack
		case row.Attempts >= maxAttempts && row.ClaimedWithOthers():
			return forgive
		case row.Attempts >= maxAttempts:
			return exhaust
		}
		return takeOver
	case dedup.Failed:
		switch {
		case row.Attempts >= maxAttempts, row.Condemned():
			return giveUp
		case !row.Due:
			return comeBack
		case c.Deliveries > 0, c.Unreadable, row.RunsAlone(), len(row.BodyHash) == 0:
			return runAlone // it may be what kills its process, or its row lacks what a claim of one can add
		}
		return runAgain
	}
	return comeBack // a status of a newer version: leave it to those who know it
}

// reopens reports whether this delivery of a dead message is not a further copy of it, but what is left of it: its
// letter, moved back by hand, or a copy that was made after a replay of which the row knows nothing. The database has
// lost that replay in a failover then, or shows what was; the letter is gone. Reopening compares the row, which a
// server that shows what was cannot change.
func (c circumstances) reopens(row dedup.Row) bool {
	return c.LetterOf == row.Replays || c.Replays > row.Replays
}

// works reports whether the verdict means to do something about the message now, which must wait for its lock: whoever
// has it may be attempting the message, or about to publish its letter.
func (v verdict) works() bool {
	switch v {
	case skipDone, skipDead, comeBack:
		return false
	}
	return true
}

// reasonOf is the reason of the letter for a row without attempts left: whether the last attempt failed or never came
// back was written down when it ended.
func reasonOf(row dedup.Row) dedup.Reason {
	if row.Reason == dedup.ReasonCrashed || row.Condemned() {
		return dedup.Reason(row.Reason)
	}
	return dedup.ReasonExhausted
}

// brakes reports whether letters with this reason may mean a broken deployment. What cannot be read never does: a bad
// producer must not stop the good ones.
func trips(r dedup.Reason) bool {
	switch r {
	case dedup.ReasonPermanent, dedup.ReasonExhausted, dedup.ReasonCrashed:
		return true
	}
	return false
}

// longest is a wait that no delay exceeds.
const longest = time.Duration(math.MaxInt64)

// fit is the longest of delays that is not longer than wait, else the shortest: a copy that comes too early once more
// costs less than one that sleeps past its time.
func fit(delays []time.Duration, wait time.Duration) time.Duration {
	best := delays[0]
	for _, d := range delays {
		if d <= wait {
			best = d
		}
	}
	return best
}
