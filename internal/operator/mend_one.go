package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// Repair is what a machine may do about a finding.
type Repair string

// The repairs. What has none is a person's: its cure says how.
const (
	NoRepair        Repair = ""
	RepairAdopt     Repair = "adopt"     // file the letter as dead, or write the success row again
	RepairRepublish Repair = "republish" // send the message again, from its row
	RepairReplay    Repair = "replay"    // drop the letter of what has ended, or end a replay that was cut off
)

// Repair is what [Reconciliation.Mend] would do. A risk is why a person must be sure of something first, "" when
// nothing is to be feared: such a finding is mended with Force only.
func (f *Finding) Repair() (by Repair, risk string) {
	by = known[f.Kind].repair
	switch {
	case f.Kind == LetterWithoutRow && deadletter.Why(f.Hindrance) == deadletter.WhyKeyTaken:
		return by, "Another body had this key, and that row is gone: this one may take effect too."
	case f.Kind == LetterWithoutRow && f.Hindrance != "":
		return by, "The message may have had its effect, and its row be deleted since."
	case f.Hindrance != "", f.Kind == ReleasedWithoutSuccess && f.Status != dedup.Absent.String():
		return NoRepair, ""
	}
	return by, ""
}

// MendOrder asks for the mending of one finding of a comparison. The names of its JSON form are stable.
type MendOrder struct {
	// Of is the act of the comparison, and Number that of the finding in its report, from 0.
	Of      string  `json:"of"`
	Number  int     `json:"number"`
	Finding Finding `json:"finding"`
	// Force: a person is sure of what is at risk.
	Force bool `json:"force,omitempty"`
}

// ErrNoRepair says that a finding is a person's to mend, or that Force is needed.
var ErrNoRepair = errors.New("no machine may mend this")

// ErrNoFinding says that a comparison has no finding with a number.
var ErrNoFinding = errors.New("the comparison has no such finding")

// Order asks for the mending of the finding with this number, of the comparison whose act is of. Force says that a
// person is sure where there is a risk. Its error is ErrNoFinding, also of a comparison that has found nothing out and
// is nil, or ErrNoRepair.
func (r *Report) Order(of string, number int, force bool) (MendOrder, error) {
	if r == nil || number < 0 || number >= len(r.Findings) {
		return MendOrder{}, ErrNoFinding
	}
	f := r.Findings[number]
	switch by, risk := f.Repair(); {
	case by == NoRepair:
		return MendOrder{}, fmt.Errorf("%w: see its cure", ErrNoRepair)
	case risk != "" && !force:
		return MendOrder{}, fmt.Errorf("%w unless a person is sure: %s", ErrNoRepair, risk)
	}
	return MendOrder{Of: of, Number: number, Finding: f, Force: force}, nil
}

// Alone names what two mends must not work on at once, whichever comparisons found it.
func (o MendOrder) Alone() string {
	return fmt.Sprintf("%s %s %s", o.Finding.Kind, o.Finding.Tag, o.Finding.Key)
}

// ErrLeft says that a finding was left as it is.
var ErrLeft = errors.New("it was not mended")

// Mend mends one finding that was written down, by the same guarded steps as Run: what has moved since is left as it
// is. Its error says why it was not mended: a server's, ErrNoRepair, or ErrLeft with what stood in the way. Of o it
// needs what Run needs, By, and Force for a finding with a risk. The same finding again is ErrLeft, but with Again what
// By has done before counts.
func (o Reconciliation) Mend(ctx context.Context, f Finding) (Finding, error) {
	f.Mended, f.Failure = false, ""
	by, risk := f.Repair()
	if by == NoRepair || risk != "" && !o.Force {
		return f, ErrNoRepair
	}
	if f.Kind == ReleasedWithoutSuccess && o.OrderOf == nil {
		return f, fmt.Errorf("%w: the stock tables are not known here", ErrNoRepair)
	}
	o.Progress = func(string, int) {}
	o.Adopt, o.Republish = by == RepairAdopt, by == RepairRepublish
	r := &reconciling{Reconciliation: o, report: Report{Findings: []Finding{f}}}
	err := r.mend(ctx)
	if by == RepairReplay {
		err = r.replayOne(ctx)
	}
	if err == nil && o.Again && !r.report.Findings[0].Mended {
		err = r.again(ctx, by)
	}
	f = r.report.Findings[0]
	if err != nil {
		return f, fmt.Errorf("reconcile: %w", err)
	}
	if !f.Mended {
		return f, fmt.Errorf("%w: %s", ErrLeft, cmp.Or(f.Failure, "it has moved since it was found"))
	}
	return f, nil
}

// letterGone is why there is nothing to be done with a letter.
const letterGone = "its letter is not in the queue any more"

// again finds out what a process has done that died while it mended the finding, or right after. A row that it reopened
// and nobody has begun since may be without a message: that is sent, once more at worst, which has no second effect.
func (r *reconciling) again(ctx context.Context, by Repair) error {
	f := &r.report.Findings[0]
	if f.Kind == StaleLetter {
		if f.Failure == letterGone {
			f.Mended, f.Failure = true, ""
		}
		return nil
	}
	events, err := r.Records.Events(ctx, f.row().Identity)
	if err != nil {
		return err
	}
	ours := len(events) - 1
	for ours >= 0 && events[ours].By != r.By {
		ours--
	}
	if ours < 0 {
		return nil
	}
	f.Mended, f.Failure = true, ""
	if by != RepairRepublish || ours < len(events)-1 {
		return nil
	}
	row, err := r.Records.Read(ctx, f.row().Identity)
	if err != nil || row.Status != dedup.Failed || row.Attempts > 0 || row.Replays != events[ours].Replays {
		return err
	}
	*f = aboutRow(f.Kind, row)
	f.Mended = true
	return r.republish(ctx)
}

// replayOne goes through the queue as `dlq replay --tag T --key K` does.
func (r *reconciling) replayOne(ctx context.Context) error {
	f := &r.report.Findings[0]
	res, err := r.Letters.Replay(ctx, deadletter.Filter{Tag: f.Tag, Keys: []string{f.Key}},
		deadletter.ReplayOptions{By: r.By})
	f.Mended = res.Replayed+res.Stale+res.Duplicates > 0
	if f.Mended {
		return nil
	}
	if len(res.Left) > 0 {
		f.Failure = cmp.Or(res.Left[0].Error, string(res.Left[0].Why))
	} else if err == nil {
		f.Failure = letterGone
	}
	return err
}

// Bounds keep a run small that a page asks for, beside daemons. A zero one is none.
type Bounds struct {
	// Findings are kept at most; the others are counted in Report.More.
	Findings int
	// Letters are looked at at most: what is beyond them cannot be told from what is missing, so with more of them rows
	// are not compared with letters.
	Letters int
	// Time is how long reservations are gone through. What is beyond is not compared.
	Time time.Duration
	// Rest makes it rest after each page of reservations for as long as that page took.
	Rest bool
}
