package dedup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
	var fresh []*Taken
	var moved []*change
	for i := range all {
		t := &all[i]
		c, err := l.taking(t)
		if err != nil {
			return w, fmt.Errorf("take over %v: %w", t.Identity, err)
		}
		if t.From.Status == Absent {
			fresh = append(fresh, t)
		} else {
			moved = append(moved, c)
		}
	}
	slices.SortFunc(fresh, func(a, b *Taken) int { return a.Identity.Compare(b.Identity) })
	err = l.inTx(ctx, func(tx Execer) error {
		if err := l.moveWaypoint(ctx, tx, w, next, note); err != nil {
			return err
		}
		if err := l.insertAllTaken(ctx, tx, fresh); err != nil {
			return err
		}
		if len(moved) == 0 {
			return nil
		}
		slices.SortFunc(moved, func(a, b *change) int { return a.key.Compare(b.key) })
		return l.applyMany(ctx, tx, moved)
	})
	switch {
	case errors.Is(err, errShort), errors.Is(err, ErrExists):
		err = ErrLost
	case errors.Is(err, ErrUnknown), errors.Is(err, ErrOvertaken): // perhaps by an earlier call of ours
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

// taking is the change of a row that is taken over.
func (l *Log) taking(t *Taken) (*change, error) {
	if t.Origin == "" || len(t.Origin) > MaxOrigin {
		return nil, fmt.Errorf("an origin of %d bytes: it must have 1 to %d", len(t.Origin), MaxOrigin)
	}
	act := actionTakeDone
	if t.Status == Dead {
		act = actionTakeOpen
	}
	from := t.From
	from.Identity = t.Identity
	c, err := l.begin(act, from)
	if err != nil {
		return nil, err
	}
	if c.to.Status = c.step.To; c.to.Status != t.Status {
		return nil, fmt.Errorf("%w: as %v", ErrTransition, t.Status)
	}
	if from.Status != Absent && !from.TakenOver() {
		return nil, fmt.Errorf("%w: it is not as it was taken over", ErrTransition)
	}
	c.to.Attempts, c.to.Owner = t.attempts(), markTaken+t.Origin
	c.by, c.why = t.By, cutText(t.Remark, MaxRemark)
	switch t.Status {
	case Success:
		none, at := Reason(""), t.micros()
		remark := ""
		c.reason, c.remark, c.at, c.dropBody = &none, &remark, &at, true
	case Dead:
		c.remark, c.entry = &c.why, &t.Entry
	}
	return c, nil
}

func (t *Taken) attempts() int {
	least := int64(0)
	if t.Status == Success {
		least = 1
	}
	return int(min(max(t.Attempts, least), math.MaxInt32))
}

// micros is At in microseconds since 1970; without one it is later than every clock.
func (t *Taken) micros() int64 {
	const never = 253_370_764_800_000_000 // the year 9999
	if t.At.IsZero() {
		return never
	}
	return min(max(t.At.UnixMicro(), 0), never)
}

// insertAllTaken inserts rows that are sorted by key. Those that are dead get a line of their story; the others, of
// which there may be millions, do not, as in the fast path.
func (l *Log) insertAllTaken(ctx context.Context, tx Execer, fresh []*Taken) error {
	for rest := fresh; len(rest) > 0; {
		n := chunkOf(len(rest), func(i int) int { return rest[i].size() })
		if err := l.insertTakenRows(ctx, tx, rest[:n]); err != nil {
			return fmt.Errorf("insert %d rows from %v: %w", n, rest[0].Identity, err)
		}
		rest = rest[n:]
	}
	return nil
}

// size is how many bytes a row takes in the statements at most.
func (t *Taken) size() int {
	n := t.keySize() + 2*(MaxOwner+MaxReason)
	if t.Status == Dead {
		n += 2*min(len(t.Body), MaxBody) + 2*min(len(t.Properties), MaxProperties) + 4*min(len(t.Remark), MaxRemark)
	}
	return n
}

func (l *Log) insertTakenRows(ctx context.Context, tx Execer, rows []*Taken) error {
	args := make([]any, 0, 16*len(rows))
	var events statement
	for _, t := range rows {
		at, owner := t.micros(), markTaken+t.Origin
		args = append(append(args, keyArgs(t.Identity)...), messageID(&t.Entry))
		if t.Status == Success {
			args = append(args, nil, nil, bodyHash(&t.Entry), int(Success), t.attempts(), []byte(owner), false, at, at, false,
				nil, "")
			continue
		}
		remark := cutText(t.Remark, MaxRemark)
		args = append(args, body(&t.Entry), properties(&t.Entry), bodyHash(&t.Entry), int(Dead), t.attempts(),
			[]byte(owner), true, at, at, true, string(ReasonEffectUnknown), remark)
		if len(events.text) == 0 {
			events.add(l.eventHead())
		} else {
			events.add(", ")
		}
		l.eventValues(&events, &change{
			key: t.Identity, from: Version{Status: Absent}, to: Version{Dead, t.attempts(), 0, owner}, by: t.By, why: remark,
		})
	}
	if err := l.insertRows(ctx, tx, l.insertTaken.of(len(rows)), args); err != nil {
		return err
	}
	if len(events.text) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, events.String(), events.args...); err != nil {
		return fmt.Errorf("write their events: %w", err)
	}
	return nil
}
