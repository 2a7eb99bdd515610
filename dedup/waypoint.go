package dedup

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Waypoint is how far somebody has come who goes through another log, so that he goes on there when he was killed. It
// moves in the transaction of the rows that are written there, by a compare-and-set: of two who go through one log at
// once the slower one finds out, and has written nothing.
type Waypoint struct {
	name, run string
	moves     int
	stored    string // the head as the database has it: token and length of the note; "" when there is none yet
}

// What the columns of the meta table hold.
const (
	maxWaypointName = 90 // of 100 bytes
	maxWaypointRun  = 64
	waypointPart    = 255
)

// Waypoint reads a waypoint by its name, 1 to 90 bytes, for a run of 1 to 64 bytes that is unlike every other, and the
// note that stands there; nil when there is none yet.
func (l *Log) Waypoint(ctx context.Context, name, run string) (Waypoint, []byte, error) {
	w := Waypoint{name: name, run: run}
	if err := w.check(); err != nil {
		return w, nil, err
	}
	stored, note, err := l.readWaypoint(ctx, name)
	if err != nil {
		return w, nil, fmt.Errorf("read how far it came: %w", err)
	}
	w.stored = stored
	return w, note, nil
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
			return nil, fmt.Errorf("read how far it came: %w", err)
		}
		notes = append(notes, note)
	}
	return notes, nil
}

// next is the head behind the next move: the same one for the same call.
func (w Waypoint) next(note []byte) (string, error) {
	return fmt.Sprintf("%s/%d %d", w.run, w.moves+1, len(note)), w.check()
}

// tokenOf is a head without the length: it names the move.
func tokenOf(head string) string { return head[:max(0, strings.LastIndexByte(head, ' '))] }

// check refuses a name that the column does not hold with what comes behind it.
func (w Waypoint) check() error {
	return cmp.Or(checkLength("the name of a waypoint", w.name, maxWaypointName),
		checkLength("the run of a waypoint", w.run, maxWaypointRun))
}

// at is the waypoint after its move to a head.
func (w Waypoint) at(head string) Waypoint {
	return Waypoint{name: w.name, run: w.run, moves: w.moves + 1, stored: head}
}

// readWaypoint reads head and note by one statement, so both are of one move.
func (l *Log) readWaypoint(ctx context.Context, name string) (head string, note []byte, err error) {
	parts, err := list(ctx, l.db, sqlOf("SELECT value FROM "+metaTable+" WHERE name >= ? AND name < ? ORDER BY name",
		[]byte(name+":"), []byte(name+";")), value[[]byte])
	if err != nil || len(parts) == 0 {
		return "", nil, err
	}
	head, note = string(parts[0]), bytes.Join(parts[1:], nil)
	size, err := strconv.Atoi(head[strings.LastIndexByte(head, ' ')+1:])
	switch {
	case err != nil || size < 0:
		return "", nil, fmt.Errorf("%s holds %q, which is no waypoint", name, head)
	case size > len(note):
		return "", nil, fmt.Errorf("of %s only %d of %d bytes are there", name, len(note), size)
	}
	return head, note[:size], nil // parts of a longer note may stand behind it
}

// moveWaypoint moves a waypoint inside tx. The first part is written first: its lock makes others wait.
func (l *Log) moveWaypoint(ctx context.Context, tx Execer, w Waypoint, next string, note []byte) error {
	var was []byte
	if w.stored != "" {
		was = []byte(w.stored)
	}
	moved, err := swapMeta(ctx, tx, w.part(0), was, []byte(next))
	if err == nil && !moved {
		err = ErrOvertaken
	}
	if err != nil || len(note) == 0 {
		return err
	}
	s, i := sqlOf("INSERT INTO "+metaTable+" (name, value) VALUES "), 0
	for part := range slices.Chunk(note, waypointPart) {
		s.item(i, "(?, ?)", w.part(i+1), part)
		i++
	}
	s.add(" ON DUPLICATE KEY UPDATE value = VALUES(value)")
	if _, err := s.exec(ctx, tx); err != nil {
		return fmt.Errorf("note how far it came: %w", err)
	}
	return nil
}

func (w Waypoint) part(i int) []byte { return fmt.Appendf(nil, "%s:%05d", w.name, i) }
