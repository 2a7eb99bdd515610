package dedup

import (
	"context"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// A statement has at most so many rows, and so many bytes of values: max_allowed_packet is 16 MiB on MariaDB, and may
// be set lower. With its head, the longest statement has less than 1 MiB.
const (
	maxRows  = 1000
	maxBytes = 1000 << 10
)

// leastRepeated is how many rows an insert has at least that the server keeps prepared. Batches that are full have one
// size, and so one text; below this a text takes the server less than the round trip that prepares it.
const leastRepeated = 100

// InsertSuccess is the fast path: it inserts all entries as applied in the transaction of their effect, sorted by key,
// so that two workers with overlapping batches wait for each other instead of deadlocking. Bodies and properties are
// not stored. ErrExists: one of them has a row already. Whatever the error, roll the transaction back: MySQL may have
// done so already, and what is executed after that is committed on its own.
func (l *Log) InsertSuccess(ctx context.Context, tx Execer, entries []Entry) error {
	if len(entries) == 0 {
		return nil
	}
	sorted, err := sortEntries(entries)
	if err != nil {
		return err
	}
	if l.memory != nil {
		return l.memory.insert(l, sorted)
	}
	args := make([]any, 0, 6*min(len(sorted), maxRows))
	for rest := sorted; len(rest) > 0; {
		n := chunkOf(len(rest), func(i int) int { return rest[i].keySize() })
		came := slices.ContainsFunc(rest[:n], func(e *Entry) bool { return e.Came != "" })
		args = successArgs(args[:0], rest[:n], came)
		run := ctx
		if n >= leastRepeated {
			run = mysqldb.Repeated(ctx)
		}
		if _, err := tx.ExecContext(run, l.successText(n, came), args...); err != nil {
			if l.exists(err) { // without IGNORE it inserts all its rows or fails
				err = fmt.Errorf("%w: %w", ErrExists, err)
			}
			return fmt.Errorf("insert %d rows as success from %v: %w", n, rest[0].Identity, err)
		}
		rest = rest[n:]
	}
	return nil
}

// successArgs appends five values per row, or six where one of them says how it came. Keys and message ids share one
// block of memory; group and tag, which hardly ever change from row to row, share theirs.
func successArgs(args []any, rows []*Entry, came bool) []any {
	size := 0
	for _, e := range rows {
		size += len(e.Key) + len(e.MessageID)
	}
	block := make([]byte, 0, size)
	var group, tag any
	var last Identity
	for _, e := range rows {
		if group == nil || e.Group != last.Group {
			group = []byte(e.Group)
		}
		if tag == nil || e.Tag != last.Tag {
			tag = []byte(e.Tag)
		}
		last = e.Identity
		block = append(block, e.Key...)
		key, id := any(block[len(block)-len(e.Key):]), any(nil)
		switch e.MessageID {
		case "":
		case e.Key: // as it mostly is
			id = key
		default:
			n := min(len(e.MessageID), MaxMessageID)
			block = append(block, e.MessageID[:n]...)
			id = block[len(block)-n:]
		}
		args = append(args, group, tag, key, id, bodyHash(e))
		if came {
			args = append(args, e.Came)
		}
	}
	return args
}

func (l *Log) successText(n int, came bool) string {
	remark, value := "", ""
	if came {
		remark, value = " remark,", "?,"
	}
	return "INSERT INTO " + l.table + " (group_name, msg_tag, msg_key, msg_id, body_hash," + remark +
		" consumer_status, consumer_times, replays, consumer_timestamp, created_at) VALUES " +
		rowsOf("(?,?,?,?,?,"+value+"1,1,0,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6))", n)
}

// TakeBack removes rows that InsertSuccess has put into this very transaction, whose messages turned out to be at
// fault: nobody ever sees them. Whatever the error, roll the transaction back.
func (l *Log) TakeBack(ctx context.Context, tx Execer, keys []Identity) error {
	if l.memory != nil {
		l.memory.takeBack(keys)
		return nil
	}
	for some := range slices.Chunk(keys, lookUpAnyRows) {
		s := sqlOf("DELETE FROM " + l.table)
		addKeys(&s, some)
		n, err := s.exec(ctx, tx)
		if err == nil && n != int64(len(some)) {
			err = fmt.Errorf("%d were there", n)
		}
		if err != nil {
			return fmt.Errorf("take back %d rows from %v: %w", len(some), some[0], err)
		}
	}
	return nil
}

// sortEntries orders entries by key without touching the caller's slice.
func sortEntries(entries []Entry) ([]*Entry, error) {
	sorted := make([]*Entry, len(entries))
	for i := range entries {
		if err := entries[i].Identity.Validate(); err != nil {
			return nil, fmt.Errorf("insert as success: %w", err)
		}
		sorted[i] = &entries[i]
	}
	slices.SortFunc(sorted, func(a, b *Entry) int { return a.Identity.Compare(b.Identity) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Identity == sorted[i-1].Identity {
			return nil, fmt.Errorf("insert as success: %v is named twice", sorted[i].Identity)
		}
	}
	return sorted, nil
}

// chunkOf says how many of n rows fit into one statement: at least one.
func chunkOf(n int, size func(i int) int) int {
	sum := 0
	for i := range min(n, maxRows) {
		sum += size(i)
		if i > 0 && sum > maxBytes {
			return i
		}
	}
	return min(n, maxRows)
}

// rowOverhead is what a row costs in a statement besides its keys, text and body.
const rowOverhead = 250

// keySize is the most that a row without its message takes; every byte may need a second one as escape.
func (e *Entry) keySize() int {
	return 2*(len(e.Group)+len(e.Tag)+len(e.Key)+len(e.MessageID)+len(e.Came)) + rowOverhead
}
