package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// breaker notices a broken deployment, by two signs.
//
// Letters: more than the limit in a window, and more than messages were applied, counted in MySQL for all daemons
// together. What is over the limit goes back to the broker, and nothing is consumed for a while. What cannot be read is
// not counted as a letter: a bad producer must not stop the good ones. A letter that could not be published is counted
// once, however often it is tried and its delivery comes again.
//
// Attempts, long before there are letters: more messages than the limit failed for the first time within a window, in
// this process, and none was applied. Then they are spaced out: probes, with pauses that grow up to that of the
// letters, until one of them is applied. What was put off, or was a duplicate, counts on no side.
type breaker struct {
	limit dedup.LetterLimit // Most 0: it never brakes
	now   func() time.Time

	mu     sync.Mutex
	failed map[dedup.Identity]struct{} // for the first time since then, and none was applied; guarded by mu
	since  time.Time                   // guarded by mu
	spaced bool                        // attempts are spaced out; guarded by mu
	tried  bool                        // one has failed since the last pause; guarded by mu
	last   time.Duration               // the pause before; guarded by mu
	until  time.Time                   // no letter is let through until then; guarded by mu
	open   map[opening]struct{}        // whose letters were counted and are not confirmed yet; guarded by mu
}

// opening is one of the lives of a message: a replay begins another one.
type opening struct {
	key     dedup.Identity
	replays int
}

func (it *item) opening() opening { return opening{it.id.Identity, it.row.Replays} }

const (
	// firstPause is the pause before the first probe; each is twice as long as the one before.
	firstPause = time.Second
	// probeSize is how many messages of a batch a probe attempts: one of them may be bad by itself. The others go behind
	// those that wait in the queue, so that the bad ones of a healthy deployment do not stand in front of the good ones
	// for as long as each of them takes to be attempted.
	probeSize = 10
)

func newBreaker(cfg Config, now func() time.Time) *breaker {
	return &breaker{now: now, limit: dedup.LetterLimit{Group: cfg.Group, Queue: cfg.Queue, Most: cfg.MaxDead,
		Window: cfg.MaxDeadWindow, Pause: cfg.BrakePause}}
}

// note takes in what came of attempts: whether any was applied, whether any failed, and for whom it was the first. A
// message that fails again says nothing new: those of one shelf may be all that is left of a crowd.
func (b *breaker) note(applied, failed bool, first []dedup.Identity) {
	if b.limit.Most == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	switch {
	case applied:
		b.forget()
		return
	case !failed:
		return
	case b.failed == nil || now.Sub(b.since) > b.limit.Window:
		b.failed, b.since = map[dedup.Identity]struct{}{}, now
	}
	b.tried = true
	for _, k := range first {
		if b.spaced = b.spaced || len(b.failed) > b.limit.Most; b.spaced {
			return
		}
		b.failed[k] = struct{}{}
	}
	b.spaced = len(b.failed) > b.limit.Most
}

// forget takes the sign of failing attempts back. The caller holds mu.
func (b *breaker) forget() { b.failed, b.spaced, b.tried, b.last = nil, false, false, 0 }

// calm says that no message came to be tried for a long while.
func (b *breaker) calm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget()
}

// spaces reports whether attempts are spaced out.
func (b *breaker) spaces() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spaced
}

// stops reports whether it is time for a pause: attempts are spaced out, and since the last pause one has failed.
func (b *breaker) stops() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spaced && b.tried
}

// holdLetters takes in that no more letters are let through for a time.
func (b *breaker) holdLetters(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = b.now().Add(d)
}

// pause is how long nothing is consumed now, and why; 0 when a message was applied meanwhile. After it one may be
// tried.
func (b *breaker) pause() (d time.Duration, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.tried = false
	if b.spaced {
		b.last = min(max(firstPause, 2*b.last), b.limit.Pause)
		d, why = b.last, fmt.Errorf("over %d messages that failed at once within %v, and none that was applied: "+
			"trying some after %v, at %s", b.limit.Most, b.limit.Window, b.last, now.Add(b.last).UTC().Format(time.RFC3339))
	}
	if left := b.until.Sub(now); left > d {
		d, why = left, fmt.Errorf("over %d dead letters of all daemons within %v, and more than were applied: trying one "+
			"batch after %v, at %s", b.limit.Most, b.limit.Window, left.Round(time.Second),
			b.until.UTC().Format(time.RFC3339))
	}
	return d, why
}

// counted reports whether the letter of this opening was counted before.
func (b *breaker) counted(o opening) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.open[o]
	return known
}

// maxOpenings bounds the memory for letters that other processes publish in the end.
const maxOpenings = 10_000

// let takes in that the letter of this opening was counted and goes on its way.
func (b *breaker) let(o opening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil || len(b.open) >= maxOpenings {
		b.open = map[opening]struct{}{}
	}
	b.open[o] = struct{}{}
}

// arrived forgets an opening whose letter is confirmed.
func (b *breaker) arrived(o opening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, o)
}

// weigh tells the breaker what became of this batch, and asks for leave to publish its letters. What gets none is open
// again and goes back to the broker. The backstop attempts nothing, and what it files is no failure of a handler.
func (w *worker) weigh(ctx context.Context, b *batch) error {
	if w.backstop || w.c.cfg.MaxDead == 0 {
		return nil
	}
	var letters []*item
	var first []dedup.Identity
	applied, failed := false, false
	for _, it := range b.all {
		if it.stage != stageEnded {
			continue
		}
		it.move(stageWeighed)
		letter := it.by == byDeadLetter && trips(it.reason)
		if letter && !it.row.Condemned() && !w.c.breaker.counted(it.opening()) {
			letters = append(letters, it) // else it was counted when it was refused
		}
		applied = applied || it.outcome == Applied
		if letter || it.outcome == Retried {
			failed = true
			if it.row.Attempts <= 1 {
				first = append(first, it.id.Identity)
			}
		}
	}
	w.c.breaker.note(applied, failed, first)
	if len(letters) == 0 {
		return nil
	}
	var got int
	var holds time.Duration
	err := w.untilKnown(ctx, func(ctx context.Context) (err error) {
		got, holds, err = w.c.records.ReserveLetters(ctx, w.c.breaker.limit, len(letters))
		return err
	})
	if err != nil {
		return err
	}
	for _, it := range letters[:got] {
		w.c.breaker.let(it.opening())
	}
	for _, it := range letters[got:] {
		it.reopen()
		if it.claim != nil {
			w.c.pending.giveBack(*it.claim)
		}
	}
	if got < len(letters) {
		b.tripped = true
		w.c.breaker.holdLetters(holds)
	}
	return nil
}
