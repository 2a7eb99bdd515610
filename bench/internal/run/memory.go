package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Memory is what the daemon took while a long backlog stood before it.
type Memory struct {
	Backlog      int64   `json:"backlog"` // messages in the queue, kept there
	Minute       float64 `json:"minute_seconds"`
	SecondMinute float64 `json:"second_minute_mib"` // its largest
	LastMinute   float64 `json:"last_minute_mib"`   // its largest
	Max          float64 `json:"max_mib"`
	Applied      int64   `json:"applied"`
	LeastQueued  int64   `json:"least_queued"`
}

// minutes is how many there are: the first is the way up, the second is compared with the last.
const minutes = 3

// Memory lets the daemon work for three minutes while a shop that goes on keeps the queue at about so many messages:
// without it the backlog would be gone in half a minute.
func (r *Runner) Memory(ctx context.Context, backlog int64, minute time.Duration) (m Memory, err error) {
	err = r.repeated(ctx, "memory", func() (err error) {
		m, err = r.memory(ctx, backlog, minute)
		return err
	})
	return m, err
}

func (r *Runner) memory(ctx context.Context, backlog int64, minute time.Duration) (m Memory, err error) {
	f := r.empty
	if err := f.Sow(ctx, ground.Sowing{Orders: backlog, Goods: ManyGoods}, r.seed()); err != nil {
		return m, fmt.Errorf("prepare the memory round: %w", err)
	}
	log := &tail{}
	all, err := (Contestant{Name: "rollbackd"}).start(f, r.Ground, log)
	if err != nil {
		return m, err
	}
	defer func() {
		if err = errors.Join(err, kill(all)); err != nil {
			err = fmt.Errorf("memory: %w\nlast lines of the daemon:\n%s", err, log)
		}
	}()
	m = Memory{Backlog: backlog, Minute: minute.Seconds(), LeastQueued: backlog}
	if err := r.goOn(ctx, f, all[0], &m, minute); err != nil {
		return m, err
	}
	if _, err := stop(ctx, all); err != nil {
		return m, err
	}
	harvest, err := f.Check(ctx)
	if err != nil {
		return m, err
	}
	m.Applied = harvest.Applied
	fmt.Fprintf(r.Out, "  memory                 at most %.0f MiB; second minute %.0f, last minute %.0f; %d applied, "+
		"never fewer than %d in the queue\n",
		m.Max, m.SecondMinute, m.LastMinute, m.Applied, m.LeastQueued)
	return m, nil
}

// goOn watches the memory and, side by side with it, keeps the shop going.
func (r *Runner) goOn(ctx context.Context, f *ground.Field, p *program.Process, m *Memory, minute time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, minutes*minute, errTimeIsUp)
	defer cancel()
	var wg sync.WaitGroup
	var going error
	s := &shop{field: f, daemon: p, m: m, planned: m.Backlog}
	wg.Go(func() {
		if going = s.keepGoing(ctx); going != nil {
			cancel()
		}
	})
	watching := watchMemory(ctx, p.Pid(), m, minute)
	wg.Wait()
	return errors.Join(watching, going)
}

var errTimeIsUp = errors.New("time is up")

func watchMemory(ctx context.Context, pid int, m *Memory, minute time.Duration) error {
	const every = 250 * time.Millisecond
	for began := time.Now(); ; {
		bytes, err := rssOf(pid)
		if err != nil {
			return err
		}
		mib := float64(bytes) / (1 << 20)
		m.Max = max(m.Max, mib)
		switch int(time.Since(began) / minute) {
		case 1:
			m.SecondMinute = max(m.SecondMinute, mib)
		case minutes - 1:
			m.LastMinute = max(m.LastMinute, mib)
		}
		if wait.For(ctx, every) != nil {
			return nil
		}
	}
}

// shop takes as many new orders, and publishes their rollbacks, as the daemon has worked off.
type shop struct {
	field  *ground.Field
	daemon *program.Process

	mu      sync.Mutex
	m       *Memory // LeastQueued is guarded by mu
	planned int64   // orders taken, or about to be; guarded by mu
}

const (
	// clerks work side by side: one alone is slower than the daemon.
	clerks = 4
	// atOnce is how many orders a clerk takes at a time.
	atOnce = 2000
)

func (s *shop) keepGoing(ctx context.Context) error {
	s.field.Growing()
	all, ctx := errgroup.WithContext(ctx)
	for range clerks {
		all.Go(func() error { // a clerk
			producer, err := s.field.Producer()
			if err != nil {
				return err
			}
			work := context.WithoutCancel(ctx) // a chunk is finished: its messages must match its reservations
			return errors.Join(s.clerk(ctx, work, producer), producer.Close(work))
		})
	}
	all.Go(func() error { return s.holdBack(ctx) })
	return all.Wait()
}

// holdBack stops the daemon for a moment, again and again, while the queue is too short: on the same two cores it is
// faster than a shop that reserves and publishes. What it allocates is what it works off, so its memory is the same.
func (s *shop) holdBack(ctx context.Context) error {
	const still, moving = 100 * time.Millisecond, 50 * time.Millisecond
	const enough = 0.99
	for ctx.Err() == nil {
		r, err := read(context.WithoutCancel(ctx), []*program.Process{s.daemon}, nil)
		if err != nil {
			return err
		}
		s.mu.Lock()
		queued := s.planned - r.ended
		s.mu.Unlock()
		if float64(queued) < enough*float64(s.m.Backlog) {
			if err := s.daemon.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			_ = wait.For(ctx, still) // it must go on whatever ends meanwhile
			if err := s.daemon.Signal(syscall.SIGCONT); err != nil {
				return err
			}
		}
		_ = wait.For(ctx, moving) // the loop sees the end
	}
	return nil
}

func (s *shop) clerk(ctx, work context.Context, producer *ground.Producer) error {
	const every = 50 * time.Millisecond
	for ctx.Err() == nil {
		from, to, err := s.next(work)
		if err != nil {
			return err
		}
		if from == to {
			_ = wait.For(ctx, every) // the loop sees the end
			continue
		}
		if err := s.field.Reserve(work, from, to); err != nil {
			return err
		}
		for n := from; n < to; n++ {
			if err := producer.Publish(work, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// next is the next chunk of orders to take; none while the queue is full.
func (s *shop) next(ctx context.Context) (from, to int64, err error) {
	r, err := read(ctx, []*program.Process{s.daemon}, nil)
	if err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	queued := s.planned - r.ended
	s.m.LeastQueued = min(s.m.LeastQueued, queued)
	from = s.planned
	s.planned += max(0, min(s.m.Backlog-queued, atOnce))
	return from, s.planned, nil
}
