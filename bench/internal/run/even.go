package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Latency is one round of messages that come evenly.
type Latency struct {
	Offered float64 `json:"offered_per_second"`
	// FailEvery, if not 0, says that every so many-th message failed; the figures are of the others.
	FailEvery int64 `json:"fail_every,omitempty"`
	// Sampled is how many messages were watched; P50 and P99, in milliseconds, are of them: from just before the publish
	// to the first look that finds the row committed. A look follows the last one after about lookEvery, so the figures
	// are too large by up to that, never too small.
	Sampled int     `json:"sampled"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Max     float64 `json:"max_ms"`
	// WrittenP50 and WrittenP99 are of all messages, from just before the publish to the insert of the row, by the
	// database's clock, which is the same machine's. The effect and the commit come after that.
	All        int     `json:"all"`
	WrittenP50 float64 `json:"row_written_p50_ms"`
	WrittenP99 float64 `json:"row_written_p99_ms"`
}

const (
	// sampleEvery is how many messages there are for one that is watched.
	sampleEvery = 20
	lookEvery   = 400 * time.Microsecond
	mostLookers = 64
)

// evenly sows messages that come evenly, so many a second, and runs do beside one daemon that has started when the
// servers were at rest.
func (r *Runner) evenly(ctx context.Context, name string, s ground.Sowing, perSecond int,
	do func(*daemon, int64) error) error {
	s.Orders, s.NoBacklog = int64(float64(perSecond)*(r.Warm+r.Length).Seconds()), true
	calm := func() error { return r.untilCalm(ctx) }
	_, err := r.alone(ctx, r.empty, name, s, calm, func(d *daemon) error {
		if err := d.untilReady(ctx); err != nil {
			return err
		}
		if err := do(d, s.Orders); err != nil {
			return err
		}
		return d.untilApplied(ctx, s.Orders-s.Failing())
	})
	return err
}

// Latency offers messages evenly to an idle daemon and measures how long each takes to be applied. Every so many-th one
// fails, if that is said, and is tried again after these delays.
func (r *Runner) Latency(ctx context.Context, perSecond int, failEvery int64, delays string) (Latency, error) {
	return repeated(ctx, r, "latency", func() (l Latency, err error) {
		f := r.empty
		f.DB.SetMaxIdleConns(mostLookers)
		defer f.DB.SetMaxIdleConns(2)
		s := &sampler{field: f, warm: int64(float64(perSecond) * r.Warm.Seconds())}
		sowing := ground.Sowing{PoisonEvery: failEvery, Delays: delays}
		if err := r.evenly(ctx, "latency", sowing, perSecond, func(_ *daemon, total int64) error {
			return s.offer(ctx, total, perSecond)
		}); err != nil {
			return l, err
		}
		written, err := s.written(ctx)
		if err != nil {
			return l, err
		}
		l = Latency{
			Offered: float64(perSecond), FailEvery: failEvery, Sampled: len(s.seen), All: len(written),
			P50: percentile(s.seen, 50), P99: percentile(s.seen, 99), Max: percentile(s.seen, 100),
			WrittenP50: percentile(written, 50), WrittenP99: percentile(written, 99),
		}
		fmt.Fprintf(r.Out, "  latency                p50 %.2f ms, p99 %.2f ms, max %.2f ms of %d; rows written after %.2f "+
			"and %.2f ms (p50, p99 of %d); one in %d failed (0: none)\n",
			l.P50, l.P99, l.Max, l.Sampled, l.WrittenP50, l.WrittenP99, l.All, l.FailEvery)
		return l, nil
	})
}

// sampler publishes evenly and watches some of the messages.
type sampler struct {
	field *ground.Field
	warm  int64 // messages that are not measured
	at    []time.Time

	mu   sync.Mutex
	seen []time.Duration // guarded by mu
	errs []error         // guarded by mu
}

func (s *sampler) offer(ctx context.Context, total int64, perSecond int) error {
	p, err := s.field.Producer()
	if err != nil {
		return err
	}
	s.at = make([]time.Time, total)
	var lookers sync.WaitGroup
	err = paced(ctx, total, perSecond, func(n int64) error {
		s.at[n] = time.Now()
		if err := p.Publish(ctx, n); err != nil {
			return err
		}
		if n >= s.warm && n%sampleEvery == 0 && !s.field.Sown().Fails(n) {
			lookers.Go(func() { s.look(ctx, n) })
		}
		return nil
	})
	lookers.Wait()
	return errors.Join(append(s.errs, err, p.Close(ctx))...)
}

// look asks for the message's row until it is committed.
func (s *sampler) look(ctx context.Context, n int64) {
	took, err := firstSeen(ctx, s.field, n, s.at[n], lookEvery)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, took)
	s.errs = append(s.errs, err)
}

// firstSeen is how long after began a look found the row of order n's message committed; a look follows the last one
// after every.
func firstSeen(ctx context.Context, f *ground.Field, n int64, began time.Time, every time.Duration) (time.Duration,
	error) {
	const patience = 30 * time.Second
	for {
		there, err := f.Applied(ctx, n)
		took := time.Since(began)
		if err == nil && !there && took > patience {
			err = fmt.Errorf("message %d was not applied within %v", n, patience)
		}
		if err != nil || there {
			return took, err
		}
		nap(every)
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
func paced(ctx context.Context, total int64, perSecond int, do func(n int64) error) error {
	began := time.Now()
	for n := range total {
		nap(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := do(n); err != nil {
			return err
		}
	}
	return nil
}

// written is, for all measured messages, the time from the publish to the insert of their rows.
func (s *sampler) written(ctx context.Context) (all []time.Duration, err error) {
	at := map[string]int64{}
	if err := s.field.Each(ctx, "SELECT msg_key, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', consumer_timestamp) "+
		"FROM consumer_log WHERE consumer_status = 1", func(key string, micros int64) error {
		at[key] = micros
		return nil
	}); err != nil {
		return nil, err
	}
	for n := s.warm; n < int64(len(s.at)); n++ {
		if micros, ok := at[ground.Key(s.field.Seed(), n)]; ok {
			all = append(all, time.UnixMicro(micros).Sub(s.at[n].Round(0)))
		}
	}
	return all, nil
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
func (r *Runner) untilCalm(ctx context.Context) error {
	// calm is what of a core the servers may still take while nobody asks them for anything.
	const patience, step, calm = 2 * time.Minute, time.Second, 0.1
	servers, began := r.watch(nil), time.Now()
	for time.Since(began) < patience {
		before, err := servers.sum(cpu)
		if err != nil {
			return err
		}
		if err := wait.For(ctx, step); err != nil {
			return err
		}
		now, err := servers.sum(cpu)
		if err != nil {
			return err
		}
		busy := 0.0
		for _, spent := range since(now, before) {
			busy += spent
		}
		if busy < calm*step.Seconds() {
			return nil
		}
	}
	fmt.Fprintf(r.Out, "  the servers are not at rest after %v: somebody else works here, or they do\n", patience)
	return nil
}

// Cost is what messages cost each process at one speed, with one daemon and all settings at their defaults.
type Cost struct {
	Offered int     // messages a second that the shop publishes
	Rate    float64 // messages a second that were applied
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
func (r *Runner) Cost(ctx context.Context, perSecond int) (Cost, error) {
	name := fmt.Sprintf("%d messages a second", perSecond)
	return repeated(ctx, r, name, func() (c Cost, err error) {
		if err := r.evenly(ctx, name, ground.Sowing{}, perSecond, func(d *daemon, total int64) error {
			c, err = r.costOf(ctx, d, total, perSecond)
			return err
		}); err != nil {
			return c, err
		}
		c.Offered = perSecond
		without, err := r.Ground.Connections(ctx, r.empty) // the daemon is gone
		if err != nil {
			return c, err
		}
		for server, n := range without {
			c.Connections[server] -= n
		}
		c.Connections["rabbitmq"]-- // the shop's
		c.RowBytes, err = r.empty.RowBytes(ctx)
		return c, err
	})
}

// costOf publishes evenly and, meanwhile, reads twice.
func (r *Runner) costOf(ctx context.Context, d *daemon, total int64, perSecond int) (c Cost, err error) {
	p, err := r.empty.Producer()
	if err != nil {
		return c, err
	}
	offering, stop := context.WithCancel(ctx)
	defer stop()
	offered := make(chan error, 1)
	go func() { // joined below
		offered <- paced(offering, total, perSecond, func(n int64) error { return p.Publish(offering, n) })
	}()
	var at [2]expense
	// The shop must go on until after the last reading, or the end of the time would be an idle one.
	for i, pause := range []time.Duration{r.Warm, r.Length * 9 / 10} {
		if err == nil {
			err = wait.For(ctx, pause)
		}
		if err == nil {
			at[i], err = r.expense(ctx, d)
		}
	}
	if err == nil && at[1].fresh == at[0].fresh {
		err = errors.New("no message was applied")
	}
	if err == nil {
		c = costBetween(at[0], at[1])
		c.Connections, err = r.Ground.Connections(ctx, r.empty)
	}
	if err != nil {
		stop()
	}
	return c, errors.Join(err, <-offered, p.Close(context.WithoutCancel(ctx)))
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

func (r *Runner) expense(ctx context.Context, d *daemon) (e expense, err error) {
	if e.status, err = r.empty.Status(ctx, comCommit, redoWritten); err != nil {
		return e, err
	}
	w := r.watch(d.all)
	if e.written, err = w.sum(written); err != nil {
		return e, err
	}
	e.reading, err = d.all.read(ctx, w)
	return e, err
}

func costBetween(from, to expense) Cost {
	seconds, messages := to.at.Sub(from.at).Seconds(), float64(to.fresh-from.fresh)
	c := Cost{
		Rate: messages / seconds, Cores: since(to.cpu, from.cpu), Written: since(to.written, from.written),
		Commits: float64(to.status[comCommit]-from.status[comCommit]) / seconds,
		Redo:    float64(to.status[redoWritten]-from.status[redoWritten]) / messages,
	}
	for name := range c.Cores {
		c.Cores[name] /= seconds
		c.Written[name] /= messages
	}
	return c
}
