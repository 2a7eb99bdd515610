package run

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// relayedPerSecond is how many messages are relayed for each second of a round's length.
const relayedPerSecond = 15_000

// Relay measures `rollbackd relay` before a full outbox, and a publisher with confirms that publishes the same messages
// from memory, as many at once. Each has the queue for itself, from its first message there to the last.
func (r *Runner) Relay() Sample {
	f := r.empty()
	n := int64(relayedPerSecond * r.Length.Seconds())
	fresh := func() []rabbit.Publishing {
		f.Sow(ground.Sowing{Orders: 1, Goods: ManyGoods, NoBacklog: true, Emits: true}, r.seed())
		return f.Messages(n)
	}
	all := fresh()
	plain := r.until(n, func() { publishPlain(r.Ground.Ctx, r.Ground.Stack.RabbitMQ.URL(), all) })
	f.Put(fresh())
	var relayed float64
	r.beside(f, Contestant{Command: "relay"}, func(*processes) { relayed = r.until(n, func() {}) })
	return Sample{
		"ratio": relayed / plain, "relay_per_second": relayed, "plain_per_second": plain, "messages": float64(n),
	}
}

// until is how many messages a second come into the main queue, from the first one to the n-th.
func (r *Runner) until(n int64, do func()) float64 {
	var first, last time.Time
	var before, depth int64
	must.Side(2, func(side int) {
		if side == 0 {
			do()
			return
		}
		r.Ground.Until("the first message is there", time.Minute, func() bool {
			before, first = r.Ground.Depth(), time.Now()
			return before > 0
		})
		r.Ground.Until("all messages are there", 5*time.Minute, func() bool {
			depth, last = r.Ground.Depth(), time.Now()
			return depth >= n
		})
	})
	return float64(depth-before) / last.Sub(first).Seconds()
}

// publishPlain has as many messages in flight as a relay.
func publishPlain(ctx context.Context, url string, all []rabbit.Publishing) {
	const batches, batch = 4, 1000
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{url}, Name: "bench"})
	defer p.Close(ctx)
	parts := slices.Collect(slices.Chunk(all, batch))
	must.Side(batches, func(at int) {
		for ; at < len(parts); at += batches {
			must.OK(errors.Join(p.Publish(ctx, parts[at])...))
		}
	})
}
