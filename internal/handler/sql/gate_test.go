package sql

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given statements that cannot be joined, when several transactions at once run batches that take the same rows in
// opposite orders, then none of them loses a deadlock.
func TestBatchesThatRunMessageByMessageDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE goods (id INT PRIMARY KEY, amount INT NOT NULL) ENGINE=InnoDB`)
	const rows, lanes, batches = 20, 4, 10
	for i := range rows {
		w.exec("INSERT INTO goods VALUES (?, 0)", i)
	}
	f := w.parse("UPDATE goods SET amount = amount + 1 WHERE id = :id") // any number of rows: not joined
	require.That(t, !f.Joined(), "the statements are joined: nothing is tried")
	h := New(f)
	var bodies []string
	for i := range rows {
		bodies = append(bodies, fmt.Sprintf(`{"id":%d}`, i))
	}
	var wg sync.WaitGroup
	for lane := range lanes {
		mine := slices.Clone(bodies)
		if lane%2 == 1 {
			slices.Reverse(mine)
		}
		wg.Go(func() {
			for range batches {
				assert.OK(t, w.handle(h, messages(mine...)...), "lane", lane)
			}
		})
	}
	wg.Wait()
	w.want("goods", "SELECT MIN(amount), MAX(amount) FROM goods", fmt.Sprint(lanes*batches, " ", lanes*batches))
}

// Given a transaction behind the gate, when another one has waited for a part of its time, then it goes on beside it;
// the one inside, and one that has joined its messages, wait for nobody; and who has ended is forgotten.
func TestTheGateHoldsNobodyForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, first, joined, began := newGate(), new(gorm.PreparedStmtDB), new(gorm.PreparedStmtDB), time.Now()
		ctx, end := context.WithCancel(t.Context())
		g.enter(ctx, first)
		g.pass(ctx, joined)
		g.enter(ctx, first)
		g.enter(ctx, joined)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		g.enter(short, new(gorm.PreparedStmtDB))
		assert.Is(t, time.Since(began), time.Second/partOfTime, "they waited at the gate")
		end()
		synctest.Wait()
		g.free.Range(func(any, any) bool { t.Error("one that has ended is not forgotten"); return false })
	})
}
