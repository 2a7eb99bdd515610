package dedup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	// Late, if set, is called after every batch with how long ago the newest of its rows became old. What grows while a
	// pass goes on says that rows become old faster than they are deleted.
	Late func(by time.Duration)
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
// server is; less, or not at all, where rows were made faster than that, see pace.
const (
	pruneRows     = 500
	pruneRest     = 4
	pruneRestMax  = 10 * time.Second
	pruneTries    = 6
	pruneTryPause = 50 * time.Millisecond
)

// Prune deletes the rows of a group that ended longer ago than o says, with their events. What is old is fixed when it
// begins; ErrClocks says that no clock tells, see [Log.Clocks]. Keys are read through the index on status and time and
// deleted through the primary key, in its order, as the engine inserts them; status and time are compared again, so a
// row that moved meanwhile stays. A deadlock or a wait for a lock is Prune's own: it rests and tries that batch again.
// Give it a pool with a short LockWait.
//
// It takes a fifth of one connection's time, and more only where rows became old faster than that deletes them: o.Late
// tells whether it keeps pace. It may run in several processes at once.
// Both results are good beside an error, which says that ctx ended or the database does not answer: what was deleted
// is.
func (l *Log) Prune(ctx context.Context, o PruneOptions) (all []Pruned, err error) {
	before, err := l.pruneBefore(ctx, o)
	if err == nil {
		err = l.notePruned(ctx, o.Group, before)
	}
	if err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	rows, began := 0, time.Now()
	for _, status := range prunable() {
		p := pruner{l, o, before, Pruned{Status: status}, pace{}}
		err := p.run(ctx, rows, began)
		all = append(all, p.pruned)
		rows += p.pruned.Rows
		if err != nil {
			return all, fmt.Errorf("prune rows in %v: %w", status, err)
		}
	}
	return all, nil
}

// CountPrunable says what Prune would delete now. It reads an index only, but all of the part that is old.
func (l *Log) CountPrunable(ctx context.Context, o PruneOptions) (all []Pruned, err error) {
	before, err := l.pruneBefore(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("count what to prune: %w", err)
	}
	for _, status := range prunable() {
		p := Pruned{Status: status}
		if err := sqlOf("SELECT COUNT(*), "+since+"MIN(consumer_timestamp)) FROM "+l.table+" FORCE INDEX (by_status)"+
			" WHERE consumer_status = ? AND consumer_timestamp < "+microTime+" AND group_name = ?",
			int(status), before, []byte(o.Group)).scan(ctx, l.db, &p.Rows, utc{&p.Oldest}); err != nil {
			return nil, fmt.Errorf("count old rows in %v: %w", status, err)
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
	*Log
	o      PruneOptions
	before int64
	pruned Pruned
	pace   pace
}

// oldRow is a row as the index on status and time has it.
type oldRow struct {
	Identity
	at int64 // microseconds since 1970
}

// run goes through all pages. Rows of other states were deleted before, in a pass that began at start.
func (p *pruner) run(ctx context.Context, others int, start time.Time) error {
	for after := (*oldRow)(nil); ; {
		began := time.Now()
		page, err := p.page(ctx, after)
		if err != nil || len(page) == 0 {
			return err
		}
		first, last, more := page[0], page[len(page)-1], len(page) == pruneRows
		if after != nil {
			first = *after
		}
		if err := p.delete(ctx, page); err != nil {
			return err
		}
		if p.o.Progress != nil {
			p.o.Progress(others + p.pruned.Rows)
		}
		if p.o.Late != nil {
			p.o.Late(micro(p.before-last.at) + time.Since(start))
		}
		if !more {
			return nil
		}
		after = &last
		if err := wait.For(ctx, p.pace.rest(time.Since(began), micro(last.at-first.at))); err != nil {
			return err
		}
	}
}

func micro(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// A pace keeps up with what is consumed: rows that came within an hour go within half an hour, or as fast as they can.
// It is how far a pass is ahead of that, which is what it may rest. What was made at one moment goes ahead of time on
// what came slowly before it, within the time of a few minutes; so a batch of messages, whose rows have one time, does
// not change the pace.
type pace struct{ ahead time.Duration }

const (
	paceFactor = 2
	paceAhead  = 5 * time.Minute
)

// rest is the pause after a batch that took so long, whose rows were made within span. It is jittered, so that cleaners
// of several groups do not keep step.
func (p *pace) rest(took, span time.Duration) time.Duration {
	p.ahead = min(p.ahead+span/paceFactor-took, paceAhead)
	rest := max(0, min(jittered(pruneRest*took), p.ahead))
	p.ahead -= rest
	return rest
}

func jittered(rest time.Duration) time.Duration {
	rest = min(rest, pruneRestMax)
	return rest*3/4 + rand.N(rest/2+1)
}

// page reads the keys after one, the oldest first, without locking anything. Rows of other groups are read over and not
// excluded, so that the statement is short however many there are.
func (p *pruner) page(ctx context.Context, after *oldRow) ([]oldRow, error) {
	return list(ctx, p.db, p.pruneText(p.pruned.Status, p.before, after), func(r *oldRow) []any {
		return []any{&r.Group, &r.Tag, &r.Key, &r.at}
	})
}

func (l *Log) pruneText(status Status, before int64, after *oldRow) (s statement) {
	s.add("SELECT group_name, msg_tag, msg_key, " + since + "consumer_timestamp) FROM " + l.table +
		" FORCE INDEX (by_status)")
	s.add(" WHERE consumer_status = ?", int(status))
	s.add(" AND consumer_timestamp < "+microTime, before)
	if after != nil {
		s.beyond(">", "(group_name, msg_tag, msg_key) > (?, ?, ?)", after.at, keyArgs(after.Identity)...)
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
		n := sameTag(mapped(ours, func(r oldRow) Identity { return r.Identity }))
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
		deleted, err = p.deleteOld(ctx, p.pruned.Status, p.before, batch)
		if mysqldb.Classify(err) != mysqldb.FaultContention || try == pruneTries {
			return deleted, err
		}
		if ended := wait.For(ctx, jittered(pruneRest*pruneTryPause<<try)); ended != nil {
			return 0, ended
		}
	}
}

// deleteOld deletes rows of one group and tag, with their events, in one statement that commits by itself. Most success
// rows have no event; they are deleted without the join.
func (l *Log) deleteOld(ctx context.Context, status Status, before int64, batch []oldRow) (deleted int, err error) {
	var events int
	if err := l.storyText(batch).scan(ctx, l.db, &events); err != nil {
		return 0, fmt.Errorf("count their events: %w", err)
	}
	affected, err := l.deleteText(status, before, batch, events > 0).exec(ctx, l.db)
	return max(0, int(affected)-events), err // rows of both tables are counted
}

func (l *Log) storyText(batch []oldRow) statement {
	s := sqlOf("SELECT COUNT(*) FROM " + l.events + " AS log FORCE INDEX (by_identity) WHERE ")
	s.addOld(batch)
	return s
}

// deleteText forces the primary key, as in every conditional statement of the log: through the index on status and time
// it would wait for other identities' rows. MySQL takes an index hint in the form for several tables only, which is why
// that is used for one table, too.
func (l *Log) deleteText(status Status, before int64, batch []oldRow, told bool) statement {
	tables, join := "log", ""
	if told {
		tables, join = "log, story", " LEFT JOIN "+l.events+" AS story FORCE INDEX (by_identity) ON story.group_name = "+
			"log.group_name AND story.msg_tag = log.msg_tag AND story.msg_key = log.msg_key"
	}
	s := sqlOf("DELETE " + tables + " FROM " + l.table + " AS log FORCE INDEX (PRIMARY)" + join + " WHERE ")
	s.addOld(batch)
	s.add(" AND log.consumer_status = ? AND log.consumer_timestamp < "+microTime, int(status), before)
	return s
}

func (s *statement) addOld(batch []oldRow) {
	s.add("log.group_name = ? AND log.msg_tag = ? AND log.msg_key IN (", []byte(batch[0].Group), []byte(batch[0].Tag))
	for i, r := range batch {
		s.item(i, "?", []byte(r.Key))
	}
	s.add(")")
}
