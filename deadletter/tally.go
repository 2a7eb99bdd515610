package deadletter

import (
	"cmp"
	"maps"
	"slices"

	"github.com/rollbackd/rollbackd/dedup"
)

// tally counts what becomes of the letters of a run.
type tally struct {
	Result
	limit    int             // letters that are taken at most; 0: any number
	missing  map[string]bool // keys of the filter that no letter had so far
	progress func(Progress)
	keep     int // of Left at most so many are kept, the others only counted; 0: all
	// passed: of a set, all that was reopened before and perhaps not published has been met. risky counts what stays and
	// is, or may be, reopened without being published.
	passed bool
	risky  int
}

func newTally(o ReplayOptions) *tally {
	t := &tally{missing: map[string]bool{}, progress: o.Progress}
	t.Result = Result{DryRun: o.DryRun, ByReason: map[dedup.Reason]int{}, Left: []Left{}, LeftBy: map[Why]int{},
		NotFound: []string{}}
	if t.progress == nil {
		t.progress = func(Progress) {}
	}
	return t
}

// again forgets what a new pass through the queue will see again: all but what was acked.
func (t *tally) again(acked int) {
	t.Seen = acked
	t.NotSelected, t.Later, t.Parked, t.Left = 0, 0, 0, []Left{}
	clear(t.LeftBy)
}

// unsee takes back that letters were seen which the run ended before.
func (t *tally) unsee(leaders, waiting []*letter) {
	for _, lt := range leaders {
		t.Seen -= 1 + len(lt.followers)
	}
	t.Seen -= len(waiting)
}

// find notes that the filter's keys which the letter has were found.
func (t *tally) find(lt *letter) {
	for _, name := range []string{lt.id.Identity.Key, lt.own.Identity.Key, lt.formerRow.Identity.Key} {
		delete(t.missing, name)
	}
}

// missed notes the keys that no letter has, now that all letters were seen.
func (t *tally) missed() {
	t.NotFound = slices.AppendSeq(t.NotFound, maps.Keys(t.missing))
	slices.Sort(t.NotFound)
}

// reached reports whether the limit is reached with so many more letters.
func (t *tally) reached(more int) bool {
	return t.limit > 0 && t.Replayed+t.Discarded+more >= t.limit
}

// enough reports whether the limit is reached.
func (t *tally) enough() bool { return t.reached(0) }

func (t *tally) done(lt *letter) {
	t.ByReason[cmp.Or(lt.reason(), "unknown")]++
	if lt.replacedBody != nil {
		t.Mended++
	}
}

// leave notes a letter that was chosen and stays.
func (t *tally) leave(lt *letter, why Why, err error) {
	if why == WhyUnknown || lt.row.Status == dedup.Failed {
		t.risky++
	}
	left := Left{Tag: lt.id.Identity.Tag, Key: lt.id.Identity.Key, Reason: lt.reason(), Why: why}
	if err != nil {
		left.Error = err.Error()
	}
	t.LeftBy[why]++
	if t.keep == 0 || len(t.Left) < t.keep {
		t.Left = append(t.Left, left)
	}
}

// confirmed reports whether all that was reopened for a set is published.
func (t *tally) confirmed() bool { return t.passed && t.risky == 0 }

// add adds what a walk through the queue did for the same set.
func (t *tally) add(o *tally) {
	t.Replayed, t.Stale, t.Duplicates = t.Replayed+o.Replayed, t.Stale+o.Stale, t.Duplicates+o.Duplicates
	t.Parked, t.risky = t.Parked+o.Parked, t.risky+o.risky
	for reason, n := range o.ByReason {
		t.ByReason[reason] += n
	}
	for why, n := range o.LeftBy {
		t.LeftBy[why] += n
	}
	t.Left = append(t.Left, o.Left...)
}

// report says how far the run has come.
func (t *tally) report() {
	t.progress(Progress{
		Seen: t.Seen, Found: t.Found, Done: t.Replayed + t.Discarded, Waiting: t.Unsettled, Failed: t.FailedAgain,
		Applied: t.Applied, Left: len(t.Left), Confirmed: t.confirmed(),
	})
}
