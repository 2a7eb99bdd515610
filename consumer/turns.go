package consumer

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rollbackd/rollbackd/dedup"
)

// turns lets many lanes of this process run the handler at once, or one that takes over an expired lease: its message
// may be what killed a process, and whoever is claimed in the same process then pays an attempt for it. That includes
// the fast path, which claims nothing, because a message in it may kill what is taken over.
type turns struct {
	all int64
	sem *semaphore.Weighted
}

func newTurns(lanes int) *turns {
	return &turns{int64(lanes), semaphore.NewWeighted(int64(lanes))}
}

// turn is a lane's leave to run the handler.
type turn struct {
	*lane
	alone bool
	since time.Time
	taken int64 // 0: it is not this lane's turn
}

// longestTurn bounds how long a lane that takes over keeps the others waiting. It keeps its turn for several messages,
// one after the other, because each wait for it lasts as long as a transaction of the others.
const longestTurn = 250 * time.Millisecond

// take waits until it is the lane's turn: alone, or with others.
func (t *turn) take(ctx context.Context, alone bool) error {
	if t.taken > 0 && t.alone == alone && time.Since(t.since) < longestTurn {
		return nil
	}
	t.end()
	weight := int64(1)
	if alone {
		weight = t.c.turns.all
	}
	t.clock.rest() // whether the transactions move that it waits for is for their lanes' clocks to say
	if err := t.c.turns.sem.Acquire(ctx, weight); err != nil {
		return context.Cause(ctx)
	}
	t.clock.tick()
	t.alone, t.since, t.taken = alone, time.Now(), weight
	return nil
}

func (t *turn) end() {
	if t.taken > 0 {
		t.c.turns.sem.Release(t.taken)
		t.taken = 0
	}
}

// debts are claims whose attempt never ran to an end. They are un-claimed before anything new is consumed, so that no
// dependency's failure counts as an attempt.
type debts struct {
	mu    sync.Mutex
	owed  []dedup.Claim // guarded by mu
	marks []dedup.Claim // of effects that a service has applied; guarded by mu
}

// oweMark notes a claim whose effect is applied outside MySQL, while its success could not be written down.
func (d *debts) oweMark(c dedup.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks = append(d.marks, c)
}

func (d *debts) owe(c dedup.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owed = append(d.owed, c)
}

// pay marks what is applied, and un-claims what is owed. A claim that somebody else has taken over is paid.
func (d *debts) pay(ctx context.Context, records *dedup.Log) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return cmp.Or(payAll(ctx, &d.marks, records.MarkAll), payAll(ctx, &d.owed, records.UnclaimAll))
}

func payAll(
	ctx context.Context, owed *[]dedup.Claim, pay func(context.Context, []dedup.Claim) []error,
) error {
	for len(*owed) > 0 {
		some := firstOfEach(*owed)
		if err := firstButLost(pay(ctx, some)); err != nil {
			return err
		}
		*owed = (*owed)[len(some):]
	}
	return nil
}

// firstOfEach is the beginning of claims, up to where an identity comes again.
func firstOfEach(claims []dedup.Claim) []dedup.Claim {
	seen := map[dedup.Identity]bool{}
	for i, c := range claims[:min(len(claims), claimAtOnce)] {
		if seen[c.Identity] {
			return claims[:i]
		}
		seen[c.Identity] = true
	}
	return claims[:min(len(claims), claimAtOnce)]
}
