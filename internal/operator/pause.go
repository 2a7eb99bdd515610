package operator

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// How long a pause lasts. A person who needs more pauses again: a fleet that nobody remembers must not stand for ever.
const (
	DefaultPause = time.Hour
	LeastPause   = time.Second
	LongestPause = 24 * time.Hour
)

// PauseRequest asks for a pause. The names of its JSON form are stable.
type PauseRequest struct {
	// ID is of the act, if it was given out before; see [Once]. "": a new one.
	ID  string `json:"-"`
	Why string `json:"why" minLength:"1" maxLength:"1000"`
	// Seconds are how long, LeastPause to LongestPause; 0: DefaultPause.
	Seconds float64 `json:"seconds,omitempty" minimum:"1" maximum:"86400"`
	// Instead is the id of the pause that this one replaces, as it was seen; "": none may stand.
	Instead string `json:"instead,omitempty" maxLength:"100"`
}

// length is how long it is to last.
func (r PauseRequest) length() time.Duration {
	return cmp.Or(time.Duration(r.Seconds*float64(time.Second)), DefaultPause)
}

// PausedError says that consuming is paused already, or not by the pause that was seen.
type PausedError struct{ Pause dedup.Pause }

func (e *PausedError) Error() string {
	return fmt.Sprintf("consuming is %v (%s)", e.Pause, e.Pause.ID)
}

// Is reports that it is dedup.ErrPaused.
func (*PausedError) Is(target error) bool { return target == dedup.ErrPaused }

// pauseDetail is what stands in the act of a pause.
type pauseDetail struct {
	Seconds float64   `json:"seconds,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	Instead string    `json:"instead,omitempty"`
	Pause   string    `json:"pause,omitempty"` // the one that a resume ended
}

// Paused is the pause that stands; its Left is 0 when none does.
func (d *Operator) Paused(ctx context.Context) (dedup.Pause, error) {
	return d.o.Records.Paused(ctx, d.o.Group, d.o.Queue)
}

// Now is the time by the database's clock, as the cut-off of a set that nobody has looked at before.
func (d *Operator) Now(ctx context.Context) (time.Time, error) { return d.o.Records.Now(ctx) }

// Check says what is wrong with it.
func (r PauseRequest) Check() error {
	return cmp.Or(refuseIf(Plain(r.Why) == "", "say why consuming is to be paused, for whoever finds it so"),
		refuseIf(r.length() < LeastPause || r.length() > LongestPause, "a pause of %v, want %v to %v", r.length(), LeastPause,
			LongestPause))
}

// Pause makes all daemons of the group and queue take no more deliveries, within seconds, until it ends. What they have
// begun they finish; what they have not goes back to the queue. PausedError: a pause stands, and Instead does not name
// it. The same ID again is the same pause, and changes nothing.
func (d *Operator) Pause(ctx context.Context, who Actor, r PauseRequest) (dedup.Pause, error) {
	n, err := newDraft(who, TaskRequest{ID: r.ID, Kind: KindPause, Why: r.Why})
	if err = cmp.Or(err, r.Check()); err != nil {
		return dedup.Pause{}, err
	}
	p := dedup.Pause{ID: n.ID, By: n.Actor, Why: n.Why}
	err = mysqldb.InTx(ctx, d.db, func(tx *sql.Tx) error {
		var err error
		if p, err = d.o.Records.SetPause(ctx, tx, d.o.Group, d.o.Queue, p, r.length(), r.Instead); err != nil {
			return err
		}
		n.asked = pauseDetail{Seconds: r.length().Seconds(), Until: p.Until, Instead: r.Instead}
		return d.insert(ctx, tx, n)
	})
	switch {
	case errors.Is(err, dedup.ErrPaused):
		now, err := d.Paused(ctx)
		if err == nil && now.ID != n.ID {
			err = &PausedError{now}
		}
		return now, err
	case errors.Is(err, errActExists): // it was set before, and may have ended since
		return d.Paused(ctx)
	case err != nil:
		return dedup.Pause{}, fmt.Errorf("pause consuming: %w", err)
	}
	d.log.WarnContext(ctx, "consuming is paused", "by", n.Actor, "why", n.Why, "until", p.Until, "act", n.ID)
	return p, nil
}

// ResumeRequest asks for the end of a pause. The names of its JSON form are stable.
type ResumeRequest struct {
	ID  string `json:"-"` // of the act, if it was given out before
	Why string `json:"why,omitempty" maxLength:"1000"`
	// Pause is the id of the pause that is to end, as it was seen; "": whichever stands.
	Pause string `json:"pause,omitempty" maxLength:"100"`
}

// Resume ends a pause: the daemons consume again within seconds. It returns the pause that it ended.
// dedup.ErrNotPaused: none stands; a PausedError: another one does.
func (d *Operator) Resume(ctx context.Context, who Actor, r ResumeRequest) (dedup.Pause, error) {
	n, err := newDraft(who, TaskRequest{ID: r.ID, Kind: KindResume, Why: r.Why})
	if err != nil {
		return dedup.Pause{}, err
	}
	var ended dedup.Pause
	err = mysqldb.InTx(ctx, d.db, func(tx *sql.Tx) error {
		var err error
		if ended, err = d.o.Records.EndPause(ctx, tx, d.o.Group, d.o.Queue, r.Pause); err != nil {
			return err
		}
		n.asked = pauseDetail{Pause: ended.ID}
		return d.insert(ctx, tx, n)
	})
	switch {
	case errors.Is(err, errActExists):
		return dedup.Pause{}, nil
	case errors.Is(err, dedup.ErrNotPaused):
		if _, known := d.Act(ctx, n.ID); known == nil {
			return dedup.Pause{}, nil // it was done before, under this id
		}
		if ended.Left > 0 {
			return ended, &PausedError{ended}
		}
		return ended, err
	case err != nil:
		return ended, fmt.Errorf("resume consuming: %w", err)
	}
	d.log.InfoContext(ctx, "consuming is resumed", "by", n.Actor, "paused_by", ended.By, "act", n.ID)
	return ended, nil
}
