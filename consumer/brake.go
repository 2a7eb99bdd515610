package consumer

import (
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// brake notices a broken deployment: more than limit letters of messages that could be read within window, and more
// than half of all that was settled in that time. It lets limit letters through in a window, so that even a queue of
// nothing but bad messages is worked off in the end. What cannot be read is not counted as a letter: a bad producer
// must not stop the good ones. A letter that could not be published is counted once, however often it is tried and its
// delivery comes again.
type brake struct {
	limit  int
	window time.Duration
	now    func() time.Time

	mu      sync.Mutex
	slots   []brakeSlot          // one per second, oldest first; guarded by mu
	settled int                  // sum over slots; guarded by mu
	letters int                  // sum over slots; guarded by mu
	open    map[opening]struct{} // whose letters were counted and are not confirmed yet; guarded by mu
}

// opening is one of the lives of a message: a replay begins another one.
type opening struct {
	key     dedup.Identity
	replays int
}

type brakeSlot struct {
	second           int64
	settled, letters int
}

func newBrake(limit int, window time.Duration, now func() time.Time) *brake {
	return &brake{limit: limit, window: window, now: now}
}

// allow takes in what is about to be settled and says how many of the letters may be published. Fewer than asked for
// means that the brake has tripped: the rest must wait.
func (b *brake) allow(others, letters int) int {
	if b.limit == 0 {
		return letters
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget()
	allowed := letters
	if all := b.letters + letters; all > b.limit && 2*all > b.settled+others+letters {
		allowed = min(letters, max(0, b.limit-b.letters))
	}
	b.add(others+allowed, allowed)
	return allowed
}

// counted reports whether the letter of this opening was counted before.
func (b *brake) counted(o opening) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.open[o]
	return known
}

// maxOpenings bounds the memory for letters that other processes publish in the end.
const maxOpenings = 10_000

// let takes in that the letter of this opening was counted and goes on its way.
func (b *brake) let(o opening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil || len(b.open) >= maxOpenings {
		b.open = map[opening]struct{}{}
	}
	b.open[o] = struct{}{}
}

// arrived forgets an opening whose letter is confirmed.
func (b *brake) arrived(o opening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, o)
}

// add counts what is settled into the present second. The caller holds mu.
func (b *brake) add(settled, letters int) {
	second := b.now().Unix()
	if n := len(b.slots); n == 0 || b.slots[n-1].second != second {
		b.slots = append(b.slots, brakeSlot{second: second})
	}
	last := &b.slots[len(b.slots)-1]
	last.settled += settled
	last.letters += letters
	b.settled += settled
	b.letters += letters
}

// reset forgets everything, after a pause.
func (b *brake) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slots, b.settled, b.letters = nil, 0, 0
}

// forget drops the slots that left the window. The caller holds mu.
func (b *brake) forget() {
	oldest := b.now().Add(-b.window).Unix()
	for len(b.slots) > 0 && b.slots[0].second <= oldest {
		b.settled -= b.slots[0].settled
		b.letters -= b.slots[0].letters
		b.slots = b.slots[1:]
	}
}
