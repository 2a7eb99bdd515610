package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/limits"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
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

// item adds a member of a list, i from 0.
func (s *statement) item(i int, text string, args ...any) {
	if i > 0 {
		s.add(", ")
	}
	s.add(text, args...)
}

// rowsOf repeats what stands for one of n rows.
func rowsOf(row string, n int) string { return strings.Repeat(","+row, n)[1:] }

func (s *statement) String() string { return string(s.text) }

// exec runs the statement and counts the rows that it changed.
func (s statement) exec(ctx context.Context, on Execer) (affected int64, err error) {
	res, err := on.ExecContext(ctx, s.String(), s.args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func sqlOf(text string, args ...any) statement { return statement{[]byte(text), args} }

// list reads all rows of the answer; into says where the columns of one go.
func list[T any](ctx context.Context, on Execer, s statement, into func(*T) []any) ([]T, error) {
	return mysqldb.List(ctx, on, func(rows *sql.Rows) (one T, err error) {
		err = rows.Scan(into(&one)...)
		return one, err
	}, s.String(), s.args...)
}

// value is where a row of one value goes.
func value[T any](v *T) []any { return []any{v} }

// scan reads the answer's only row.
func (s statement) scan(ctx context.Context, on Execer, into ...any) error {
	found, err := list(ctx, on, s, func(*struct{}) []any { return into })
	if err == nil && len(found) == 0 {
		err = sql.ErrNoRows
	}
	return err
}

// wrap says of an error that a function is about to return what it was at.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}

// utc takes microseconds since 1970, and NULL as the zero time; micros takes a number of them.
type (
	utc    struct{ *time.Time }
	micros struct{ *time.Duration }
)

// Scan is called by database/sql.
func (t utc) Scan(v any) error {
	var n sql.NullInt64
	err := n.Scan(v)
	if *t.Time = (time.Time{}); n.Valid {
		*t.Time = time.UnixMicro(n.Int64).UTC()
	}
	return err
}

// Scan is called by database/sql.
func (d micros) Scan(v any) error {
	var n sql.NullInt64
	err := n.Scan(v)
	*d.Duration = time.Duration(n.Int64) * time.Microsecond
	return err
}

// change is one transition of one row, about to happen. Two that differ in nothing but the row's own share an UPDATE:
// see shape.
type change struct {
	step     transition
	was      *Row // as it was read
	key      Identity
	from, to Version

	entry    *Entry           // what the row keeps of the message, where it has nothing yet
	replace  bool             // the entry takes the place of what the row has
	at       *int64           // when another log moved it, microseconds since 1970; nil: now
	backdate time.Duration    // so that a row given back unrun is due at once
	due      sql.NullInt64    // microseconds after which its handler wants a failed row to be due; none: as all others
	reason   sql.Null[Reason] // none: stays as it is; "" clears it and dead_at
	remark   sql.Null[string] // none: stays as it is

	asMade bool // the row's time is that of its making

	by, why string // for the event
	silent  bool   // no event: the row tells, or the story does already

	also *change // made in the same transaction, if nobody has made it yet
	err  error   // why it cannot be made, or was not
}

func (c *change) identity() Identity { return c.key }

func set[T any](v T) sql.Null[T] { return sql.Null[T]{V: v, Valid: true} }

// after has the row be due when d has passed, if that is more than 0: like the retry delays a little earlier, but by
// half a second at most.
func (c *change) after(d time.Duration) {
	if d > 0 {
		c.due = sql.NullInt64{Int64: max(1, (d - min(d/10, time.Second/2)).Microseconds()), Valid: true}
	}
}

// say makes a cause the row's remark and the story's.
func (c *change) say(cause string) {
	c.why = cutText(cause, MaxRemark)
	c.remark = set(c.why)
}

// keepsOwner reports whether the row's owner stays.
func (c *change) keepsOwner() bool { return c.from.Status != Absent && c.to.Owner == c.from.Owner }

// own reports whether to.Owner is known to this call alone: a row in version to is this call's work. A token may reopen
// a row that died with it as its owner.
func (c *change) own() bool {
	return c.step.Guard&guardOwner != 0 || c.step.Action == actionReopen || c.to.Owner != c.from.Owner
}

// timed reports whether the row's time is another log's. A dead row's is that of its death here.
func (c *change) timed() bool { return c.at != nil && c.to.Status != Dead }

// microTime turns microseconds since 1970 into a time; since and a time behind it turn that into them, so that nothing
// depends on the time zone or the time parsing of the connection.
const (
	microTime = "TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND"
	since     = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "
)

// update writes the conditional statement of changes of one shape whose rows exist: the guards are the same for each
// row, and so is all that is written but the remarks. Every guard is one line. The primary key is forced: the guards
// name the columns of by_status, too, and through that index the statement would wait for rows of other identities.
func (l *Log) update(run []*change) (s statement) {
	c := run[0]
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
	case c.timed():
		s.add(", consumer_timestamp = LEAST(UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, "+microTime+")",
			c.backdate.Microseconds(), *c.at)
	default:
		s.add(", consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", c.backdate.Microseconds())
	}
	s.add(", due_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND", c.due)
	c.setMessage(&s)
	switch {
	case c.reason.Valid && c.reason.V == "":
		s.add(", reason = NULL, dead_at = NULL")
	case c.reason.Valid:
		s.add(", reason = ?", c.reason.V)
	}
	if c.to.Status == Dead {
		s.add(", dead_at = UTC_TIMESTAMP(6)")
	}
	setRemarks(&s, run)
	addKeys(&s, mapped(run, (*change).identity))
	l.guard(&s, c)
	return s
}

// setMessage writes what a change says of the message. What the row has of it stays: the first copy is the original.
func (c *change) setMessage(s *statement) {
	if c.to.Status == Success { // needs neither
		s.add(", msg_body = NULL, properties = NULL")
	}
	if e := c.entry; e != nil && c.replace {
		s.add(", msg_id = ?, msg_body = ?, properties = ?, body_hash = ?", messageArgs(e)...)
	} else if e != nil {
		s.add(", msg_id = COALESCE(msg_id, ?), msg_body = COALESCE(msg_body, ?), properties = COALESCE(properties, ?)"+
			", body_hash = COALESCE(body_hash, ?)", messageArgs(e)...)
	}
}

// setRemarks writes to each row of a run its own remark.
func setRemarks(s *statement, run []*change) {
	switch {
	case !run[0].remark.Valid:
	case len(run) == 1:
		s.add(", remark = ?", run[0].remark.V)
	default:
		s.add(", remark = ELT(FIELD(msg_key")
		for _, c := range run {
			s.add(", ?", []byte(c.key.Key))
		}
		s.add(")")
		for _, c := range run {
			s.add(", ?", c.remark.V)
		}
		s.add(")")
	}
}

// age is how long ago a row's last transition was by the database's clock, or how far ahead of it: then the clock has
// gone back since, and nobody can tell. So what is further ahead than a lease or a delay may last is over or due. A
// lease that ends too early costs an attempt, never an effect: whoever held it finds another version, as after a pause.
const age = "ABS(TIMESTAMPDIFF(MICROSECOND, consumer_timestamp, UTC_TIMESTAMP(6)))"

// waits is true of a failed row that is not due, as untilDue has it.
const waits = "COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) BETWEEN 1 AND ?, " + age + " < ?)"

// besideOthers reports whether a failed row is taken up, or its failure written down, as if its message ran beside
// others: not when it has been marked since it was read.
func (c *change) besideOthers() bool {
	switch c.step.Action {
	case actionInsert, actionBlame, actionClaim, actionCondemn:
		return c.from.Status == Failed && !strings.HasSuffix(c.to.Owner, MarkAlone)
	}
	return false
}

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
		s.add(" AND NOT "+waits, limits.MaxDelay.High.Microseconds(), l.delay(c.from.Attempts).Microseconds())
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
	if c.besideOthers() {
		s.add(" AND (owner IS NULL OR RIGHT(owner, ?) <> ?)", len(MarkAlone), MarkAlone) // it was read before it was marked
	}
}

// insert writes the statement of changes from Absent. The primary key is its guard.
func (l *Log) insert(run []*change) (s statement) {
	s.add("INSERT INTO " + l.table + " (group_name, msg_tag, msg_key, msg_id, msg_body, properties, body_hash," +
		" consumer_status, consumer_times, replays, owner, reason, remark, consumer_timestamp, created_at, dead_at," +
		" due_at) VALUES ")
	for i, c := range run {
		s.item(i, "(?, ?, ?", keyArgs(c.key)...)
		s.add(", ?, ?, ?, ?", messageArgs(c.entry)...)
		s.add(", ?, ?, ?", int(c.to.Status), c.to.Attempts, c.to.Replays)
		s.add(", ?, ?, ?", orNull(c.to.Owner), orNull(string(c.reason.V)), c.remark.V)
		for _, others := range []bool{c.timed(), c.at != nil} {
			if others {
				s.add(", LEAST(UTC_TIMESTAMP(6), "+microTime+")", *c.at)
			} else {
				s.add(", UTC_TIMESTAMP(6)")
			}
		}
		if c.to.Status == Dead {
			s.add(", UTC_TIMESTAMP(6)")
		} else {
			s.add(", NULL")
		}
		s.add(", UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)", c.due)
	}
	return s
}

// event writes the statement of the changes' lines in the story.
func (l *Log) event(run ...*change) (s statement) {
	s.add("INSERT INTO " + l.events +
		" (group_name, msg_tag, msg_key, `at`, `from`, `to`, attempt, replays, owner, error, `by`) VALUES ")
	for i, c := range run {
		s.item(i, "(?, ?, ?", keyArgs(c.key)...)
		s.add(", UTC_TIMESTAMP(6), NULLIF(?, -1), ?", int(c.from.Status), int(c.to.Status))
		s.add(", ?, ?, ?", c.to.Attempts, c.to.Replays, orNull(c.to.Owner))
		s.add(", ?, ?)", cutText(c.why, MaxRemark), cutText(c.by, MaxBy))
	}
	return s
}

// keyIs finds one row; addKeys writes the condition for many. MariaDB and MySQL read it as ranges of
// the primary key.
const keyIs = " WHERE group_name = ? AND msg_tag = ? AND msg_key = ?"

func addKeys(s *statement, keys []Identity) {
	switch n := sameTag(keys); {
	case n == 1 && len(keys) == 1:
		s.add(keyIs, keyArgs(keys[0])...)
	case n == len(keys):
		s.add(" WHERE group_name = ? AND msg_tag = ? AND msg_key IN (", []byte(keys[0].Group), []byte(keys[0].Tag))
		for i, k := range keys {
			s.item(i, "?", []byte(k.Key))
		}
		s.add(")")
	default:
		s.add(" WHERE (group_name, msg_tag, msg_key) IN (")
		for i, k := range keys {
			s.item(i, "(?, ?, ?)", keyArgs(k)...)
		}
		s.add(")")
	}
}

// sameTag is how many of keys, from the first on, share its group and tag.
func sameTag(keys []Identity) (n int) {
	for n < len(keys) && keys[n].Group == keys[0].Group && keys[n].Tag == keys[0].Tag {
		n++
	}
	return n
}

// keyArgs passes a key as bytes: as text, MySQL would compare it by a collation.
func keyArgs(k Identity) []any { return []any{[]byte(k.Group), []byte(k.Tag), []byte(k.Key)} }

// messageArgs is what a row keeps of a message: id, body, properties and hash.
func messageArgs(e *Entry) []any {
	args := []any{messageID(e), nil, nil, bodyHash(e)}
	if e.Body != nil {
		args[1] = e.Body[:min(len(e.Body), MaxBody)]
	}
	if e.Properties != nil && len(e.Properties) <= MaxProperties {
		args[2] = e.Properties
	}
	return args
}

func messageID(e *Entry) any { return orNull(e.MessageID[:min(len(e.MessageID), MaxMessageID)]) }

func bodyHash(e *Entry) any {
	if e.BodyHash == ([32]byte{}) {
		return nil
	}
	return e.BodyHash[:]
}
