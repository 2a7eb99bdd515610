package run

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// minutes is how many there are: the first is the way up, the second is compared with the last.
const minutes = 3

// Memory lets the daemon work for three minutes while a shop that goes on keeps the queue at about so many messages:
// without it the backlog would be gone in half a minute. max_mib, second_minute_mib and last_minute_mib are the most
// memory that the daemon had resident.
func (r *Runner) Memory() Sample {
	s := &shop{field: r.empty(), planned: r.Backlog, backlog: r.Backlog, least: r.Backlog}
	m := Sample{"backlog": float64(r.Backlog), "minute_seconds": r.Minute.Seconds()}
	h := r.alone(s.field, ground.Sowing{Orders: r.Backlog}, nil, func(p *processes) {
		s.field.Growing()
		s.daemon, s.until = p, time.Now().Add(minutes*r.Minute)
		must.Side(2+clerks, func(i int) {
			switch i {
			case 0:
				s.holdBack()
			case 1:
				s.watch(m, r.Minute)
			default:
				s.field.Producing(s.clerk)
			}
		})
	})
	m["applied"], m["least_queued"] = float64(h.Applied), float64(s.least)
	m["last_by_second"] = m["last_minute_mib"] / m["second_minute_mib"]
	return m
}

// shop takes as many new orders, and publishes their rollbacks, as the daemon has worked off.
type shop struct {
	field   *ground.Field
	daemon  *processes
	until   time.Time
	backlog int64

	mu             sync.Mutex
	planned, least int64 // orders taken, or about to be; messages in the queue, at least; guarded by mu
}

// goesOn rests a little and says whether there is time left.
func (s *shop) goesOn(rest time.Duration) bool {
	s.daemon.r.Ground.Rest(rest)
	return time.Now().Before(s.until)
}

func (s *shop) watch(m Sample, minute time.Duration) {
	most := func(name string, mib float64) { m[name] = max(m[name], mib) }
	for s.goesOn(250 * time.Millisecond) {
		mib, _ := s.daemon.memory()
		most("max_mib", mib)
		switch minutes - 1 - int(time.Until(s.until)/minute) {
		case 1:
			most("second_minute_mib", mib)
		case minutes - 1:
			most("last_minute_mib", mib)
		}
	}
}

const (
	// clerks work side by side: one alone is slower than the daemon.
	clerks = 4
	// atOnce is how many orders a clerk takes at a time.
	atOnce = 2000
)

// queued takes as many orders of those that the queue has room for, and says how many messages were there before.
func (s *shop) queued(most int64) (first, taken, queued int64) {
	ended := s.daemon.counted().ended
	s.mu.Lock()
	defer s.mu.Unlock()
	queued = s.planned - ended
	first, taken = s.planned, max(0, min(s.backlog-queued, most))
	s.least = min(s.least, queued)
	s.planned += taken
	return first, taken, queued
}

// holdBack stops the daemon for a moment, again and again, while the queue is too short: on the same two cores it is
// faster than a shop that reserves and publishes. What it allocates is what it works off, so its memory is the same.
func (s *shop) holdBack() {
	const still, moving = 100 * time.Millisecond, 50 * time.Millisecond
	const enough = 0.99
	for s.goesOn(moving) {
		if _, _, queued := s.queued(0); float64(queued) < enough*float64(s.backlog) {
			must.OK(s.daemon.all[0].Signal(syscall.SIGSTOP))
			err := must.Catch(func() { s.goesOn(still) })
			must.OK(s.daemon.all[0].Signal(syscall.SIGCONT))
			must.OK(err)
		}
	}
}

// clerk finishes what it has begun: the messages must match the reservations.
func (s *shop) clerk(producer *ground.Producer) {
	for s.goesOn(0) {
		first, taken, _ := s.queued(atOnce)
		if taken == 0 {
			s.goesOn(50 * time.Millisecond)
			continue
		}
		s.field.Reserve(first, first+taken)
		for n := range taken {
			producer.Publish(first + n)
		}
	}
}

const (
	// largeBody is the largest that the product applies.
	largeBody = 256 << 10
	// The load: the small ones widen the windows that the large ones then fill.
	smallOnes, largeOnes = 100_000, 2400
)

// LargeBodies lets the daemon work off many small messages, blocks the database for so long while thousands of large
// ones lie in the queue, and lets it work these off too. after_small_mib, at_block_mib and max_mib are the most
// resident memory until the small ones were worked off, until the block ended, and in all.
func (r *Runner) LargeBodies(blocked time.Duration, settings ...string) Sample {
	const all = smallOnes + largeOnes
	f := r.empty()
	m := Sample{"small": smallOnes, "large": largeOnes, "blocked_seconds": blocked.Seconds()}
	small := func() { publish(f, 0, smallOnes, 0) }
	h := r.alone(f, ground.Sowing{Orders: all, NoBacklog: true}, small, func(p *processes) {
		p.untilApplied(smallOnes)
		_, m["after_small_mib"] = p.memory()
		f.Blocked(func() {
			publish(f, smallOnes, all, largeBody)
			r.Ground.Rest(blocked)
		})
		_, m["at_block_mib"] = p.memory()
		p.untilApplied(all)
		_, m["max_mib"] = p.memory()
	}, settings...)
	if h.Applied != all {
		must.OK(fmt.Errorf("%d of %d messages are applied", h.Applied, all))
	}
	return m
}

// publish sends the messages of orders, with bodies of so many bytes if that is not 0.
func publish(f *ground.Field, from, to int64, bodyBytes int) {
	f.Producing(func(p *ground.Producer) {
		p.BodyBytes = bodyBytes
		for n := from; n < to; n++ {
			p.Publish(n)
		}
	})
}

// startsOfRound are measured in a round, after one that warms up the files and the servers.
const startsOfRound = 5

// Starts starts a daemon several times, each time before one message, and tells how long it took from just before the
// process was made to the first look that found the effect of the message committed, the middle of them as ms. A look
// follows the last one after 2 ms.
func (r *Runner) Starts() Sample {
	f := r.empty()
	f.Sow(ground.Sowing{Orders: 1 + startsOfRound, Goods: ManyGoods, NoBacklog: true}, r.seed())
	var took []float64
	for n := range f.Sown().Orders {
		publish(f, n, n+1, 0)
		began := time.Now()
		r.beside(f, Contestant{}, func(*processes) {
			for len(f.Applied(n)) == 0 {
				notTooLong(n, time.Since(began))
				nap(2 * time.Millisecond)
			}
			took = append(took, ms(time.Since(began)))
		})
	}
	took = slices.Sorted(slices.Values(took[1:]))
	return Sample{
		"ms": took[startsOfRound/2], "fastest_ms": took[0], "slowest_ms": took[startsOfRound-1], "starts": startsOfRound,
	}
}
