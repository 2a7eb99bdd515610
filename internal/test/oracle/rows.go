package oracle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
)

// The statuses of a row, as stored.
const (
	processing = 0
	success    = 1
	failed     = 2
	dead       = 3
	discarded  = 4
)

// rowKey is an identity within the group.
type rowKey struct{ tag, name string }

// row is what the oracle wants of a row of the consumer log.
type row struct {
	status   int
	attempts int
	hash     []byte // nil when the row does not know it
	reason   dedup.Reason
}

func (w World) readRows(ctx context.Context) (map[rowKey]row, error) {
	all := map[rowKey]row{}
	rows, err := w.DB.QueryContext(ctx, "SELECT msg_tag, msg_key, consumer_status, consumer_times, body_hash, "+
		"COALESCE(reason, '') FROM `"+w.LogTable+"` WHERE group_name = ?", []byte(w.Group))
	err = scanAll(rows, err, func() error {
		var k rowKey
		var r row
		if err := rows.Scan(&k.tag, &k.name, &r.status, &r.attempts, &r.hash, &r.reason); err != nil {
			return err
		}
		all[k] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the consumer log: %w", err)
	}
	return all, nil
}

// ownRow is the row that speaks of a message: the one under its key, unless that is another body's; then the one under
// which the conflict is filed.
func ownRow(rows map[rowKey]row, n name, m *message) (row, bool) {
	if m.nameless {
		own, ok := rows[ownKey(rows, n, m)]
		return own, ok
	}
	r, ok := rows[rowKey{n.key.Tag, n.key.Key}]
	if ok && (len(r.hash) == 0 || bytes.Equal(r.hash, n.hash[:])) {
		return r, true
	}
	r, ok = rows[rowKey{m.conflict.Tag, m.conflict.Key}]
	return r, ok
}

// ownKey is the key of ownRow's row, or of the row that the message would get.
func ownKey(rows map[rowKey]row, n name, m *message) rowKey {
	if m.nameless {
		if len(m.rows) == 0 {
			return rowKey{}
		}
		return m.rows[0]
	}
	own := rowKey{n.key.Tag, n.key.Key}
	if r, ok := rows[own]; ok && len(r.hash) > 0 && !bytes.Equal(r.hash, n.hash[:]) {
		return rowKey{m.conflict.Tag, m.conflict.Key}
	}
	return own
}

// nameAll finds the rows of the nameless messages. Two of a message say that daemons have called it by two names, which
// is wrong unless its fate is open: a message may be readable once and not again.
func (r *Report) nameAll(l *Ledger, rows map[rowKey]row) {
	for _, m := range l.messages {
		m.rows = nil
	}
	for k, own := range rows {
		if len(own.hash) != sha256.Size {
			continue
		}
		if m := l.messages[name{hash: [sha256.Size]byte(own.hash)}]; m != nil { // only a nameless one has no key
			m.rows = append(m.rows, k)
		}
	}
	for n, m := range l.messages {
		if len(m.rows) > 1 && m.fate != (Fate{}) {
			r.find("two names", "the message with body %x has the rows %v", n.hash, m.rows)
		}
	}
}

// checkMessages is rule 2 and rule 6: each message by its row.
func (r *Report) checkMessages(l *Ledger, rows map[rowKey]row, q *queues, allow Allowance) {
	r.Attempt, r.Acknowledged = l.attempt, l.ack
	for n, m := range l.messages {
		own, exists := ownRow(rows, n, m)
		if !exists {
			own.status = -1
		}
		key := ownKey(rows, n, m)
		ended := true
		switch {
		case own.status == success:
			r.Applied++
			if m.acked == 0 {
				r.Recovered++
			}
		case own.status == dead:
			r.DeadLettered++
			r.DeadByReason[own.reason]++
			if q.letters[key] == 0 {
				r.find("letter missing", "message %v is dead (%s), but the dead-letter queue does not hold it", n.key, own.reason)
			}
		case own.status == discarded:
			r.Discarded++
		case q.copies(n, m) > 0:
			ended = false
			r.Queued++
			if !allow.Queued {
				r.find("still queued", "message %v, its row is %+v", n.key, own)
			}
		case m.acked > 0:
			ended = false
			r.Lost++
			r.find("lost", "message %v was confirmed %d times and is in no queue; its row is %+v", n.key, m.acked, own)
		default:
			ended = false // never confirmed and never seen: the producer knows
		}
		if ended {
			r.DuplicatesAbsorbed += max(0, m.acked-1)
			r.Stale += q.copies(n, m)
		}
		r.checkFate(n, m, own, ended, allow)
	}
}

func (r *Report) checkFate(n name, m *message, own row, ended bool, allow Allowance) {
	switch {
	case m.fate.applied && ended && own.status != success:
		r.find("innocent", "message %v should be applied, its row is %+v", n.key, own)
	case m.fate.applied && own.status == success:
		r.AttemptsSpent += max(0, own.attempts-1)
		if own.attempts > allow.Attempts {
			r.find("attempts", "message %v cost %d attempts, at most %d were to be expected", n.key, own.attempts,
				allow.Attempts)
		}
	case m.fate.reason != "" && ended && (own.status != dead || own.reason != m.fate.reason):
		r.find("fate", "message %v should be dead (%s), its row is %+v", n.key, m.fate.reason, own)
	}
}

// checkRows finds rows that nobody's message accounts for.
func (r *Report) checkRows(l *Ledger, rows map[rowKey]row) {
	known := make(map[rowKey]bool, len(l.messages))
	for n, m := range l.messages {
		known[rowKey{n.key.Tag, n.key.Key}] = true
		known[rowKey{m.conflict.Tag, m.conflict.Key}] = true
		for _, k := range m.rows {
			known[k] = true
		}
	}
	for k, own := range rows {
		if !known[k] {
			r.find("unexpected", "row %s/%s (%+v) is of a message that nobody published", k.tag, k.name, own)
		}
	}
}
