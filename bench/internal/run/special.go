package run

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

const (
	// sampleEvery is how many messages there are for one that is watched.
	sampleEvery = 20
	lookEvery   = 400 * time.Microsecond
)

// even is how long messages come evenly: twice a round, because at their speed a round tells of a few only.
func (r *Runner) even() time.Duration { return 2 * r.Length }

// evenly is how long they do where their cost is read: a shorter time takes too few ticks.
func (r *Runner) evenly() time.Duration { return max(r.even(), 10*time.Second) }

// Latency offers messages evenly to an idle daemon and measures how long each takes to be applied. Every so many-th one
// fails, if that is said, and is tried again after these delays; the figures are of the others.
//
// p50_ms, p99_ms and max_ms are of those that were watched: from just before the publish to the first look that finds
// the row committed. A look is at all that are watched, so that looking does not get dearer when messages get slower,
// and follows the last one after lookEvery: the times are too large by that and a look, never too small.
func (r *Runner) Latency(perSecond float64, failEvery int64, delays string) Sample {
	sowing := ground.Sowing{
		Orders: int64(perSecond * (r.Warm + r.even()).Seconds()), NoBacklog: true, PoisonEvery: failEvery, Delays: delays,
	}
	s := &sampler{field: r.empty(), at: make([]time.Time, sowing.Orders)}
	r.alone(s.field, sowing, r.untilCalm, func(p *processes) {
		p.untilReady(p.all[0])
		warm := int64(perSecond * r.Warm.Seconds())
		watched := make(chan int64, sowing.Orders)
		must.Together(func() { s.look(r.Ground.Ctx, watched) }, func() {
			defer close(watched)
			s.field.Producing(func(producer *ground.Producer) {
				paced(r.Ground.Ctx, sowing.Orders, perSecond, func(n int64) {
					s.at[n] = time.Now()
					producer.Publish(n)
					if n >= warm && n%sampleEvery == 0 && !sowing.Fails(n) {
						watched <- n
					}
				})
			})
		})
		p.until(goalOf(sowing))
	})
	return Sample{
		"offered_per_second": perSecond, "sampled": float64(len(s.seen)), "p50_ms": percentile(s.seen, 50),
		"p99_ms": percentile(s.seen, 99), "max_ms": percentile(s.seen, 100),
	}
}

// sampler watches some of the messages that come evenly.
type sampler struct {
	field *ground.Field
	at    []time.Time // when each was published
	seen  []time.Duration
}

// look asks for the rows of all that are watched until they are committed.
func (s *sampler) look(ctx context.Context, watched <-chan int64) {
	var open []int64
	for more := true; ; nap(lookEvery) {
		must.OK(context.Cause(ctx))
		for more && (len(open) == 0 || len(watched) > 0) { // it waits only while there is nothing to look for
			var n int64
			if n, more = <-watched; more {
				open = append(open, n)
			}
		}
		if len(open) == 0 {
			return
		}
		applied, now := s.field.Applied(open...), time.Now()
		open = slices.DeleteFunc(open, func(n int64) bool {
			took := now.Sub(s.at[n])
			if !applied[s.field.KeyOf(n)] {
				notTooLong(n, took)
				return false
			}
			s.seen = append(s.seen, took)
			return true
		})
	}
}

func notTooLong(n int64, took time.Duration) {
	const patience = 30 * time.Second
	if took > patience {
		must.OK(fmt.Errorf("message %d was not applied within %v", n, patience))
	}
}

// nap sleeps in the kernel: the runtime's timers are no finer than a millisecond in a process that is idle otherwise.
func nap(d time.Duration) {
	if d > 0 {
		t := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&t, nil) // one that a signal cuts short only looks sooner
	}
}

// paced calls do for each number, so many of them a second.
func paced(ctx context.Context, total int64, perSecond float64, do func(n int64)) {
	began := time.Now()
	for n := range total {
		nap(time.Until(began.Add(time.Duration(float64(n) * float64(time.Second) / perSecond))))
		must.OK(context.Cause(ctx))
		do(n)
	}
}

// percentile is in milliseconds; p is 0 to 100.
func percentile(all []time.Duration, p int) float64 {
	slices.Sort(all)
	at := (len(all)*p + 99) / 100
	return ms(all[max(at, 1)-1])
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// untilCalm waits until the servers have done what earlier rounds left them to do: a database that still purges rows
// of a backlog is not idle.
func (r *Runner) untilCalm() {
	// calm is what of a core the servers may still take while nobody asks them for anything.
	const patience, step, calm = 2 * time.Minute, time.Second, 0.1
	servers := &processes{r: r}
	if !r.Ground.Within(patience, func() bool {
		before, busy := servers.sum(cpu), 0.0
		r.Ground.Rest(step)
		for _, cores := range since(servers.sum(cpu), before, step.Seconds()) {
			busy += cores
		}
		return busy < calm
	}) {
		fmt.Fprintf(r.Out, "  the servers are not at rest after %v: somebody else works here, or they do\n", patience)
	}
}

// What MySQL counts, and MariaDB by the same names; RedoWritten are bytes.
const (
	comCommit   = "Com_commit"
	RedoWritten = "Innodb_os_log_written"
)

// offer publishes evenly and, meanwhile, reads twice: what everybody spends, and hands to the disk, of a reading.
func (r *Runner) offer(c Contestant, f *ground.Field, p *processes) (from, to reading) {
	p.untilReady(p.all[0])
	read := func() reading {
		counts := f.Status(comCommit, RedoWritten)
		for name, bytes := range p.sum(written) {
			counts[name+"_written"] = bytes
		}
		now := p.read()
		now.counts = counts
		return now
	}
	must.Together(func() {
		f.Producing(func(shop *ground.Producer) { paced(r.Ground.Ctx, f.Sown.Orders, c.Guess, shop.Publish) })
	}, func() {
		r.Ground.Rest(r.Warm)
		from = read()
		// The shop goes on until after the last reading, or the end of the time would be an idle one.
		r.Ground.Rest(r.evenly() * 9 / 10)
		to = read()
	})
	return from, to
}

// minutes are those of [Runner.Memory]: the first is the way up, the second is compared with the last.
var minutes = []string{"first_minute_mib", "second_minute_mib", "last_minute_mib"}

// Memory lets the daemon work for three minutes before a queue of about so many messages: every second or so it stands
// still while a shop takes as many new orders, and publishes their rollbacks, as it has worked off. max_mib,
// second_minute_mib and last_minute_mib are the most memory that the daemon had resident.
func (r *Runner) Memory() Sample {
	f := r.empty()
	m := Sample{"backlog": float64(r.Backlog), "minute_seconds": r.Minute.Seconds(), "least_queued": float64(r.Backlog)}
	most := func(name string, mib float64) { m[name] = max(m[name], mib) }
	h := r.alone(f, ground.Sowing{Orders: r.Backlog}, nil, func(p *processes) {
		taken := r.Backlog
		for _, minute := range minutes {
			for end := time.Now().Add(r.Minute); time.Now().Before(end); {
				for range 4 {
					r.Ground.Rest(r.Minute / 240)
					mib, _ := p.memory()
					most("max_mib", mib)
					most(minute, mib)
				}
				ended := p.read().ended
				m["least_queued"] = min(m["least_queued"], float64(taken-ended))
				must.OK(p.all[0].Signal(syscall.SIGSTOP))
				f.Reserve(taken, r.Backlog+ended)
				f.Publish(taken, r.Backlog+ended, 0)
				must.OK(p.all[0].Signal(syscall.SIGCONT))
				taken = r.Backlog + ended
			}
		}
	})
	m["applied"] = float64(h.Applied)
	m["last_by_second"] = m["last_minute_mib"] / m["second_minute_mib"]
	return m
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
	small := func() { f.Publish(0, smallOnes, 0) }
	r.alone(f, ground.Sowing{Orders: all, NoBacklog: true}, small, func(p *processes) {
		p.until(target{applied: smallOnes})
		_, m["after_small_mib"] = p.memory()
		f.Blocked(func() {
			f.Publish(smallOnes, all, largeBody)
			r.Ground.Rest(blocked)
		})
		_, m["at_block_mib"] = p.memory()
		p.until(target{applied: all})
		_, m["max_mib"] = p.memory()
	}, settings...)
	return m
}

// startsOfRound are measured in a round, after one that warms up the files and the servers.
const startsOfRound = 5

// Starts starts a daemon several times, each time before one message, and tells how long it took from just before the
// process was made to the first look that found the effect of the message committed, the middle of them as ms. A look
// follows the last one after 2 ms.
func (r *Runner) Starts() Sample {
	f := r.empty()
	f.Sow(r.seeded(ground.Sowing{Orders: 1 + startsOfRound, NoBacklog: true}))
	var took []float64
	for n := range f.Sown.Orders {
		f.Publish(n, n+1, 0)
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

// relayedPerSecond is how many messages are relayed for each second of a round's length.
const relayedPerSecond = 15_000

// Relay measures `rollbackd relay` before a full outbox, and then a publisher with confirms that publishes the same
// messages from memory, as many at once. Each has an empty queue.
func (r *Runner) Relay() Sample {
	f, n := r.empty(), int64(relayedPerSecond*r.Length.Seconds())
	sowing := r.seeded(ground.Sowing{Orders: n, NoBacklog: true, Unreserved: true, Emits: true})
	f.Sow(sowing)
	all := f.FillOutbox()
	var relayed, plain float64
	r.beside(f, Contestant{Command: "relay"}, func(*processes) { relayed = r.arrived(n) })
	f.Sow(sowing)
	must.Together(func() { r.Ground.Send(all) }, func() { plain = r.arrived(n) })
	return Sample{
		"ratio": relayed / plain, "relay_per_second": relayed, "plain_per_second": plain, "messages": float64(n),
	}
}

// arrived is how many messages a second come into the main queue, from the first look that finds some to the one that
// finds n.
func (r *Runner) arrived(n int64) float64 {
	var first, depth int64
	var began time.Time
	r.Ground.Until("all messages are in the queue", mostWhole, func() bool {
		depth = r.Ground.Depth()
		if first == 0 {
			first, began = depth, time.Now()
		}
		return depth >= n
	})
	return float64(depth-first) / time.Since(began).Seconds()
}

// Rolling measures a fleet under load, each of whose daemons is then replaced by another, one after the other as a
// rolling upgrade does it: how many messages a second are applied before and meanwhile, and the longest time, in steps
// of half a second, in which fewer than half as many were.
func (r *Runner) Rolling(c Contestant) Sample {
	upgrade := 8 * time.Second * time.Duration(c.Daemons) // at most
	f := r.empty()
	s := r.sowing(c)
	s.Orders += int64(c.Guess * upgrade.Seconds())
	f.Sow(s)
	var began, middle, end time.Time
	r.beside(f, c, func(p *processes) {
		p.begun(r.Warm)
		began = time.Now()
		r.Ground.Rest(r.Length)
		middle = time.Now()
		for i, one := range p.all {
			p.stop(one)
			free(one.Pid())
			p.all[i] = p.start(f, c)
			p.untilReady(p.all[i])
		}
		end = time.Now()
		r.Ground.Rest(time.Second) // so that what was under way then is committed
		if r.Ground.Depth() == 0 {
			must.OK(errTooShort)
		}
	})
	rate := func(from, to time.Time) float64 { return f.AppliedBetween(from, to) / to.Sub(from).Seconds() }
	before := rate(began, middle)
	const step = time.Second / 2
	now, slow := 0.0, 0.0
	for at := middle; at.Before(end); at = at.Add(step) {
		now += step.Seconds()
		if rate(at, at.Add(step)) >= before/2 {
			now = 0
		}
		slow = max(slow, now)
	}
	return Sample{"per_second": before, "meanwhile_per_second": rate(middle, end), "below_half_s": slow}
}

// LogMiB is how much room the log takes on a day of a year.
const LogMiB = "MiB of consumer_log"

// Year measures a daemon, and look-ups, before a log as full as it gets of so many rows a year, and before one over
// which such a year has passed: in turns, so that whatever else the machine does is the same for both.
func (r *Runner) Year(rows, times int64) (first, last map[string][]float64) {
	y := ground.Year{Rows: rows, End: time.Now()}
	fields := []*ground.Field{
		r.field("first", func(f *ground.Field) { f.BeginYear(y) }),
		r.field("last", func(f *ground.Field) {
			f.BeginYear(y)
			began := time.Now()
			deleted := f.PassYear(y)
			fmt.Fprintf(r.Out, "  %d rows were deleted in %v\n", deleted, time.Since(began).Round(time.Second))
		}),
	}
	first, last = map[string][]float64{}, map[string][]float64{}
	for range times {
		for i, day := range []map[string][]float64{first, last} {
			const lookUps = 100_000
			f := fields[i]
			r.fields["full"] = f
			day[LogMiB] = append(day[LogMiB], f.LogMiB())
			day["rows looked up a second"] = append(day["rows looked up a second"], f.LookUps(lookUps))
			round := r.Round(Contestant{Name: []string{"first day", "last day"}[i], Guess: 25_000,
				Sowing: ground.Sowing{FullLog: true}})
			day["messages/s"] = append(day["messages/s"], round.Rate)
		}
	}
	return first, last
}
