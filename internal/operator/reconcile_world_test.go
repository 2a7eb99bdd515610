package operator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const retention = letters.Retention

// shop is a fresh schema and a fresh set of queues, with no daemon.
type shop struct {
	*letters.World

	letters *deadletter.Letters
}

func newShop(t *testing.T) *shop {
	t.Helper()
	t.Parallel()
	w := &shop{World: letters.New(t)}
	w.letters = require.Get(deadletter.New(letters.Options(w.Records, w.Broker.URL, w.Queue)))(w.T)
	return w
}

func (w *shop) options(bounds operator.Bounds) operator.Reconciliation {
	return operator.Reconciliation{
		Lookup:  operator.Lookup{Records: w.Records, Group: group, DB: w.DB, OrderOf: orderOf},
		Letters: w.letters, Retention: retention, Settle: 10 * time.Millisecond, By: "ann", Bounds: bounds,
	}
}

// run reconciles with short pauses.
func (w *shop) run(change func(*operator.Reconciliation)) operator.Report {
	w.T.Helper()
	o := w.options(operator.Bounds{})
	if change != nil {
		change(&o)
	}
	return require.Get(o.Run(w.T.Context()))(w.T)
}

// dead makes dead messages a minute ago, with their letters or without.
func (w *shop) dead(withLetters bool, names ...string) {
	w.T.Helper()
	if withLetters {
		w.Dead(dedup.ReasonExhausted, "no", names...)
	} else {
		w.Rows(dedup.ReasonExhausted, "no", names...)
	}
	w.MoveBack(time.Minute)
}

// success makes a row of an applied message, so long ago.
func (w *shop) success(inGroup, name string, ago time.Duration) {
	w.T.Helper()
	w.Success(dedup.Identity{Group: inGroup, Tag: tag, Key: name}, ago)
}

// reservation makes one that was last changed so long ago; by is the key of the message that it names, "" for none.
func (w *shop) reservation(order string, sku, status int, by string, ago time.Duration) {
	w.T.Helper()
	var byTag, byKey any
	if by != "" {
		byTag, byKey = tag, by
	}
	w.Exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, updated_at) "+
		"VALUES (?, ?, 1, ?, ?, ?, UTC_TIMESTAMP(6) - INTERVAL ? SECOND)",
		order, sku, status, byTag, byKey, int(ago.Seconds()))
}

func found(r operator.Report) (all []string) {
	for _, f := range r.Findings {
		name := f.Key
		if name == "" {
			name = f.Order
		}
		all = append(all, fmt.Sprintf("%s %s", f.Kind, name))
	}
	return all
}

func (w *shop) wantFound(r operator.Report, want ...string) {
	w.T.Helper()
	assert.Equal(w.T, found(r), want, "found")
}
