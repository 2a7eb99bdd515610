package deadletter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
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
)

// watch follows the letters of a run after their replay, by their rows: at most a window of them have no outcome.
type watch struct {
	*run
	conn   *rabbit.Conn
	window int                    // 0: it follows none
	open   map[dedup.Identity]int // replayed, without an outcome: the replays that the run gave their rows
	looked time.Time
	last   time.Time // that ask asked for consumers
	alone  time.Time // since then nobody consumes; zero while somebody does
}

func newWatch(r *run, conn *rabbit.Conn) *watch {
	w := &watch{run: r, conn: conn, window: r.o.Window, open: map[dedup.Identity]int{}, looked: time.Now()}
	if r.o.DryRun {
		w.window = 0
	}
	return w
}

// add follows a letter whose message is confirmed in the main queue.
func (w *watch) add(lt *letter) {
	if w.window > 0 {
		w.open[lt.id.Identity] = lt.row.Replays
	}
	w.tally.Unsettled = len(w.open)
}

// room waits until one letter more may be replayed, and says how many of want may.
func (w *watch) room(ctx context.Context, want int) (int, error) {
	for w.window > 0 {
		if len(w.open) >= w.window || time.Since(w.looked) > consumersEvery {
			if err := w.look(ctx); err != nil {
				return 0, err
			}
		}
		if err := w.tooMany(); err != nil {
			return 0, err
		}
		if room := w.window - len(w.open); room > 0 {
			return min(want, room), nil
		}
		if err := w.ask(ctx); err != nil {
			return 0, err
		}
		if !w.alone.IsZero() && time.Since(w.alone) > lonely {
			return 0, fmt.Errorf("%w for %v, and %d replayed letters wait in it", ErrNobodyConsumes, lonely, len(w.open))
		}
		w.tally.report()
		if err := wait.For(ctx, lookEvery); err != nil {
			return 0, err
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
		if err := w.tooMany(); err != nil || len(w.open) == 0 || time.Since(moved) > settleTime {
			return err
		}
		if err := w.ask(ctx); err != nil || !w.alone.IsZero() {
			return err
		}
		w.tally.report()
		if err := wait.For(ctx, lookEvery); err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) tooMany() error {
	if most := w.o.MaxFailures; most > 0 && w.tally.FailedAgain >= most {
		return fmt.Errorf("%w: %d of %d", ErrTooManyFailures, w.tally.FailedAgain, w.tally.Replayed)
	}
	return nil
}

// look reads the rows of all that have no outcome.
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
			if row.Status == dedup.Dead {
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
	return nil
}

// ask looks now and then whether anybody consumes the main queue.
func (w *watch) ask(ctx context.Context) error {
	if time.Since(w.last) < consumersEvery {
		return nil
	}
	w.last = time.Now()
	_, consumers, err := w.conn.Depth(ctx, w.l.o.Queue)
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
	case row.Status == dedup.Dead:
		return failedAgain
	case row.Status == dedup.Failed && row.Attempts > 0, row.Status == dedup.Processing && row.Attempts > 1:
		return failedAgain
	case row.Status == dedup.Failed, row.Status == dedup.Processing:
		return noneYet
	}
	return elsewhere
}
