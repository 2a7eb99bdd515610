package run

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

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
func (r *Runner) LargeBodies(ctx context.Context, blocked time.Duration, settings ...string) (
	m LargeBodies, err error,
) {
	err = r.repeated(ctx, "large bodies", func() (err error) {
		m, err = r.largeBodies(ctx, blocked, settings)
		return err
	})
	return m, err
}

func (r *Runner) largeBodies(ctx context.Context, blocked time.Duration, settings []string) (m LargeBodies, err error) {
	f := r.empty
	m = LargeBodies{Settings: settings, Small: smallOnes, Large: largeOnes, Blocked: blocked.Seconds()}
	all := m.Small + m.Large
	if err := f.Sow(ctx, ground.Sowing{Orders: all, Goods: ManyGoods, NoBacklog: true}, r.seed()); err != nil {
		return m, fmt.Errorf("prepare the round of large bodies: %w", err)
	}
	if err := publish(ctx, f, 0, m.Small, 0); err != nil {
		return m, err
	}
	log := &tail{}
	daemon, err := (Contestant{Name: "rollbackd", Settings: settings}).start(f, r.Ground, log)
	if err != nil {
		return m, err
	}
	defer func() {
		if err = errors.Join(err, kill(daemon)); err != nil {
			err = fmt.Errorf("large bodies: %w\nlast lines of the daemon:\n%s", err, log)
		}
	}()
	p := daemon[0]
	if err := awaitApplied(ctx, p, m.Small); err != nil {
		return m, err
	}
	if m.AfterSmall, err = peakOf(p.Pid()); err != nil {
		return m, err
	}
	if err := block(ctx, f, m, blocked); err != nil {
		return m, err
	}
	if m.AtBlock, err = peakOf(p.Pid()); err != nil {
		return m, err
	}
	if err := awaitApplied(ctx, p, all); err != nil {
		return m, err
	}
	if m.Max, err = peakOf(p.Pid()); err != nil {
		return m, err
	}
	if _, err := stop(ctx, daemon); err != nil {
		return m, err
	}
	harvest, err := f.Check(ctx)
	if err == nil && harvest.Applied != all {
		err = fmt.Errorf("%d of %d messages are applied", harvest.Applied, all)
	}
	if err != nil {
		return m, err
	}
	fmt.Fprintf(r.Out, "  large bodies %-24s at most %.0f MiB; %.0f after the small ones, %.0f when the block ended\n",
		settings, m.Max, m.AfterSmall, m.AtBlock)
	return m, nil
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

// awaitApplied waits until the daemon is ready and has applied so many messages.
func awaitApplied(ctx context.Context, p *program.Process, n int64) error {
	const patience, step = 3 * time.Minute, 50 * time.Millisecond
	var r reading
	for began := time.Now(); time.Since(began) < patience; {
		status, _, err := p.Get(ctx, "/readyz")
		if err == nil && status == http.StatusOK {
			if r, err = read(ctx, []*program.Process{p}, nil); err == nil && r.fresh >= n {
				return nil
			}
		}
		if err != nil {
			return err
		}
		if err := wait.For(ctx, step); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d of %d messages were applied within %v", r.fresh, n, patience)
}

// peakOf is the most resident memory that a process had so far, in MiB.
func peakOf(pid int) (float64, error) {
	bytes, err := memoryOf(pid, "VmHWM:")
	return float64(bytes) / (1 << 20), err
}
