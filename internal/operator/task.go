package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
)

// Task is a comparison, or the mending of a finding of one. It is kept, taken up under a lease, shown, stopped and
// ended as a run is; one whose process died is done again from its beginning by another, so it must bear that.
type Task struct {
	Act Act
	// By names who does it in the story of a row, so that the act is found from there.
	By string
	// Progress says how far it has come: what is looked at, and how many of them were.
	Progress func(phase string, seen int)
	// Letters says it of a run over letters. Only what [Operator.Do] does has it.
	Letters func(deadletter.Progress)
}

// bounds keep a comparison that a page asks for small: it runs in a daemon, beside its lanes.
var bounds = Bounds{Findings: 200, Letters: 200_000, Time: 5 * time.Minute, Rest: true}

func (d *Operator) reconciliation(t Task) Reconciliation {
	return Reconciliation{
		Lookup: d.o.Lookup, Letters: d.o.Letters, Retention: d.o.Retention, Bounds: bounds, By: t.By, Progress: t.Progress,
	}
}

// reconcile is the task of KindReconcile.
func (d *Operator) reconcile(ctx context.Context, t Task) (any, error) {
	found, err := d.reconciliation(t).Run(ctx)
	if err != nil {
		return nil, err // what was found so far would look like all
	}
	all := len(found.Findings)
	for _, more := range found.More {
		all += more
	}
	t.Progress("findings", all)
	return found, nil
}

// mend is the task of KindMend.
func (d *Operator) mend(ctx context.Context, t Task) (any, error) {
	var order MendOrder
	if err := json.Unmarshal(t.Act.Detail, &order); err != nil {
		return nil, fmt.Errorf("read what is to be mended: %w", err)
	}
	o := d.reconciliation(t)
	o.Force, o.Again = order.Force, t.Act.Terms > 1
	return o.Mend(ctx, order.Finding)
}

// TaskRequest asks for a task.
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

// Ask writes a task down, and a daemon of the fleet takes it up as it does a run. A SameSetError names the one that
// goes on under the same Alone. The same ID again is the same task, whatever became of it.
func (d *Operator) Ask(ctx context.Context, who Actor, r TaskRequest) (Act, error) {
	n, err := newActOf(who, r.ID, r.Kind, r.Why, r.Detail)
	if err != nil {
		return Act{}, err
	}
	if n.cutOff, err = d.o.Records.Now(ctx); err != nil {
		return Act{}, err
	}
	n.progress = &Progress{Phase: "waiting"}
	if r.Alone == "" {
		return d.begin(ctx, n)
	}
	return d.begin(ctx, n, r.Kind, r.Alone)
}

// task reports whether the work is a Task.
func (j *job) task() bool { return !j.act.Kind.overLetters() }

// do works on the act, whatever it is. One that panics has failed: it must not take one daemon after the other with
// it.
func (j *job) do(ctx context.Context) (result Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			j.d.log.ErrorContext(ctx, "an act panicked, which is a mistake of the program's", "act", j.act.ID, "panic", p,
				"stack", string(debug.Stack()))
			err = fmt.Errorf("it panicked, which is a mistake of the program's; the daemon's log says where: %v", p)
		}
	}()
	if !j.task() {
		return j.passes(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, taskTime, errTooLong)
	defer cancel()
	report, err := j.d.tasks[j.act.Kind](ctx, Task{Act: j.act, By: j.act.story(), Progress: j.seen})
	if err != nil && errors.Is(context.Cause(ctx), errTooLong) {
		err = errTooLong
	}
	if report == nil {
		return Result{}, err
	}
	text, lost := json.Marshal(report)
	if err == nil && lost != nil {
		err = fmt.Errorf("write down what came of it: %w", lost)
	}
	return Result{Report: text}, err
}

// seen takes in what is looked at, and how much of it was.
func (j *job) seen(phase string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.progress.Phase, j.progress.Done = phase, n
}

// kinds are those that this operator can work on, as a list for a statement.
func (d *Operator) kinds() (marks string, args []any) {
	all := []Kind{KindReplay, KindDiscard}
	for kind := range d.tasks {
		all = append(all, kind)
	}
	slices.Sort(all)
	for _, kind := range all {
		args = append(args, string(kind))
	}
	return strings.Repeat("?, ", len(all)-1) + "?", args
}

// taskTime bounds a task: it holds one of few hands.
const taskTime = 15 * time.Minute

var errTooLong = fmt.Errorf("it took longer than %v and was given up", taskTime)
