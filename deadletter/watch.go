package deadletter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	// lookEvery is the pause between two looks at the rows while the run waits for them.
	lookEvery = 100 * time.Millisecond
	// consumersEvery is the pause between two questions whether anybody consumes the main queue.
	consumersEvery = time.Second
	// lonely is how long nobody may consume the main queue while a run waits for room: daemons are replaced one by one.
	lonely = 30 * time.Second
	// settleTime is how long a run waits at its end although no letter gets its outcome.
	settleTime = 30 * time.Second
	// longestPace bounds the time between two letters, however small the rate is: a time that no clock holds would be
	// none.
	longestPace = 24 * time.Hour
)

// watch says how many letters may go, and when: it follows those of a run after their replay, by their rows, so that at
// most a window of them have no outcome.
type watch struct {
	*run
	next   time.Time              // when the rate allows the next letters
	window int                    // 0: it follows none
	open   map[dedup.Identity]int // replayed, without an outcome: the replays that the run gave their rows
	looked time.Time
	asked  time.Time // for consumers
	alone  time.Time // since then nobody consumes; zero while somebody does
}

func newWatch(r *run) *watch {
	w := &watch{run: r, window: r.o.Window, open: map[dedup.Identity]int{}}
	if r.o.DryRun {
		w.window = 0
	}
	return w
}

// recount takes in what became of letters that were replayed before, by the events after one: those that have an
// outcome are counted, of the others some are watched.
func (w *watch) recount(ctx context.Context, after int64) error {
	const some = 1000
	for {
		steps, err := w.l.o.Records.StepsBy(ctx, w.l.o.Group, w.o.By, dedup.Failed, after, some)
		if err != nil || len(steps) == 0 {
			return err
		}
		keys := mapped(steps, func(e dedup.Event) dedup.Identity { return e.Identity })
		rows, err := w.l.o.Records.LookUp(ctx, unique(keys))
		if err != nil {
			return err
		}
		for _, step := range steps {
			switch outcomeOf(rows[step.Identity], step.Replays) {
			case applied:
				w.tally.Applied++
			case failedAgain:
				w.tally.FailedAgain++
			case noneYet:
				if len(w.open) < 2*w.window {
					w.open[step.Identity] = step.Replays
				}
			}
		}
		after = steps[len(steps)-1].ID
	}
}

// add follows a letter whose message is confirmed in the main queue.
func (w *watch) add(lt *letter) {
	if w.window > 0 {
		w.open[lt.id.Identity] = lt.row.Replays
	}
	w.tally.Unsettled = len(w.open)
}

// turn waits until some of want letters may go, by the rate and by what is watched, and says how many.
func (w *watch) turn(ctx context.Context, want int) (n int, err error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if n, err = w.room(ctx, want); err != nil || w.o.Rate == 0 || w.o.DryRun {
		return n, err
	}
	n = min(n, max(1, int(min(w.o.Rate/4, window)))) // what goes in a quarter of a second
	for now := time.Now(); w.next.After(now); now = time.Now() {
		w.tally.report()
		if err := wait.For(ctx, min(w.next.Sub(now), consumersEvery)); err != nil {
			return 0, err
		}
	}
	w.next = time.Now().Add(time.Duration(min(float64(n)/w.o.Rate, longestPace.Seconds()) * float64(time.Second)))
	return n, nil
}

// room waits until one letter more may be replayed, and says how many of want may.
func (w *watch) room(ctx context.Context, want int) (int, error) {
	for w.window > 0 {
		if len(w.open) >= w.window || time.Since(w.looked) > consumersEvery {
			if err := w.look(ctx); err != nil {
				return 0, err
			}
		}
		if room := w.window - len(w.open); room > 0 {
			return min(want, room), nil
		}
		if err := w.pause(ctx); err != nil {
			return 0, err
		}
		if !w.alone.IsZero() && time.Since(w.alone) > lonely {
			return 0, fmt.Errorf("%w for %v, and %d replayed letters wait in it", ErrNobodyConsumes, lonely, len(w.open))
		}
	}
	return want, nil
}

// settle waits for the last outcomes, unless nobody consumes or nothing happens any more.
func (w *watch) settle(ctx context.Context) error {
	for moved := time.Now(); w.window > 0; {
		before := len(w.open)
		if err := w.look(ctx); err != nil {
			return err
		}
		if len(w.open) < before {
			moved = time.Now()
		}
		if len(w.open) == 0 || time.Since(moved) > settleTime {
			return nil
		}
		if err := w.pause(ctx); err != nil || !w.alone.IsZero() {
			return err
		}
	}
	return nil
}

// look reads the rows of all that have no outcome, and says when too many have failed.
func (w *watch) look(ctx context.Context) error {
	w.looked = time.Now()
	keys := slices.SortedFunc(maps.Keys(w.open), dedup.Identity.Compare)
	rows, err := w.l.o.Records.LookUp(ctx, keys)
	if err != nil {
		return fmt.Errorf("look what became of replayed letters: %w", err)
	}
	for key, row := range rows {
		fate := outcomeOf(row, w.open[key])
		switch fate {
		case applied:
			w.tally.Applied++
		case failedAgain:
			w.tally.FailedAgain++
			if row.Status == dedup.Dead || row.Condemned() { // or its letter is on its way
				w.tally.DeadAgain++
			}
		case noneYet:
			continue
		}
		if fate != elsewhere {
			w.alone = time.Time{} // somebody consumes by now, and the last answer to ask may be older
		}
		delete(w.open, key)
	}
	w.tally.Unsettled = len(w.open)
	if most := w.o.MaxFailures; most > 0 && w.tally.FailedAgain >= most {
		return fmt.Errorf("%w: %d of %d", ErrTooManyFailures, w.tally.FailedAgain, w.tally.Replayed)
	}
	return nil
}

// pause waits a moment, and asks now and then whether anybody consumes the main queue.
func (w *watch) pause(ctx context.Context) error {
	w.tally.report()
	if time.Since(w.asked) < consumersEvery {
		return wait.For(ctx, lookEvery)
	}
	w.asked = time.Now()
	_, consumers, err := w.queue.conn.Depth(ctx, w.l.o.Queue)
	switch {
	case err != nil:
		return brokerError(err)
	case consumers > 0:
		w.alone = time.Time{}
	case w.alone.IsZero():
		w.alone = time.Now()
	}
	return nil
}

// fate is what became of a replayed letter.
type fate uint8

const (
	noneYet     fate = iota + 1
	applied          // its effect is committed
	failedAgain      // an attempt failed: it is tried again, or dead again
	elsewhere        // somebody else took it up: replayed again, discarded, pruned
)

// outcomeOf is pure. A failure counts when it is seen, also when a later attempt succeeds: whoever replays wants to
// know whether the cause is cured.
func outcomeOf(row dedup.Row, replays int) fate {
	switch {
	case row.Status == dedup.Absent || row.Replays != replays:
		return elsewhere
	case row.Status == dedup.Success:
		return applied
	case row.Status == dedup.Dead, row.Status == dedup.Failed && row.Attempts > 0,
		row.Status == dedup.Processing && row.Attempts > 1:
		return failedAgain
	case row.Status == dedup.Failed, row.Status == dedup.Processing:
		return noneYet
	}
	return elsewhere
}
