package dedup

import (
	"strings"
	"time"
)

// statement is SQL in the making, each piece with its arguments.
type statement struct {
	text []byte
	args []any
}

func (s *statement) add(text string, args ...any) {
	s.text = append(s.text, text...)
	s.args = append(s.args, args...)
}

func (s *statement) String() string { return string(s.text) }

// change is one transition of one row, about to happen.
type change struct {
	step     transition
	key      Identity
	from, to Version
	own      bool // to.Owner is known to this call alone: a row in version to is this call's work

	entry    *Entry        // what the row keeps of the message, where it has nothing yet
	replace  bool          // the entry takes the place of what the row has
	dropBody bool          // success needs neither body nor properties
	at       *int64        // when another log moved it, microseconds since 1970; nil: now
	backdate time.Duration // so that a row given back unrun is due at once
	reason   *Reason       // nil: stays as it is; "" clears it and dead_at
	remark   *string       // nil: stays as it is

	asMade bool // the row's time is that of its making

	by, why string // for the event
	silent  bool   // no event: the story says it already

	also *change // made in the same transaction, if nobody has made it yet
}

// keepsOwner reports whether the row's owner stays.
func (c *change) keepsOwner() bool { return c.from.Status != Absent && c.to.Owner == c.from.Owner }

// update writes the conditional statement of a change whose row exists. Every guard is one line. The primary key is
// forced: the guards name the columns of by_status, too, and through that index the statement would wait for rows of
// other identities.
func (l *Log) update(c *change) (s statement) {
	l.set(&s, c)
	s.add(" WHERE group_name = ? AND msg_tag = ? AND msg_key = ?", keyArgs(c.key)...)
	l.guard(&s, c)
	return s
}

// set writes the beginning of an UPDATE, up to its WHERE.
func (l *Log) set(s *statement, c *change) {
	s.add("UPDATE " + l.table + " FORCE INDEX (PRIMARY)")
	s.add(" SET consumer_status = ?", int(c.to.Status))
	s.add(", consumer_times = ?", c.to.Attempts)
	s.add(", replays = ?", c.to.Replays)
	if !c.keepsOwner() {
		s.add(", owner = ?", orNull(c.to.Owner))
	}
	switch {
	case c.asMade:
		s.add(", consumer_timestamp = created_at")
	case c.at != nil:
		s.add(", consumer_timestamp = LEAST(UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, "+microTime+")",
			c.backdate.Microseconds(), *c.at)
	default:
		s.add(", consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", c.backdate.Microseconds())
	}
	l.setColumns(s, c)
}

// age is how long ago a row's last transition was by the database's clock, or how far ahead of it: then the clock has
// gone back since, and nobody can tell. So what is further ahead than a lease or a delay may last is over or due. A
// lease that ends too early costs an attempt, never an effect: whoever held it finds another version, as after a pause.
const age = "ABS(TIMESTAMPDIFF(MICROSECOND, consumer_timestamp, UTC_TIMESTAMP(6)))"

// guard writes what must be true of a row besides its key.
func (l *Log) guard(s *statement, c *change) {
	s.add(" AND consumer_status = ?", int(c.from.Status))
	s.add(" AND consumer_times = ?", c.from.Attempts)
	s.add(" AND replays = ?", c.from.Replays)
	if c.from.Status == Processing || c.step.Guard&guardTaken != 0 {
		s.add(" AND owner <=> ?", orNull(c.from.Owner))
	}
	if c.step.Guard&guardExpired != 0 {
		s.add(" AND "+age+" >= ?", l.o.Lease.Microseconds())
	}
	if c.step.Guard&guardDue != 0 {
		s.add(" AND "+age+" >= ?", l.delay(c.from.Attempts).Microseconds())
	}
	if c.step.Guard&guardLeft != 0 {
		s.add(" AND consumer_times < ?", l.o.MaxAttempts)
	}
	if c.step.Guard&guardLeft != 0 && c.from.Status == Failed {
		s.add(" AND (reason IS NULL OR reason = ?)", ReasonCrashed) // as Row.Condemned
	}
	if c.step.Guard&guardSpent != 0 {
		s.add(" AND consumer_times >= ?", l.o.MaxAttempts)
	}
	if c.step.Action == actionClaim && c.from.Status == Failed && !strings.HasSuffix(c.to.Owner, MarkAlone) {
		s.add(" AND (owner IS NULL OR RIGHT(owner, ?) <> ?)", len(MarkAlone), MarkAlone) // it was read before it was marked
	}
}

// setColumns writes what a change says besides the version. What the row has of its message stays: the first copy is
// the original.
func (l *Log) setColumns(s *statement, c *change) {
	if c.dropBody {
		s.add(", msg_body = NULL, properties = NULL")
	}
	if e := c.entry; e != nil && c.replace {
		s.add(", msg_id = ?, msg_body = ?, properties = ?, body_hash = ?", messageID(e), body(e), properties(e), bodyHash(e))
	} else if e != nil {
		s.add(", msg_id = COALESCE(msg_id, ?)", messageID(e))
		s.add(", msg_body = COALESCE(msg_body, ?)", body(e))
		s.add(", properties = COALESCE(properties, ?)", properties(e))
		s.add(", body_hash = COALESCE(body_hash, ?)", bodyHash(e))
	}
	if c.reason != nil && *c.reason == "" {
		s.add(", reason = NULL, dead_at = NULL")
	}
	if c.reason != nil && *c.reason != "" {
		s.add(", reason = ?", *c.reason)
	}
	if c.to.Status == Dead {
		s.add(", dead_at = UTC_TIMESTAMP(6)")
	}
	if c.remark != nil {
		s.add(", remark = ?", *c.remark)
	}
}

// insert writes the statement of a change from Absent. The primary key is its guard.
func (l *Log) insert(c *change) (s statement) {
	s.add(l.insertHead())
	l.insertValues(&s, c)
	return s
}

func (l *Log) insertHead() string {
	return "INSERT INTO " + l.table + " (group_name, msg_tag, msg_key, msg_id, msg_body, properties, body_hash," +
		" consumer_status, consumer_times, replays, owner, consumer_timestamp, created_at, dead_at, reason, remark) VALUES "
}

func (l *Log) insertValues(s *statement, c *change) {
	s.add("(?, ?, ?", keyArgs(c.key)...)
	s.add(", ?, ?, ?, ?", messageID(c.entry), body(c.entry), properties(c.entry), bodyHash(c.entry))
	s.add(", ?, ?, ?", int(c.to.Status), c.to.Attempts, c.to.Replays)
	s.add(", ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)", orNull(c.to.Owner))
	if c.to.Status == Dead {
		s.add(", UTC_TIMESTAMP(6)")
	} else {
		s.add(", NULL")
	}
	if c.reason != nil {
		s.add(", ?", orNull(string(*c.reason)))
	} else {
		s.add(", NULL")
	}
	remark := ""
	if c.remark != nil {
		remark = *c.remark
	}
	s.add(", ?)", remark)
}

// event writes the statement of a change's line in the story.
func (l *Log) event(c *change) (s statement) {
	s.add(l.eventHead())
	l.eventValues(&s, c)
	return s
}

func (l *Log) eventHead() string {
	return "INSERT INTO " + l.events +
		" (group_name, msg_tag, msg_key, `at`, `from`, `to`, attempt, replays, owner, error, `by`) VALUES "
}

func (l *Log) eventValues(s *statement, c *change) {
	s.add("(?, ?, ?", keyArgs(c.key)...)
	s.add(", UTC_TIMESTAMP(6), ?, ?", statusOrNull(c.from.Status), int(c.to.Status))
	s.add(", ?, ?, ?", c.to.Attempts, c.to.Replays, orNull(c.to.Owner))
	s.add(", ?, ?)", cutText(c.why, MaxRemark), cutText(c.by, MaxBy))
}

// keyArgs passes a key as bytes: as text, MySQL would compare it by a collation.
func keyArgs(k Identity) []any { return []any{[]byte(k.Group), []byte(k.Tag), []byte(k.Key)} }

func messageID(e *Entry) any { return orNull(e.MessageID[:min(len(e.MessageID), MaxMessageID)]) }

func body(e *Entry) any {
	if e.Body == nil {
		return nil
	}
	return cutBytes(e.Body, MaxBody)
}

func properties(e *Entry) any {
	if e.Properties == nil || len(e.Properties) > MaxProperties {
		return nil
	}
	return e.Properties
}

func bodyHash(e *Entry) any {
	if e.BodyHash == ([32]byte{}) {
		return nil
	}
	return e.BodyHash[:]
}

func statusOrNull(s Status) any {
	if s == Absent {
		return nil
	}
	return int(s)
}

// rowsText is the text of a statement over a varying number of rows, made once: head, tuple, "," tuple, …, tail. The
// text of fewer rows is its beginning.
type rowsText struct {
	head, tuple int // lengths
	text        string
	tail        string
}

func newRowsText(head, tuple, tail string, rows int) rowsText {
	text := make([]byte, 0, len(head)+rows*(len(tuple)+1))
	text = append(text, head...)
	for i := range rows {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, tuple...)
	}
	return rowsText{head: len(head), tuple: len(tuple), text: string(text), tail: tail}
}

// of is the statement for n rows, 1 to the number it was made for.
func (r rowsText) of(n int) string { return r.text[:r.head+n*(r.tuple+1)-1] + r.tail }
