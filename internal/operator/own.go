package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/deadletter"
)

// Do does something in this process and writes it down as every act is: who and why before it begins, how far it is
// while it goes on, and what came of it. Anybody may stop it. It is a command's way to act, and a daemon's when it acts
// by itself.
//
// The record is never in the way. Where it cannot be written, because the table is missing, the account has no right
// for it, or MySQL does not answer in time, Options.Unwritten is told so, once, and the work is done all the same; its
// Task has no act then, and By is the bare name. The error is that of the work, or of what nobody can do.
func (d *Operator) Do(
	ctx context.Context, who Actor, r TaskRequest, work func(context.Context, Task) (Result, error),
) error {
	n, err := newActOf(who, r.ID, r.Kind, r.Why, r.Detail)
	if err != nil {
		return err
	}
	j := &job{d: d, work: workOwn, owner: d.name + "/" + uuid.NewString()[:8], own: work}
	j.progress.Phase = "letters"
	n.state, n.progress, n.owner = Running, &j.progress, j.owner
	soon, cancel := context.WithTimeout(ctx, askTime)
	err = d.insert(soon, d.db, n)
	cancel()
	j.act = Act{ID: n.id, Kind: n.kind, State: Running, Actor: n.actor, Why: n.why}
	switch {
	case err != nil && ctx.Err() == nil:
		d.unwritten(err)
		_, err = work(ctx, Task{By: n.actor, Progress: func(string, int) {}, Letters: func(deadletter.Progress) {}})
		return err
	case err != nil:
		return err
	}
	return j.doOwn(ctx)
}

func (d *Operator) unwritten(err error) {
	if d.o.Unwritten != nil {
		d.o.Unwritten(err)
	}
}

// doOwn does the act under its row.
func (j *job) doOwn(ctx context.Context) (err error) {
	doing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.stop = cancel
	var result Result
	j.renewed(doing, func() {
		result, err = j.own(doing, Task{Act: j.act, By: j.act.story(), Progress: j.seen, Letters: j.report(Progress{})})
	})
	state := Done
	switch {
	case err == nil: // it came to its end before the stop reached it
	case errors.Is(context.Cause(doing), errStopped):
		state, err = Stopped, fmt.Errorf("act %s: %w", j.act.ID, errStopped)
	case ctx.Err() != nil:
		state = Stopped
	default:
		state = Failed
	}
	over, end := context.WithTimeout(context.WithoutCancel(ctx), askTime) // whoever waits for the end waits no longer
	defer end()
	if lost := j.tryEnd(over, state, result, err); lost != nil {
		j.d.unwritten(fmt.Errorf("how act %s ended: %w", j.act.ID, lost))
	}
	return err
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
