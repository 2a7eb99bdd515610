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
// row_written_p50_ms and row_written_p99_ms are of all messages, from just before the publish to the insert of the row,
// by the database's clock, which is the same machine's. The effect and the commit come after that.
func (r *Runner) Latency(perSecond float64, failEvery int64, delays string) Sample {
	sowing := ground.Sowing{
		Orders: int64(perSecond * (r.Warm + r.even()).Seconds()), NoBacklog: true, PoisonEvery: failEvery, Delays: delays,
	}
	s := &sampler{field: r.empty(), warm: int64(perSecond * r.Warm.Seconds()), at: make([]time.Time, sowing.Orders)}
	r.alone(s.field, sowing, r.untilCalm, func(p *processes) {
		p.untilReady(p.all[0])
		watched := make(chan int64, sowing.Orders)
		must.Side(2, func(side int) {
			if side == 0 {
				s.look(r.Ground.Ctx, watched)
				return
			}
			defer close(watched)
			s.field.Producing(func(producer *ground.Producer) {
				paced(r.Ground.Ctx, sowing.Orders, perSecond, func(n int64) {
					s.at[n] = time.Now()
					producer.Publish(n)
					if n >= s.warm && n%sampleEvery == 0 && !sowing.Fails(n) {
						watched <- n
					}
				})
			})
		})
		p.untilApplied(sowing.Orders - sowing.Failing())
	})
	written := s.written()
	sample := Sample{
		"offered_per_second": perSecond, "sampled": float64(len(s.seen)), "all": float64(len(written)),
		"p50_ms": percentile(s.seen, 50), "p99_ms": percentile(s.seen, 99), "max_ms": percentile(s.seen, 100),
		"row_written_p50_ms": percentile(written, 50), "row_written_p99_ms": percentile(written, 99),
	}
	if failEvery > 0 {
		sample["fail_every"] = float64(failEvery)
	}
	return sample
}

// sampler watches some of the messages that come evenly.
type sampler struct {
	field *ground.Field
	warm  int64 // messages that are not measured
	at    []time.Time
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

// written is, for all measured messages, the time from the publish to the insert of their rows.
func (s *sampler) written() (all []time.Duration) {
	at := map[string]int64{}
	s.field.Each("SELECT msg_key, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', consumer_timestamp) FROM consumer_log WHERE "+
		"consumer_status = 1", func(key string, micros int64) { at[key] = micros })
	for n := s.warm; n < int64(len(s.at)); n++ {
		if micros, ok := at[ground.Key(s.field.Seed(), n)]; ok {
			all = append(all, time.UnixMicro(micros).Sub(s.at[n].Round(0)))
		}
	}
	return all
}

// percentile is in milliseconds; p is 0 to 100.
func percentile(all []time.Duration, p int) float64 {
	if len(all) == 0 {
		return 0
	}
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
		counts := map[string]float64{}
		for name, n := range f.Status(comCommit, RedoWritten) {
			counts[name] = float64(n)
		}
		for name, bytes := range p.sum(written) {
			counts[name+"_written"] = bytes
		}
		now := p.read()
		now.counts = counts
		return now
	}
	must.Side(2, func(side int) {
		if side == 0 {
			f.Producing(func(shop *ground.Producer) { paced(r.Ground.Ctx, f.Sown().Orders, c.Guess, shop.Publish) })
			return
		}
		r.Ground.Rest(r.Warm)
		from = read()
		// The shop goes on until after the last reading, or the end of the time would be an idle one.
		r.Ground.Rest(r.evenly() * 9 / 10)
		to = read()
	})
	return from, to
}
