package consumer

import (
	"cmp"
	"context"
	"sync"

	"github.com/rollbackd/rollbackd/dedup"
)

// pending are claims whose attempt never ran to an end. They are un-claimed before anything new is consumed, so that no
// dependency's failure counts as an attempt.
type pending struct {
	mu    sync.Mutex
	owed  []dedup.Claim // guarded by mu
	marks []dedup.Claim // of effects that a service has applied; guarded by mu
}

// oweMark notes a claim whose effect is applied outside MySQL, while its success could not be written down.
func (d *pending) applied(c dedup.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks = append(d.marks, c)
}

func (d *pending) giveBack(c dedup.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owed = append(d.owed, c)
}

// pay marks what is applied, and un-claims what is owed. A claim that somebody else has taken over is paid.
func (d *pending) settle(ctx context.Context, records *dedup.Log) error {
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
