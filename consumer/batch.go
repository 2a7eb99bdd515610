package consumer

import (
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/admission"
	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// item is one delivery on its way through the life of a batch.
type item struct {
	delivery rabbit.Delivery
	taken    time.Time
	id       wire.Identified
	copied   wire.CopyInfo // what the headers of an earlier copy say
	msg      Message
	rejected *unreadable // why nobody can read it; nil for a readable message

	row       dedup.Row
	lock      itsLock
	next      decide.Verdict // what must be done with it before it is claimed
	claim     *dedup.Claim   // held while attempted
	named     admission.Values
	followers []*item // copies with the same identity and body in the same batch

	fate
	copy publication
}

// itsLock is what is known of an item's lock.
type itsLock struct {
	name lock.Name
	// hold is what was found when last looked; 0: nothing, or what was ours is released or marked done.
	hold   lock.Hold
	holder string // the token of another worker's batch, or, of a held delivery, of the one that it was in
	marked bool   // the done marker has its body's hash
}

// hinted: neither ours nor held, a done marker or a foreign value; it says where to look.
func (l itsLock) hinted() bool { return l.hold == lock.DoneMarker || l.hold == lock.Foreign }

// unreadable says why a message cannot be handled at all.
type unreadable struct {
	reason dedup.Reason
	err    error
}

func (it *item) identity() dedup.Identity { return it.id.Identity }

// Said is an [admission.Message]'s.
func (it *item) Said() (dedup.Identity, []byte, *admission.Values) {
	return it.id.Identity, it.msg.Body, &it.named
}

// opening is the life of the message that its row knows.
func (it *item) opening() admission.Opening {
	return admission.Opening{Key: it.id.Identity, Replays: it.row.Replays}
}

func (it *item) message() Message     { return it.msg }
func (it *item) claimed() dedup.Claim { return *it.claim }

func (it *item) entry() dedup.Entry {
	return dedup.Entry{Identity: it.id.Identity, BodyHash: it.id.BodyHash, MessageID: it.delivery.MessageID,
		Came: wire.ReadSending(it.delivery.Headers).String()}
}

// runsByItself reports whether a process has died with it, or is to be thought to have: then it is attempted while this
// process does nothing else.
func (it *item) runsByItself() bool {
	return it.next == decide.TakeOver || it.next == decide.TakeOverGroup || it.next == decide.Forgive || it.row.RunsAlone()
}

// fullEntry also holds what a person or reconcile needs to send the message again.
func (it *item) fullEntry() dedup.Entry {
	e := it.entry()
	e.Body, e.Properties = it.delivery.Body, wire.MarshalProperties(it.delivery)
	return e
}

// deliveries is how often it came back unsettled: this copy, which the broker counts, and those it is a copy of.
func (it *item) deliveries() int { return it.delivery.Count + it.copied.Deliveries }

// circumstances are what the verdict needs to know besides the row.
func (it *item) circumstances() decide.Circumstances {
	c := decide.Circumstances{Deliveries: it.deliveries(), Unreadable: it.rejected != nil, LetterOf: -1,
		Replays: it.copied.Replays}
	if !it.copied.DeadAt.IsZero() {
		c.LetterOf = it.copied.Replays
	}
	return c
}

// asError is the failure of an attempt on a message that nobody can read.
func (u *unreadable) asError() error { return Permanent(u) }

// Error is why nobody can read it.
func (u *unreadable) Error() string { return u.err.Error() }

// Unwrap is what was found wrong.
func (u *unreadable) Unwrap() error { return u.err }

// batch is what a worker has in hand. Its steps narrow open until it is empty.
type batch struct {
	all     []*item                  // in order of delivery
	leaders map[dedup.Identity]*item // the first of each identity in this pass
	open    []*item                  // leaders that are not yet settled and not waiting below
	fresh   []*item                  // without a row, to share a transaction
	opened  []*item                  // likewise, reopened and not tried since
	groups  []group                  // of the step that attempts: those that wait for their turn, the next one last
	blamed  []blamed                 // by the handler, in the fast path: their attempt is to be recorded
	again   []*item                  // failed before: to be claimed and attempted together
	orphans []*item                  // a process died with them and others: to be taken over together, and nothing beside
	alone   []*item                  // to be claimed and attempted one at a time
	later   []*item                  // wait for the next pass: another body under a taken key, or another worker's lock
	pass    int
	taken   time.Time
	token   string        // of the locks
	stray   []lock.Name   // locked under identities that turned out to be another body's
	stuck   bool          // copies are out of which nobody knows whether they arrived
	failed  bool          // what is open goes back to the broker
	parting bool          // what is open will go back: nothing is gained by waiting for it
	lease   time.Duration // the next pass waits for this one of others
	tripped bool          // the breaker holds some of its letters back
}

// waits reports whether deliveries that are done wait with their acks for those of the next pass, which takes a moment:
// one ack of everything costs less than one for each delivery behind the first that is open. What is done but not acked
// comes again after a crash, as a duplicate.
func (b *batch) waits() bool {
	return !b.parting && b.lease == 0 && len(b.groups)+len(b.again)+len(b.orphans)+len(b.alone) == 0 && len(b.later) > 0
}

// lead opens it, unless another item of this pass has its identity: with the same body it follows that one's fate, with
// another body it waits, because bodies are compared only against a committed row.
func (b *batch) lead(it *item) {
	leader, taken := b.leaders[it.id.Identity]
	switch {
	case !taken:
		b.leaders[it.id.Identity] = it
		b.open = append(b.open, it)
	case leader.id.BodyHash == it.id.BodyHash && leader.circumstances().LetterOf == it.circumstances().LetterOf &&
		leader.circumstances().Replays >= it.circumstances().Replays:
		leader.followers = append(leader.followers, it)
	default:
		b.later = append(b.later, it)
	}
}

// nextPass opens what had to wait.
func (b *batch) nextPass() {
	waited := b.later
	b.open, b.later = nil, nil
	b.pass++
	if len(waited) == 0 {
		return
	}
	clear(b.leaders)
	for _, it := range waited {
		b.lead(it)
	}
}

// pick are the items that f chooses.
func pick(items []*item, f func(*item) bool) (some []*item) {
	for _, it := range items {
		if f(it) {
			some = append(some, it)
		}
	}
	return some
}

// eachOf is what f says of each item.
func eachOf[T any](items []*item, f func(*item) T) []T {
	all := make([]T, len(items))
	for i, it := range items {
		all[i] = f(it)
	}
	return all
}

// owner is a name never used twice, for the next claim or the locks of a batch: host/pid/start/lane/count.
func (w *worker) owner() string {
	return fmt.Sprintf("%s/%d", w.name, w.c.count.Add(1))
}
