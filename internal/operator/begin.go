package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// TaskRequest asks for an act.
type TaskRequest struct {
	// ID is of the act, if it was given out before; see [Once]. "": a new one.
	ID   string
	Kind Kind
	Why  string
	// Detail is anything that has a JSON form.
	Detail any
	// Alone names what no second task may do at the same time, in this group and queue; "": anything else may go on.
	Alone string
}

// Work does an act.
type Work func(context.Context, Task) (Result, error)

// Task is an act that goes on. Of a comparison, or the mending of a finding, whose process died, another process begins
// it again, so it must bear that.
type Task struct {
	Act Act
	// By names who does it in the story of a row, so that the act is found from there.
	By string
	// Progress says how far it has come: what is looked at, and how many of them were.
	Progress func(phase string, seen int)
	// Letters says it of a run over letters.
	Letters func(deadletter.Progress)
}

// draft is an act about to be written. One that takes no time is done, or failed, from the start.
type draft struct {
	Act

	asked any // becomes its Detail
	guard []byte
}

func newDraft(who Actor, r TaskRequest) (*draft, error) {
	actor, err := who.name()
	why := Plain(r.Why)
	long := utf8.RuneCountInString(why) > dedup.MaxRemark
	return &draft{Act: Act{ID: cmp.Or(r.ID, newID()), Kind: r.Kind, State: Done, Actor: actor, Why: why}, asked: r.Detail},
		cmp.Or(refuseIf(long, "a reason of over %d characters", dedup.MaxRemark), err, r.Kind.check())
}

// Start writes a run down. The daemon whose desk this is takes it up at once, if it has a hand free, else any daemon of
// the fleet within a second or two. A SameSetError names the run of the same letters that goes on. The same ID again is
// the same run, whatever became of it.
func (d *Operator) Start(ctx context.Context, who Actor, r Request) (Act, error) {
	r.Why = Plain(r.Why)
	n, err := newDraft(who, TaskRequest{ID: r.ID, Kind: r.Kind, Why: r.Why})
	if err = cmp.Or(err, r.Check()); err != nil {
		return Act{}, err
	}
	now, err := d.o.Records.Now(ctx)
	if err = cmp.Or(err, refuseIf(r.CutOff.After(now), "the preview's time is to come")); err != nil {
		return Act{}, err
	}
	if r.Filter, err = d.resolve(ctx, r.Filter); err != nil {
		return Act{}, err
	}
	n.asked, n.CutOff, n.Progress = r, r.CutOff, &Progress{Phase: "waiting"}
	if n.first, err = d.o.Records.LastEvent(ctx); err != nil {
		return Act{}, err
	}
	n.Progress.Matched, _, n.Progress.More, err = d.o.Letters.CountSet(ctx, r.set(n.ID), MaxCounted,
		lookThrough(r.Filter))
	if err != nil {
		return Act{}, err
	}
	return d.begin(ctx, n, sorted(r.Filter))
}

// Ask writes a comparison or a mend down, and a daemon of the fleet takes it up as it does a run. A SameSetError names
// the one that goes on under the same Alone. The same ID again is the same task, whatever became of it.
func (d *Operator) Ask(ctx context.Context, who Actor, r TaskRequest) (Act, error) {
	n, err := newDraft(who, r)
	if err != nil {
		return Act{}, err
	}
	if n.CutOff, err = d.o.Records.Now(ctx); err != nil {
		return Act{}, err
	}
	n.Progress = &Progress{Phase: "waiting"}
	if r.Alone == "" {
		return d.begin(ctx, n)
	}
	return d.begin(ctx, n, r.Kind, r.Alone)
}

// begin writes an act down that somebody has to work on, and wakes whoever does here, unless it was written down
// before. What goes on with the same alone is a SameSetError.
func (d *Operator) begin(ctx context.Context, n *draft, alone ...any) (a Act, err error) {
	n.State, n.work = Running, workLetters
	if len(alone) > 0 {
		n.guard = d.guard(alone...)
	}
	for {
		err := d.insert(ctx, d.db, n)
		switch {
		case err == nil:
			d.waken()
			a, err := d.Act(ctx, n.ID)
			d.log.InfoContext(ctx, "an act begins that a daemon works on", "kind", n.Kind, "by", n.Actor, "on",
				screen.Shorten(a.Subject(), 200), "letters", n.Progress.Matched, "act", n.ID)
			return a, err
		case errors.Is(err, errActExists):
			return d.Act(ctx, n.ID)
		case !errors.Is(err, errGuarded):
			return a, err
		}
		found, err := d.list(ctx, "guard = ?", n.guard)
		switch {
		case err != nil:
			return a, fmt.Errorf("look who does the same: %w", err)
		case len(found) > 0 && found[0].ID == n.ID:
			return found[0], nil
		case len(found) > 0: // else it has ended meanwhile
			return found[0], &SameSetError{found[0]}
		}
	}
}

// Do does something in this process and writes it down as every act is: who and why before it begins, how far it is
// while it goes on, and what came of it. Anybody may stop it. It is a command's way to act, and a daemon's when it acts
// by itself.
//
// The record is never in the way. Where it cannot be written, because the table is missing, the account has no right
// for it, or MySQL does not answer in time, Options.Unwritten is told so, once, and the work is done all the same; its
// Task has no act then, and By is the bare name. The error is that of the work, or of what nobody can do.
func (d *Operator) Do(ctx context.Context, who Actor, r TaskRequest, work Work) error {
	n, err := newDraft(who, r)
	if err != nil {
		return err
	}
	n.State, n.work, n.Own, n.Progress = Running, workOwn, true, &Progress{Phase: "letters"}
	n.Owner = d.name + "/" + uuid.NewString()[:8]
	soon, cancel := context.WithTimeout(ctx, askTime)
	err = d.insert(soon, d.db, n)
	cancel()
	switch {
	case err != nil && ctx.Err() == nil:
		d.unwritten(err)
		_, err = work(ctx, Task{By: n.Actor, Progress: func(string, int) {}, Letters: func(deadletter.Progress) {}})
		return err
	case err != nil:
		return err
	}
	j := &job{d: d, act: n.Act, do: work, progress: *n.Progress}
	state, result, err := j.doing(ctx)
	over, end := context.WithTimeout(context.WithoutCancel(ctx), askTime) // whoever waits for the end waits no longer
	defer end()
	if lost := j.tryEnd(over, state, result, err); lost != nil {
		d.unwritten(fmt.Errorf("how act %s ended: %w", n.ID, lost))
	}
	return err
}

func (d *Operator) unwritten(err error) {
	if d.o.Unwritten != nil {
		d.o.Unwritten(err)
	}
}

// compensate writes down a replay that the fleet does by itself: it is deadletter.CompensateOptions.Record.
func (d *Operator) compensate(
	ctx context.Context, by string, f deadletter.Filter, replay deadletter.Recorded,
) (res deadletter.Result, err error) {
	err = d.Do(ctx, Actor{Name: by}, TaskRequest{
		Kind: KindCompensate, Why: "their time to cool down is over",
		Detail: Request{Kind: KindCompensate, Filter: f, Limit: f.Limit},
	}, func(ctx context.Context, task Task) (Result, error) {
		var err error
		res, err = replay(ctx, task.By, task.Letters)
		return ResultOf(res), err
	})
	return res, err
}

// ResultOf is what a run over letters came to, as an act has it.
func ResultOf(res deadletter.Result) Result {
	return Result{
		Replayed: res.Replayed, Discarded: res.Discarded, Applied: res.Applied, FailedAgain: res.FailedAgain,
		Unsettled: res.Unsettled, Swept: res.Stale + res.Duplicates, LeftCount: res.LeftCount(), LeftBy: res.LeftBy,
		Left: res.Left[:min(len(res.Left), maxLeft)], ByReason: maps.Clone(res.ByReason), byRows: res.ByRows,
	}
}

// maxLeft bounds the letters that stay and are named in an act.
const maxLeft = 500

// Stop asks a run to stop: whoever works on it sees that within a second or two, finishes the letters in hand, and ends
// it. One that nobody has taken up begins with no letter. ErrEnded with the act when it has ended.
func (d *Operator) Stop(ctx context.Context, who Actor, id string) (Act, error) {
	actor, err := who.name()
	if err != nil {
		return Act{}, err
	}
	if _, err := d.exec(ctx, "UPDATE "+d.acts+" SET stop_by = COALESCE(stop_by, ?) WHERE id = ? AND group_name = ? AND "+
		"queue = ? AND "+standing+" = 'running'", actor, []byte(id), []byte(d.o.Group), []byte(d.o.Queue)); err != nil {
		return Act{}, fmt.Errorf("stop act %s: %w", id, err)
	}
	a, err := d.Act(ctx, id)
	if err == nil && a.StopBy == "" {
		err = ErrEnded
	}
	return a, err
}

// story is how the events of an act name it, so that they can be counted, and found from a letter; [ActIn] reads it.
func (a Act) story() string { return a.Actor + ", run " + a.ID }

var inStory = regexp.MustCompile(`, run ([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)

// ActIn is the id of the act that a step of a message's story names by who made it; "" when it names none.
func ActIn(by string) string {
	if found := inStory.FindStringSubmatch(by); found != nil {
		return found[1]
	}
	return ""
}

// Words are a filter as the commands write it: of an order its number, in place of the keys that it stands for.
func Words(f deadletter.Filter) string {
	if f.Order != "" {
		f.Keys = nil
	}
	return f.String()
}

func check(f deadletter.Filter) error {
	err := f.Validate()
	return refuseIf(err != nil, "%w", err)
}

// resolved is a filter whose order was looked up: its keys stand for it.
func resolved(f deadletter.Filter) deadletter.Filter {
	f.Order = ""
	return f
}

// resolve looks up what an order stands for. The order stays in the filter, for whoever reads what was asked for.
func (d *Operator) resolve(ctx context.Context, f deadletter.Filter) (deadletter.Filter, error) {
	if f.Order == "" {
		return f, nil
	}
	if d.o.OrderOf == nil {
		return f, fmt.Errorf("%w: orders are not known to this handler; choose by key", ErrRequest)
	}
	told, err := d.o.OfOrder(ctx, f.Order)
	if err != nil {
		return f, fmt.Errorf("look up order %q: %w", f.Order, err)
	}
	among := f.Keys
	f.Keys = nil
	for _, m := range told.Messages {
		if key := m.Row.Key; (f.Tag == "" || f.Tag == m.Row.Tag) && (len(among) == 0 || slices.Contains(among, key)) {
			f.Keys = append(f.Keys, key)
		}
	}
	f.Keys = sorted(f).Keys
	if err = cmp.Or(refuseIf(len(f.Keys) == 0, "no message is known of order %q", f.Order),
		refuseIf(len(f.Keys) > dedup.MaxListedKeys, "order %q has over %d messages", f.Order, dedup.MaxListedKeys),
	); err != nil {
		return f, err
	}
	stranger := func(row dedup.Row) bool { return !told.has(row.Identity) }
	for q := (dedup.Filter{Group: d.o.Group, Tag: f.Tag, Keys: f.Keys, Statuses: []dedup.Status{dedup.Dead},
		Limit: dedup.MaxListed}); ; {
		rows, next, err := d.o.Records.List(ctx, q)
		err = cmp.Or(err, refuseIf(slices.ContainsFunc(rows, stranger), "a letter that is not known to be of order %q has"+
			" the key of one that is, under another tag: say the tag too", f.Order))
		if err != nil || next == "" {
			return f, err
		}
		q.After = next
	}
}

// set is the set of a request under the id of its act.
func (r Request) set(id string) deadletter.Set {
	return deadletter.Set{Filter: resolved(r.Filter), CutOff: r.CutOff, Name: id}
}

// reached is the status into which a run brings its letters.
func (k Kind) reached() dedup.Status {
	if k == KindDiscard {
		return dedup.Discarded
	}
	return dedup.Failed
}

// Request is what is asked of a run over dead letters. The names of its JSON form are stable.
type Request struct {
	// ID is of the act, if it was given out before; see [Once]. "": a new one.
	ID     string            `json:"-"`
	Kind   Kind              `json:"kind"` // KindReplay or KindDiscard
	Filter deadletter.Filter `json:"filter"`
	// CutOff freezes the set: the At of the preview that the person saw. What died later is not of it.
	CutOff time.Time `json:"cut_off,omitzero"`
	Why    string    `json:"why,omitempty"` // required to discard
	// Force also takes parked letters. Of a replay, as the next three.
	Force bool `json:"force,omitempty"`
	// Rate is how many letters go per second at most; 0: as many as can be.
	Rate float64 `json:"rate,omitempty"`
	// Window is how many replayed letters may wait for the daemons at a time, 1 to deadletter.MaxWindow; 0: 500.
	Window int `json:"window,omitempty"`
	// MaxFailures ends the run when so many of its letters have failed again; 0: they are only counted.
	MaxFailures int `json:"max_failures,omitempty"`

	// What only a command can ask for, see [Operator.Do]: letters of a file, those that were discarded, some only.
	From      string `json:"from,omitempty"`
	Discarded bool   `json:"discarded,omitempty"`
	Limit     int    `json:"limit,omitempty"`
}

const defaultWindow = 500

// Check says what is wrong with it.
func (r *Request) Check() error {
	r.Window = cmp.Or(r.Window, defaultWindow)
	err := deadletter.ReplayOptions{Rate: r.Rate, Window: r.Window, MaxFailures: r.MaxFailures}.Validate()
	return cmp.Or(
		refuseIf(!r.Kind.asked(), "a run of kind %q, want %s or %s", string(r.Kind), KindReplay, KindDiscard),
		refuseIf(r.CutOff.IsZero(), "the time of the preview is missing, which freezes the set"),
		refuseIf(r.Kind == KindDiscard && strings.TrimSpace(r.Why) == "", "say why these letters may end without an effect"),
		refuseIf(err != nil, "%w", err), check(r.Filter))
}

// Do does what is asked for to the letters of a selection, in this name.
func (r *Request) Do(
	ctx context.Context, l *deadletter.Letters, of deadletter.Selection, by string, dryRun bool,
	progress func(deadletter.Progress),
) (deadletter.Result, error) {
	if r.Kind == KindDiscard {
		return l.Discard(ctx, of, deadletter.DiscardOptions{By: by, Why: r.Why, DryRun: dryRun, Progress: progress})
	}
	return l.Replay(ctx, of, deadletter.ReplayOptions{
		By: by, DryRun: dryRun, Force: r.Force, Discarded: r.Discarded, Rate: r.Rate, Window: r.Window,
		MaxFailures: r.MaxFailures, Progress: progress,
	})
}

// sorted is a filter in the one form that all have which choose the same.
func sorted(f deadletter.Filter) deadletter.Filter {
	f.Keys = slices.Compact(slices.Sorted(slices.Values(f.Keys)))
	f.Reasons = slices.Compact(slices.Sorted(slices.Values(f.Reasons)))
	return f
}

// guard names a set, or another work: runs over the same letters exclude each other, whatever they do and at what pace,
// and whichever preview they were frozen by.
func (d *Operator) guard(of ...any) []byte {
	text, _ := json.Marshal(append([]any{d.o.Group, d.o.Queue}, of...)) // which have a JSON form
	sum := sha256.Sum256(text)
	return sum[:]
}

// SameSetError says that a run of the same letters goes on, or the same [Task].
type SameSetError struct{ Act Act }

func (e *SameSetError) Error() string {
	if !e.Act.Kind.overLetters() {
		return fmt.Sprintf("the same %s by %s goes on since %s, act %s: look at it", e.Act.Kind, e.Act.Actor,
			e.Act.Created.Format(time.RFC3339), e.Act.ID)
	}
	return fmt.Sprintf("%s of the same letters by %s goes on since %s, act %s: look at it, or stop it", e.Act.Kind,
		e.Act.Actor, e.Act.Created.Format(time.RFC3339), e.Act.ID)
}

// ErrSameSet matches every SameSetError.
var ErrSameSet = errors.New("a run of the same letters goes on")

// Is reports that it is ErrSameSet.
func (*SameSetError) Is(target error) bool { return target == ErrSameSet }

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
	r.Limit = cmp.Or(r.Limit, 50)
	if err := cmp.Or(
		refuseIf(r.Limit < 1 || r.Limit > MaxPreviewed, "a page of %d letters, want 1 to %d", r.Limit, MaxPreviewed),
		refuseIf(!r.Kind.asked(), "a preview of %q", string(r.Kind)), check(r.Filter)); err != nil {
		return Preview{}, err
	}
	now, err := d.o.Records.Now(ctx)
	if r.At.IsZero() {
		r.At = now
	}
	if err = cmp.Or(err, refuseIf(r.At.After(now), "the preview's time is to come")); err != nil {
		return Preview{}, err
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
