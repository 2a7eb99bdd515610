package dedup

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// PruneOptions say which rows have outlived their use.
type PruneOptions struct {
	Group string // required: other groups in the same table have a retention of their own
	// OlderThan is how long ago a row's last transition must be, by the database's clock. Positive.
	OlderThan time.Duration
	// Progress, if set, is called after every batch with the rows deleted so far.
	Progress func(rows int)
}

func (o PruneOptions) validate() error {
	switch {
	case o.Group == "":
		return errors.New("no group")
	case o.OlderThan <= 0:
		return fmt.Errorf("an age of %v", o.OlderThan)
	}
	return nil
}

// Pruned is how many rows of a status were deleted, or would be.
type Pruned struct {
	Status Status
	Rows   int
	Oldest time.Time // last transition of the oldest of them; zero when there is none
}

// prunable are the states whose rows may go once they are old: the identity has ended and no letter of it is expected.
// A dead row never goes: its letter waits for somebody. Nor does one that is processing or failed: its message is under
// way.
func prunable() []Status { return []Status{Success, Discarded} }

// A batch is one statement that commits by itself: short, so that a late duplicate of one of its rows waits for
// milliseconds, and without a moment in which this process, stopped or frozen, could hold a lock. Between batches it
// rests four times as long as the batch took, so that deleting takes a fifth of one connection's time however busy the
// server is.
const (
	pruneRows     = 500
	pruneRest     = 4
	pruneRestMin  = 5 * time.Millisecond
	pruneRestMax  = 10 * time.Second
	pruneTries    = 6
	pruneTryPause = 50 * time.Millisecond
)

const microTime = "TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND"

// Prune deletes the rows of a group that ended longer ago than o says, with their events. What is old is fixed when it
// begins; ErrClocks says that no clock tells, see [Log.Clocks]. Keys are read through the index on status and time and
// deleted through the primary key, in its order, as the engine inserts them; status and time are compared again, so a
// row that moved meanwhile stays. A deadlock or a wait for a lock is Prune's own: it rests and tries that batch again.
// Give it a pool with a short LockWait.
//
// Its load is bounded, see the constants; it may take as long as it likes. It may run in several processes at once.
// Both results are good beside an error, which says that ctx ended or the database does not answer: what was deleted
// is.
func (l *Log) Prune(ctx context.Context, o PruneOptions) ([]Pruned, error) {
	before, err := l.pruneBefore(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	if err := l.notePruned(ctx, o.Group, before); err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	var all []Pruned
	rows := 0
	for _, status := range prunable() {
		p := pruner{log: l, o: o, before: before, pruned: Pruned{Status: status}, others: rows}
		err := p.run(ctx)
		all = append(all, p.pruned)
		rows += p.pruned.Rows
		if err != nil {
			return all, fmt.Errorf("prune rows in %v: %w", status, err)
		}
	}
	return all, nil
}

// notePruned writes down, before anything is deleted, that rows which ended before then may be gone. It never moves
// back.
func (l *Log) notePruned(ctx context.Context, group string, before int64) error {
	name := l.prunedName(group)
	for _, s := range []struct {
		text string
		args []any
	}{
		{"INSERT INTO " + metaTable + " (name, value) VALUES (?, '0') ON DUPLICATE KEY UPDATE value = value", []any{name}},
		{"UPDATE " + metaTable + " SET value = ? WHERE name = ? AND CAST(value AS SIGNED) < ?",
			[]any{strconv.AppendInt(nil, before, 10), name, before}},
	} {
		if _, err := l.db.ExecContext(ctx, s.text, s.args...); err != nil {
			return fmt.Errorf("note what is deleted: %w", err)
		}
	}
	return nil
}

// Remembers is how far back the log of a group knows every identity that ended: older rows may have been deleted,
// whatever the retention is now. 0: nothing was ever deleted.
func (l *Log) Remembers(ctx context.Context, group string) (time.Duration, error) {
	var age int64
	err := l.db.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - CAST(value AS "+
		"SIGNED) FROM "+
		metaTable+" WHERE name = ? AND CAST(value AS SIGNED) > 0", l.prunedName(group)).Scan(&age)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read how far back the log goes: %w", err)
	}
	return max(time.Microsecond, time.Duration(age)*time.Microsecond), nil
}

func (l *Log) prunedName(group string) []byte {
	hash := sha256.Sum256([]byte(group))
	return fmt.Appendf(nil, "pruned:%s:%s", l.o.Table, hex.EncodeToString(hash[:16]))
}

// CountPrunable says what Prune would delete now. It reads an index only, but all of the part that is old.
func (l *Log) CountPrunable(ctx context.Context, o PruneOptions) ([]Pruned, error) {
	before, err := l.pruneBefore(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("count what to prune: %w", err)
	}
	all := make([]Pruned, 0, len(prunable()))
	for _, status := range prunable() {
		p := Pruned{Status: status}
		var oldest sql.NullInt64
		err := l.db.QueryRowContext(ctx, "SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+
			"MIN(consumer_timestamp)) FROM "+l.table+
			" FORCE INDEX (by_status) WHERE consumer_status = ? AND consumer_timestamp < "+microTime+" AND group_name = ?",
			int(status), before, []byte(o.Group)).Scan(&p.Rows, &oldest)
		if err != nil {
			return nil, fmt.Errorf("count old rows in %v: %w", status, err)
		}
		if oldest.Valid {
			p.Oldest = time.UnixMicro(oldest.Int64).UTC()
		}
		all = append(all, p)
	}
	return all, nil
}

// pruneBefore is the moment before which a row is old, in microseconds since 1970 by the database's clock.
func (l *Log) pruneBefore(ctx context.Context, o PruneOptions) (before int64, err error) {
	if err := o.validate(); err != nil {
		return 0, err
	}
	now, err := l.Clocks(ctx)
	return now.Add(-o.OlderThan).UnixMicro(), err
}

// pruner deletes the old rows of one status.
type pruner struct {
	log    *Log
	o      PruneOptions
	before int64
	after  *oldRow // where the last page ended
	pruned Pruned
	others int // rows of other states deleted before
}

// oldRow is a row as the index on status and time has it.
type oldRow struct {
	Identity
	at int64 // microseconds since 1970
}

func (p *pruner) run(ctx context.Context) error {
	for {
		began := time.Now()
		page, err := p.page(ctx)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return nil
		}
		last := page[len(page)-1]
		if err := p.delete(ctx, page); err != nil {
			return err
		}
		p.after = &last
		if p.o.Progress != nil {
			p.o.Progress(p.others + p.pruned.Rows)
		}
		if len(page) < pruneRows {
			return nil
		}
		if err := wait.For(ctx, restAfter(time.Since(began))); err != nil {
			return err
		}
	}
}

// restAfter is the pause after a batch that took so long, jittered, so that cleaners of several groups do not keep
// step.
func restAfter(took time.Duration) time.Duration {
	rest := min(max(pruneRest*took, pruneRestMin), pruneRestMax)
	return rest*3/4 + rand.N(rest/2)
}

// page reads the next keys, the oldest first, without locking anything. Rows of other groups are read over and not
// excluded, so that the statement is short however many there are.
func (p *pruner) page(ctx context.Context) (page []oldRow, err error) {
	s := p.log.pruneText(p.pruned.Status, p.before, p.after)
	err = p.log.query(ctx, func(rows *sql.Rows) error {
		var r oldRow
		err := rows.Scan(&r.Group, &r.Tag, &r.Key, &r.at)
		page = append(page, r)
		return err
	}, s.String(), s.args...)
	return page, err
}

func (l *Log) pruneText(status Status, before int64, after *oldRow) (s statement) {
	s.add("SELECT group_name, msg_tag, msg_key, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', consumer_timestamp) FROM " +
		l.table + " FORCE INDEX (by_status)")
	s.add(" WHERE consumer_status = ?", int(status))
	s.add(" AND consumer_timestamp < "+microTime, before)
	if after != nil {
		s.add(" AND consumer_timestamp >= "+microTime, after.at)
		s.add(" AND (consumer_timestamp > "+microTime, after.at)
		s.add(" OR (group_name, msg_tag, msg_key) > (?, ?, ?))", keyArgs(after.Identity)...)
	}
	s.add(" ORDER BY consumer_timestamp, group_name, msg_tag, msg_key LIMIT ?", pruneRows)
	return s
}

// delete deletes the rows of a page that are the group's, a statement for each tag.
func (p *pruner) delete(ctx context.Context, page []oldRow) error {
	ours := slices.DeleteFunc(page, func(r oldRow) bool { return r.Group != p.o.Group })
	if len(ours) == 0 {
		return nil
	}
	oldest := time.UnixMicro(ours[0].at).UTC()
	slices.SortFunc(ours, func(a, b oldRow) int { return a.Compare(b.Identity) })
	for len(ours) > 0 {
		n := 1
		for n < len(ours) && ours[n].Tag == ours[0].Tag {
			n++
		}
		deleted, err := p.insist(ctx, ours[:n])
		if err != nil {
			return fmt.Errorf("delete %d rows from %v: %w", n, ours[0].Identity, err)
		}
		if deleted > 0 && p.pruned.Oldest.IsZero() {
			p.pruned.Oldest = oldest
		}
		p.pruned.Rows += deleted
		ours = ours[n:]
	}
	return nil
}

// insist repeats a batch that met another transaction. Its own statement was rolled back whole, or waited in vain.
func (p *pruner) insist(ctx context.Context, batch []oldRow) (deleted int, err error) {
	for try := 1; ; try++ {
		deleted, err = p.log.deleteOld(ctx, p.pruned.Status, p.before, batch)
		if mysqldb.Classify(err) != mysqldb.FaultContention || try == pruneTries {
			return deleted, err
		}
		if ended := wait.For(ctx, restAfter(pruneTryPause<<try)); ended != nil {
			return 0, ended
		}
	}
}

// deleteOld deletes rows of one group and tag, with their events, in one statement that commits by itself. Most success
// rows have no event; they are deleted without the join.
func (l *Log) deleteOld(ctx context.Context, status Status, before int64, batch []oldRow) (deleted int, err error) {
	keys := make([]any, 0, len(batch)+2)
	keys = append(keys, []byte(batch[0].Group), []byte(batch[0].Tag))
	for _, r := range batch {
		keys = append(keys, []byte(r.Key))
	}
	var events int
	if err := l.db.QueryRowContext(ctx, l.countEvents.of(len(batch)), keys...).Scan(&events); err != nil {
		return 0, fmt.Errorf("count their events: %w", err)
	}
	text := l.deleteOnly.of(len(batch))
	if events > 0 {
		text = l.deleteWithEvents.of(len(batch))
	}
	res, err := l.db.ExecContext(ctx, text, append(keys, int(status), before)...)
	if err != nil {
		return 0, err
	}
	affected, err := res.RowsAffected()
	return max(0, int(affected)-events), err // rows of both tables are counted
}

// preparePruneTexts makes the statements of deleteOld once. The primary key is forced, as in every conditional
// statement of the log: through the index on status and time it would wait for other identities' rows. MySQL takes an
// index hint in the form for several tables only, which is why that is used for one table, too.
func (l *Log) preparePruneTexts() {
	const tail = ") AND log.consumer_status = ? AND log.consumer_timestamp < " + microTime
	from := " FROM " + l.table + " AS log FORCE INDEX (PRIMARY)"
	where := " WHERE log.group_name = ? AND log.msg_tag = ? AND log.msg_key IN ("
	l.deleteOnly = newRowsText("DELETE log"+from+where, "?", tail, pruneRows)
	l.deleteWithEvents = newRowsText("DELETE log, story"+from+" LEFT JOIN "+l.events+" AS story FORCE INDEX (by_identity)"+
		" ON story.group_name = log.group_name AND story.msg_tag = log.msg_tag AND story.msg_key = log.msg_key"+where, "?",
		tail, pruneRows)
	l.countEvents = newRowsText("SELECT COUNT(*) FROM "+l.events+" FORCE INDEX (by_identity) WHERE group_name = ? AND "+
		"msg_tag = ? AND msg_key IN (", "?", ")", pruneRows)
}
