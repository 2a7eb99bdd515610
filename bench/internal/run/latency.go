package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/program"
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

// Latency offers messages evenly to an idle daemon and measures how long each takes to be applied. Every so many-th one
// fails, if that is said, and is tried again after these delays.
func (r *Runner) Latency(ctx context.Context, perSecond int, failEvery int64, delays string) (l Latency, err error) {
	err = r.repeated(ctx, "latency", func() (err error) {
		l, err = r.latency(ctx, perSecond, failEvery, delays)
		return err
	})
	return l, err
}

func (r *Runner) latency(ctx context.Context, perSecond int, failEvery int64, delays string) (l Latency, err error) {
	f := r.empty
	total := int64(float64(perSecond) * (r.Warm + r.Length).Seconds())
	sowing := ground.Sowing{Orders: total, Goods: ManyGoods, NoBacklog: true, PoisonEvery: failEvery, Delays: delays}
	if err := f.Sow(ctx, sowing, r.seed()); err != nil {
		return l, fmt.Errorf("prepare the latency round: %w", err)
	}
	if err := r.untilCalm(ctx); err != nil {
		return l, err
	}
	log := &tail{}
	all, err := (Contestant{Name: "rollbackd"}).start(f, r.Ground, log)
	if err != nil {
		return l, err
	}
	defer func() {
		if err = errors.Join(err, kill(all)); err != nil {
			err = fmt.Errorf("latency: %w\nlast lines of the daemon:\n%s", err, log)
		}
	}()
	if err := untilReady(ctx, all[0]); err != nil {
		return l, err
	}
	f.DB.SetMaxIdleConns(mostLookers)
	defer f.DB.SetMaxIdleConns(2)
	s := &sampler{field: f, warm: int64(float64(perSecond) * r.Warm.Seconds()), at: make([]time.Time, total)}
	if err := s.offer(ctx, total, perSecond); err != nil {
		return l, err
	}
	if err := untilApplied(ctx, all[0], total-sowing.Failing()); err != nil {
		return l, err
	}
	if _, err := stop(ctx, all); err != nil {
		return l, err
	}
	if _, err := f.Check(ctx); err != nil {
		return l, err
	}
	written, err := s.written(ctx)
	if err != nil {
		return l, err
	}
	l = Latency{
		Offered: float64(perSecond), FailEvery: failEvery, Sampled: len(s.seen),
		P50: percentile(s.seen, 50), P99: percentile(s.seen, 99),
		Max: percentile(s.seen, 100),
		All: len(written), WrittenP50: percentile(written, 50), WrittenP99: percentile(written, 99),
	}
	among := ""
	if failEvery != 0 {
		among = fmt.Sprintf("; one in %d failed", failEvery)
	}
	fmt.Fprintf(r.Out, "  latency                p50 %.2f ms, p99 %.2f ms, max %.2f ms of %d; rows written after %.2f "+
		"and %.2f ms (p50, p99 of %d)%s\n",
		l.P50, l.P99, l.Max, l.Sampled, l.WrittenP50, l.WrittenP99, l.All, among)
	return l, nil
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
	var lookers sync.WaitGroup
	err = evenly(ctx, total, perSecond, func(n int64) error {
		s.at[n] = time.Now()
		if err := p.Publish(ctx, n); err != nil {
			return err
		}
		if n >= s.warm && n%sampleEvery == 0 && !s.field.Sown().Fails(n) {
			lookers.Go(func() { s.look(ctx, n) })
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, p.Close(ctx))
	}
	lookers.Wait()
	return errors.Join(append(s.errs, p.Close(ctx))...)
}

// look asks for the message's row until it is committed.
func (s *sampler) look(ctx context.Context, n int64) {
	const patience = 30 * time.Second
	for {
		there, err := s.field.Applied(ctx, n)
		took := time.Since(s.at[n])
		if err == nil && !there && took > patience {
			err = fmt.Errorf("message %d was not applied within %v", n, patience)
		}
		if err != nil || there {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen = append(s.seen, took)
			s.errs = append(s.errs, err)
			return
		}
		nap(lookEvery)
	}
}

// nap sleeps in the kernel: the runtime's timers are no finer than a millisecond in a process that is idle otherwise.
func nap(d time.Duration) {
	if d > 0 {
		t := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&t, nil) // one that a signal cuts short only looks sooner
	}
}

// written is, for all measured messages, the time from the publish to the insert of their rows.
func (s *sampler) written(ctx context.Context) ([]time.Duration, error) {
	rows, err := s.field.DB.QueryContext(ctx, "SELECT msg_key, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+
		"consumer_timestamp) FROM consumer_log WHERE consumer_status = 1")
	if err != nil {
		return nil, fmt.Errorf("read the rows' times: %w", err)
	}
	defer rows.Close()
	at := map[string]int64{}
	for rows.Next() {
		var key string
		var micros int64
		if err := rows.Scan(&key, &micros); err != nil {
			return nil, fmt.Errorf("read the rows' times: %w", err)
		}
		at[key] = micros
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the rows' times: %w", err)
	}
	var all []time.Duration
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
	sorted := slices.Sorted(slices.Values(all))
	at := (len(sorted)*p + 99) / 100
	return float64(sorted[max(at, 1)-1].Microseconds()) / 1000
}

const (
	// calm is what of a core the servers may still take while nobody asks them for anything.
	calm = 0.1
	// calmPatience is how long they have to get there.
	calmPatience = 2 * time.Minute
)

// untilCalm waits until the servers have done what earlier rounds left them to do: a database that still purges rows
// of a backlog is not idle.
func (r *Runner) untilCalm(ctx context.Context) error {
	const step = time.Second
	servers, began := r.watch(nil), time.Now()
	before, err := servers.now()
	if err != nil {
		return err
	}
	for time.Since(began) < calmPatience {
		if err := wait.For(ctx, step); err != nil {
			return err
		}
		now, err := servers.now()
		if err != nil {
			return err
		}
		var busy time.Duration
		for _, spent := range now.since(before) {
			busy += spent
		}
		if busy < time.Duration(calm*float64(step)) {
			return nil
		}
		before = now
	}
	fmt.Fprintf(r.Out, "  the servers are not at rest after %v: somebody else works here, or they do\n", calmPatience)
	return nil
}

func untilReady(ctx context.Context, p *program.Process) error {
	return until(ctx, "the daemon is ready", func() (bool, error) {
		status, _, err := p.Get(ctx, "/readyz")
		return status == 200, err
	})
}

func untilApplied(ctx context.Context, p *program.Process, n int64) error {
	return until(ctx, fmt.Sprintf("%d messages are applied", n), func() (bool, error) {
		r, err := read(ctx, []*program.Process{p}, nil)
		return r.fresh >= n, err
	})
}

func until(ctx context.Context, what string, there func() (bool, error)) error {
	const patience, step = 60 * time.Second, 50 * time.Millisecond
	for began := time.Now(); ; {
		ok, err := there()
		if ok || err != nil {
			return err
		}
		if time.Since(began) > patience {
			return fmt.Errorf("until %s: not within %v: %w", what, patience, os.ErrDeadlineExceeded)
		}
		if err := wait.For(ctx, step); err != nil {
			return err
		}
	}
}
