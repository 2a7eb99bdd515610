package deadletter

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// CompensateOptions say what happens to dead letters by itself.
type CompensateOptions struct {
	// After is the cool-down before a dead letter whose reason may pass (exhausted, crashed, delivery_limit) is replayed
	// by itself; it doubles with every replay of the letter, up to a day, until Options.MaxReplays parks it. 0: none is.
	After time.Duration
	// At most Limit letters are replayed in Per, so that a cause that has not passed costs little and trips no brake.
	// Default 50 per minute.
	Limit int
	Per   time.Duration
	// Beside are the letters of other queues of the same group: a row does not say in which its letter lies.
	Beside []*Letters
	// Record, if set, is asked to do each replay from a dead-letter queue within something that is written down: it calls
	// replay once, with the name under which it is found in the stories of the letters, and returns what that returns.
	Record func(ctx context.Context, queue, by string, f Filter, replay Recorded) (Result, error)
	// Notifier, if set, is notified of new letters.
	Notifier Notifier
	// VisibilityDelay is how old a letter must be before anybody is notified: longer than a transaction may take that
	// marks one dead, because those that began earlier may be committed later. Default 30s.
	VisibilityDelay time.Duration
	// Logger gets a line per replay of letters and per failure. Default: none.
	Logger *slog.Logger
}

// Recorded is a replay that is written down, see [CompensateOptions].
type Recorded func(ctx context.Context, by string, progress func(Progress)) (Result, error)

func (o CompensateOptions) withDefaults() (CompensateOptions, error) {
	if err := cmp.Or(wrongIf(o.After < 0 || o.Per < 0 || o.VisibilityDelay < 0, "compensate: a duration is negative"),
		wrongIf(o.Limit < 0, "compensate: a limit of %d letters", o.Limit)); err != nil {
		return o, err
	}
	o.Limit, o.Per = cmp.Or(o.Limit, 50), cmp.Or(o.Per, time.Minute)
	o.VisibilityDelay = cmp.Or(o.VisibilityDelay, 30*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Record == nil {
		o.Record = func(ctx context.Context, _, by string, _ Filter, replay Recorded) (Result, error) {
			return replay(ctx, by, nil)
		}
	}
	return o, nil
}

// passing are the reasons that may pass without a person.
var passing = []dedup.Reason{dedup.ReasonExhausted, dedup.ReasonCrashed, dedup.ReasonDeliveryLimit}

// byItself begins the owner of the rows that compensation reopens. What it could not send is known by it.
const byItself = "compensation/"

// longestCoolDown bounds the cool-down of a letter that died often.
const longestCoolDown = 24 * time.Hour

// Compensate replays dead letters by itself and notifies of new ones, as o says, until ctx ends. It waits for servers
// that are away. One process of a fleet is enough, see [dedup.Log.Campaign]; two at once replay no letter twice, since
// every step is a conditional update, but may notify of one twice.
func (l *Letters) Compensate(ctx context.Context, o CompensateOptions) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	if o.After > 0 {
		wg.Go(func() { newReplayer(l, o).run(ctx) })
	}
	if o.Notifier != nil {
		f := &feed{l: l, to: o.Notifier, delay: o.VisibilityDelay, log: o.Logger}
		wg.Go(func() { f.run(ctx) })
	}
	wg.Wait()
	return nil
}

// replayer replays letters whose cool-down is over.
type replayer struct {
	l       *Letters
	o       CompensateOptions
	cooling dedup.Cooling
	vain    int // runs in a row that moved nothing although something was due
}

// The database is asked often enough for the cool-down, which costs one look at an index; the queue is read only when a
// letter is due, and then rests ten times as long as that took. Runs in vain, for example because the copies were
// purged, become rare.
const (
	shortestLook = time.Second
	longestLook  = time.Minute
	restFactor   = 10
	longestVain  = time.Hour
	// withinByItself bounds what some letters do after ctx ended: a daemon that drains waits for them.
	withinByItself = 10 * time.Second
)

func newReplayer(l *Letters, o CompensateOptions) *replayer {
	return &replayer{
		l: l, o: o, cooling: dedup.Cooling{
			Reasons: passing, After: o.After, Most: longestCoolDown, MaxReplays: l.o.MaxReplays, Begun: byItself,
		},
	}
}

func (r *replayer) run(ctx context.Context) {
	look := min(max(r.o.After/4, shortestLook), longestLook)
	for next := look; ctx.Err() == nil; {
		if wait.For(ctx, next*3/4+rand.N(next/2)) != nil {
			return
		}
		began := time.Now()
		res, read, err := r.replay(ctx)
		if err != nil && ctx.Err() == nil && !errors.Is(err, dedup.ErrClocks) { // of which the keeper tells once
			r.o.Logger.WarnContext(ctx, "dead letters are not replayed by themselves", "err", err)
		}
		next = look
		if read {
			r.report(ctx, res, err)
			next = max(look, r.o.Per, restFactor*time.Since(began))
			next = min(next<<min(r.vain, 10), max(next, longestVain))
		}
	}
}

// replay replays what is due now, if anything is. Read reports whether it looked into the queue.
func (r *replayer) replay(ctx context.Context) (res Result, read bool, err error) {
	if _, err := r.l.o.Records.Clocks(ctx); err != nil {
		return Result{}, false, err
	}
	n, err := r.l.o.Records.CountDue(ctx, r.l.o.Group, r.cooling, r.o.Limit)
	if err != nil || n == 0 {
		return Result{}, false, err
	}
	for _, l := range append([]*Letters{r.l}, r.o.Beside...) {
		moved := res.Replayed + res.Parked
		if moved >= n || ctx.Err() != nil {
			break
		}
		f := Filter{Reasons: passing, Limit: r.o.Limit - moved, due: r.cooling.Due}
		one, lost := r.o.Record(ctx, l.Queue(), "compensation by "+l.o.Name, f, func(
			ctx context.Context, by string, progress func(Progress)) (Result, error) {
			return l.Replay(ctx, f, ReplayOptions{By: by, Progress: progress})
		})
		err = errors.Join(err, lost) // a queue that is gone keeps no other's letters
		res = res.and(one)
	}
	return res, true, err
}

// report says what a run did.
func (r *replayer) report(ctx context.Context, res Result, err error) {
	if res.Replayed+res.Parked > 0 {
		r.vain = 0
		r.o.Logger.InfoContext(ctx, "dead letters replayed by themselves", "replayed", res.Replayed,
			"by_reason", res.ByReason, "parked", res.Parked, "stay", len(res.Left)-res.Parked)
		return
	}
	r.vain++
	if err == nil {
		r.o.Logger.WarnContext(ctx, "letters are due to be replayed by themselves, but none of them could be: see "+
			"`rollbackd reconcile`", "queue", r.l.Queue(), "letters_read", res.Seen, "stay", len(res.Left))
	}
}
