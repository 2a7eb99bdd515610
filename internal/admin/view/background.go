package view

import (
	"context"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// background is something that takes longer than a page may wait: it is found out once for all who ask at a time, and
// kept for a while: the longer it took, the longer, so that looking costs a server little of its time.
type background[T any] struct {
	// look finds it out. What it has found so far it may hand to soFar: nobody waits for the rest when nothing is known.
	look func(ctx context.Context, soFar func(T)) (T, error)
	// paced: the look itself rests. It is not repeated for as long as it took, its rests included.
	paced bool

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before and after it. Guarded by mu
	wg      sync.WaitGroup
	running bool      // guarded by mu
	tried   time.Time // when the last look ended, well or not; guarded by mu
	last    Aged[T]   // guarded by mu
	partly  bool      // last is not the end of a look; guarded by mu
}

const (
	// restAfter is how many times as long as a look took there is none, if it is not paced.
	restAfter   = 50
	longestKept = 5 * time.Minute
	askEvery    = 10 * time.Millisecond // whether a first look has found something
)

// Aged is what was found out, and when.
type Aged[T any] struct {
	Value T
	// At is when it was found out; zero: not yet.
	At time.Time
	// Took is how long that took.
	Took time.Duration
	// Err is why the last look failed; Value is then what was found before.
	Err error
	// Looking: somebody looks right now.
	Looking bool
}

func (b *background[T]) begin(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ctx = ctx
}

func (b *background[T]) end() {
	b.mu.Lock()
	b.ctx = nil
	b.mu.Unlock()
	b.wg.Wait()
}

// get is what is known. It never waits; when that is older than keep, a look begins.
func (b *background[T]) get(keep time.Duration) Aged[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := restAfter * b.last.Took
	if b.paced {
		rest = b.last.Took
	}
	keep = max(keep, min(rest, longestKept))
	if !b.running && b.ctx != nil && b.ctx.Err() == nil && time.Since(b.tried) > keep {
		b.running = true
		ctx := b.ctx
		b.wg.Go(func() { b.run(ctx) })
	}
	known := b.last
	known.Looking = b.running
	return known
}

// await is what is known, and waits for the first look to find something if nothing is. Its error is that of ctx, or
// why the look failed.
func (b *background[T]) await(ctx context.Context, keep time.Duration) (Aged[T], error) {
	for {
		known := b.get(keep)
		switch {
		case !known.At.IsZero():
			return known, nil
		case !known.Looking && known.Err != nil:
			return known, known.Err
		case !known.Looking:
			return known, ErrEnding
		}
		if wait.For(ctx, askEvery) != nil {
			return known, context.Cause(ctx)
		}
	}
}

func (b *background[T]) run(ctx context.Context) {
	began := time.Now()
	value, err := b.look(ctx, b.soFar)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running, b.tried = false, time.Now()
	if b.last.Err = err; err == nil {
		b.last.Value, b.last.At, b.last.Took, b.partly = value, b.tried, b.tried.Sub(began), false
	}
}

// soFar keeps what the first look has found until now. Of a later one, what was known before says more.
func (b *background[T]) soFar(value T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.partly || b.last.At.IsZero() {
		b.last.Value, b.last.At, b.partly = value, time.Now(), true
	}
}
