package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/reconcile"
)

// bounds keep a comparison that a page asks for small: it runs in a daemon, beside its lanes.
var bounds = reconcile.Bounds{Findings: 200, Letters: 200_000, Time: 5 * time.Minute, Rest: true}

// tasks are what the desk does besides runs over letters.
func (d *Daemon) tasks(
	records *dedup.Log, letters *deadletter.Letters, db *gorm.DB,
) map[operator.Kind]func(context.Context, operator.Task) (any, error) {
	o := reconcile.Options{
		Records: records, Letters: letters, Group: d.cfg.Group, Retention: d.cfg.Retention(), Bounds: bounds,
	}
	if d.cfg.Handler == config.HandlerStock {
		o.DB = db
	}
	return map[operator.Kind]func(context.Context, operator.Task) (any, error){
		operator.KindReconcile: func(ctx context.Context, t operator.Task) (any, error) {
			o := o
			o.By, o.Progress = t.By, t.Progress
			found, err := reconcile.Compare(ctx, o)
			if err != nil {
				return nil, err // what was found so far would look like all
			}
			all := len(found.Findings)
			for _, more := range found.More {
				all += more
			}
			t.Progress("findings", all)
			return found, nil
		},
		operator.KindMend: func(ctx context.Context, t operator.Task) (any, error) {
			var order reconcile.MendOrder
			if err := json.Unmarshal(t.Act.Detail, &order); err != nil {
				return nil, fmt.Errorf("read what is to be mended: %w", err)
			}
			o := o
			o.By, o.Force, o.Again = t.By, order.Force, t.Act.Terms > 1
			return reconcile.Mend(ctx, o, order.Finding)
		},
	}
}
