package consumer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
)

// group is messages that are attempted together. Alone is a group of one.
type group struct {
	items []*item
	tries int  // how often it may meet others, or time that runs out, before it is split
	trial bool // whether the lock of others is gone that it would meet
}

// halves are the two halves, the first one last, as it is taken next. What has cost its time already gets one try: the
// worker must not stand still for as long again at each of the ten halvings that find one message among a thousand.
func (g group) halves(slow bool) []group {
	if slow {
		g.tries = 1
	}
	half := len(g.items) / 2
	return []group{{items: g.items[half:], tries: g.tries}, {items: g.items[:half:half], tries: g.tries}}
}

// single is each of the group by itself.
func (g group) single() []group {
	all := make([]group, len(g.items))
	for i := range g.items {
		all[len(all)-1-i] = group{items: g.items[i : i+1 : i+1], tries: g.tries}
	}
	return all
}

// attempt is one attempt of a group: claims, effect, and what became of it. The effect is a transaction (transact) or
// calls (call). In docs/model/group.pml these are claim, locked, groupend, giveback and recordfail, and for what is not
// claimed fastend and recordblame; in rollbackd.pml claim, attempt, commit and record.
type attempt struct {
	*worker
	b *batch
	way
	group
	probe ticket // for the one call that asks whether the service is back; nil: each call asks for its own

	claimant string    // who asks for claims and is not known to have them; "": nobody asks
	asked    bool      // they may be committed although no answer came
	since    time.Time // the leases of the claims began no sooner
	meetings int
	unknown  bool          // a COMMIT of the effect has had no answer: it may be decided yet
	said     decide.Told   // of the last try
	left     map[int]error // whom the last COMMIT left out, by their place

	made    int // calls
	applied []*item
	blamed  []blamed
	back    []putBack
}

// goApart has messages attempted by themselves.
func (t *attempt) goApart(items ...*item) {
	for _, it := range items {
		t.back = append(t.back, putBack{it: it})
	}
}

// dropEnded takes out who has an outcome.
func (t *attempt) dropEnded() {
	t.items = slices.DeleteFunc(t.items, func(it *item) bool { return it.outcome != 0 })
}

// runsByItself reports whether the attempt is to be made while this process does nothing else.
func (t *attempt) runsByItself() bool { return len(t.items) > 0 && t.items[0].runsByItself() }

// putBack is a message that has had no attempt: its claim, if it has one, is given back.
type putBack struct {
	it     *item
	remark string        // for its row
	after  time.Duration // which its row is to wait; 0: it is due at once
	comes  settlement    // again later; none: it goes on by itself
}

// blame files a message that is not applied, by what the handler has said of it: it has failed an attempt, or comes
// later and has had none. Who has no row yet is claimed, together with others like it, and asked again: only a row
// keeps the time.
func (t *attempt) blame(it *item, cause error) {
	switch what, after := CallMeans(cause); {
	case what != CallLater:
		t.blamed = append(t.blamed, blamed{it, cause})
	case t.claimed:
		t.comesLater(it, cause, after)
	default:
		t.b.again = append(t.b.again, it)
	}
}

// comesLater puts a message off that is claimed.
func (t *attempt) comesLater(it *item, cause error, after time.Duration) {
	delays := t.c.cfg.RetryDelays
	after = min(max(after, 0), t.c.cfg.MaxDelay)
	delay := decide.Fit(delays, after)
	if after == 0 { // as long as it has waited already
		delay = decide.FitUp(delays, it.row.Age)
	}
	why := cause.Error()
	t.back = append(t.back, putBack{it, why, after, settlement{by: byRetry, delay: delay, cause: why}})
}

// way is how a step of a batch attempts its messages.
type way struct {
	fresh   bool // they have no row: who has one by now goes its row's way
	claimed bool // each is claimed before, which counts the attempt; else it is counted when it has failed
	most    int  // messages that are attempted together
}

// then puts groups on the top of those that the batch has yet.
func (t *attempt) then(groups ...group) {
	for _, g := range groups {
		if len(g.items) > 0 {
			t.b.groups = append(t.b.groups, g)
		}
	}
}

// owe notes what could not be brought to an end: what the service has applied is marked, and what is none's fault is
// given back, before anything new is consumed, so that it counts as no attempt. A failed one is left to its lease, so
// that it counts.
func (t *attempt) owe(err error) {
	if err == nil {
		return
	}
	for _, it := range t.applied {
		if it.outcome == 0 {
			t.c.pending.applied(*it.claim)
		}
	}
	open := slices.Clone(t.items)
	for _, p := range t.back {
		open = append(open, p.it)
	}
	for _, it := range open {
		switch {
		case it.outcome != 0:
		case it.claim != nil:
			t.c.pending.giveBack(*it.claim)
		case t.claimant != "": // it may be committed all the same
			t.c.pending.giveBack(dedup.Claim{
				Identity: it.id.Identity, Attempts: max(0, it.row.Attempts) + 1, Replays: it.row.Replays, Owner: t.claimant,
			})
		}
	}
}

// pending are claims whose attempt never ran to an end. They are un-claimed before anything new is consumed, so that no
// dependency's failure counts as an attempt.
type pending struct {
	mu    sync.Mutex
	owed  []dedup.Claim // guarded by mu
	marks []dedup.Claim // of effects that a service has applied; guarded by mu
}

// applied notes a claim whose effect is applied outside MySQL, while its success could not be written down.
func (d *pending) applied(c dedup.Claim) { d.note(&d.marks, c) }

func (d *pending) giveBack(c dedup.Claim) { d.note(&d.owed, c) }

func (d *pending) note(list *[]dedup.Claim, c dedup.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*list = append(*list, c)
}

// settle marks what is applied, and un-claims what is owed. A claim that somebody else has taken over is paid.
func (d *pending) settle(ctx context.Context, records *dedup.Log) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return cmp.Or(payAll(ctx, &d.marks, records.MarkAll), payAll(ctx, &d.owed, records.UnclaimAll))
}

// payAll pays what is owed, many at a time, up to where an identity comes again.
func payAll(
	ctx context.Context, owed *[]dedup.Claim, pay func(context.Context, []dedup.Claim) []error,
) error {
	for len(*owed) > 0 {
		n, seen := 0, map[dedup.Identity]bool{}
		for n < min(len(*owed), claimAtOnce) && !seen[(*owed)[n].Identity] {
			seen[(*owed)[n].Identity] = true
			n++
		}
		if err := firstButLost(pay(ctx, (*owed)[:n])); err != nil {
			return err
		}
		*owed = (*owed)[n:]
	}
	return nil
}
