package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/reconcile"
)

// ErrNotCompared says that there is no comparison.
var ErrNotCompared = errors.New("nobody has compared anything yet")

// Compared is the comparison of log, letters and stock whose act has an id, or the latest one without an id, and what
// it has found: nil when it goes on, or found nothing out.
func Compared(ctx context.Context, d *operator.Operator, id string) (operator.Act, *reconcile.Written, error) {
	if id == "" {
		all, _, err := d.Acts(ctx, operator.ActFilter{Kind: operator.KindReconcile, Limit: 1})
		if err == nil && len(all) == 0 {
			err = ErrNotCompared
		}
		if err != nil {
			return operator.Act{}, nil, err
		}
		id = all[0].ID // the list has no reports
	}
	a, err := d.Act(ctx, id)
	if err == nil && a.Kind != operator.KindReconcile {
		err = operator.ErrNoAct
	}
	if err != nil || a.Result == nil || len(a.Result.Report) == 0 {
		return a, nil, err
	}
	w := new(reconcile.Written)
	if err := json.Unmarshal(a.Result.Report, w); err != nil {
		return a, nil, fmt.Errorf("read what act %s has found: %w", a.ID, err)
	}
	return a, w, nil
}
