package run

import (
	"context"
	"errors"
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

// evenly sows messages that come evenly, so many a second, and runs do beside one daemon that has started when the
// servers were at rest.
func (r *Runner) evenly(name string, s ground.Sowing, perSecond int, do func(*processes, int64)) {
	s.Orders, s.NoBacklog = int64(float64(perSecond)*(r.Warm+r.even()).Seconds()), true
	r.alone(r.empty(), name, s, r.untilCalm, func(p *processes) {
		p.untilReady()
		do(p, s.Orders)
		p.untilApplied(s.Orders - s.Failing())
	})
}

// Latency offers messages evenly to an idle daemon and measures how long each takes to be applied. Every so many-th one
// fails, if that is said, and is tried again after these delays; the figures are of the others.
//
// p50_ms, p99_ms and max_ms are of those that were watched: from just before the publish to the first look that finds
// the row committed. A look is at all that are watched, so that looking does not get dearer when messages get slower,
// and follows the last one after lookEvery: the times are too large by that and a look, never too small.
// row_written_p50_ms and row_written_p99_ms are of all messages, from just before the publish to the insert of the row,
// by the database's clock, which is the same machine's. The effect and the commit come after that.
func (r *Runner) Latency(perSecond int, failEvery int64, delays string) Sample {
	return repeated(r, "latency", func() Sample {
		f := r.empty()
		s := &sampler{field: f, warm: int64(float64(perSecond) * r.Warm.Seconds())}
		sowing := ground.Sowing{PoisonEvery: failEvery, Delays: delays}
		r.evenly("latency", sowing, perSecond, func(_ *processes, total int64) { s.offer(r.Ground.Ctx, total, perSecond) })
		written := s.written()
		sample := Sample{
			"offered_per_second": float64(perSecond), "sampled": float64(len(s.seen)), "all": float64(len(written)),
			"p50_ms": percentile(s.seen, 50), "p99_ms": percentile(s.seen, 99), "max_ms": percentile(s.seen, 100),
			"row_written_p50_ms": percentile(written, 50), "row_written_p99_ms": percentile(written, 99),
		}
		if failEvery > 0 {
			sample["fail_every"] = float64(failEvery)
		}
		return r.tell("latency", sample)
	})
}

// sampler publishes evenly and watches some of the messages.
type sampler struct {
	field *ground.Field
	warm  int64 // messages that are not measured
	at    []time.Time
	seen  []time.Duration
}

func (s *sampler) offer(ctx context.Context, total int64, perSecond int) {
	s.at = make([]time.Time, total)
	watched := make(chan int64, total)
	looked := make(chan error, 1)
	go func() { looked <- must.Catch(func() { s.look(ctx, watched) }) }() // joined below
	err := must.Catch(func() {
		s.field.Producing(func(p *ground.Producer) {
			paced(ctx, total, perSecond, func(n int64) {
				s.at[n] = time.Now()
				p.Publish(n)
				if n >= s.warm && n%sampleEvery == 0 && !s.field.Sown().Fails(n) {
					watched <- n
				}
			})
		})
	})
	close(watched)
	must.OK(errors.Join(err, <-looked))
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

// firstSeen is how long after began a look found the row of order n's message committed; a look follows the last one
// after every.
func firstSeen(f *ground.Field, n int64, began time.Time, every time.Duration) time.Duration {
	for {
		applied, took := f.Applied(n), time.Since(began)
		if len(applied) > 0 {
			return took
		}
		notTooLong(n, took)
		nap(every)
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
func paced(ctx context.Context, total int64, perSecond int, do func(n int64)) {
	began := time.Now()
	for n := range total {
		nap(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
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

// Cost is what messages cost each process at one speed, with one daemon and all settings at their defaults.
type Cost struct {
	Rate float64 // messages a second that were applied
	// Cores is how many processors each process keeps busy; bench is the shop, which publishes.
	Cores map[string]float64
	// Written is how many bytes each process hands to the disk for a message.
	Written map[string]float64
	// Commits are MySQL's a second, all of them; Redo is how many bytes of its log a message takes.
	Commits, Redo float64
	// Connections are the daemon's to each server, and RowBytes what a row takes on disk with its indexes, by table.
	Connections map[string]int
	RowBytes    map[string]float64
}

// Spent is what a message cost each process, in µs of CPU.
func (c Cost) Spent() map[string]float64 {
	spent := map[string]float64{}
	for _, process := range Working {
		spent[process] = 1e6 * c.Cores[process] / c.Rate
	}
	return spent
}

// Cost offers messages evenly to one daemon and reads what everybody spends on them.
func (r *Runner) Cost(perSecond int) Cost {
	name := fmt.Sprintf("%d messages a second", perSecond)
	return repeated(r, name, func() (c Cost) {
		r.evenly(name, ground.Sowing{}, perSecond, func(p *processes, total int64) {
			r.empty().Producing(func(shop *ground.Producer) { c = r.costOf(p, shop, total, perSecond) })
		})
		for server, n := range r.Ground.Connections(r.empty()) { // the daemon is gone
			c.Connections[server] -= n
		}
		c.Connections["rabbitmq"]-- // the shop's
		c.RowBytes = r.empty().RowBytes()
		return c
	})
}

// costOf publishes evenly and, meanwhile, reads twice.
func (r *Runner) costOf(p *processes, shop *ground.Producer, total int64, perSecond int) (c Cost) {
	offering, stop := context.WithCancel(r.Ground.Ctx)
	offered := make(chan error, 1)
	go func() { offered <- must.Catch(func() { paced(offering, total, perSecond, shop.Publish) }) }() // joined below
	err := must.Catch(func() {
		r.Ground.Rest(r.Warm)
		from := r.expense(p)
		// The shop must go on until after the last reading, or the end of the time would be an idle one.
		r.Ground.Rest(r.even() * 9 / 10)
		c = costBetween(from, r.expense(p))
		c.Connections = r.Ground.Connections(r.empty())
	})
	if err != nil {
		stop()
	}
	must.OK(errors.Join(err, <-offered))
	stop()
	return c
}

// What MySQL counts, and MariaDB by the same names.
const (
	comCommit   = "Com_commit"
	redoWritten = "Innodb_os_log_written"
)

// expense is what was spent until one moment.
type expense struct {
	reading
	written map[string]float64
	status  map[string]int64 // of MySQL
}

func (r *Runner) expense(p *processes) expense {
	e := expense{status: r.empty().Status(comCommit, redoWritten), written: p.sum(written)}
	e.reading = p.read()
	return e
}

func costBetween(from, to expense) Cost {
	seconds, messages := to.at.Sub(from.at).Seconds(), float64(to.fresh-from.fresh)
	if messages == 0 {
		must.OK(errors.New("no message was applied"))
	}
	counted := func(name string) float64 { return float64(to.status[name] - from.status[name]) }
	return Cost{
		Rate: messages / seconds, Cores: since(to.cpu, from.cpu, seconds), Written: since(to.written, from.written, messages),
		Commits: counted(comCommit) / seconds, Redo: counted(redoWritten) / messages,
	}
}
