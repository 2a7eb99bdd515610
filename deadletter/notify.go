package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Notifier is notified of new dead letters. [Webhook] is one.
//
// It decides nothing. Whoever wants letters replayed or discarded calls [Letters.Replay] or [Letters.Discard] with
// their keys, in Notify or later: both may be repeated, and are durable where an answer to Notify would not be.
type Notifier interface {
	// Notify gets 1 to 100 letters in the order in which they died, one call at a time. Each letter that is still dead is
	// given at least once, however often processes die or are elected: again, if need be, until an error-free return is
	// noted in the database. One that dies again after a replay is a new letter, with one replay more. After an error the
	// same letters come again, after a pause that grows to five minutes; meanwhile none that is newer. ctx ends after a
	// minute.
	Notify(ctx context.Context, letters []Letter) error
}

const (
	feedPage      = 1000            // events that are read at once
	feedEvery     = 2 * time.Second // how often the feed is looked at while nothing is new
	notifyAtOnce  = 100             // letters that a Notifier gets at most
	notifyTimeout = time.Minute     // for one call of a Notifier
	shortestPause = time.Second     // after a first failure
	longestPause  = 5 * time.Minute
)

// feed notifies of the letters that are new in the event feed, from a bookmark in the database on. Its memory is a
// page.
type feed struct {
	l     *Letters
	to    Notifier
	delay time.Duration // the VisibilityDelay
	log   *slog.Logger
}

func (f *feed) run(ctx context.Context) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = shortestPause, longestPause
	for ctx.Err() == nil {
		more, err := f.page(ctx)
		switch {
		case err == nil && more:
		case err == nil:
			pauses.Reset()
			_ = wait.For(ctx, feedEvery) // the loop looks at ctx
		case ctx.Err() == nil:
			next := pauses.NextBackOff()
			f.log.WarnContext(ctx, "nobody could be told of new dead letters", "err", err, "next_try_in",
				next.Round(time.Millisecond))
			_ = wait.For(ctx, next)
		}
	}
}

// page notifies of what is new on one page. The bookmark moves only behind what was notified, so a letter is given
// again when the process dies in between, and by whoever is elected next.
func (f *feed) page(ctx context.Context) (more bool, err error) {
	at, err := f.l.o.Records.Bookmark(ctx, f.l.o.Group)
	if err != nil {
		return false, err
	}
	events, err := f.l.o.Records.EventFeed(ctx, at, feedPage)
	if err != nil {
		return false, err
	}
	more = len(events) == feedPage
	for i, e := range events {
		if e.Age < f.delay { // an event with a lower number may not be visible yet
			events, more = events[:i], false
			break
		}
	}
	if len(events) == 0 {
		return false, nil
	}
	last := events[len(events)-1].ID
	deaths := slices.DeleteFunc(events, func(e dedup.Event) bool {
		return e.Group != f.l.o.Group || e.To != dedup.Dead || e.From == dedup.Dead
	})
	rows, err := f.l.o.Records.LookUp(ctx, mapped(deaths, func(e dedup.Event) dedup.Identity { return e.Identity }))
	if err != nil {
		return false, err
	}
	deaths = slices.DeleteFunc(deaths, func(e dedup.Event) bool { // somebody was faster
		row := rows[e.Identity]
		return row.Status != dedup.Dead || row.Replays != e.Replays
	})
	for some := range slices.Chunk(deaths, notifyAtOnce) {
		letters := mapped(some, func(e dedup.Event) Letter { return f.l.letterOf(rows[e.Identity]) })
		if err := f.notify(ctx, letters, some[len(some)-1].ID); err != nil {
			return false, err
		}
	}
	return more, f.l.o.Records.MoveBookmark(ctx, f.l.o.Group, last)
}

// notify hands over some letters and notes it. It outlives a panic of who is told: each process that is elected next
// would end with the same letters.
func (f *feed) notify(ctx context.Context, letters []Letter, upTo int64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the Notifier panicked: %v\n%s", p, debug.Stack())
		}
	}()
	call, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if err := f.to.Notify(call, letters); err != nil {
		return err
	}
	return f.l.o.Records.MoveBookmark(ctx, f.l.o.Group, upTo)
}
