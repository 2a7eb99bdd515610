package dedup

import (
	"cmp"
	"database/sql"
	"fmt"
	"maps"
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

// in is where a change is written: in the transaction of an effect it holds once that is committed.
func (m *Memory) in(tx Execer) map[Identity]Row {
	switch {
	case tx == nil:
		return m.rows
	case m.staged == nil:
		m.begin()
	}
	return m.staged
}

// begin begins the transaction of an effect.
func (m *Memory) begin() map[Identity]Row {
	m.staged = map[Identity]Row{}
	return m.staged
}

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

// insert is InsertSuccess. As MySQL it keeps no body.
func (m *Memory) insert(l *Log, entries []*Entry) error {
	err := m.write(l, m.begin(), mapped(entries, func(e *Entry) *change {
		c := l.begin(actionInsert, absent(e.Identity))
		c.to.Attempts, c.remark = 1, set(e.Came)
		c.entry = &Entry{MessageID: e.MessageID, BodyHash: e.BodyHash}
		return c
	}))
	if err != nil {
		return fmt.Errorf("insert %d rows as success from %v: %w", len(entries), entries[0].Identity, ErrExists)
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

// write makes changes, as update and insert write them.
func (m *Memory) write(l *Log, into map[Identity]Row, run []*change) error {
	for _, c := range run {
		r := m.row(l, c.key)
		if !l.allows(c, r) {
			return ErrLost
		}
		c.leave(&r)
		c.keep(&r, m.now())
		into[c.key] = r
		if c.also != nil {
			_ = m.write(l, into, []*change{c.also}) // else it is so already
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

// keep is what a change leaves of a row's message and times.
func (c *change) keep(r *Row, now time.Time) {
	if c.from.Status == Absent {
		r.CreatedAt = now
	}
	switch r.At = now.Add(-c.backdate); {
	case c.asMade:
		r.At = r.CreatedAt
	case c.timed() && time.UnixMicro(*c.at).Before(r.At):
		r.At = time.UnixMicro(*c.at)
	}
	if r.dueAt = (time.Time{}); c.due.Valid {
		r.dueAt = now.Add(micro(c.due.Int64))
	}
	switch {
	case c.to.Status == Dead:
		r.DeadAt = now
	case c.reason.Valid && c.reason.V == "":
		r.DeadAt = time.Time{}
	}
	if c.to.Status == Success {
		r.Body, r.Properties = nil, nil
	}
	if c.replace {
		r.MessageID, r.Body, r.Properties = "", nil, nil
	}
	if e := c.entry; e != nil {
		r.MessageID = cmp.Or(r.MessageID, e.MessageID)
		if r.Body == nil {
			r.Body = e.Body
		}
		if r.Properties == nil {
			r.Properties = e.Properties
		}
	}
}
