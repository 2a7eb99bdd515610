package deadletter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
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

// watch follows the letters of a run after their replay, by their rows: at most a window of them have no outcome. A nil
// watch follows none.
type watch struct {
	r      *run
	open   map[dedup.Key]int // replayed, without an outcome: the replays that the run gave their rows
	looked time.Time
	asked  time.Time // for consumers
	alone  time.Time // since then nobody consumes; zero while somebody does
}

func (r *run) newWatch() *watch {
	if r.o.Window == 0 || r.o.DryRun || r.discard {
		return nil
	}
	return &watch{r: r, open: map[dedup.Key]int{}, looked: time.Now()}
}

// add follows letters whose messages are confirmed in the main queue.
func (w *watch) add(letters []*letter) {
	if w == nil {
		return
	}
	for _, lt := range letters {
		if lt.why == "" {
			w.open[lt.id.Key] = lt.row.Replays
		}
	}
	w.r.result.Unsettled = len(w.open)
}

// room waits until one letter more may be replayed, and says how many may.
func (w *watch) room(ctx context.Context) (int, error) {
	for {
		if len(w.open) >= w.r.o.Window || time.Since(w.looked) > consumersEvery {
			if err := w.look(ctx); err != nil {
				return 0, err
			}
		}
		if err := w.tooMany(); err != nil {
			return 0, err
		}
		if room := w.r.o.Window - len(w.open); room > 0 {
			return room, nil
		}
		if err := w.ask(ctx); err != nil {
			return 0, err
		}
		if !w.alone.IsZero() && time.Since(w.alone) > lonely {
			return 0, fmt.Errorf("%w for %v, and %d replayed letters wait in it", ErrNobodyConsumes, lonely, len(w.open))
		}
		w.r.tell()
		if err := wait(ctx, lookEvery); err != nil {
			return 0, err
		}
	}
}

// settle waits for the last outcomes, unless nobody consumes or nothing happens any more.
func (w *watch) settle(ctx context.Context) error {
	if w == nil {
		return nil
	}
	for moved := time.Now(); ; {
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
		w.r.tell()
		if err := wait(ctx, lookEvery); err != nil {
			return err
		}
	}
}

func (w *watch) tooMany() error {
	if most := w.r.o.MaxFailures; most > 0 && w.r.result.FailedAgain >= most {
		return fmt.Errorf("%w: %d of %d", ErrTooManyFailures, w.r.result.FailedAgain, w.r.result.Replayed)
	}
	return nil
}

// look reads the rows of all that have no outcome.
func (w *watch) look(ctx context.Context) error {
	w.looked = time.Now()
	keys := slices.SortedFunc(maps.Keys(w.open), dedup.Key.Compare)
	rows, err := w.r.l.o.Records.LookUp(ctx, keys)
	if err != nil {
		return fmt.Errorf("look what became of replayed letters: %w", err)
	}
	for key, row := range rows {
		switch outcomeOf(row, w.open[key]) {
		case applied:
			w.r.result.Applied++
		case failedAgain:
			w.r.result.FailedAgain++
		case noneYet:
			continue
		}
		delete(w.open, key)
	}
	w.r.result.Unsettled = len(w.open)
	return nil
}

// ask looks now and then whether anybody consumes the main queue.
func (w *watch) ask(ctx context.Context) error {
	if time.Since(w.asked) < consumersEvery {
		return nil
	}
	w.asked = time.Now()
	_, consumers, err := w.r.queue.conn.Depth(ctx, w.r.l.o.Queue)
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

// outcomeOf is pure. A failure counts when it is seen, also when a later attempt succeeds: whoever replays wants to know
// whether the cause is cured.
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
