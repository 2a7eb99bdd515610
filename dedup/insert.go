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

// prepareTexts makes the texts of the statements over many rows once.
func (l *Log) prepareTexts() {
	l.insertSuccess = newRowsText("INSERT INTO "+l.table+" (group_name, msg_tag, msg_key, msg_id, body_hash,"+
		" consumer_status, consumer_times, replays, consumer_timestamp, created_at) VALUES ",
		"(?,?,?,?,?,1,1,0,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6))", "", maxRows)
	l.insertDead = newRowsText("INSERT INTO "+l.table+" (group_name, msg_tag, msg_key, msg_id, msg_body, properties, "+
		"body_hash,"+
		" consumer_status, consumer_times, replays, consumer_timestamp, created_at, dead_at, reason, remark) VALUES ",
		"(?,?,?,?,?,?,?,3,0,0,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6),UTC_TIMESTAMP(6),?,?)", "", maxRows)
	l.insertTaken = newRowsText(l.insertHead(), "(?,?,?,?,?,?,?,?,?,0,?,"+
		"IF(?,UTC_TIMESTAMP(6),LEAST(UTC_TIMESTAMP(6),"+microTime+")),LEAST(UTC_TIMESTAMP(6),"+microTime+"),"+
		"IF(?,UTC_TIMESTAMP(6),NULL),?,?)", "", maxRows)
	l.insertEvents = newRowsText("INSERT INTO "+l.events+
		" (group_name, msg_tag, msg_key, `at`, `to`, attempt, replays, error, `by`) VALUES ",
		"(?,?,?,UTC_TIMESTAMP(6),?,0,0,?,?)", "", maxRows)
	from := "SELECT " + rowColumns + " FROM " + l.table + " FORCE INDEX (PRIMARY) WHERE "
	l.lookUpTag = newRowsText(from+"group_name = ? AND msg_tag = ? AND msg_key IN (", "?", ")", lookUpTagRows)
	l.lookUpAny = newRowsText(from+"(group_name, msg_tag, msg_key) IN (", "(?,?,?)", ")", lookUpAnyRows)
}

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
	args := make([]any, 0, 5*min(len(sorted), maxRows))
	for rest := sorted; len(rest) > 0; {
		n := chunkOf(len(rest), func(i int) int { return rest[i].keySize() })
		args = successArgs(args[:0], rest[:n])
		run := ctx
		if n >= leastRepeated {
			run = mysqldb.Repeated(ctx)
		}
		if err := l.insertRows(run, tx, l.insertSuccess.of(n), args); err != nil {
			return fmt.Errorf("insert %d rows as success from %v: %w", n, rest[0].Identity, err)
		}
		rest = rest[n:]
	}
	return nil
}

// TakeBack removes rows that InsertSuccess has put into this very transaction, whose messages turned out to be at
// fault: nobody ever sees them. Whatever the error, roll the transaction back.
func (l *Log) TakeBack(ctx context.Context, tx Execer, keys []Identity) error {
	for some := range slices.Chunk(keys, lookUpAnyRows) {
		var s statement
		s.add("DELETE FROM " + l.table + " WHERE ")
		addKeys(&s, some)
		res, err := tx.ExecContext(ctx, s.String(), s.args...)
		if err != nil {
			return fmt.Errorf("take back %d rows from %v: %w", len(some), some[0], err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return fmt.Errorf("take back %d rows from %v: %w", len(some), some[0], err)
		}
		if n != int64(len(some)) {
			return fmt.Errorf("take back %d rows from %v: %d were there", len(some), some[0], n)
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

// successArgs appends five values per row. Keys and message ids share one block of memory; group and tag, which hardly
// ever change from row to row, share theirs.
func successArgs(args []any, rows []*Entry) []any {
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
		name := block[len(block)-len(e.Key):]
		var id any
		if e.MessageID != "" {
			n := min(len(e.MessageID), MaxMessageID)
			block = append(block, e.MessageID[:n]...)
			id = block[len(block)-n:]
		}
		args = append(args, group, tag, name, id, bodyHash(e))
	}
	return args
}

// insertRows runs one insert. Without IGNORE it inserts all its rows or fails.
func (l *Log) insertRows(ctx context.Context, tx Execer, text string, args []any) error {
	_, err := tx.ExecContext(ctx, text, args...)
	if l.exists(err) {
		return fmt.Errorf("%w: %w", ErrExists, err)
	}
	return err
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
	return 2*(len(e.Group)+len(e.Tag)+len(e.Key)+len(e.MessageID)) + rowOverhead
}

// size is how many bytes a letter's rows take in a statement at most; a character of the remark may have four.
func (l *Letter) size() int {
	return l.keySize() + 2*min(len(l.Body), MaxBody) + 2*min(len(l.Properties), MaxProperties) + 4*min(len(l.Cause),
		MaxRemark)
}
