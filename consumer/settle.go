package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
func (l *lane) settle(ctx context.Context, b *batch) error {
	defer l.c.metrics.phase(phaseSettle, time.Now())
	if err := l.brake(ctx, b); err != nil {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = l.publishAndRecord(ctx, b); err != nil {
			return err
		}
		b.parting = b.parting || b.braked && !more
		l.unlock(ctx, b) // what is done does not wait for what is not
		if err := l.acknowledge(b); err != nil {
			return err
		}
	}
	if b.braked {
		return errBraked
	}
	return nil
}

// publishAndRecord publishes the copies that are missing and records the letters among them; more: not all of them yet.
// No lease keeps a copy of a message off letters that are written down and not published: their rows are read before.
func (l *lane) publishAndRecord(ctx context.Context, b *batch) (more bool, err error) {
	err = l.reconsider(ctx, pick(b.all, func(it *item) bool {
		return it.by == byDeadLetter && it.row.Condemned() && it.awaitsCopy()
	}))
	if err != nil {
		return false, err
	}
	unknown, err := l.publishCopies(ctx, b)
	if err != nil {
		return false, err
	}
	moved, err := l.condemn(ctx, b.all)
	if err != nil {
		return false, err
	}
	lost, err := l.recordLetters(ctx, b.all)
	return unknown || moved || lost, err
}

// keepReasons writes down at once why claimed messages failed for good: until their letters are confirmed nothing else
// keeps copies of them away once their leases end, and nobody knows how long the attempts behind them in the batch will
// take, or the letters. What the brake holds back keeps nothing: it is given back.
func (l *lane) keepReasons(ctx context.Context, b *batch) error {
	if !slices.ContainsFunc(b.all, (*item).claimedLetter) {
		return nil
	}
	if err := l.brake(ctx, b); err != nil {
		return err
	}
	if _, err := l.condemn(ctx, b.all); err != nil || !b.braked {
		return err
	}
	return l.settle(ctx, b)
}

// claimedLetter reports whether a letter is to be published of a message that is claimed still.
func (it *item) claimedLetter() bool {
	return it.by == byDeadLetter && it.claim != nil && it.row.Status == dedup.Processing
}

// brake tells the brake what became of this batch, and asks for leave to publish its letters. What gets none is open
// again and goes back to the broker. The backstop attempts nothing, and what it files is no failure of a handler.
func (l *lane) brake(ctx context.Context, b *batch) error {
	if l.backstop || l.c.cfg.MaxDead == 0 {
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
		letter := it.by == byDeadLetter && brakes(it.reason)
		if letter && !it.row.Condemned() && !l.c.brake.counted(it.opening()) {
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
	l.c.brake.note(applied, failed, first)
	if len(letters) == 0 {
		return nil
	}
	var got int
	var holds time.Duration
	err := l.untilKnown(ctx, func(ctx context.Context) (err error) {
		got, holds, err = l.c.records.ReserveLetters(ctx, l.c.brake.limit, len(letters))
		return err
	})
	if err != nil {
		return err
	}
	for _, it := range letters[:got] {
		l.c.brake.let(it.opening())
	}
	for _, it := range letters[got:] {
		it.reopen()
		if it.claim != nil {
			l.c.debts.owe(*it.claim)
		}
	}
	if got < len(letters) {
		b.braked = true
		l.c.brake.holdLetters(holds)
	}
	return nil
}

// publishCopies publishes the copies that are still missing. It returns when every one of them is confirmed or refused,
// or, with unknown, when there is something to record before the rest is published again: what was confirmed meanwhile,
// and, the first time, what the letters that may not have arrived are about.
func (l *lane) publishCopies(ctx context.Context, b *batch) (unknown bool, err error) {
	waiting := pick(b.all, (*item).awaitsCopy)
	if len(waiting) == 0 {
		return false, nil
	}
	err = l.untilAnswered(ctx, DependencyRabbitMQ, func(ctx context.Context) error {
		before := len(waiting)
		var trouble error
		waiting, trouble = l.publish(ctx, waiting)
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
func (l *lane) publish(ctx context.Context, items []*item) (unknown []*item, trouble error) {
	copies := eachOf(items, l.copyOf)
	unsure := 0
	for i, err := range l.c.publisher.Publish(ctx, copies) {
		it := items[i]
		kind, point := kindLetter, PointLetter
		if it.by == byRetry {
			kind, point = kindRetry, PointRetryCopy
		}
		if err == nil {
			l.c.metrics.publishes.WithLabelValues(kind, copyConfirmed).Inc()
			it.copy.refused, it.copy.unsure = nil, nil
			it.move(stagePublished)
			l.c.at(point)
			continue
		}
		it.copy.tried = time.Now()
		err = fmt.Errorf("publish the %s copy of %v to %s: %w", kind, it.id.Identity, copies[i].Key, err)
		result := copyFailed
		if errors.Is(err, rabbit.ErrUnconfirmed) {
			result, it.copy.unsure = copyUnknown, err
			unsure++
		}
		l.c.metrics.publishes.WithLabelValues(kind, result).Inc()
		if rabbit.Refused(err) {
			it.copy.refused = err
			continue
		}
		unknown = append(unknown, it)
		trouble = cmp.Or(trouble, err)
	}
	if unsure > 0 {
		l.c.log.WarnContext(ctx, "RabbitMQ may have copies that it did not confirm: their rows are looked at, and the "+
			"copies published again; of two copies one is absorbed", "copies", unsure, "err", trouble)
	}
	return unknown, trouble
}

// condemn keeps the reasons of letters that could not be published, or whose message is claimed: they get no further
// attempt, although their claims end or the process does. A row that somebody else moved is theirs, and a copy comes
// back later to see what became of it: moved reports that there is such a copy to publish.
func (l *lane) condemn(ctx context.Context, items []*item) (moved bool, err error) {
	waiting := pick(items, func(it *item) bool {
		refused := !it.copy.tried.IsZero() && it.row.Status != dedup.Failed
		return it.by == byDeadLetter && it.stage < stagePublished && (refused || it.claimedLetter())
	})
	lost, err := moveRows(ctx, l, waiting, func(some []*item) transition {
		all := eachOf(some, func(it *item) dedup.Condemnation {
			return dedup.Condemnation{From: it.row, Entry: it.fullEntry(), Reason: it.reason, Cause: it.cause, Owner: l.owner()}
		})
		return func(ctx context.Context) ([]dedup.Row, []error) { return l.c.records.CondemnAll(ctx, all) }
	}, func(it *item, row dedup.Row) {
		it.row, it.claim = row, nil
		l.c.at(PointCondemned)
	})
	l.leaseLost(lost...)
	return len(lost) > 0, err
}

// copyOf is the copy that it's settlement asks for. Copies go through the default exchange to our queue by name: the
// first exchange would hand them to every other queue bound there.
func (l *lane) copyOf(it *item) rabbit.Publishing {
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
	return rabbit.Publishing{Key: l.queueOf(it), Message: wire.Copy(it.delivery, l.c.cfg.Queue, o)}
}

// queueOf is the queue of the copy that it's settlement asks for.
func (l *lane) queueOf(it *item) string {
	if it.by == byRetry {
		return rabbit.RetryQueue(l.c.cfg.Queue, it.delay)
	}
	return rabbit.DeadQueue(l.c.cfg.Queue)
}

// recordLetters makes the rows of confirmed letters say dead. A row that says so already, of this opening and this
// body, may be the work of a call of ours whose answer was lost; else it is that of another copy, and our letter is one
// too many. Any other row that somebody else moved meanwhile is theirs: the letter stays, and a copy comes back later
// to see what became of it; lost reports that there is such a copy to publish.
func (l *lane) recordLetters(ctx context.Context, items []*item) (lost bool, err error) {
	letters := pick(items, func(it *item) bool { return it.by == byDeadLetter && it.stage == stagePublished })
	unanswered := map[*item]bool{}
	moved, err := moveRows(ctx, l, letters, func(some []*item) transition {
		all := eachOf(some, func(it *item) dedup.Death {
			return dedup.Death{From: it.row, Entry: it.fullEntry(), Reason: it.reason, Cause: it.cause}
		})
		return func(ctx context.Context) ([]dedup.Row, []error) {
			errs := l.c.records.DeadRows(ctx, all)
			if errors.Is(errors.Join(errs...), dedup.ErrUnknown) {
				for _, it := range some {
					unanswered[it] = true
				}
			}
			return nil, errs
		}
	}, func(it *item, _ dedup.Row) { l.recorded(ctx, it) })
	if err != nil || len(moved) == 0 {
		return false, err
	}
	rows, err := l.rowsOf(ctx, moved)
	if err != nil {
		return false, err
	}
	for _, it := range moved {
		was := it.row.Replays
		it.row = rows[it.id.Identity]
		switch {
		case it.row.Status != dedup.Dead || it.row.Replays != was || differs(it):
			l.leaseLost(it)
			lost = true
		case unanswered[it]:
			l.recorded(ctx, it)
		default:
			it.outcome = DuplicateOfDead
			it.move(stageDurable)
			l.c.brake.arrived(it.opening())
		}
	}
	return lost, nil
}

// recorded ends an item whose letter is confirmed and whose row says so.
func (l *lane) recorded(ctx context.Context, it *item) {
	it.move(stageDurable)
	l.c.brake.arrived(it.opening())
	l.c.metrics.deadLettered.WithLabelValues(string(it.reason)).Inc()
	l.c.at(PointDead)
	l.c.log.WarnContext(ctx, "dead-lettered", "message", it.id.Identity, "reason", it.reason, "attempt", it.row.Attempts,
		"err", it.cause)
}

// unlock writes the done markers of what is success, unless they stand there, and releases the other locks; those of
// open items, and of those whose copy is refused or not out yet, only when the batch has failed, because their
// deliveries come again and must not find them held. A marker that lies stays until its message is success. It only
// saves work, so its errors are the lock's own business.
func (l *lane) unlock(ctx context.Context, b *batch) {
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
	_ = l.locker.Done(ctx, marks)
	_ = l.locker.Release(ctx, b.token, append(release, b.stray...))
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

// acknowledge acks whatever is durable: what nothing older holds up all at once, and one by one what is behind that,
// unless the rest will be durable soon.
func (l *lane) acknowledge(b *batch) error {
	for _, it := range b.all {
		it.carryFollowers()
	}
	behind := false
	var done []*item
	for _, it := range b.all {
		behind = behind || it.stage < stageDurable
		// a copy that comes back beside its original makes two messages of one
		if it.stage == stageDurable && !(behind && it.by == byAck && b.waits()) {
			done = append(done, it)
		}
	}
	if len(done) == 0 {
		return nil
	}
	if err := l.sub.AckAll(eachOf(done, func(it *item) uint64 { return it.delivery.Tag })); err != nil {
		return fmt.Errorf("ack %d deliveries from %v: %w", len(done), done[0].id.Identity, err)
	}
	for _, it := range done {
		l.acked(it)
	}
	l.c.at(PointAcked)
	return nil
}

// carryFollowers makes an item durable whose settlement is complete, and its followers with it: the leader's effect or
// its confirmed copy carries them.
func (it *item) carryFollowers() {
	if it.by == byAck && it.stage < stageDurable || it.by != byDeadLetter && it.stage == stagePublished {
		it.move(stageDurable)
	}
	if it.stage < stageDurable {
		return
	}
	for _, f := range it.followers {
		if f.stage == stageOpen {
			f.ack(it.outcome.ofFollower())
			f.move(stageDurable)
		}
	}
}

func (l *lane) acked(it *item) {
	if it.stage != stageAcked {
		it.move(stageAcked)
		l.c.ended(it, it.outcome)
		it.unload() // the budget counts it no more
	}
}

// unload lets go of the message itself, but for what names it.
func (it *item) unload() {
	it.delivery.Message = rabbit.Message{MessageID: it.delivery.MessageID}
	it.msg.Body, it.msg.Headers = nil, nil
}

// abandon counts what a failed batch leaves to the broker. What is durable keeps its outcome, although its ack was lost
// and it comes again.
func (l *lane) abandon(b *batch) {
	for _, it := range b.all {
		if it.stage >= stageDurable {
			l.acked(it)
		} else {
			l.c.ended(it, Abandoned)
		}
	}
}
