package deadletter

import (
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
}

func newTally(f Filter, o ReplayOptions) *tally {
	t := &tally{limit: f.Limit, missing: map[string]bool{}, progress: o.Progress}
	t.Result = Result{DryRun: o.DryRun, ByReason: map[dedup.Reason]int{}, Left: []Left{}, NotFound: []string{}}
	for _, key := range f.Keys {
		t.missing[key] = true
	}
	if t.progress == nil {
		t.progress = func(Progress) {}
	}
	return t
}

// again forgets what a new pass through the queue will see again: all but what was acked.
func (t *tally) again(acked int) {
	t.Seen = acked
	t.NotSelected, t.Later, t.Parked, t.Left = 0, 0, 0, []Left{}
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
	reason := lt.reason()
	if reason == "" {
		reason = "unknown"
	}
	t.ByReason[reason]++
}

func (t *tally) mended(lt *letter) {
	if lt.replacedBody != nil {
		t.Mended++
	}
}

func (t *tally) leave(lt *letter, why Why, err error) {
	left := Left{Tag: lt.id.Identity.Tag, Key: lt.id.Identity.Key, Reason: lt.reason(), Why: why}
	if err != nil {
		left.Error = err.Error()
	}
	t.Left = append(t.Left, left)
}

// report says how far the run has come.
func (t *tally) report() {
	t.progress(Progress{
		Seen: t.Seen, Found: t.Found, Done: t.Replayed + t.Discarded, Waiting: t.Unsettled, Failed: t.FailedAgain,
	})
}
