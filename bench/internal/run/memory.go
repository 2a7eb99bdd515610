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
func (r *Runner) Memory(ctx context.Context, backlog int64, minute time.Duration) (Memory, error) {
	return repeated(ctx, r, "memory", func() (Memory, error) {
		m := Memory{Backlog: backlog, Minute: minute.Seconds(), LeastQueued: backlog}
		h, err := r.alone(ctx, r.empty, "memory", ground.Sowing{Orders: backlog}, nil, func(d *daemon) error {
			ctx, cancel := context.WithTimeout(ctx, minutes*minute)
			defer cancel()
			all, going := errgroup.WithContext(ctx)
			s := &shop{field: r.empty, daemon: d, m: &m, planned: backlog}
			all.Go(func() error { return s.keepGoing(going) })
			all.Go(func() error { return m.watch(going, d, minute) })
			return all.Wait()
		})
		if err != nil {
			return m, err
		}
		m.Applied = h.Applied
		fmt.Fprintf(r.Out, "  memory                 at most %.0f MiB; second minute %.0f, last minute %.0f; %d applied, "+
			"never fewer than %d in the queue\n", m.Max, m.SecondMinute, m.LastMinute, m.Applied, m.LeastQueued)
		return m, nil
	})
}

func (m *Memory) watch(ctx context.Context, d *daemon, minute time.Duration) error {
	const every = 250 * time.Millisecond
	for began := time.Now(); ; {
		mib, _, err := d.memory()
		if err != nil {
			return err
		}
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
	daemon *daemon

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

// queued takes as many orders of those that the queue has room for, and says how many messages were there before.
func (s *shop) queued(ctx context.Context, most int64) (first, taken, queued int64, err error) {
	r, err := s.daemon.all.read(ctx, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	queued = s.planned - r.ended
	if err != nil {
		return 0, 0, 0, err
	}
	first, taken = s.planned, max(0, min(s.m.Backlog-queued, most))
	s.m.LeastQueued = min(s.m.LeastQueued, queued)
	s.planned += taken
	return first, taken, queued, nil
}

// holdBack stops the daemon for a moment, again and again, while the queue is too short: on the same two cores it is
// faster than a shop that reserves and publishes. What it allocates is what it works off, so its memory is the same.
func (s *shop) holdBack(ctx context.Context) error {
	const still, moving = 100 * time.Millisecond, 50 * time.Millisecond
	const enough = 0.99
	for ctx.Err() == nil {
		_, _, queued, err := s.queued(context.WithoutCancel(ctx), 0)
		if err != nil {
			return err
		}
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
		first, taken, _, err := s.queued(work, atOnce)
		if err != nil {
			return err
		}
		if taken == 0 {
			_ = wait.For(ctx, every) // the loop sees the end
			continue
		}
		if err := s.field.Reserve(work, first, first+taken); err != nil {
			return err
		}
		for n := range taken {
			if err := producer.Publish(work, first+n); err != nil {
				return err
			}
		}
	}
	return nil
}

// LargeBodies is what the daemon took while the largest bodies that are allowed came and the database was blocked.
type LargeBodies struct {
	Settings []string `json:"settings,omitempty"` // that are not left at their defaults, without the prefix
	Small    int64    `json:"small"`              // messages of the ordinary size, worked off at full speed before
	Large    int64    `json:"large"`              // messages with large bodies
	Blocked  float64  `json:"blocked_seconds"`    // with all of these in the queue
	// The most resident memory in MiB: until the small ones were worked off, until the block ended, in all.
	AfterSmall float64 `json:"after_small_mib"`
	AtBlock    float64 `json:"at_block_mib"`
	Max        float64 `json:"max_mib"`
}

const (
	// largeBody is the largest that the product applies.
	largeBody = 256 << 10
	// The load: the small ones widen the windows that the large ones then fill.
	smallOnes, largeOnes = 100_000, 2400
)

// LargeBodies lets the daemon work off many small messages, blocks the database for so long while thousands of large
// ones lie in the queue, and lets it work these off too.
func (r *Runner) LargeBodies(ctx context.Context, blocked time.Duration, settings ...string) (LargeBodies, error) {
	return repeated(ctx, r, "large bodies", func() (LargeBodies, error) {
		f := r.empty
		m := LargeBodies{Settings: settings, Small: smallOnes, Large: largeOnes, Blocked: blocked.Seconds()}
		all := m.Small + m.Large
		small := func() error { return publish(ctx, f, 0, m.Small, 0) }
		sowing := ground.Sowing{Orders: all, NoBacklog: true}
		h, err := r.alone(ctx, f, "large bodies", sowing, small, func(d *daemon) error {
			if err := d.peak(&m.AfterSmall, d.untilApplied(ctx, m.Small)); err != nil {
				return err
			}
			if err := d.peak(&m.AtBlock, block(ctx, f, m, blocked)); err != nil {
				return err
			}
			return d.peak(&m.Max, d.untilApplied(ctx, all))
		}, settings...)
		if err == nil && h.Applied != all {
			err = fmt.Errorf("%d of %d messages are applied", h.Applied, all)
		}
		if err != nil {
			return m, err
		}
		fmt.Fprintf(r.Out, "  large bodies %-24s at most %.0f MiB; %.0f after the small ones, %.0f when the block ended\n",
			settings, m.Max, m.AfterSmall, m.AtBlock)
		return m, nil
	})
}

// block publishes the large ones to a blocked database, and lets them wait.
func block(ctx context.Context, f *ground.Field, m LargeBodies, blocked time.Duration) (err error) {
	unblock, err := f.Block(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unblock()) }()
	if err := publish(ctx, f, m.Small, m.Small+m.Large, largeBody); err != nil {
		return err
	}
	return wait.For(ctx, blocked)
}

// publish sends the messages of orders, with bodies of so many bytes if that is not 0.
func publish(ctx context.Context, f *ground.Field, from, to int64, bodyBytes int) error {
	p, err := f.Producer()
	if err != nil {
		return err
	}
	p.BodyBytes = bodyBytes
	for n := from; n < to && err == nil; n++ {
		err = p.Publish(ctx, n)
	}
	return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
}

// Starts are how long it took each time, in milliseconds, from just before the process was made to the first look that
// found the effect committed of the message that waited. A look follows the last one after startLook.
type Starts struct {
	MS []float64 `json:"ms"`
}

const (
	// startsOfRound are measured in a round, after one that warms up the files and the servers.
	startsOfRound = 5
	startLook     = 2 * time.Millisecond
)

// Starts starts a daemon several times, each time before one message.
func (r *Runner) Starts(ctx context.Context) (Starts, error) {
	return repeated(ctx, r, "start", func() (s Starts, err error) {
		sowing := ground.Sowing{Orders: 1 + startsOfRound, Goods: ManyGoods, NoBacklog: true}
		if err := r.empty.Sow(ctx, sowing, r.seed()); err != nil {
			return s, fmt.Errorf("prepare the starts: %w", err)
		}
		for n := range sowing.Orders {
			if err := publish(ctx, r.empty, n, n+1, 0); err != nil {
				return s, err
			}
			began := time.Now()
			if _, err := r.beside(ctx, r.empty, Contestant{Name: "start"}, func(processes) error {
				took, err := firstSeen(ctx, r.empty, n, began, startLook)
				s.MS = append(s.MS, ms(took))
				return err
			}); err != nil {
				return s, err
			}
		}
		s.MS = s.MS[1:]
		fmt.Fprintf(r.Out, "  start                  first effect after %.0f ms\n", s.MS)
		return s, nil
	})
}
