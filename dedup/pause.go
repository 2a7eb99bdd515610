package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Pause is a person's word that the daemons of a group take nothing from a queue until it ends.
type Pause struct {
	ID  string // of the act in which it was ordered
	By  string // who, at most MaxBy characters
	Why string // at most MaxPauseWhy characters
	// By the database's clock.
	Since, Until time.Time
	// Left is the time until its end by the database's clock, as it was read; 0 when there is no pause, or it is over.
	Left time.Duration
}

// MaxPauseWhy is how many characters of a pause's reason every daemon is told; the act has all of it.
const MaxPauseWhy = 250

// String says who paused, until when, and why.
func (p Pause) String() string {
	return fmt.Sprintf("paused by %s until %s: %s", p.By, p.Until.UTC().Format(time.RFC3339), p.Why)
}

// ErrPaused says that a pause stands already, ErrNotPaused that none does, or not the one that was named.
var (
	ErrPaused    = errors.New("consuming is paused already")
	ErrNotPaused = errors.New("consuming is not paused, or by another order than was seen")
)

// pauseNote is a pause as the meta table has it; times are microseconds since 1970.
type pauseNote struct {
	ID    string `json:"id"`
	By    string `json:"by"`
	Why   string `json:"why"`
	Since int64  `json:"since"`
	Until int64  `json:"until"`
}

// Paused reads the pause of a group's queue. It is one read by primary key.
func (l *Log) Paused(ctx context.Context, group, queue string) (Pause, error) {
	p, _, _, err := l.readPause(ctx, l.db, group, queue)
	return p, err
}

// SetPause pauses for a time from now, inside tx: p has ID, By and Why. A pause that stands is replaced only if instead
// names it, else ErrPaused with the pause that stands. Another one who pauses at the same moment makes one of the two
// fail with ErrPaused.
func (l *Log) SetPause(
	ctx context.Context, tx Execer, group, queue string, p Pause, lasts time.Duration, instead string,
) (Pause, error) {
	now, stored, at, err := l.readPause(ctx, tx, group, queue)
	if err != nil {
		return Pause{}, err
	}
	if now.Left > 0 && now.ID != instead {
		return now, ErrPaused
	}
	p.By, p.Why = cutText(p.By, MaxBy), cutText(p.Why, MaxPauseWhy)
	p.Since, p.Until, p.Left = at, at.Add(lasts), lasts
	return p, l.writePause(ctx, tx, group, queue, stored, pauseNote{
		ID: p.ID, By: p.By, Why: p.Why, Since: p.Since.UnixMicro(), Until: p.Until.UnixMicro(),
	}, ErrPaused)
}

// EndPause ends a pause now, inside tx: the one with this id, or whichever stands if id is empty. It returns what it
// ended, or ErrNotPaused with what stands.
func (l *Log) EndPause(ctx context.Context, tx Execer, group, queue, id string) (Pause, error) {
	p, stored, _, err := l.readPause(ctx, tx, group, queue)
	if err != nil {
		return p, err
	}
	if p.Left == 0 || id != "" && p.ID != id {
		return p, ErrNotPaused
	}
	return p, l.writePause(ctx, tx, group, queue, stored, pauseNote{}, ErrNotPaused)
}

// readPause also returns the stored text, nil when there is none, and the database's time.
func (l *Log) readPause(
	ctx context.Context, on Execer, group, queue string,
) (p Pause, stored []byte, now time.Time, err error) {
	defer wrap(&err, "look whether consuming is paused")
	var n pauseNote
	stored, now, err = l.readNote(ctx, on, l.noteName("pause", group, queue), &n)
	if left := time.UnixMicro(n.Until).Sub(now); err == nil && left > 0 {
		p = Pause{
			ID: n.ID, By: n.By, Why: n.Why, Since: time.UnixMicro(n.Since).UTC(), Until: time.UnixMicro(n.Until).UTC(),
			Left: left,
		}
	}
	return p, stored, now, err
}

// writePause writes a note if the row is as it was read; else the error is lost.
func (l *Log) writePause(
	ctx context.Context, tx Execer, group, queue string, stored []byte, n pauseNote, lost error,
) error {
	moved, err := l.writeNote(ctx, tx, l.noteName("pause", group, queue), stored, n)
	if err == nil && !moved {
		err = lost
	}
	return err
}

// Now is the time by the database's clock.
func (l *Log) Now(ctx context.Context) (now time.Time, err error) {
	defer wrap(&err, "ask the database for the time")
	err = sqlOf("SELECT "+since+"UTC_TIMESTAMP(6))").scan(ctx, l.db, utc{&now})
	return now, err
}

// ActTable and OnceTable are where internal/operator keeps what people did, and the answers that are given once. Their
// statements are its own.
func (l *Log) ActTable() string { return "`" + l.o.Table + "_act`" }

// OnceTable is said beside ActTable.
func (l *Log) OnceTable() string { return "`" + l.o.Table + "_once`" }
