package dedup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// markTaken begins the owner of a row that was taken over from another log.
const markTaken = "taken/"

// MaxOrigin bounds Taken.Origin, in bytes.
const MaxOrigin = MaxOwner - len(markTaken)

// TakenOver reports whether the row stands as it was taken over from another log: no worker, no replay and no person of
// ours has moved it since.
func (r Row) TakenOver() bool {
	return (r.Status == Success || r.Status == Dead) && r.Replays == 0 && strings.HasPrefix(r.Owner, markTaken)
}

// Origin is the Taken.Origin of a row that was taken over, also of one that somebody has discarded since; else "".
func (r Row) Origin() string {
	origin, ok := strings.CutPrefix(r.Owner, markTaken)
	if !ok {
		return ""
	}
	return origin
}

// Taken is an identity as another log has it, whose consumer worked, or works, without this one.
type Taken struct {
	// Entry is what is known of the message. Body and properties are kept while Status is Dead.
	Entry
	// From is the row as it was looked up: Absent, or one that is TakenOver.
	From Row
	// Status is Success, when the other log says that the effect is there, or Dead, when it left that open: then whether
	// there was an effect is not known, no letter exists, and a person decides.
	Status Status
	// Attempts that the other log counts; what the column does not hold is cut to what it does.
	Attempts int64
	// At is when the other log moved it last; zero, or later than now: now. The retention of success rows counts from it.
	At time.Time
	// Origin tells the row of the other log from all others, 1 to MaxOrigin bytes.
	Origin string
	// Remark is the other log's last word; By who takes it over.
	Remark, By string
}

// ErrOvertaken says that somebody else moved the same waypoint: two go through one log. Whoever gets it has written
// nothing with that call and must end; the other one goes on.
var ErrOvertaken = errors.New("somebody else goes through the same log at this moment")

// TakeOver writes rows as another log has them, and moves the waypoint of the one who reads it there, in one
// transaction: absent identities become success or dead, with ReasonEffectUnknown; ones that are TakenOver and dead
// become success, or have what is known of them renewed. Every other row is somebody's of ours, and no business of this
// call. At most a thousand; no identity may be named twice.
//
// ErrLost: a row is not as From says, and nothing was written: look all up again. ErrOvertaken: see there. ErrUnknown:
// call again from the same waypoint; what is given then is not written if this call was committed after all.
func (l *Log) TakeOver(ctx context.Context, w Waypoint, note []byte, all []Taken) (Waypoint, error) {
	next, err := w.next(note)
	if err != nil {
		return w, fmt.Errorf("take over: %w", err)
	}
	changes, err := changesOf(all, l.taking)
	if err != nil {
		return w, fmt.Errorf("take over: %w", err)
	}
	err = l.inTx(ctx, func(tx Execer) error {
		if err := l.moveWaypoint(ctx, tx, w, next, note); err != nil {
			return err
		}
		return l.applyAll(ctx, tx, changes)
	})
	if errors.Is(err, ErrUnknown) || errors.Is(err, ErrOvertaken) { // perhaps by an earlier call of ours
		stored, _, lookErr := l.readWaypoint(ctx, w.name)
		if lookErr == nil && tokenOf(stored) == tokenOf(next) {
			return w.at(stored), nil
		}
	}
	if err != nil {
		return w, fmt.Errorf("take over %d rows: %w", len(all), err)
	}
	return w.at(next), nil
}

// taking is the change of a row that is taken over. One that is new and success, of which there may be millions, gets
// no line of its story, as in the fast path.
func (l *Log) taking(t Taken) (*change, error) {
	act := actionTakeDone
	if t.Status == Dead {
		act = actionTakeOpen
	}
	from := t.From
	from.Identity = t.Identity
	c, err := l.begin(act, from, checkLength("an origin", t.Origin, MaxOrigin))
	switch {
	case err != nil:
		return nil, err
	case c.to.Status != t.Status:
		return nil, fmt.Errorf("%v: %w: as %v", t.Identity, ErrTransition, t.Status)
	case from.Status != Absent && !from.TakenOver():
		return nil, fmt.Errorf("%v: %w: it is not as it was taken over", t.Identity, ErrTransition)
	}
	at := t.micros()
	c.to.Attempts, c.to.Owner, c.by, c.at = t.attempts(), markTaken+t.Origin, t.By, &at
	if t.Status == Dead {
		c.entry, c.reason = &t.Entry, set(ReasonEffectUnknown)
		c.say(t.Remark)
		return c, nil
	}
	c.reason, c.remark, c.dropBody = set(Reason("")), set(""), true
	if c.silent = from.Status == Absent; c.silent {
		c.entry = &Entry{Identity: t.Identity, BodyHash: t.BodyHash, MessageID: t.MessageID}
	} else {
		c.why = cutText(t.Remark, MaxRemark)
	}
	return c, nil
}

func (t Taken) attempts() int {
	least := int64(0)
	if t.Status == Success {
		least = 1
	}
	return int(min(max(t.Attempts, least), math.MaxInt32))
}

// micros is At in microseconds since 1970; without one it is later than every clock.
func (t Taken) micros() int64 {
	const never = 253_370_764_800_000_000 // the year 9999
	if t.At.IsZero() {
		return never
	}
	return min(max(t.At.UnixMicro(), 0), never)
}
