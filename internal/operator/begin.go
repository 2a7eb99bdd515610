package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
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
	first int64 // event

	sweeps bool // what it has ended lies in the dead-letter queue yet
}

func newDraft(who Actor, r TaskRequest) (*draft, error) {
	actor, err := who.name()
	if err == nil {
		err = r.Kind.check()
	}
	if err == nil && r.ID == "" {
		r.ID, err = newID()
	}
	why := Plain(r.Why)
	if utf8.RuneCountInString(why) > dedup.MaxRemark {
		err = fmt.Errorf("%w: a reason of over %d characters", ErrRequest, dedup.MaxRemark)
	}
	return &draft{Act: Act{ID: r.ID, Kind: r.Kind, State: Done, Actor: actor, Why: why}, asked: r.Detail}, err
}

// Start writes a run down. The daemon whose desk this is takes it up at once, if it has a hand free, else any daemon of
// the fleet within a second or two. A SameSetError names the run of the same letters that goes on. The same ID again is
// the same run, whatever became of it.
func (d *Operator) Start(ctx context.Context, who Actor, r Request) (Act, error) {
	r.Why = Plain(r.Why)
	n, err := newDraft(who, TaskRequest{ID: r.ID, Kind: r.Kind, Why: r.Why})
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		return Act{}, err
	}
	now, err := d.o.Records.Now(ctx)
	if err != nil {
		return Act{}, err
	}
	if r.CutOff.After(now) {
		return Act{}, fmt.Errorf("%w: the preview's time is to come", ErrRequest)
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
	n.State = Running
	if len(alone) > 0 {
		if n.guard, err = d.guard(alone...); err != nil {
			return a, err
		}
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
	j := &job{d: d, work: workOwn, owner: d.name + "/" + uuid.NewString()[:8], do: work}
	j.progress.Phase = "letters"
	n.State, n.Progress, n.Owner = Running, &j.progress, j.owner
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
	j.act = Act{ID: n.ID, Kind: n.Kind, State: Running, Actor: n.Actor, Why: n.Why}
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
	a, err := d.Act(ctx, id)
	if err != nil {
		return a, err
	}
	asked, err := d.exec(ctx, "UPDATE "+d.acts+" SET stop_by = COALESCE(stop_by, ?) WHERE id = ? AND "+
		standing+" = 'running'", actor, []byte(a.ID))
	if err != nil {
		return a, fmt.Errorf("stop act %s: %w", id, err)
	}
	if a, err = d.Act(ctx, id); err != nil {
		return a, err
	}
	if asked == 0 && a.StopBy == "" {
		return a, ErrEnded
	}
	return a, nil
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
