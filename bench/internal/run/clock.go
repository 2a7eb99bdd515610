package run

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// A clock says between which two readings of the processes a round is measured.
type clock func(context.Context, *ground.Field, []*program.Process, watched) (from, to reading, err error)

func (r *Runner) clock(c Contestant) clock {
	switch {
	case c.Replay:
		return r.replay
	case c.Whole:
		return r.whole
	case c.ToTheEnd:
		return r.toTheEnd
	}
	return r.forATime
}

// forATime warms up and measures for the length of a round.
func (r *Runner) forATime(ctx context.Context, _ *ground.Field, all []*program.Process, w watched) (from, to reading,
	err error) {
	if err = warmUp(ctx, all, r.Warm); err != nil {
		return from, to, err
	}
	if from, err = read(ctx, all, w); err != nil {
		return from, to, err
	}
	if err = wait.For(ctx, r.Length); err != nil {
		return from, to, err
	}
	to, err = read(ctx, all, w)
	return from, to, err
}

// most is how many rounds' time a round to the end may take: a contestant that is slow is measured by what it did until
// then.
const most = 6

// toTheEnd measures from the first delivery that ended until everything has come as far as it can.
func (r *Runner) toTheEnd(ctx context.Context, f *ground.Field, all []*program.Process, w watched) (from, to reading,
	err error) {
	if err = warmUp(ctx, all, 0); err != nil {
		return from, to, err
	}
	if from, err = read(ctx, all, w); err != nil {
		return from, to, err
	}
	to, err = untilReached(ctx, all, w, goalOf(f.Sown()), most*r.Length)
	return from, to, err
}

// whole measures from the first delivery that ended until each message has.
func (r *Runner) whole(ctx context.Context, f *ground.Field, all []*program.Process, w watched) (from, to reading,
	err error) {
	const patience = 5 * time.Minute
	if err = warmUp(ctx, all, 0); err != nil {
		return from, to, err
	}
	if from, err = read(ctx, all, w); err != nil {
		return from, to, err
	}
	goal := target{ended: f.Published()}
	to, err = untilReached(ctx, all, w, goal, patience)
	if err == nil && !goal.reached(to) {
		err = fmt.Errorf("%d of %d messages have ended within %v", to.ended, goal.ended, patience)
	}
	return from, to, err
}

// replay lets the daemon file all messages as letters, mends the cause, and measures from the start of the product's
// command until the last letter is applied. What the command takes of the processors counts as the client's.
func (r *Runner) replay(ctx context.Context, f *ground.Field, all []*program.Process, w watched) (from, to reading,
	err error) {
	const patience = 3 * time.Minute // for the preparation
	letters := target{dead: f.Sown().Orders}
	if filed, err := untilReached(ctx, all, w, letters, patience); err != nil || !letters.reached(filed) {
		return from, to, fmt.Errorf("%d of %d letters were filed within %v: %w", filed.dead, letters.dead, patience, err)
	}
	if err = f.Mend(ctx); err != nil {
		return from, to, err
	}
	enough, cancel := context.WithTimeout(ctx, most*r.Length)
	defer cancel()
	command := exec.CommandContext(enough, f.Build.Binary, "dlq", "replay", "--all", "--no-wait")
	command.Env = f.Environ()
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) } // it finishes what it has in hand
	command.WaitDelay = windDown
	if from, err = read(ctx, all, w); err != nil {
		return from, to, err
	}
	if out, err := command.CombinedOutput(); err != nil && enough.Err() == nil {
		return from, to, fmt.Errorf("replay the letters: %w\n%s", err, out)
	}
	if to, err = untilReached(ctx, all, w, goalOf(f.Sown()), most*r.Length-time.Since(from.at)); err != nil {
		return from, to, err
	}
	to.cpu["client"] += command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	return from, to, nil
}

// windDown is how long a command that was stopped may take to end.
const windDown = 20 * time.Second

// target is how far a round goes.
type target struct{ applied, dead, ended int64 }

// goalOf is how far the messages can come: all that can be applied are; if none can, all are dead letters.
func goalOf(s ground.Sowing) target {
	if good := s.Orders - s.Failing(); good > 0 {
		return target{applied: good}
	}
	return target{dead: s.Orders}
}

func (t target) reached(r reading) bool {
	return r.fresh >= t.applied && r.dead >= t.dead && r.ended >= t.ended
}

// untilReached reads the processes until the target is reached or the time is over.
func untilReached(ctx context.Context, all []*program.Process, w watched, t target, most time.Duration) (r reading,
	err error) {
	const step = 50 * time.Millisecond
	for began := time.Now(); ; {
		if r, err = read(ctx, all, w); err != nil || t.reached(r) || time.Since(began) > most {
			return r, err
		}
		if err = wait.For(ctx, step); err != nil {
			return r, err
		}
	}
}

// checkEnd holds a round that came to its end to what must be so then: what can be applied is, and what cannot has had
// all its attempts and is a dead letter. A letter that was replayed is none any more.
func (c Contestant) checkEnd(cut bool, s ground.Sowing, to reading, h ground.Harvest) error {
	good := s.Orders - s.Failing()
	switch {
	case cut:
		return nil
	case h.Applied != good:
		return fmt.Errorf("%s: %w: %d messages are applied, want %d", c.Name, ground.ErrBroken, h.Applied, good)
	case c.Replay && h.Dead != 0:
		return fmt.Errorf("%s: %d letters are still there", c.Name, h.Dead)
	case good == 0 && h.Dead != s.Orders:
		return fmt.Errorf("%s: %d messages are dead letters, want %d", c.Name, h.Dead, s.Orders)
	case good == 0 && to.again != (attempts-1)*s.Orders:
		return fmt.Errorf("%s: %d attempts failed before the last ones, want %d", c.Name, to.again, (attempts-1)*s.Orders)
	}
	return nil
}

// attempts are those that everybody gives a message, the product by its default.
const attempts = 5

// slowLine is a proxy before MySQL through which everything takes so much longer, each way.
func (r *Runner) slowLine(f *ground.Field, delay time.Duration) (*stack.TCPProxy, error) {
	cfg, err := mysql.ParseDSN(f.DSN)
	if err != nil {
		return nil, fmt.Errorf("read the DSN: %w", err)
	}
	proxy, err := stack.NewProxy(cfg.Addr, func(format string, args ...any) {
		fmt.Fprintf(r.Out, "  proxy: "+format+"\n", args...)
	})
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	proxy.Delay(delay)
	return proxy, nil
}
