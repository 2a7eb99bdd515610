package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// SurveyOptions say how to look through the letters.
type SurveyOptions struct {
	// Each is called for every letter, in the order of the queue. Its error ends the survey.
	Each func(Surveyed) error
	// Adopt, if set, chooses by their keys letters without a row; each gets one that says dead. By is who does it.
	Adopt func(dedup.Key) bool
	By    string
	// Force also adopts letters that may have had their effect: see ReplayOptions.Force.
	Force bool
	// Progress, if set, is called after every window of letters, by the goroutine that called Survey.
	Progress func(Progress)
}

// Surveyed is one letter with the row it belongs to.
type Surveyed struct {
	Row     dedup.Row // as looked up when the letter was read; Absent when there is none
	Reason  string    // why it is dead: by its row, else by its headers; "" when nothing tells
	DeadAt  time.Time // zero when nothing tells
	Why     Why       // why a letter without a row is not adopted without Force; "" when it is
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

// surplus is how long a survey goes on when it has read as many letters as were there at the beginning: what another reader
// gave back meanwhile comes before them. It ends earlier when nothing more comes, and not never while letters keep coming.
const surplus = 3 * time.Second

// Survey reads all letters and gives every one back to its place; it acks none. Letters that it holds are not there for
// anybody else until it ends. RabbitMQ counts it as a delivery of each letter, of which the queue allows a million.
func (l *Letters) Survey(ctx context.Context, o SurveyOptions) (SurveyResult, error) {
	res, err := l.survey(ctx, o)
	if err != nil {
		return res, fmt.Errorf("look through the dead letters: %w", err)
	}
	return res, nil
}

func (l *Letters) survey(ctx context.Context, o SurveyOptions) (res SurveyResult, err error) {
	conn, err := rabbit.Dial(ctx, l.amqp())
	if err != nil {
		return res, brokerError(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	q := &queue{conn: conn, name: l.Queue()}
	defer func() { q.giveBack(context.WithoutCancel(ctx)) }()
	if res.Found, res.Others, err = conn.Depth(ctx, q.name); err != nil {
		return res, brokerError(err)
	}
	var all time.Time // when as many were read as were there
	for all.IsZero() || time.Since(all) < surplus {
		got, err := q.next(ctx, window)
		if err != nil {
			return res, brokerError(err)
		}
		if len(got) == 0 {
			break
		}
		res.Seen += len(got)
		if err := l.surveyWindow(ctx, got, o, &res); err != nil {
			return res, err
		}
		if all.IsZero() && res.Seen >= res.Found {
			all = time.Now()
		}
		if o.Progress != nil {
			o.Progress(Progress{Seen: res.Seen, Found: res.Found})
		}
	}
	_, consumers, err := conn.Depth(ctx, q.name)
	if err != nil {
		return res, brokerError(err)
	}
	res.Others = max(res.Others, consumers-len(q.all))
	return res, nil
}

// giveBack is leave, and waits longer: whoever looked through all letters often acts on what he found at once.
func (q *queue) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	q.leave(ctx, q.got)
	for len(q.all) > 0 {
		ready, consumers, err := q.conn.Depth(ctx, q.name)
		if err != nil || consumers > 0 || ready >= q.got {
			return
		}
		select {
		case <-time.After(moment / 10):
		case <-ctx.Done():
			return
		}
	}
}

func (l *Letters) surveyWindow(ctx context.Context, got []taken, o SurveyOptions, res *SurveyResult) error {
	letters := make([]*letter, len(got))
	for i, t := range got {
		letters[i] = l.read(t)
	}
	if err := l.lookUp(ctx, letters, false); err != nil {
		return err
	}
	retention, err := l.retention(ctx)
	if err != nil {
		return err
	}
	adopted := map[dedup.Key]bool{}
	for _, lt := range letters {
		s := Surveyed{Row: lt.row, Reason: lt.reason(), DeadAt: lt.deadAt()}
		s.Row.Key = lt.id.Key
		if lt.row.Status == dedup.Absent && lt.old.Status != dedup.Absent {
			s.Row = lt.old
		}
		if s.Row.Status == dedup.Absent {
			l.adopt(ctx, lt, o, &s, retention, adopted)
		}
		if isFault(s.Err) {
			return s.Err
		}
		if s.Adopted {
			res.Adopted++
		}
		if err := o.Each(s); err != nil {
			return err
		}
	}
	return nil
}

// adopt gives a letter without a row one, if it was chosen. Several letters of one message share it.
func (l *Letters) adopt(ctx context.Context, lt *letter, o SurveyOptions, s *Surveyed, retention time.Duration, done map[dedup.Key]bool) {
	age, dated := lt.age(time.Now())
	_, s.Why = decideAbsent(situation{force: o.Force, keyTaken: lt.conflicted, age: age, dated: dated, retention: retention})
	if o.Adopt == nil || s.Why != "" || !o.Adopt(lt.id.Key) || done[lt.id.Key] {
		return
	}
	reason := lt.info.Reason
	switch {
	case reason != "":
	case lt.filed:
		reason = wire.ReasonUnidentified
	case lt.id.Key.Tag == wire.TagConflict:
		reason = wire.ReasonConflict
	default:
		reason = wire.ReasonPermanent // so that only a person replays what nobody knows the story of
	}
	cause := lt.info.Error
	if cause == "" {
		cause = "the letter does not say why it is dead"
	}
	s.Err = insist(ctx, func() error {
		return l.o.Records.Adopt(ctx, lt.entry(), lt.info.Replays, string(reason), "adopted: "+cause, o.By)
	})
	s.Adopted = s.Err == nil
	s.Reason = string(reason)
	done[lt.id.Key] = s.Adopted
	if errors.Is(s.Err, dedup.ErrLost) { // it has a row by now
		s.Err = nil
	}
}
