package admission

import (
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Breaker notices a broken deployment, by two signs.
//
// Letters: more than the limit in a window, and more than messages were applied, counted in MySQL for all daemons
// together. What is over the limit goes back to the broker, and nothing is consumed for a while. What cannot be read is
// not counted as a letter: a bad producer must not stop the good ones. A letter that could not be published is counted
// once, however often it is tried and its delivery comes again.
//
// Attempts, long before there are letters: more messages than the limit failed for the first time within a window, in
// this process, and none was applied. Then they are spaced out: probes, with pauses that grow up to that of the
// letters, until one of them is applied. What was put off, or was a duplicate, counts on no side.
type Breaker struct {
	Limit dedup.LetterLimit // Most 0: it never brakes
	Now   func() time.Time

	mu     sync.Mutex
	failed map[dedup.Identity]struct{} // for the first time since then, and none was applied; guarded by mu
	since  time.Time                   // guarded by mu
	spaced bool                        // attempts are spaced out; guarded by mu
	tried  bool                        // one has failed since the last pause; guarded by mu
	last   time.Duration               // the pause before; guarded by mu
	until  time.Time                   // no letter is let through until then; guarded by mu
	open   map[Opening]struct{}        // whose letters were counted and are not confirmed yet; guarded by mu
}

// Opening is one of the lives of a message: a replay begins another one.
type Opening struct {
	Key     dedup.Identity
	Replays int
}

const (
	// firstPause is the pause before the first probe; each is twice as long as the one before.
	firstPause = time.Second
	// ProbeSize is how many messages of a batch a probe attempts: one of them may be bad by itself. The others go behind
	// those that wait in the queue, so that the bad ones of a healthy deployment do not stand in front of the good ones
	// for as long as each of them takes to be attempted.
	ProbeSize = 10
)

// Note takes in what came of attempts: whether any was applied, whether any failed, and for whom it was the first. A
// message that fails again says nothing new: those of one shelf may be all that is left of a crowd.
func (b *Breaker) Note(applied, failed bool, first []dedup.Identity) {
	if b.Limit.Most == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.Now()
	switch {
	case applied:
		b.forget()
		return
	case !failed:
		return
	case b.failed == nil || now.Sub(b.since) > b.Limit.Window:
		b.failed, b.since = map[dedup.Identity]struct{}{}, now
	}
	b.tried = true
	for _, k := range first {
		if b.spaced = b.spaced || len(b.failed) > b.Limit.Most; b.spaced {
			return
		}
		b.failed[k] = struct{}{}
	}
	b.spaced = len(b.failed) > b.Limit.Most
}

// forget takes the sign of failing attempts back. The caller holds mu.
func (b *Breaker) forget() { b.failed, b.spaced, b.tried, b.last = nil, false, false, 0 }

// Calm says that no message came to be tried for a long while.
func (b *Breaker) Calm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget()
}

// Spaces reports whether attempts are spaced out.
func (b *Breaker) Spaces() bool {
	return asked(&b.mu, func() bool { return b.spaced })
}

// Stops reports whether it is time for a pause: attempts are spaced out, and since the last pause one has failed.
func (b *Breaker) Stops() bool {
	return asked(&b.mu, func() bool { return b.spaced && b.tried })
}

// HoldLetters takes in that no more letters are let through for a time.
func (b *Breaker) HoldLetters(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = b.Now().Add(d)
}

// Pause is how long nothing is consumed now, and why; 0 when a message was applied meanwhile. After it one may be
// tried.
func (b *Breaker) Pause() (d time.Duration, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.Now()
	b.tried = false
	if b.spaced {
		b.last = min(max(firstPause, 2*b.last), b.Limit.Pause)
		d, why = b.last, fmt.Errorf("over %d messages that failed at once within %v, and none that was applied: "+
			"trying some after %v, at %s", b.Limit.Most, b.Limit.Window, b.last, now.Add(b.last).UTC().Format(time.RFC3339))
	}
	if left := b.until.Sub(now); left > d {
		d, why = left, fmt.Errorf("over %d dead letters of all daemons within %v, and more than were applied: trying one "+
			"batch after %v, at %s", b.Limit.Most, b.Limit.Window, left.Round(time.Second),
			b.until.UTC().Format(time.RFC3339))
	}
	return d, why
}

// Counted reports whether the letter of this opening was counted before.
func (b *Breaker) Counted(o Opening) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.open[o]
	return known
}

// maxOpenings bounds the memory for letters that other processes publish in the end.
const maxOpenings = 10_000

// Let takes in that the letter of this opening was counted and goes on its way.
func (b *Breaker) Let(o Opening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil || len(b.open) >= maxOpenings {
		b.open = map[Opening]struct{}{}
	}
	b.open[o] = struct{}{}
}

// Arrived forgets an opening whose letter is confirmed.
func (b *Breaker) Arrived(o Opening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, o)
}
