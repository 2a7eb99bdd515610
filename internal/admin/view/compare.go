package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rollbackd/rollbackd/internal/operator"
)

// ErrNotCompared says that there is no comparison.
var ErrNotCompared = errors.New("nobody has compared anything yet")

// Compared is the comparison of log, letters and stock whose act has an id, or the latest one without an id, and what
// it has found: nil when it goes on, or found nothing out.
func Compared(ctx context.Context, d *operator.Operator, id string) (operator.Act, *operator.Report, error) {
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
	w := new(operator.Report)
	if err := json.Unmarshal(a.Result.Report, w); err != nil {
		return a, nil, fmt.Errorf("read what act %s has found: %w", a.ID, err)
	}
	return a, w, nil
}

// Compare begins a comparison as the act with this id; only one goes on at a time.
func Compare(ctx context.Context, d *operator.Operator, id string) (operator.Act, error) {
	return d.Ask(ctx, Actor(ctx), operator.TaskRequest{ID: id, Kind: operator.KindReconcile, Alone: "all"})
}

// Mend begins the mending of one finding as the act with this id.
func Mend(
	ctx context.Context, d *operator.Operator, id string, order operator.MendOrder, why string,
) (operator.Act, error) {
	return d.Ask(ctx, Actor(ctx), operator.TaskRequest{
		ID: id, Kind: operator.KindMend, Why: strings.TrimSpace(why), Detail: order, Alone: order.Alone(),
	})
}
