package dedup

import (
	"context"
	"time"
)

// LetterLimit is how many letters the daemons that consume a group's queue may publish, all together.
type LetterLimit struct {
	Group, Queue string
	// Most letters within Window, or as many as messages of the group were applied in that time if these are more. A
	// window begins with its first letter.
	Most   int
	Window time.Duration
	// Pause is how long nobody gets more than that once somebody has asked for more; then a window begins anew.
	Pause time.Duration
}

// letterNote is a window as the meta table has it; times are microseconds since 1970.
type letterNote struct {
	Since   int64 `json:"since"`
	Letters int   `json:"letters"`
	Applied int   `json:"applied"`         // as many were found when that was looked for last
	Until   int64 `json:"until,omitempty"` // more was asked for: the window ends then
}

// ReserveLetters asks for leave to publish n letters, and returns for how many it is given. When these are fewer, the
// limit is reached, and holds for the time that is returned, by the database's clock. Leave that is not used is not
// given back. A call whose answer was lost may be repeated: what it may have taken is lost to the window.
func (l *Log) ReserveLetters(ctx context.Context, limit LetterLimit, n int) (got int, holds time.Duration, err error) {
	defer wrap(&err, "reserve %d letters of queue %s", n, limit.Queue)
	for moved := false; err == nil && !moved; { // whoever is overtaken by another daemon looks anew
		got, holds, moved, err = l.reserveLetters(ctx, limit, n)
	}
	if err != nil {
		return 0, 0, err
	}
	return got, holds, nil
}

func (l *Log) reserveLetters(
	ctx context.Context, limit LetterLimit, n int,
) (got int, holds time.Duration, moved bool, err error) {
	var window letterNote
	name := l.noteName("letters", limit.Group, limit.Queue)
	stored, at, err := l.readNote(ctx, l.db, name, &window)
	if err != nil {
		return 0, 0, false, err
	}
	before := window
	now, pause := at.UnixMicro(), limit.Pause.Microseconds()
	end := window.Since + limit.Window.Microseconds()
	if window.Until > 0 {
		end = window.Until
	}
	// The clock was set back. A statement's time is taken before it reads: others' notes may be a moment later than that.
	setBack := now+1e6 < max(window.Since, window.Until-pause)
	if now >= end || setBack {
		window = letterNote{Since: now}
	}
	if all := window.Letters + n; all > max(limit.Most, window.Applied) {
		if window.Applied, err = l.appliedWithin(ctx, limit.Group, limit.Window, 2*all); err != nil {
			return 0, 0, false, err
		}
	}
	got = min(n, max(0, max(limit.Most, window.Applied)-window.Letters))
	window.Letters += got
	if got < n {
		if window.Until == 0 {
			window.Until = now + pause
		}
		holds = time.Duration(window.Until-now) * time.Microsecond
	}
	if window == before && stored != nil { // nothing to write, and MySQL would count no row
		return got, holds, true, nil
	}
	moved, err = l.writeNote(ctx, l.db, name, stored, window)
	return got, holds, moved, err
}

// appliedWithin counts a group's messages that were applied within a time until now, most at most.
func (l *Log) appliedWithin(ctx context.Context, group string, window time.Duration, most int) (int, error) {
	return l.count(ctx, sqlOf("SELECT 1 FROM "+l.table+" FORCE INDEX (by_status) WHERE consumer_status = ? AND "+
		"consumer_timestamp > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AND group_name = ?", int(Success),
		window.Microseconds(), []byte(group)), most)
}
