package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

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

// reported is the work of a task, whose report becomes its act's.
func reported(task func(context.Context, Task) (any, error)) Work {
	return func(ctx context.Context, t Task) (Result, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, taskTime, errTooLong)
		defer cancel()
		report, err := task(ctx, t)
		if err != nil && errors.Is(context.Cause(ctx), errTooLong) {
			err = errTooLong
		}
		if whole, ok := report.(Result); ok || report == nil {
			return whole, err
		}
		text, lost := json.Marshal(report)
		if err == nil && lost != nil {
			err = fmt.Errorf("write down what came of it: %w", lost)
		}
		return Result{Report: text}, err
	}
}

// kinds are those that this operator can work on, as a list for a statement.
func (d *Operator) kinds() (marks string, args []any) {
	all := []Kind{KindReplay, KindDiscard, KindEdit}
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
