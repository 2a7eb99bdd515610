package sql

import (
	"context"
	"sync"
	"time"

	"gorm.io/gorm"
)

// gate lets one transaction of this process at a time run its messages one by one. Each takes its locks in the order of
// its messages, so two of them that meet in the same rows deadlock, again and again where these are many; and who waits
// for locks gets nothing done anyway. It only saves work: what happens without it is right too.
type gate struct {
	room chan struct{} // of one
	free sync.Map      // transactions that need not wait, by their gorm.ConnPool: the one inside, and the joined
}

func newGate() *gate { return &gate{room: make(chan struct{}, 1)} }

// partOfTime is how much of a transaction's time it may wait at the gate: it must have the most of it for its work.
const partOfTime = 4

// enter waits until conn's transaction may go on, and keeps the others out until ctx ends, which is when the
// transaction has ended; so a transaction may enter again, with the locks that it has. When that takes too long it goes
// on beside the others.
func (g *gate) enter(ctx context.Context, conn gorm.ConnPool) {
	if _, free := g.free.Load(conn); free {
		return
	}
	patience := ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		patience, cancel = context.WithTimeout(ctx, time.Until(end)/partOfTime)
		defer cancel()
	}
	select {
	case g.room <- struct{}{}:
		g.pass(ctx, conn)
		context.AfterFunc(ctx, func() { <-g.room })
	case <-patience.Done():
	}
}

// pass lets conn's transaction by until ctx ends: it takes its locks in an order. When it must run its messages one by
// one in the end, it has locks for which the one inside may wait, and must not wait for that one.
func (g *gate) pass(ctx context.Context, conn gorm.ConnPool) {
	if _, known := g.free.LoadOrStore(conn, true); !known {
		context.AfterFunc(ctx, func() { g.free.Delete(conn) })
	}
}
