package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Compensator is told of new dead letters. [Webhook] is one.
//
// It decides nothing. Whoever wants letters replayed or discarded calls [Letters.Replay] or [Letters.Discard] with their
// keys, in Compensate or later: both may be repeated, and are durable where an answer to Compensate would not be.
type Compensator interface {
	// Compensate gets 1 to 100 letters in the order in which they died, one call at a time. Each letter that is still dead
	// is given at least once, however often processes die or are elected: again, if need be, until an error-free return is
	// noted in the database. One that dies again after a replay is a new letter, with one replay more. After an error the
	// same letters come again, after a pause that grows to five minutes; meanwhile none that is newer. ctx ends after a minute.
	Compensate(ctx context.Context, letters []Letter) error
}

// CompensateOptions say what happens to dead letters by itself.
type CompensateOptions struct {
	// After is the cool-down before a dead letter whose reason may pass (exhausted, crashed, delivery_limit) is replayed by
	// itself; it doubles with every replay of the letter, up to a day, until Options.MaxReplays parks it. 0: none is.
	After time.Duration
	// At most Limit letters are replayed in Per, so that a cause that has not passed costs little and trips no brake.
	// Default 50 per minute.
	Limit int
	Per   time.Duration
	// Tell, if set, is told of new letters.
	Tell Compensator
	// Settle is how old a letter must be before anybody is told: longer than a transaction may take that marks one dead,
	// because those that began earlier may be committed later. Default 30s.
	Settle time.Duration
	// Logger gets a line per replay of letters and per failure. Default: none.
	Logger *slog.Logger
}

func (o CompensateOptions) withDefaults() (CompensateOptions, error) {
	switch {
	case o.After < 0 || o.Per < 0 || o.Settle < 0:
		return o, errors.New("compensate: a duration is negative")
	case o.Limit < 0:
		return o, fmt.Errorf("compensate: a limit of %d letters", o.Limit)
	}
	if o.Limit == 0 {
		o.Limit = 50
	}
	if o.Per == 0 {
		o.Per = time.Minute
	}
	if o.Settle == 0 {
		o.Settle = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// passing are the reasons that may pass without a person.
var passing = []string{string(wire.ReasonExhausted), string(wire.ReasonCrashed), string(wire.ReasonDeliveryLimit)}

// byItself begins the owner of the rows that compensation reopens. What it could not send is known by it.
const byItself = "compensation/"

// longestPause bounds the cool-down of a letter that died often.
const longestPause = 24 * time.Hour

// Compensate replays dead letters by itself and tells of new ones, as o says, until ctx ends. It waits for servers that
// are away. One process of a fleet is enough, see [dedup.Log.Lead]; two at once replay no letter twice, since every step
// is a conditional update, but may tell of one twice.
func (l *Letters) Compensate(ctx context.Context, o CompensateOptions) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	if o.After > 0 {
		wg.Go(func() { l.newReplayer(o).run(ctx) })
	}
	if o.Tell != nil {
		t := &teller{l: l, to: o.Tell, settle: o.Settle, log: o.Logger}
		wg.Go(func() { t.run(ctx) })
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
// letter is due, and then rests ten times as long as that took. Runs in vain, for example because the copies were purged,
// become rare.
const (
	shortestLook = time.Second
	longestLook  = time.Minute
	restFactor   = 10
	longestVain  = time.Hour
	// withinByItself bounds what some letters do after ctx ended: a daemon that drains waits for them.
	withinByItself = 10 * time.Second
)

func (l *Letters) newReplayer(o CompensateOptions) *replayer {
	return &replayer{l: l, o: o, cooling: dedup.Cooling{Reasons: passing, After: o.After, Most: longestPause, MaxReplays: l.o.MaxReplays, Begun: byItself}}
}

func (r *replayer) run(ctx context.Context) {
	look := min(max(r.o.After/4, shortestLook), longestLook)
	for next := look; ctx.Err() == nil; {
		if wait(ctx, next*3/4+rand.N(next/2)) != nil {
			return
		}
		began := time.Now()
		res, read, err := r.replay(ctx)
		if err != nil && ctx.Err() == nil {
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
	due, err := r.l.o.Records.CountDue(ctx, r.l.o.Group, r.cooling, r.o.Limit)
	if err != nil || due == 0 {
		return Result{}, false, err
	}
	res, err = r.l.Replay(ctx, Filter{Reasons: passing, Limit: r.o.Limit, due: r.cooling.Due}, ReplayOptions{
		By: "compensation by " + r.l.o.Name, within: withinByItself, token: byItself,
	})
	return res, true, err
}

// report says what a run did.
func (r *replayer) report(ctx context.Context, res Result, err error) {
	if res.Replayed+res.Parked > 0 {
		r.vain = 0
		r.o.Logger.InfoContext(ctx, "dead letters replayed by themselves", "replayed", res.Replayed, "by_reason", res.ByReason,
			"parked", res.Parked, "stay", len(res.Left)-res.Parked)
		return
	}
	r.vain++
	if err == nil {
		r.o.Logger.WarnContext(ctx, "letters are due to be replayed by themselves, but none of them could be: see consumer reconcile",
			"queue", r.l.Queue(), "letters_read", res.Seen, "stay", len(res.Left))
	}
}
