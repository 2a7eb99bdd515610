package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
)

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
func (r *Runner) Starts(ctx context.Context) (s Starts, err error) {
	err = r.repeated(ctx, "start", func() (err error) {
		s, err = r.starts(ctx)
		return err
	})
	return s, err
}

func (r *Runner) starts(ctx context.Context) (s Starts, err error) {
	sowing := ground.Sowing{Orders: 1 + startsOfRound, Goods: ManyGoods, NoBacklog: true}
	if err := r.empty.Sow(ctx, sowing, r.seed()); err != nil {
		return s, fmt.Errorf("prepare the starts: %w", err)
	}
	for n := range sowing.Orders {
		took, err := r.startBefore(ctx, n)
		if err != nil {
			return s, err
		}
		if n > 0 {
			s.MS = append(s.MS, float64(took.Microseconds())/1000)
		}
	}
	if _, err := r.empty.Check(ctx); err != nil {
		return s, err
	}
	fmt.Fprintf(r.Out, "  start                  first effect after %.0f ms\n", s.MS)
	return s, nil
}

// startBefore publishes the message of order n, starts a daemon, and stops it when the message is applied.
func (r *Runner) startBefore(ctx context.Context, n int64) (took time.Duration, err error) {
	const patience = 30 * time.Second
	if err := publish(ctx, r.empty, n, n+1, 0); err != nil {
		return 0, err
	}
	log := &tail{}
	began := time.Now()
	all, err := (Contestant{Name: "rollbackd"}).start(r.empty, r.Ground, log)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err = errors.Join(err, kill(all)); err != nil {
			err = fmt.Errorf("start: %w\nlast lines of the daemon:\n%s", err, log)
		}
	}()
	for there := false; !there; {
		if there, err = r.empty.Applied(ctx, n); err != nil {
			return 0, err
		}
		if took = time.Since(began); took > patience {
			return 0, fmt.Errorf("the first effect did not come within %v", patience)
		}
		nap(startLook)
	}
	_, err = stop(ctx, all)
	return took, err
}
