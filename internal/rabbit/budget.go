package rabbit

import (
	"bytes"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
)

// Budget bounds what all subscriptions that share it have in hand, in bytes: each has an equal share. What counts is
// everything that the broker has sent and nobody has settled, as the client library keeps it: bodies, headers, and a
// little for each delivery.
//
// Two things hold the bound. The *window* is the number of deliveries that the broker may have unsettled at a time: it
// begins with what fits if every body is as large as largeBody, and follows the sizes that come. A changed window
// reaches new consumers only, so the subscription cancels its consumer, hands out what came, and begins another one on
// the same channel. But a window that small messages have widened may be filled with large ones at once. What then
// exceeds the share is *shed*: the bytes of its body are dropped as they come from the socket, and the delivery is
// given back to the queue once no consumer of this budget has a wide window any more. On RabbitMQ 3 that costs it one
// of its queue's delivery limit.
//
// A delivery larger than a share comes through alone: one a subscription, beside its share.
type Budget struct {
	share int64

	narrowing sync.Mutex // one at a time
	mu        sync.Mutex
	seen      float64                    // how many deliveries the sizes below are of; it forgets. guarded by mu
	squares   float64                    // of their weights; guarded by mu
	epoch     uint64                     // how often all windows were narrowed; guarded by mu
	subs      map[*Subscription]struct{} // guarded by mu
}

const (
	// largeBody is what a body is taken for while none was seen.
	largeBody = 256 << 10
	// memory is how many deliveries the sizes are remembered of.
	memory = 1000
	// fillPercent of a share is what a window may fill: sizes vary.
	fillPercent = 75
	// growth is how many times as many deliveries as were seen a window may have at most.
	growth = 8
)

// NewBudget divides size bytes among so many subscriptions.
func NewBudget(size int64, subscriptions int) *Budget {
	return &Budget{share: max(1, size/int64(max(1, subscriptions))), subs: map[*Subscription]struct{}{}}
}

// weigh is what a delivery costs in memory. The client appends the frames of a body, which leaves up to a quarter
// unused; there are its headers as headerWeight has them, and the delivery itself with what the engine notes of it.
func weigh(body, headers int64) int64 { return body + body/4 + headers + 1<<10 }

// headerWeight is what the headers in a frame of size bytes take once the client has read them: texts a few times their
// bytes, but a table of one entry, 8 bytes on the wire, is a map of 350. The types of such values are looked for as
// bytes, wherever they stand. It is too little, by half, only for a table of thousands of one-byte numbers or truths.
// frame is as much of it as is known.
func headerWeight(frame []byte, size int64) int64 {
	const each, table, array, void = 8, 350, 80, 64
	n := func(typ byte) int64 { return int64(bytes.Count(frame, []byte{typ})) }
	return each*size + table*n('F') + array*n('A') + void*n('V')
}

// saw takes in the weight of a delivery.
func (b *Budget) saw(weight int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const keep = 1 - 1.0/memory
	b.seen = b.seen*keep + 1
	b.squares = b.squares*keep + float64(weight)*float64(weight)
}

// window is how many deliveries a subscription may have unsettled that still holds so much, at most most. 0: none may
// come. Sizes go in as the root of their mean square, in which large ones weigh more than their number.
func (b *Budget) window(most int, held int64) int {
	if b == nil {
		return most
	}
	room := float64(max(0, b.share*fillPercent/100-held))
	b.mu.Lock()
	defer b.mu.Unlock()
	first := math.Floor(room / float64(weigh(largeBody, 0)))
	n := first
	if b.seen > 0 {
		n = math.Floor(room / math.Sqrt(b.squares/b.seen))
		n = min(n, max(first, growth*b.seen))
	}
	if held == 0 {
		n = max(1, n)
	}
	return int(min(n, float64(most)))
}

func (b *Budget) add(s *Subscription) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.subs, func(old *Subscription, _ struct{}) bool { return old.ch.IsClosed() }) // its session is over
	b.subs[s] = struct{}{}
}

func (b *Budget) now() uint64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.epoch
}

// narrow cancels the consumers of all subscriptions: each begins another one with the window of today. It does nothing
// if that has happened since epoch.
func (b *Budget) narrow(ctx context.Context, epoch uint64) error {
	b.narrowing.Lock()
	defer b.narrowing.Unlock()
	b.mu.Lock()
	if b.epoch != epoch {
		b.mu.Unlock()
		return nil
	}
	b.epoch++
	subs := slices.Collect(maps.Keys(b.subs))
	b.mu.Unlock()
	for _, s := range subs {
		if err := s.endConsumer(ctx, false); err != nil {
			return err
		}
	}
	return nil
}
