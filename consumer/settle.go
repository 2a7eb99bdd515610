package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// The kinds of copies in rollbackd_publishes_total.
const (
	kindRetry  = "retry"
	kindLetter = "letter"
)

// The results there.
const (
	copyConfirmed = "confirmed"
	copyFailed    = "failed"  // refused, or not sent
	copyUnknown   = "unknown" // RabbitMQ may have it, and another one is published
)

// 8. settle tells the broker what became of every item that has ended: copies are confirmed before the rows of letters
// say dead, and nothing is acked before its outcome is durable or its copy confirmed. A copy that its queue refuses
// holds back its own delivery only (held.go). It may run several times in the life of a batch and takes up only what is
// new.
func (w *worker) settle(ctx context.Context, b *batch) error {
	defer w.c.metrics.phase(phaseSettle, time.Now())
	if err := w.weigh(ctx, b); err != nil {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = w.publishAndRecord(ctx, b); err != nil {
			return err
		}
		b.parting = b.parting || b.tripped && !more
		w.unlock(ctx, b) // what is done does not wait for what is not
		if err := w.acknowledge(b); err != nil {
			return err
		}
	}
	if b.tripped {
		return errTripped
	}
	return nil
}

// weigh tells the breaker what became of this batch, and asks for leave to publish its letters. What gets none is open
// again and goes back to the broker. The backstop attempts nothing, and what it files is no failure of a handler.
func (w *worker) weigh(ctx context.Context, b *batch) error {
	if w.backstop || w.c.cfg.MaxDead == 0 {
		return nil
	}
	var letters []*item
	var first []dedup.Identity
	applied, failed := false, false
	for _, it := range b.all {
		if it.stage != stageEnded {
			continue
		}
		it.move(stageWeighed)
		letter := it.by == byDeadLetter && decide.Trips(it.reason)
		if letter && !it.row.Condemned() && !w.c.breaker.Counted(it.opening()) {
			letters = append(letters, it) // else it was counted when it was refused
		}
		applied = applied || it.outcome == Applied
		if letter || it.outcome == Retried {
			failed = true
			if it.row.Attempts <= 1 {
				first = append(first, it.id.Identity)
			}
		}
	}
	w.c.breaker.Note(applied, failed, first)
	if len(letters) == 0 {
		return nil
	}
	got, holds := 0, time.Duration(0)
	err := w.untilKnown(ctx, func(ctx context.Context) (err error) {
		got, holds, err = w.c.records.ReserveLetters(ctx, w.c.breaker.Limit, len(letters))
		return err
	})
	if err != nil {
		return err
	}
	for _, it := range letters[:got] {
		w.c.breaker.Let(it.opening())
	}
	for _, it := range letters[got:] {
		it.reopen()
		if it.claim != nil {
			w.c.pending.giveBack(*it.claim)
		}
	}
	if got < len(letters) {
		b.tripped = true
		w.c.breaker.HoldLetters(holds)
	}
	return nil
}

// publishAndRecord publishes the copies that are missing and records the letters among them; more: not all of them yet.
// No lease keeps a copy of a message off letters that are written down and not published: their rows are read before.
func (w *worker) publishAndRecord(ctx context.Context, b *batch) (more bool, err error) {
	err = w.reconsider(ctx, pick(b.all, func(it *item) bool {
		return it.by == byDeadLetter && it.row.Condemned() && it.awaitsCopy()
	}))
	if err != nil {
		return false, err
	}
	unknown, err := w.publishCopies(ctx, b)
	if err != nil {
		return false, err
	}
	moved, err := w.condemn(ctx, b.all)
	if err != nil {
		return false, err
	}
	lost, err := w.recordLetters(ctx, b.all)
	return unknown || moved || lost, err
}

// keepReasons writes down at once why claimed messages failed for good: until their letters are confirmed nothing else
// keeps copies of them away once their leases end, and nobody knows how long the attempts behind them in the batch will
// take, or the letters. What the breaker holds back keeps nothing: it is given back.
func (w *worker) keepReasons(ctx context.Context, b *batch) error {
	if !slices.ContainsFunc(b.all, (*item).claimedLetter) {
		return nil
	}
	if err := w.weigh(ctx, b); err != nil {
		return err
	}
	if _, err := w.condemn(ctx, b.all); err != nil || !b.tripped {
		return err
	}
	return w.settle(ctx, b)
}

// claimedLetter reports whether a letter is to be published of a message that is claimed still.
func (it *item) claimedLetter() bool {
	return it.by == byDeadLetter && it.claim != nil && it.row.Status == dedup.Processing
}

// publishCopies publishes the copies that are still missing. It returns when every one of them is confirmed or refused,
// or, with unknown, when there is something to record before the rest is published again: what was confirmed meanwhile,
// and, the first time, what the letters that may not have arrived are about.
func (w *worker) publishCopies(ctx context.Context, b *batch) (unknown bool, err error) {
	waiting := pick(b.all, (*item).awaitsCopy)
	if len(waiting) == 0 {
		return false, nil
	}
	err = w.untilAnswered(ctx, DependencyRabbitMQ, func(ctx context.Context) error {
		before := len(waiting)
		var trouble error
		waiting, trouble = w.publish(ctx, waiting)
		if trouble == nil || len(waiting) < before || !b.stuck {
			return nil
		}
		return trouble
	})
	b.stuck = len(waiting) > 0
	return b.stuck, err
}

// publish publishes the copies of items once. A copy is confirmed, or refused for itself, or, because of the
// connection, unknown; trouble is why.
func (w *worker) publish(ctx context.Context, items []*item) (unknown []*item, trouble error) {
	copies := eachOf(items, w.copyOf)
	unsure := 0
	for i, err := range w.c.publisher.Publish(ctx, copies) {
		it := items[i]
		kind, point := kindLetter, PointLetter
		if it.by == byRetry {
			kind, point = kindRetry, PointRetryCopy
		}
		if err == nil {
			w.c.metrics.publishes.WithLabelValues(kind, copyConfirmed).Inc()
			it.copy.refused, it.copy.unsure = nil, nil
			it.move(stagePublished)
			w.c.at(point)
			continue
		}
		it.copy.tried = time.Now()
		err = fmt.Errorf("publish the %s copy of %v to %s: %w", kind, it.id.Identity, copies[i].Key, err)
		result := copyFailed
		if errors.Is(err, rabbit.ErrUnconfirmed) {
			result, it.copy.unsure = copyUnknown, err
			unsure++
		}
		w.c.metrics.publishes.WithLabelValues(kind, result).Inc()
		if rabbit.Refused(err) {
			it.copy.refused = err
			continue
		}
		unknown = append(unknown, it)
		trouble = cmp.Or(trouble, err)
	}
	if unsure > 0 {
		w.c.log.WarnContext(ctx, "RabbitMQ may have copies that it did not confirm: their rows are looked at, and the "+
			"copies published again; of two copies one is absorbed", "copies", unsure, "err", trouble)
	}
	return unknown, trouble
}

// condemn keeps the reasons of letters that could not be published, or whose message is claimed: they get no further
// attempt, although their claims end or the process does. A row that somebody else moved is theirs, and a copy comes
// back later to see what became of it: moved reports that there is such a copy to publish.
func (w *worker) condemn(ctx context.Context, items []*item) (moved bool, err error) {
	waiting := pick(items, func(it *item) bool {
		hasReason := it.row.Status == dedup.Failed && (w.backstop || it.row.Attempts > 0 || it.row.Condemned())
		refused := !it.copy.tried.IsZero() && !hasReason
		return it.by == byDeadLetter && it.stage < stagePublished && (refused || it.claimedLetter())
	})
	lost, err := moveRows(ctx, w, waiting, func(some []*item) transition {
		all := eachOf(some, func(it *item) dedup.Condemnation {
			return dedup.Condemnation{From: it.row, Entry: it.fullEntry(), Reason: it.reason, Cause: it.cause, Owner: w.owner()}
		})
		return func(ctx context.Context) ([]dedup.Row, []error) { return w.c.records.CondemnAll(ctx, all) }
	}, func(it *item, row dedup.Row) {
		it.row, it.claim = row, nil
		w.c.at(PointCondemned)
	})
	w.leaseLost(lost...)
	return len(lost) > 0, err
}

// copyOf is the copy that it's settlement asks for. Copies go through the default exchange to our queue by name: the
// first exchange would hand them to every other queue bound there.
func (w *worker) copyOf(it *item) rabbit.Publishing {
	o := wire.CopyOptions{
		Identity: it.id, Replays: it.row.Replays, Attempt: max(0, it.row.Attempts), Error: it.cause, Reason: it.reason,
	}
	switch {
	case it.by == byMove:
		o.Attempt, o.Error, o.Replays = it.copied.Attempt, it.copied.Error, it.copied.Replays
		o.Reason, o.DeadAt = cmp.Or(it.copied.Reason, dedup.Reason(it.row.Reason)), it.copied.DeadAt
	case it.by == byRetry:
		o.Deliveries = it.deliveries()
		if it.outcome != Retried && !it.copied.DeadAt.IsZero() {
			// A letter that was moved by hand and came too early stays the letter of its row: it may be the only one
			// when the row says dead.
			o.DeadAt, o.Replays = it.copied.DeadAt, it.copied.Replays
		}
	}
	return rabbit.Publishing{Key: w.queueOf(it), Message: wire.Copy(it.delivery, w.c.cfg.Queue, o)}
}

// queueOf is the queue of the copy that it's settlement asks for.
func (w *worker) queueOf(it *item) string {
	if it.by == byRetry {
		return rabbit.RetryQueue(w.c.cfg.Queue, it.delay)
	}
	return rabbit.DeadQueue(w.c.cfg.Queue)
}

// recordLetters makes the rows of confirmed letters say dead. A row that says so already, of this opening and this
// body, may be the work of a call of ours whose answer was lost; else it is that of another copy, and our letter is one
// too many. Any other row that somebody else moved meanwhile is theirs: the letter stays, and a copy comes back later
// to see what became of it; lost reports that there is such a copy to publish.
func (w *worker) recordLetters(ctx context.Context, items []*item) (lost bool, err error) {
	letters := pick(items, func(it *item) bool { return it.by == byDeadLetter && it.stage == stagePublished })
	unanswered := map[*item]bool{}
	moved, err := moveRows(ctx, w, letters, func(some []*item) transition {
		all := eachOf(some, func(it *item) dedup.Death {
			return dedup.Death{From: it.row, Entry: it.fullEntry(), Reason: it.reason, Cause: it.cause}
		})
		return func(ctx context.Context) ([]dedup.Row, []error) {
			errs := w.c.records.DeadRows(ctx, all)
			if errors.Is(errors.Join(errs...), dedup.ErrUnknown) {
				for _, it := range some {
					unanswered[it] = true
				}
			}
			return nil, errs
		}
	}, func(it *item, _ dedup.Row) { w.recorded(ctx, it) })
	if err != nil || len(moved) == 0 {
		return false, err
	}
	rows, err := w.rowsOf(ctx, moved)
	if err != nil {
		return false, err
	}
	for _, it := range moved {
		was := it.row.Replays
		it.row = rows[it.id.Identity]
		switch {
		case it.row.Status != dedup.Dead || it.row.Replays != was || differs(it):
			w.leaseLost(it)
			lost = true
		case unanswered[it]:
			w.recorded(ctx, it)
		default:
			it.outcome = DuplicateOfDead
			it.move(stageDurable)
			w.c.breaker.Arrived(it.opening())
		}
	}
	return lost, nil
}

// recorded ends an item whose letter is confirmed and whose row says so.
func (w *worker) recorded(ctx context.Context, it *item) {
	it.move(stageDurable)
	w.c.breaker.Arrived(it.opening())
	w.c.metrics.deadLettered.WithLabelValues(string(it.reason)).Inc()
	w.c.at(PointDead)
	w.c.log.WarnContext(ctx, "dead-lettered", "message", it.id.Identity, "reason", it.reason, "attempt", it.row.Attempts,
		"err", it.cause)
}

// unlock writes the done markers of what is success, unless they stand there, and releases the other locks; those of
// open items, and of those whose copy is refused or not out yet, only when the batch has failed, because their
// deliveries come again and must not find them held. A marker that lies stays until its message is success. It only
// saves work, so its errors are the lock's own business.
func (w *worker) unlock(ctx context.Context, b *batch) {
	var marks []lock.Mark
	var release []lock.Name
	for _, it := range b.all {
		ours := it.lock.hold == lock.Mine
		if !ours && !it.lock.hinted() || it.atWork() && !b.failed {
			continue
		}
		switch {
		case it.outcome == Applied, it.outcome == Duplicate && !it.lock.marked:
			marks = append(marks, lock.Mark{Name: it.lock.name, BodyHash: it.id.BodyHash})
		case ours:
			release = append(release, it.lock.name)
		}
		it.lock.hold = 0
	}
	_ = w.locker.Done(ctx, marks)
	_ = w.locker.Release(ctx, b.token, append(release, b.stray...))
	b.stray = nil
}

// atWork reports whether a copy of the message must still wait for this one: whoever took it up would publish a letter
// of its own beside that of this one.
func (it *item) atWork() bool {
	enough := stagePublished
	if it.by == byDeadLetter {
		enough = stageDurable
	}
	return it.by != byAck && (it.stage < enough || it.copy.refused != nil)
}
