package dedup

import (
	"cmp"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Memory stands in for the tables of a [Log] without a server, so that a handler is tried in milliseconds. What a
// transition changes, and what it compares before, is the same as in MySQL. It is for one goroutine at a time, keeps no
// events, and answers nobody who lists or counts rows.
type Memory struct {
	now    func() time.Time
	rows   map[Identity]Row
	staged map[Identity]Row // by the last transaction of an effect, until it is committed
}

// NewMemory makes a log over an empty memory. Now takes the place of the database's clock. A transaction that is given
// to a method of the log, as that of an effect, is not used: [Memory.Committed] says when it is committed.
func NewMemory(o LogOptions, now func() time.Time) (*Log, *Memory, error) {
	if err := o.validate(); err != nil {
		return nil, nil, fmt.Errorf("consumer log: %w", err)
	}
	m := &Memory{now: now, rows: map[Identity]Row{}}
	return &Log{o: o, memory: m, clocks: &clocks{made: time.Now()}}, m, nil
}

// Committed says that the last transaction of an effect is committed. One of which nobody has said so when the log is
// next asked to change something is rolled back.
func (m *Memory) Committed() {
	maps.Copy(m.rows, m.staged)
	m.staged = nil
}

// begin begins the transaction of an effect.
func (m *Memory) begin() { m.staged = map[Identity]Row{} }

func (m *Memory) row(l *Log, k Identity) Row {
	r, ok := m.rows[k]
	if !ok {
		return absent(k)
	}
	r.Age = m.now().Sub(r.At).Abs()
	if !r.dueAt.IsZero() {
		r.due = sql.NullInt64{Int64: r.dueAt.Sub(m.now()).Microseconds(), Valid: true}
	}
	l.judge(&r)
	return r
}

func (m *Memory) lookUp(l *Log, keys []Identity) map[Identity]Row {
	found := make(map[Identity]Row, len(keys))
	for _, k := range keys {
		found[k] = m.row(l, k)
	}
	return found
}

// inTx runs f, which calls write without a transaction of an effect.
func (m *Memory) inTx(f func(Execer) error) error {
	m.staged = nil
	before := maps.Clone(m.rows)
	err := f(nil)
	if err != nil {
		m.rows = before
	}
	return err
}

// insert is InsertSuccess.
func (m *Memory) insert(entries []*Entry) error {
	m.begin()
	for _, e := range entries {
		if _, ok := m.rows[e.Identity]; ok {
			return fmt.Errorf("insert %v as success: %w", e.Identity, ErrExists)
		}
		now := m.now()
		r := Row{
			Identity: e.Identity, Version: Version{Status: Success, Attempts: 1}, Remark: e.Came, At: now, CreatedAt: now,
		}
		r.keep(&Entry{MessageID: e.MessageID, BodyHash: e.BodyHash}) // as MySQL, no body
		m.staged[e.Identity] = r
	}
	return nil
}

// hold is Hold.
func (m *Memory) hold(claims []Claim) error {
	m.begin()
	for _, c := range claims {
		if m.rows[c.Identity].Version != c.version() {
			return fmt.Errorf("hold %v: %w", c.Identity, ErrLost)
		}
	}
	return nil
}

// takeBack is TakeBack.
func (m *Memory) takeBack(keys []Identity) {
	for _, k := range keys {
		delete(m.staged, k)
	}
}

// write makes changes, as update and insert write them; in the transaction of an effect they hold once that is
// committed.
func (m *Memory) write(l *Log, tx Execer, run []*change) error {
	into := m.rows
	if tx != nil {
		if m.staged == nil {
			m.begin()
		}
		into = m.staged
	}
	for _, c := range run {
		r := m.row(l, c.key)
		if !l.allows(c, r) {
			return ErrLost
		}
		c.leave(&r, m.now())
		into[c.key] = r
		if c.also != nil {
			_ = m.write(l, tx, []*change{c.also}) // else it is so already
		}
	}
	return nil
}

// allows is what guard writes, of a row that was read.
func (l *Log) allows(c *change, r Row) bool {
	has := func(g guard) bool { return c.step.Guard&g != 0 }
	is := r.Version
	if c.from.Status != Processing && !has(guardTaken) {
		is.Owner = c.from.Owner
	}
	return is == c.from &&
		!(has(guardExpired) && r.Age < l.o.Lease) &&
		!(has(guardDue) && l.untilDue(r) > 0) &&
		!(has(guardLeft) && (r.Attempts >= l.o.MaxAttempts || r.Condemned())) &&
		!(has(guardSpent) && r.Attempts < l.o.MaxAttempts) &&
		!(c.besideOthers() && strings.HasSuffix(r.Owner, MarkAlone))
}

// leave makes of a row, as it is, what the change leaves of it.
func (c *change) leave(r *Row, now time.Time) {
	was := r.Version
	r.Age, r.LeaseLive, r.Due, r.Wait = 0, false, false, 0 // judged when it is read
	if r.due, r.dueAt = (sql.NullInt64{}), (time.Time{}); c.due.Valid {
		r.dueAt = now.Add(time.Duration(c.due.Int64) * time.Microsecond)
	}
	if r.Version = c.to; c.keepsOwner() {
		r.Owner = was.Owner
	}
	if was.Status == Absent {
		r.CreatedAt = now
	}
	switch r.At = now.Add(-c.backdate); {
	case c.asMade:
		r.At = r.CreatedAt
	case c.timed() && time.UnixMicro(*c.at).Before(r.At):
		r.At = time.UnixMicro(*c.at)
	}
	if c.dropBody {
		r.Body, r.Properties = nil, nil
	}
	if c.replace {
		r.MessageID, r.Body, r.Properties, r.BodyHash = "", nil, nil, nil
	}
	if c.entry != nil {
		r.keep(c.entry)
	}
	if c.reason.Valid {
		if r.Reason = c.reason.V; r.Reason == "" {
			r.DeadAt = time.Time{}
		}
	}
	if c.to.Status == Dead {
		r.DeadAt = now
	}
	if c.remark.Valid {
		r.Remark = c.remark.V
	}
}

// keep takes from an entry what the row does not have of its message.
func (r *Row) keep(e *Entry) {
	r.MessageID = cmp.Or(r.MessageID, e.MessageID)
	if r.Body == nil {
		r.Body = e.Body
	}
	if r.Properties == nil {
		r.Properties = e.Properties
	}
	if r.BodyHash == nil && e.BodyHash != ([32]byte{}) {
		r.BodyHash = slices.Clone(e.BodyHash[:])
	}
}
