package dedup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Waypoint is how far somebody has come who goes through another log, so that he goes on there when he was killed. It
// moves in the transaction of the rows that are written there, by a compare-and-set: of two who go through one log at
// once the slower one finds out, and has written nothing.
type Waypoint struct {
	name, run string
	moves     int
	stored    []byte // the head as the database has it: run and number of the move, length of the note; nil: none yet
}

// What the columns of the meta table hold.
const (
	maxWaypointName = 90 // of 100 bytes
	maxWaypointRun  = 64
	waypointPart    = 255
)

// Waypoint reads a waypoint by its name, 1 to 90 bytes, for a run of 1 to 64 bytes that is unlike every other, and the
// note that stands there; nil when there is none yet.
func (l *Log) Waypoint(ctx context.Context, name, run string) (w Waypoint, note []byte, err error) {
	w = Waypoint{name: name, run: run}
	if err := w.check(); err != nil {
		return w, nil, err
	}
	w.stored, note, err = l.readWaypoint(ctx, name)
	return w, note, err
}

// Waypoints are the notes of all waypoints whose names begin so, 1 to 90 bytes, in the order of the names.
func (l *Log) Waypoints(ctx context.Context, prefix string) (notes [][]byte, err error) {
	if err := checkLength("the beginning of a name", prefix, maxWaypointName); err != nil {
		return nil, err
	}
	names, err := list(ctx, l.db, sqlOf("SELECT name FROM "+metaTable+
		" WHERE LEFT(name, ?) = ? AND name LIKE '%:00000' ORDER BY name", len(prefix), []byte(prefix)), value[string])
	if err != nil {
		return nil, fmt.Errorf("list the waypoints: %w", err)
	}
	for _, name := range names {
		_, note, err := l.readWaypoint(ctx, strings.TrimSuffix(name, ":00000"))
		if err != nil {
			return nil, err
		}
		notes = append(notes, note)
	}
	return notes, nil
}

// check refuses a name that the column does not hold with what comes behind it.
func (w Waypoint) check() error {
	return cmp.Or(checkLength("the name of a waypoint", w.name, maxWaypointName),
		checkLength("the run of a waypoint", w.run, maxWaypointRun))
}

// readWaypoint reads head and note by one statement, so both are of one move.
func (l *Log) readWaypoint(ctx context.Context, name string) (head, note []byte, err error) {
	parts, err := list(ctx, l.db, sqlOf("SELECT value FROM "+metaTable+" WHERE name >= ? AND name < ? ORDER BY name",
		[]byte(name+":"), []byte(name+";")), value[[]byte])
	if err != nil {
		return nil, nil, fmt.Errorf("read how far it came: %w", err)
	}
	if len(parts) == 0 {
		return nil, nil, nil
	}
	head, note = parts[0], bytes.Join(parts[1:], nil)
	size, err := strconv.Atoi(string(head[bytes.LastIndexByte(head, ' ')+1:]))
	switch {
	case err != nil || size < 0:
		return nil, nil, fmt.Errorf("read how far it came: %s holds %q, which is no waypoint", name, head)
	case size > len(note):
		return nil, nil, fmt.Errorf("read how far it came: of %s only %d of %d bytes are there", name, len(note), size)
	}
	return head, note[:size], nil // parts of a longer note may stand behind it
}

// moveWaypoint moves a waypoint inside tx. The first part is written first: its lock makes others wait.
func (l *Log) moveWaypoint(ctx context.Context, tx Execer, w, next Waypoint, note []byte) error {
	moved, err := swapMeta(ctx, tx, w.part(0), w.stored, next.stored)
	if err == nil && !moved {
		err = ErrOvertaken
	}
	if err != nil || len(note) == 0 {
		return err
	}
	s := sqlOf("INSERT INTO " + metaTable + " (name, value) VALUES ")
	for i, part := range slices.Collect(slices.Chunk(note, waypointPart)) {
		s.item(i, "(?, ?)", w.part(i+1), part)
	}
	s.add(" ON DUPLICATE KEY UPDATE value = VALUES(value)")
	if _, err := s.exec(ctx, tx); err != nil {
		return fmt.Errorf("note how far it came: %w", err)
	}
	return nil
}

func (w Waypoint) part(i int) []byte { return fmt.Appendf(nil, "%s:%05d", w.name, i) }

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
	if err := w.check(); err != nil {
		return w, fmt.Errorf("take over: %w", err)
	}
	changes := inOrder(mapped(all, l.taking))
	next := w
	next.moves++
	token := fmt.Appendf(nil, "%s/%d ", w.run, next.moves) // the same one for the same call
	next.stored = fmt.Appendf(nil, "%s%d", token, len(note))
	err := l.inTx(ctx, func(tx Execer) error {
		if err := l.moveWaypoint(ctx, tx, w, next, note); err != nil {
			return err
		}
		return l.applyAll(ctx, tx, changes)
	})
	if errors.Is(err, ErrUnknown) || errors.Is(err, ErrOvertaken) { // perhaps by an earlier call of ours
		stored, _, lookErr := l.readWaypoint(ctx, w.name)
		if lookErr == nil && bytes.HasPrefix(stored, token) {
			next.stored, err = stored, nil
		}
	}
	if err != nil {
		return w, fmt.Errorf("take over %d rows: %w", len(all), err)
	}
	return next, nil
}

// taking is the change of a row that is taken over. One that is new and success, of which there may be millions, gets
// no line of its story, as in the fast path.
func (l *Log) taking(t Taken) *change {
	from := t.From
	from.Identity = t.Identity
	acts := map[Status]action{Success: actionTakeDone, Dead: actionTakeOpen}
	c := l.begin(acts[t.Status], from, checkLength("an origin", t.Origin, MaxOrigin))
	if c.err == nil && from.Status != Absent && !from.TakenOver() {
		c.err = fmt.Errorf("%w: it is not as it was taken over", ErrTransition)
	}
	at := t.micros()
	c.to.Attempts = int(min(max(t.Attempts, 0), math.MaxInt32))
	c.to.Owner, c.by, c.at = markTaken+t.Origin, t.By, &at
	if t.Status == Dead {
		c.entry, c.reason = &t.Entry, set(ReasonEffectUnknown)
		c.say(t.Remark)
		return c
	}
	c.to.Attempts = max(c.to.Attempts, 1)
	c.reason, c.remark = set(Reason("")), set("")
	if c.silent = from.Status == Absent; c.silent {
		c.entry = &Entry{Identity: t.Identity, BodyHash: t.BodyHash, MessageID: t.MessageID}
	} else {
		c.why = cutText(t.Remark, MaxRemark)
	}
	return c
}

// micros is At in microseconds since 1970; without one it is later than every clock.
func (t Taken) micros() int64 {
	const never = 253_370_764_800_000_000 // the year 9999
	if t.At.IsZero() {
		return never
	}
	return min(max(t.At.UnixMicro(), 0), never)
}
