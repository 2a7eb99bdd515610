package operator

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// MaxCounted is up to how many letters a preview and a run's progress count.
const MaxCounted = 10_000

// LookThrough bounds the letters that are looked at for a condition that no index leads to while a person waits, and
// LookThroughBodies for one of bodies, which is asked for once to find a few among many.
const (
	LookThrough       = 2000
	LookThroughBodies = 100_000
)

// lookThrough is how many letters are looked at for the filter.
func lookThrough(f deadletter.Filter) int {
	if f.Body != "" || f.SKU != 0 {
		return LookThroughBodies
	}
	return LookThrough
}

// PreviewRequest asks what an act would come to.
type PreviewRequest struct {
	Kind   Kind
	Filter deadletter.Filter
	Force  bool
	// At is the cut-off of an earlier page of the same preview; zero: now.
	At    time.Time
	After dedup.Cursor // where the last page ended
	Limit int          // 1 to MaxPreviewed, 0 for 50
	// Whole looks through all letters for those of the set where no index leads to them, which may take seconds.
	Whole bool
}

// MaxPreviewed bounds the letters of one page.
const MaxPreviewed = 200

// Preview says what an act would come to. The names of its JSON form are stable.
type Preview struct {
	// At freezes the set: hand it to Start as CutOff.
	At time.Time `json:"at"`
	// Filter is what was asked for, with the keys of an order.
	Filter deadletter.Filter `json:"filter"`
	// Matched are the letters of the set, Parked those of them that stay without force. With More there may be
	// more of either than were counted.
	Matched int  `json:"matched"`
	Parked  int  `json:"parked"`
	More    bool `json:"more"`
	// Letters are a page of the set, the latest first; with keys in the filter, all rows of these keys in whatever
	// state.
	Letters []deadletter.Judged `json:"letters"`
	// Totals count the page by verdict.
	Totals map[deadletter.Verdict]int `json:"totals"`
	Next   dedup.Cursor               `json:"next,omitempty"`
}

// Preview judges a page of letters and counts the set. It changes nothing and reads the log only.
func (d *Operator) Preview(ctx context.Context, r PreviewRequest) (Preview, error) {
	if r.Limit = cmp.Or(r.Limit, 50); r.Limit < 1 || r.Limit > MaxPreviewed {
		return Preview{}, fmt.Errorf("%w: a page of %d letters, want 1 to %d", ErrRequest, r.Limit, MaxPreviewed)
	}
	if !r.Kind.asked() {
		return Preview{}, fmt.Errorf("%w: a preview of %q", ErrRequest, string(r.Kind))
	}
	if err := check(r.Filter); err != nil {
		return Preview{}, err
	}
	now, err := d.o.Records.Now(ctx)
	if err != nil {
		return Preview{}, err
	}
	if r.At.IsZero() {
		r.At = now
	}
	if r.At.After(now) {
		return Preview{}, fmt.Errorf("%w: the preview's time is to come", ErrRequest)
	}
	p := Preview{At: r.At, Totals: map[deadletter.Verdict]int{}}
	if p.Filter, err = d.resolve(ctx, r.Filter); err != nil {
		return p, err
	}
	set := deadletter.Set{Filter: resolved(p.Filter), CutOff: r.At, Name: "preview"}
	through := lookThrough(r.Filter)
	if r.Whole {
		through = 0
	}
	p.Letters, p.Next, err = d.o.Letters.JudgeSet(ctx, set, deadletter.JudgeOptions{
		Discard: r.Kind == KindDiscard, Force: r.Force, After: r.After, Limit: r.Limit, Through: through,
	})
	if err != nil {
		return p, err
	}
	for _, j := range p.Letters {
		p.Totals[j.Verdict]++
		if j.Status == dedup.Dead.String() && j.Verdict != deadletter.VerdictLater {
			p.Matched++
			if j.Parked {
				p.Parked++
			}
		}
	}
	if r.After == "" && p.Next == "" { // the page is the whole set
		return p, nil
	}
	p.Matched, p.Parked, p.More, err = d.o.Letters.CountSet(ctx, set, MaxCounted, through)
	return p, err
}
