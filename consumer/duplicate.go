package consumer

import (
	"bytes"
	"context"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

//  3. lookUp reads the rows of all open identities and gives each item its way. What looks new is not looked up while
//     no such message had a row: its insert would meet it (1062) and lookAgain find it. A body that differs from
//     its row's is a conflict whatever the row's status; it is filed under a name of its own, which has a row or not.
func (w *worker) lookUp(ctx context.Context, b *batch) error {
	var known []*item
	for _, it := range b.open {
		if !w.backstop && w.newInARow >= trustedAfter && it.looksNew() {
			it.row = dedup.Row{Identity: it.id.Identity, Version: dedup.Version{Status: dedup.Absent}}
			b.fresh = append(b.fresh, it)
		} else {
			known = append(known, it)
		}
	}
	b.open = nil
	if len(known) == 0 {
		return nil
	}
	defer w.c.metrics.phase(phaseLookUp, time.Now())
	rows, err := w.rowsOf(ctx, known)
	if err != nil {
		return err
	}
	for _, it := range known {
		it.row = rows[it.id.Identity]
		switch {
		case !it.looksNew():
		case it.row.Status == dedup.Absent:
			w.newInARow++
		default:
			w.newInARow = 0
		}
		if differs(it) {
			w.conflict(b, it)
		} else if w.backstop {
			w.routeBackstop(b, it)
		} else {
			w.route(b, it)
		}
	}
	return nil
}

// verdict is what an item's row asks for.
func (w *worker) verdict(it *item) decide.Verdict {
	v := decide.OfRow(it.row, it.circumstances(), w.c.cfg.MaxAttempts)
	if v.Works() && w.c.holding.has(it.id.Identity) {
		return decide.ComeBack // a letter of it waits for room, in this process: one is enough
	}
	if v == decide.RunReopened && w.c.service != nil {
		return decide.RunAgain // calls are claimed before
	}
	return v
}

// standsAs reports whether a row is as it was when it was looked up for the fast path.
func (it *item) standsAs(row dedup.Row) bool {
	return row.Version == it.row.Version && (row.Status == dedup.Absent || row.Due && !row.Condemned())
}

// route sends an item the way its row asks for.
func (w *worker) route(b *batch, it *item) {
	v := w.verdict(it)
	if it.lock.hold == lock.HeldByOther && v.Works() { // a row may say more than a lock: only work waits for the lock
		if b.pass == 0 {
			b.later = append(b.later, it)
			return
		}
		v = decide.ComeBack
	}
	switch v {
	case decide.RunFresh:
		b.fresh = append(b.fresh, it)
	case decide.RunReopened:
		it.msg.Replays, w.reopened = it.row.Replays, true
		b.opened = append(b.opened, it)
	case decide.SkipDone:
		it.ack(Duplicate)
	case decide.SkipDead:
		it.ack(DuplicateOfDead)
	case decide.ComeBack:
		wait := it.row.Wait
		if it.row.Condemned() {
			wait = decide.Longest // nothing is gained by coming soon
		}
		w.comeBack(it, wait)
	case decide.Bury:
		it.bury(it.rejected.reason, it.rejected.err.Error())
	case decide.GiveUp:
		it.bury(decide.ReasonOf(it.row), w.lastWords(it.row))
	case decide.RunAgain:
		b.again = append(b.again, it)
	case decide.TakeOverGroup:
		it.next = v
		b.orphans = append(b.orphans, it)
	default:
		it.next = v
		b.alone = append(b.alone, it)
	}
}

// lookAgain reads a group's rows after one was not as it was read, or after a COMMIT whose answer was lost: never
// assume. What has a row, or another one, goes its row's way; the rest is returned to be tried anew.
func (w *worker) lookAgain(ctx context.Context, b *batch, group []*item, unknown bool) ([]*item, error) {
	rows, err := w.rowsOf(ctx, group)
	if err != nil {
		return nil, err
	}
	done := 0
	was := make([]dedup.Status, len(group))
	for i, it := range group {
		was[i] = it.row.Status
		if it.row = rows[it.id.Identity]; it.row.Status == dedup.Success && !differs(it) {
			done++
		}
		if it.looksNew() && it.row.Status != dedup.Absent && !unknown {
			w.newInARow = 0
		}
	}
	if unknown && done == len(group) { // all or nothing: it was our COMMIT
		w.applied(group)
		return nil, nil
	}
	var rest []*item
	for i, it := range group {
		switch {
		case it.row.Status == dedup.Absent && was[i] != dedup.Absent: // it is gone
			w.leaseLost(it)
		case it.row.Status == dedup.Absent:
			rest = append(rest, it)
		case differs(it):
			w.conflict(b, it)
		case was[i] == dedup.Failed && w.verdict(it) == decide.RunReopened:
			it.msg.Replays = it.row.Replays
			rest = append(rest, it)
		default:
			w.route(b, it)
		}
	}
	return rest, nil
}

// differs reports whether the row belongs to another body. Only a committed row is asked, whatever its status.
func differs(it *item) bool {
	return len(it.row.BodyHash) > 0 && !bytes.Equal(it.row.BodyHash, it.id.BodyHash[:])
}

// conflict files an item whose key is taken by another body under a name of its own, which the next pass locks and
// looks up like any other.
func (w *worker) conflict(b *batch, it *item) {
	if it.lock.hold == lock.Mine {
		b.stray, it.lock.hold = append(b.stray, it.lock.name), 0
	}
	id, err := wire.Conflict(it.id, it.delivery.Body)
	it.id, it.msg.Identity, it.row = id, id.Identity, dedup.Row{}
	it.rejected = &unreadable{dedup.ReasonConflict, err}
	b.later = append(b.later, it)
}

// rowsOf reads the rows of items, however long MySQL stays away.
func (w *worker) rowsOf(ctx context.Context, items []*item) (rows map[dedup.Identity]dedup.Row, err error) {
	keys := eachOf(items, (*item).identity)
	err = w.untilKnown(ctx, func(ctx context.Context) error {
		rows, err = w.c.records.LookUp(ctx, keys)
		return err
	})
	return rows, err
}

// reconsider looks at items whose copies are not out in the light of their rows as they are now.
func (w *worker) reconsider(ctx context.Context, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	rows, err := w.rowsOf(ctx, items)
	if err != nil {
		return err
	}
	for _, it := range items {
		row, dies := rows[it.id.Identity], it.by == byDeadLetter
		if it.stage >= stagePublished || dies && row.Version == it.row.Version {
			continue // the row of a confirmed letter is still to be written
		}
		it.row = row
		switch verdict := decide.OfRow(row, it.circumstances(), w.c.cfg.MaxAttempts); {
		case verdict == decide.SkipDone && !differs(it):
			it.ack(Duplicate)
		case verdict == decide.SkipDead && !differs(it):
			it.ack(DuplicateOfDead)
		case dies: // a copy sees what becomes of it; the copy of a letter stays the letter that it is
			w.leaseLost(it)
		}
	}
	return nil
}

// trustedAfter is how many messages that look new must be found without a row, one after the other, before the next
// ones are not looked up. While that holds, a look into the consumer log finds nothing, and it is left out: the insert
// into the same table finds out for sure. When producers send again what Redis does not remember, one lost transaction
// in each batch would cost more than the looks.
const trustedAfter = 1000

// looksNew reports whether nothing speaks for a row: it is readable, nobody else works on it or marked it, and it is
// neither delivered again nor a copy.
func (it *item) looksNew() bool {
	return it.rejected == nil && it.lock.hold != lock.HeldByOther && !it.lock.hinted() &&
		it.delivery.Count == 0 && !it.delivery.Redelivered && !it.copied.IsCopy()
}

// routeBackstop is route for what the broker itself took off the main queue (the delivery limit, a policy): it gets a
// row and a letter, and the handler never runs on it, because running it may be what killed the process so often.
func (w *worker) routeBackstop(b *batch, it *item) {
	v := decide.OfRow(it.row, it.circumstances(), w.c.cfg.MaxAttempts)
	switch {
	case it.row.Status == dedup.Processing && it.row.LeaseLive: // somebody is at it: see what comes of it
		b.lease = max(b.lease, it.row.Wait)
		b.later = append(b.later, it)
	case v == decide.SkipDone:
		it.ack(Duplicate)
	case v == decide.Reopen:
		it.end(DuplicateOfDead, settlement{by: byMove}) // it is all that is left of the message
	case v == decide.SkipDead:
		it.ack(DuplicateOfDead)
	case w.c.holding.has(it.id.Identity): // a letter of it waits for room: one is enough
		w.comeBack(it, decide.Longest)
	case it.row.Condemned():
		it.bury(decide.ReasonOf(it.row), it.row.Remark)
	default:
		b.alone = append(b.alone, it)
	}
}
