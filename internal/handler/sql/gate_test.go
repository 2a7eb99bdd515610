package sql

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"
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
	if f.Joined() {
		t.Fatal("the statements are joined: nothing is tried")
	}
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
				if err := w.handle(h, messages(mine...)...); err != nil {
					t.Errorf("lane %d: %v", lane, err)
				}
			}
		})
	}
	wg.Wait()
	w.want("goods", "SELECT MIN(amount), MAX(amount) FROM goods", fmt.Sprint(lanes*batches, " ", lanes*batches))
}

// Given a transaction behind the gate, then it may enter again, another one that has no more time to wait goes on
// beside it, and the next one enters when the first has ended.
func TestTheGateHoldsNobodyForGood(t *testing.T) {
	t.Parallel()
	g := newGate()
	first, second := new(gorm.PreparedStmtDB), new(gorm.PreparedStmtDB)
	transaction, end := context.WithCancel(t.Context())
	g.enter(transaction, first)
	g.enter(transaction, first)
	short, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
	defer cancel()
	g.enter(short, second)
	isFree := func(conn gorm.ConnPool) bool {
		_, free := g.free.Load(conn)
		return free
	}
	if !isFree(first) || isFree(second) {
		t.Error("the gate was given to another transaction before the first had ended")
	}
	joined := new(gorm.PreparedStmtDB)
	g.pass(t.Context(), joined)
	g.enter(t.Context(), joined)
	end()
	next, cancelNext := context.WithCancel(t.Context())
	g.enter(next, second)
	if !isFree(second) {
		t.Error("the next transaction did not enter")
	}
	cancelNext()
	last, cancelLast := context.WithCancel(t.Context())
	defer cancelLast()
	g.enter(last, first)
}
