package dedup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Cooling says when a dead row is due to be reopened by itself.
type Cooling struct {
	Reasons []Reason // why it is dead: one of them
	// After is the pause after the row died for the first time; it doubles with every replay, up to Most.
	After, Most time.Duration
	// MaxReplays is how often a row may be reopened; 0: any number of times. One that was reopened so often is due once
	// more, to be marked as parked.
	MaxReplays int
	// Begun, if set, begins the owner of the rows that this cooling reopens. One that still stands as it was reopened
	// after After (ten minutes at least) is due again, if its letter is still there: nothing was sent, because RabbitMQ
	// was away or the process died.
	Begun string
}

// begunAfter is how long a reopened row is left to the daemons before its letter counts as never sent.
const begunAfter = 10 * time.Minute

// maxDoublings keeps the pause within 64 bits: After is at most a month.
const maxDoublings = 20

// Pause is how long a row that was reopened so often stays dead.
func (c Cooling) Pause(replays int) time.Duration {
	if replays > maxDoublings || c.After > c.Most>>replays {
		return max(c.Most, c.After)
	}
	return c.After << replays
}

// Due reports whether the row, as it was read, is due.
func (c Cooling) Due(r Row) bool {
	if r.Status == Failed {
		return c.Begun != "" && r.Attempts == 0 && strings.HasPrefix(r.Owner, c.Begun) && r.Age >= max(c.After, begunAfter)
	}
	return r.Status == Dead && slices.Contains(c.Reasons, r.Reason) && r.Age >= c.Pause(r.Replays) &&
		(c.MaxReplays == 0 || r.Replays < c.MaxReplays || !strings.HasPrefix(r.Remark, parked))
}

// CountDue is how many rows of a group are due, limit at most, by the database's clock. It reads the dead rows that are
// old enough for the first pause.
func (l *Log) CountDue(ctx context.Context, group string, c Cooling, limit int) (n int, err error) {
	of := func(status Status) (s statement) {
		s.add("SELECT 1 FROM "+l.table+" FORCE INDEX (by_status) WHERE group_name = ?", []byte(group))
		s.add(" AND consumer_status = ?", int(status))
		return s
	}
	s, most := of(Dead), max(c.Most, c.After)
	old(&s, c.After)
	s.add(" AND "+age+" >= LEAST(? << LEAST(replays, ?), ?)", c.After.Microseconds(), maxDoublings, most.Microseconds())
	among(&s, "reason", c.Reasons)
	if c.MaxReplays > 0 {
		s.add(" AND (replays < ? OR remark NOT LIKE ?)", c.MaxReplays, parked+"%")
	}
	if n, err = l.count(ctx, s, limit); err != nil {
		return 0, fmt.Errorf("count the dead rows that are due: %w", err)
	}
	if c.Begun == "" || n >= limit {
		return n, nil
	}
	s = of(Failed)
	s.add(" AND consumer_times = 0 AND owner LIKE ?", []byte(c.Begun+"%"))
	old(&s, max(c.After, begunAfter))
	begun, err := l.count(ctx, s, limit-n)
	if err != nil {
		return 0, fmt.Errorf("count the rows that were reopened in vain: %w", err)
	}
	return n + begun, nil
}

// old writes the condition that a row's age is d or more, so that an index on its time can be used.
func old(s *statement, d time.Duration) {
	s.add(" AND (consumer_timestamp <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", d.Microseconds())
	s.add(" OR consumer_timestamp >= UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)", d.Microseconds())
}
