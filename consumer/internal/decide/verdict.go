// Package decide says what becomes of a message by its row and its delivery, and what follows for a group by how its
// transaction ended. It must not do I/O, read a clock or remember anything: what it is told is all it knows.
package decide

import "github.com/rollbackd/rollbackd/dedup"

// Verdict says what a message's row asks for.
type Verdict uint8

// The verdicts.
const (
	RunFresh      Verdict = iota + 1 // no row, hardly delivered before: the fast path
	RunReopened                      // reopened and not tried since, or given back unrun: the fast path, by its row
	RunAgain                         // failed before: claim it, attempt it together with others
	RunAlone                         // claim it, attempt it alone
	TakeOver                         // claim an expired lease, attempt it while this process holds no other claim
	TakeOverGroup                    // likewise, together with others: it was claimed with others when its process died
	Bury                             // no row, and nobody can ever read it: letter, then a row that says dead
	SkipDone                         // success already
	SkipDead                         // dead or discarded already
	Reopen                           // dead, but this is its letter, moved back by hand, or a copy of a later replay
	ComeBack                         // a live lease or a retry not yet due
	GiveUp                           // out of attempts, or failed for good: letter, then dead
	Forgive                          // claimed with others, the last attempt or a take-over: it is made again, alone
	Exhaust                          // an expired lease without attempts left: failed first, then GiveUp
)

// Circumstances are what a verdict needs to know of a delivery besides its row.
type Circumstances struct {
	// Deliveries is how often the broker delivered it before.
	Deliveries int
	// Unreadable: unidentified, in conflict or malformed.
	Unreadable bool
	// LetterOf is the replays count of the letter this delivery is, -1 when it is none.
	LetterOf int
	// Replays is how often the message had been reopened when this copy was made; 0 where the copy does not say.
	Replays int
}

// MayKillFrom is how often a message was delivered before from when on it is attempted alone: an ordinary reconnect
// redelivers the whole window once and must not slow the backlog down, while a message that kills the process is alone
// from its third delivery on, or earlier if its claim says that it was being attempted.
const MayKillFrom = 2

// MayKill reports whether a message was in the hands of a process that died so often that it may be why.
func (c Circumstances) MayKill() bool { return c.Deliveries >= MayKillFrom }

// OfRow is the verdict on a message.
func OfRow(row dedup.Row, c Circumstances, maxAttempts int) Verdict {
	switch row.Status {
	case dedup.Absent:
		switch {
		case c.Unreadable:
			return Bury
		case c.MayKill():
			return RunAlone
		}
		return RunFresh
	case dedup.Success:
		return SkipDone
	case dedup.Discarded:
		return SkipDead
	case dedup.Dead:
		if c.reopens(row) {
			return Reopen
		}
		return SkipDead
	case dedup.Processing:
		switch {
		case row.LeaseLive:
			return ComeBack
		case row.TakenWithOthers(), row.Attempts >= maxAttempts && row.ClaimedWithOthers():
			return Forgive
		case row.Attempts >= maxAttempts:
			return Exhaust
		case row.ClaimedWithOthers() && !c.MayKill() && !c.Unreadable && len(row.BodyHash) > 0:
			return TakeOverGroup
		}
		return TakeOver
	case dedup.Failed:
		switch {
		case row.Attempts >= maxAttempts, row.Condemned():
			return GiveUp
		case !row.Due:
			return ComeBack
		case c.MayKill(), c.Unreadable, row.RunsAlone(), len(row.BodyHash) == 0:
			return RunAlone // it may be what kills its process, or its row lacks what a claim of one can add
		case row.Attempts == 0 && !row.PutOff(): // as new: who dies with it counts deliveries
			return RunReopened
		}
		return RunAgain
	}
	return ComeBack // a status of a newer version: leave it to those who know it
}

// reopens reports whether this delivery of a dead message is not a further copy of it, but what is left of it: its
// letter, moved back by hand, or a copy that was made after a replay of which the row knows nothing. The database has
// lost that replay in a failover then, or shows what was; the letter is gone. Reopening compares the row, which a
// server that shows what was cannot change.
func (c Circumstances) reopens(row dedup.Row) bool {
	return c.LetterOf == row.Replays || c.Replays > row.Replays
}

// Works reports whether the verdict means to do something about the message now, which must wait for its lock: whoever
// has it may be attempting the message, or about to publish its letter.
func (v Verdict) Works() bool {
	switch v {
	case SkipDone, SkipDead, ComeBack:
		return false
	}
	return true
}

// ReasonOf is the reason of the letter for a row without attempts left: whether the last attempt failed or never came
// back was written down when it ended.
func ReasonOf(row dedup.Row) dedup.Reason {
	if row.Reason == dedup.ReasonCrashed || row.Condemned() {
		return dedup.Reason(row.Reason)
	}
	return dedup.ReasonExhausted
}

// Trips reports whether letters with this reason may mean a broken deployment. What cannot be read never does: a bad
// producer must not stop the good ones.
func Trips(r dedup.Reason) bool {
	switch r {
	case dedup.ReasonPermanent, dedup.ReasonExhausted, dedup.ReasonCrashed:
		return true
	}
	return false
}
