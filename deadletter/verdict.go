package deadletter

import (
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Why says why a letter that was chosen stays in the queue. Run the same again later, unless it says otherwise.
type Why string

// The reasons to leave a letter.
const (
	WhyInProgress  Why = "in_progress" // a worker has its identity right now
	WhyMoved       Why = "moved"       // somebody changed the row at the same moment
	WhyUnknown     Why = "unknown"     // the database's answer was lost; the row may be reopened
	WhyUnpublished Why = "unpublished" // the row is reopened, the main queue did not confirm the message
	WhyOldRow      Why = "old_row"     // its message is published, the row of its former identity could not be ended
	WhyUnacked     Why = "unacked"     // all is done but the ack; the next run drops it as stale
	// no row, and older than the log's retention: it may have had its effect; force takes it
	WhyTooOld   Why = "too_old"
	WhyKeyTaken Why = "key_taken" // another body had its key, and that row is gone: force takes it
	WhyParked   Why = "parked"    // replayed as often as Options.MaxReplays allows: force takes it
	WhyBadLine  Why = "bad_line"  // a line of the file cannot be read
	// WhyOtherIdentity: a line's message is not that of the line's row any more. Discard the letter, publish the message.
	WhyOtherIdentity Why = "other_identity"
	WhyNewerStatus   Why = "newer_status" // the row is in a state that a newer version of this program wrote
	WhyFailed        Why = "failed"       // see its error
	// WhyCut: a row or a line keeps too little of its message to send it again. It never passes: get the message from its
	// producer.
	WhyCut Why = "cut"
)

// verdict says what becomes of a letter.
type verdict uint8

const (
	act   verdict = iota + 1 // reopen and publish, or discard
	drop                     // stale: its identity has ended
	later                    // not of this run: it came, or its row moved, after the beginning
	leave                    // it stays, see Why
)

// situation is what a letter's verdict needs besides its row.
type situation struct {
	discard   bool          // the run discards; else it replays
	discarded bool          // replay also what a person discarded
	force     bool          // take what only a person can vouch for
	token     string        // begins the owner of every row that this run reopens
	elapsed   time.Duration // since the run began, when the row was read
	keyTaken  bool          // the letter was filed as conflict, and the row that it was in conflict with is gone
	age       time.Duration // since the letter's message first failed
	dated     bool          // age is known
	retention time.Duration // of success rows; 0: for ever
	most      int           // replays of a dead row, after which it is parked; 0: any number
}

// decide is pure: a letter's row in, its verdict out.
func decide(row dedup.Row, s situation) (verdict, Why) {
	switch row.Status {
	case dedup.Absent:
		return decideAbsent(s)
	case dedup.Success:
		return drop, ""
	case dedup.Discarded:
		if s.discard || !s.discarded || wasEdited(row) {
			return drop, ""
		}
	case dedup.Processing, dedup.Failed, dedup.Dead:
	default:
		return leave, WhyNewerStatus
	}
	// Age is by the database's clock and elapsed is a span, so clocks that differ do not matter.
	if row.Age < s.elapsed && !reopenedBy(row, s.token) {
		if row.Status == dedup.Processing {
			return leave, WhyInProgress
		}
		return later, ""
	}
	if row.Status == dedup.Processing && row.LeaseLive {
		return leave, WhyInProgress
	}
	if !s.discard && !s.force && isSpent(row, s.most) {
		return leave, WhyParked
	}
	return act, ""
}

// isSpent: only a dead row can be parked. One that a killed replay left in Failed has its letter and no other copy
// perhaps, and nobody would find it in a list of dead letters.
func isSpent(row dedup.Row, most int) bool {
	return most > 0 && row.Status == dedup.Dead && row.Replays >= most
}

// reopenedBy reports whether a row stands as this run reopened it, so that the letter is a second one of its identity.
func reopenedBy(row dedup.Row, token string) bool {
	return row.Status == dedup.Failed && row.Attempts == 0 && strings.HasPrefix(row.Owner, token)
}

// decideAbsent: a success row that outlived its retention is gone, and a letter that is as old could be a second copy
// of what it stood for. Retention counts from the success, so a letter made after it has a day of slack.
func decideAbsent(s situation) (verdict, Why) {
	const slack = 24 * time.Hour
	switch {
	case s.discard || s.force:
		return act, ""
	case s.keyTaken:
		return leave, WhyKeyTaken
	case s.retention > 0 && (!s.dated || s.age > s.retention-slack):
		return leave, WhyTooOld
	}
	return act, ""
}
