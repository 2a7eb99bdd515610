package deadletter

import (
	"context"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
)

// Verdict is what would become of a letter.
type Verdict string

// The verdicts.
const (
	VerdictAct        Verdict = "will_run"    // it is replayed, or discarded, which ends it without an effect
	VerdictDone       Verdict = "done"        // its effect is committed: its letter is dropped
	VerdictDiscarded  Verdict = "discarded"   // a person ended it: its letter is dropped
	VerdictInProgress Verdict = "in_progress" // it is being processed, or waits for its next attempt
	VerdictParked     Verdict = "parked"      // replayed as often as Options.MaxReplays allows: force takes it
	VerdictLater      Verdict = "later"       // it died after the set was frozen
	// VerdictFromQueue: its row keeps too little of its message, so the letter is looked for in the queue.
	VerdictFromQueue Verdict = "from_queue"
	// VerdictTooOld: nothing is known of the key: its row is gone, and a letter that is left may have had its effect.
	VerdictTooOld Verdict = "too_old"
	VerdictStays  Verdict = "stays" // for another reason
)

// Verdicts are all of them.
func Verdicts() []Verdict {
	return []Verdict{VerdictAct, VerdictDone, VerdictDiscarded, VerdictInProgress, VerdictParked, VerdictLater,
		VerdictFromQueue, VerdictTooOld, VerdictStays}
}

// Judged is a letter with what would become of it. The names of its JSON form are stable.
type Judged struct {
	Letter
	Status  string  `json:"status"` // of the row; "" when there is none
	Verdict Verdict `json:"verdict"`
	// Message is what its handler would get, if that was asked for and it would be replayed.
	Message *Message `json:"-"`
}

// JudgeOptions say for what, and which page.
type JudgeOptions struct {
	Discard, Force bool
	Messages       bool // each with its Message
	After          dedup.Cursor
	Limit          int // 1 to dedup.MaxListed
	// Through bounds the letters that are looked at where no index leads to those of the set; 0: all are looked at.
	Through int
}

// CountSet counts the letters of a set, most at most, and those that are parked; more: there may be more. No index
// leads to reasons, errors and fingerprints: with one of them, through letters at most are looked at; 0: all of them.
func (l *Letters) CountSet(
	ctx context.Context, set Set, most, through int,
) (matched, parked int, more bool, err error) {
	if err := set.validate(); err != nil {
		return 0, 0, false, err
	}
	f, q := set.Filter, set.query(l.o.Group)
	if f.Fingerprint == "" && (through == 0 || len(f.Keys) > 0 || !f.searches()) {
		matched, parked, err = l.o.Records.Count(ctx, q, l.o.MaxReplays, most+1)
	} else {
		var rows []dedup.Row
		var next dedup.Cursor
		rows, next, err = l.o.Records.Look(ctx, q, through, f.printed())
		for _, row := range rows {
			if isSpent(row, l.o.MaxReplays) {
				parked++
			}
		}
		matched, more = len(rows), next != ""
	}
	return min(matched, most), min(parked, most), more || matched > most, err
}

// JudgeSet judges a page of a set by the rows, the latest first. With keys, it judges the rows of these keys in
// whatever state, and says of a key without a row that it is too old.
func (l *Letters) JudgeSet(ctx context.Context, set Set, o JudgeOptions) ([]Judged, dedup.Cursor, error) {
	if err := set.validate(); err != nil {
		return nil, "", err
	}
	q := set.query(l.o.Group)
	q.Oldest, q.Limit, q.After = false, o.Limit, o.After
	byKey := len(q.Keys) > 0
	if byKey {
		q.Statuses, q.UpTo = nil, dedup.Filter{}.UpTo
	}
	rows, next, err := l.o.Records.Look(ctx, q, o.Through, notDeadOr(set.Filter.printed()))
	if err != nil {
		return nil, "", fmt.Errorf("judge dead letters: %w", err)
	}
	whole := map[dedup.Identity]dedup.Row{}
	if !o.Discard { // whether a message can be replayed from its row is seen in what that keeps
		keys := mapped(rows, func(row dedup.Row) dedup.Identity { return row.Identity })
		if whole, err = l.o.Records.ReadAll(ctx, keys); err != nil {
			return nil, "", fmt.Errorf("judge dead letters: %w", err)
		}
	}
	var judged []Judged
	known := map[string]bool{}
	for _, row := range rows {
		known[row.Key] = true
		if now, there := whole[row.Identity]; there {
			row = now
		}
		j := Judged{Letter: l.letterOf(row), Status: row.Status.String(), Verdict: l.verdict(row, set, o)}
		if o.Messages && j.Verdict == VerdictAct {
			j.Message = l.replayed(row)
		}
		judged = append(judged, j)
	}
	if byKey && next == "" && o.After == "" {
		for _, key := range q.Keys {
			if !known[key] && set.Filter.Tag == "" && !set.Filter.searches() {
				judged = append(judged, Judged{Letter: Letter{Group: l.o.Group, Key: key}, Verdict: VerdictTooOld})
			}
		}
	}
	return judged, next, nil
}

// notDeadOr also takes what is not dead any more: its last error says nothing of whether it was chosen.
func notDeadOr(chosen func(dedup.Row) bool) func(dedup.Row) bool {
	if chosen == nil {
		return nil
	}
	return func(row dedup.Row) bool { return row.Status != dedup.Dead || chosen(row) }
}

// verdict is of one row.
func (l *Letters) verdict(row dedup.Row, set Set, o JudgeOptions) Verdict {
	switch row.Status {
	case dedup.Success:
		return VerdictDone
	case dedup.Discarded:
		return VerdictDiscarded
	case dedup.Processing, dedup.Failed:
		return VerdictInProgress
	case dedup.Dead:
	default:
		return VerdictStays
	}
	if row.At.After(set.CutOff) {
		return VerdictLater
	}
	_, _, cut := l.kept(row)
	switch v, why := decide(row, situation{discard: o.Discard, force: o.Force, most: l.o.MaxReplays}); {
	case why == WhyParked:
		return VerdictParked
	case v != act:
		return VerdictStays
	case !o.Discard && cut != nil:
		return VerdictFromQueue
	}
	return VerdictAct
}
