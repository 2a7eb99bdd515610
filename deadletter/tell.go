package deadletter

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
)

const (
	newsPage    = 1000            // steps of the story that are read at once
	tellAtOnce  = 100             // letters that a Compensator gets at most
	tellEvery   = 2 * time.Second // how often the story is looked at while nothing is new
	tellTimeout = time.Minute     // for one call of a Compensator
	tellPause   = time.Second     // after a first failure
	tellPauses  = 5 * time.Minute // the longest one
)

// teller tells a Compensator of the letters that are new, from a bookmark in the database on. Its memory is a page.
type teller struct {
	l      *Letters
	to     Compensator
	settle time.Duration
	log    *slog.Logger
}

func (t *teller) run(ctx context.Context) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = tellPause, tellPauses
	for ctx.Err() == nil {
		more, err := t.round(ctx)
		switch {
		case err == nil && more:
		case err == nil:
			pauses.Reset()
			_ = wait(ctx, tellEvery) // the loop looks at ctx
		case ctx.Err() == nil:
			next := pauses.NextBackOff()
			t.log.WarnContext(ctx, "nobody could be told of new dead letters", "err", err, "next_try_in", next.Round(time.Millisecond))
			_ = wait(ctx, next)
		}
	}
}

// round tells what is new on one page. The bookmark moves only behind what was told, so a letter is told again when the
// process dies in between, and by whoever is elected next.
func (t *teller) round(ctx context.Context) (more bool, err error) {
	at, err := t.l.o.Records.Bookmark(ctx, t.l.o.Group)
	if err != nil {
		return false, err
	}
	news, err := t.l.o.Records.News(ctx, at, newsPage)
	if err != nil {
		return false, err
	}
	more = len(news) == newsPage
	for i, n := range news {
		if n.Age < t.settle { // a step with a lower number may not be visible yet
			news, more = news[:i], false
			break
		}
	}
	if len(news) == 0 {
		return false, nil
	}
	rows, err := t.l.o.Records.LookUp(ctx, t.deaths(news))
	if err != nil {
		return false, err
	}
	var letters []Letter
	for i, n := range news {
		if row := rows[n.Key]; t.isDeath(n) && row.Status == dedup.Dead && row.Replays == n.Replays { // else somebody was faster
			letters = append(letters, t.l.letterOf(row))
		}
		if len(letters) == tellAtOnce || i == len(news)-1 {
			if err := t.tell(ctx, letters, n.ID); err != nil {
				return false, err
			}
			letters = nil
		}
	}
	return more, nil
}

func (t *teller) isDeath(n dedup.News) bool {
	return n.Group == t.l.o.Group && n.To == dedup.Dead && n.From != dedup.Dead
}

func (t *teller) deaths(news []dedup.News) (keys []dedup.Key) {
	for _, n := range news {
		if t.isDeath(n) {
			keys = append(keys, n.Key)
		}
	}
	return keys
}

// tell hands over some letters and notes it.
func (t *teller) tell(ctx context.Context, letters []Letter, upTo int64) error {
	if len(letters) > 0 {
		call, cancel := context.WithTimeout(ctx, tellTimeout)
		defer cancel()
		if err := t.to.Compensate(call, letters); err != nil {
			return err
		}
	}
	return t.l.o.Records.MoveBookmark(ctx, t.l.o.Group, upTo)
}
