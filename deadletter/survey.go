package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// SurveyOptions say how to look through the letters.
type SurveyOptions struct {
	// Each is called for every letter, in the order of the queue. Its error ends the survey.
	Each func(Surveyed) error
	// Adopt, if set, chooses by their keys letters without a row; each gets one that says dead. By is who does it.
	Adopt func(dedup.Identity) bool
	By    string
	// Force also adopts letters that may have had their effect: see ReplayOptions.Force.
	Force bool
	// Progress, if set, is called after every window of letters, by the goroutine that called Survey.
	Progress func(Progress)
}

// Surveyed is one letter with the row it belongs to.
type Surveyed struct {
	Row     dedup.Row    // as looked up when the letter was read; Absent when there is none
	Reason  dedup.Reason // why it is dead: by its row, else by its headers; "" when nothing tells
	DeadAt  time.Time    // zero when nothing tells
	Why     Why          // why a letter without a row is not adopted without Force; "" when it is
	Adopted bool
	Err     error // of the adoption
}

// SurveyResult is what a survey met.
type SurveyResult struct {
	Found, Seen, Adopted int
	// Others is how many other consumers of the queue were there at the beginning or at the end. What they hold was not
	// seen.
	Others int
}

// surplus is how long a survey goes on when it has read as many letters as were there at the beginning: what another
// reader gave back meanwhile comes before them. It ends earlier when nothing more comes, and not never while letters
// keep coming.
const surplus = 3 * time.Second

// Survey reads all letters and gives every one back to its place; it acks none. Letters that it holds are not there for
// anybody else until it ends. RabbitMQ counts it as a delivery of each letter, of which the queue allows a million.
func (l *Letters) Survey(ctx context.Context, o SurveyOptions) (SurveyResult, error) {
	s := &survey{l: l, o: o}
	if err := s.run(ctx); err != nil {
		return s.result, fmt.Errorf("look through the dead letters: %w", err)
	}
	return s.result, nil
}

// survey is one Survey.
type survey struct {
	l      *Letters
	o      SurveyOptions
	result SurveyResult
}

func (s *survey) run(ctx context.Context) (err error) {
	q, err := s.l.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.conn.Close()) }()
	defer func() { q.leave(context.WithoutCancel(ctx), q.got) }()
	if s.result.Found, s.result.Others, err = q.depth(ctx); err != nil {
		return err
	}
	var all time.Time // when as many were read as were there
	for all.IsZero() || time.Since(all) < surplus {
		got, err := q.next(ctx, window)
		if err != nil {
			return brokerError(err)
		}
		if len(got) == 0 {
			break
		}
		s.result.Seen += len(got)
		if err := s.window(ctx, got); err != nil {
			return err
		}
		if all.IsZero() && s.result.Seen >= s.result.Found {
			all = time.Now()
		}
		if s.o.Progress != nil {
			s.o.Progress(Progress{Seen: s.result.Seen, Found: s.result.Found})
		}
	}
	_, consumers, err := q.depth(ctx)
	if err != nil {
		return err
	}
	s.result.Others = max(s.result.Others, consumers-len(q.all))
	return nil
}

func (s *survey) window(ctx context.Context, got []taken) error {
	letters := s.l.readAll(got)
	if err := s.l.lookUp(ctx, letters, false); err != nil {
		return err
	}
	retention, err := s.l.o.remembers(ctx)
	if err != nil {
		return err
	}
	adopted := map[dedup.Identity]bool{}
	for _, lt := range letters {
		seen := Surveyed{Row: lt.row, Reason: lt.reason(), DeadAt: lt.deadAt()}
		seen.Row.Identity = lt.id.Identity
		if lt.row.Status == dedup.Absent && lt.formerRow.Status != dedup.Absent {
			seen.Row = lt.formerRow
		}
		if seen.Row.Status == dedup.Absent {
			age, dated := lt.age(time.Now())
			_, seen.Why = decideAbsent(situation{
				force: s.o.Force, keyTaken: lt.conflicted, age: age, dated: dated, retention: retention,
			})
			if s.o.Adopt != nil && seen.Why == "" && s.o.Adopt(lt.id.Identity) && !adopted[lt.id.Identity] {
				s.adopt(ctx, lt, &seen)
				adopted[lt.id.Identity] = seen.Adopted
			}
		}
		if isFault(seen.Err) {
			return seen.Err
		}
		if err := s.o.Each(seen); err != nil {
			return err
		}
	}
	return nil
}

// adopt gives a letter without a row one. Several letters of one message share it.
func (s *survey) adopt(ctx context.Context, lt *letter, seen *Surveyed) {
	reason := lt.info.Reason
	switch {
	case reason != "":
	case lt.filed:
		reason = dedup.ReasonUnidentified
	case lt.id.Identity.Tag == wire.TagConflict:
		reason = dedup.ReasonConflict
	default:
		reason = dedup.ReasonPermanent // so that only a person replays what nobody knows the story of
	}
	cause := cmp.Or(lt.info.Error, "the letter does not say why it is dead")
	insist(ctx, []*letter{lt}, func([]*letter) []error {
		return []error{s.l.o.Records.Adopt(ctx, lt.entry(), lt.info.Replays, reason, "adopted: "+cause, s.o.By)}
	})
	seen.Reason, seen.Adopted = reason, lt.err == nil
	if seen.Adopted {
		s.result.Adopted++
	}
	if !errors.Is(lt.err, dedup.ErrLost) { // else it has a row by now
		seen.Err = lt.err
	}
}
