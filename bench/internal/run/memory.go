package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/program"
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

// Memory lets the daemon work for three minutes while a shop that goes on keeps the queue at so many messages: without it
// the backlog would be gone in half a minute.
func (r *Runner) Memory(ctx context.Context, backlog int64, minute time.Duration) (m Memory, err error) {
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
	fmt.Fprintf(r.Out, "  memory                 at most %.0f MiB; second minute %.0f, last minute %.0f; %d applied, never fewer than %d in the queue\n",
		m.Max, m.SecondMinute, m.LastMinute, m.Applied, m.LeastQueued)
	return m, nil
}

// goOn watches the memory and, side by side with it, keeps the shop going.
func (r *Runner) goOn(ctx context.Context, f *ground.Field, p *program.Process, m *Memory, minute time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, minutes*minute, errTimeIsUp)
	defer cancel()
	var wg sync.WaitGroup
	var shop error
	wg.Go(func() {
		if shop = keepGoing(ctx, f, p, m); shop != nil {
			cancel()
		}
	})
	watching := watchMemory(ctx, p.Pid(), m, minute)
	wg.Wait()
	return errors.Join(watching, shop)
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
		if sleep(ctx, every) != nil {
			return nil
		}
	}
}

// keepGoing takes as many new orders, and publishes their rollbacks, as the daemon has worked off.
func keepGoing(ctx context.Context, f *ground.Field, p *program.Process, m *Memory) error {
	const every, atOnce = 100 * time.Millisecond, 5000
	producer, err := f.Producer()
	if err != nil {
		return err
	}
	work := context.WithoutCancel(ctx) // a chunk is finished: its messages must match its reservations
	for ctx.Err() == nil {
		r, err := read(work, []*program.Process{p}, nil)
		if err != nil {
			return errors.Join(err, producer.Close(work))
		}
		queued := f.Published() - r.ended
		m.LeastQueued = min(m.LeastQueued, queued)
		missing := m.Backlog - queued
		if missing <= 0 {
			_ = sleep(ctx, every) // the loop sees the end
			continue
		}
		first, err := f.Grow(work, min(missing, atOnce))
		for n := first; err == nil && n < first+min(missing, atOnce); n++ {
			err = producer.Publish(work, n)
		}
		if err != nil {
			return errors.Join(err, producer.Close(work))
		}
	}
	return producer.Close(work)
}
