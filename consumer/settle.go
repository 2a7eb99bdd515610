package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
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

// 7. settle tells the broker what became of every item that has ended: copies are confirmed before the rows of letters
// say dead, and nothing is acked before its outcome is durable or its copy confirmed. A copy that its queue refuses
// holds back its own delivery only (held.go). It may run several times in the life of a batch and takes up only what is
// new.
func (w *worker) settle(ctx context.Context, b *batch) error {
	defer w.c.metrics.phase(phaseSettle, time.Now())
	if err := w.brake(ctx, b); err != nil {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = w.publishAndRecord(ctx, b); err != nil {
			return err
		}
		b.parting = b.parting || b.braked && !more
		w.unlock(ctx, b) // what is done does not wait for what is not
		if err := w.acknowledge(b); err != nil {
			return err
		}
	}
	if b.braked {
		return errBraked
	}
	return nil
}

// publishAndRecord publishes the copies that are missing and records the letters among them; more: not all of them yet.
func (w *worker) publishAndRecord(ctx context.Context, b *batch) (more bool, err error) {
	if _, err := w.condemn(ctx, b.all); err != nil { // claims: see keepReasons
		return false, err
	}
	if err := w.lookAtCondemned(ctx, b.all); err != nil {
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
// take, or the letters. What the brake holds back keeps nothing: it is given back.
func (w *worker) keepReasons(ctx context.Context, b *batch) error {
	if !slices.ContainsFunc(b.all, (*item).claimedLetter) {
		return nil
	}
	if err := w.brake(ctx, b); err != nil {
		return err
	}
	if b.braked {
		return w.settle(ctx, b)
	}
	_, err := w.condemn(ctx, b.all)
	return err
}

// lookAtCondemned reads the rows of letters that are written down and not published: no lease keeps a copy of the
// message off them, and it may have been the letter meanwhile.
func (w *worker) lookAtCondemned(ctx context.Context, items []*item) error {
	var waiting []*item
	for _, it := range items {
		if _, ok := it.settle.(deadLetter); ok && it.row.Condemned() && it.awaitsCopy() {
			waiting = append(waiting, it)
		}
	}
	return w.reconsiderAll(ctx, waiting)
}

// claimedLetter reports whether a letter is to be published of a message that is claimed still.
func (it *item) claimedLetter() bool {
	letter, ok := it.settle.(deadLetter)
	return ok && it.claim != nil && letter.from.Status == dedup.Processing
}

// brake tells the brake what became of this batch, and asks for leave to publish its letters. What gets none is open
// again and goes back to the broker. The backstop attempts nothing, and what it files is no failure of a handler.
func (w *worker) brake(ctx context.Context, b *batch) error {
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
		applied = applied || it.outcome == Applied
		attempt := 0
		switch end := it.settle.(type) {
		case retryAfter:
			if it.outcome != Retried {
				continue
			}
			attempt = end.attempt
		case deadLetter:
			if !brakes(end.reason) {
				continue
			}
			attempt = end.from.Attempts
			if !it.row.Condemned() && !w.c.brake.counted(opening{it.id.Identity, end.from.Replays}) {
				letters = append(letters, it) // else it was counted when it was refused
			}
		default:
			continue
		}
		failed = true
		if attempt <= 1 {
			first = append(first, it.id.Identity)
		}
	}
	w.c.brake.note(applied, failed, first)
	if len(letters) == 0 {
		return nil
	}
	var got int
	var holds time.Duration
	err := w.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, w.c.opTimeout)
		defer cancel()
		got, holds, err = w.c.records.ReserveLetters(ctx, w.c.brake.limit, len(letters))
		return err
	})
	if err != nil {
		return err
	}
	for _, it := range letters[:got] {
		w.c.brake.let(opening{it.id.Identity, it.settle.(deadLetter).from.Replays})
	}
	for _, it := range letters[got:] {
		it.end(0, nil)
		if it.claim != nil {
			w.c.debts.owe(*it.claim)
		}
	}
	if got < len(letters) {
		b.braked = true
		w.c.brake.holdLetters(holds)
	}
	return nil
}

// publishCopies publishes the copies that are still missing. It returns when every one of them is confirmed or refused,
// or, with unknown, when there is something to record before the rest is published again: what was confirmed meanwhile,
// and, the first time, what the letters that may not have arrived are about.
func (w *worker) publishCopies(ctx context.Context, b *batch) (unknown bool, err error) {
	var waiting []*item
	for _, it := range b.all {
		if it.awaitsCopy() {
			waiting = append(waiting, it)
		}
	}
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
		return &troubleError{fault: mysqldb.FaultUnavailable, err: trouble}
	})
	b.stuck = len(waiting) > 0
	return len(waiting) > 0, err
}

// publish publishes the copies of items once. A copy is confirmed, or refused for itself, or, because of the
// connection, unknown; trouble is why.
func (w *worker) publish(ctx context.Context, items []*item) (unknown []*item, trouble error) {
	copies := eachOf(items, w.copyOf)
	unsure := 0
	for i, err := range w.c.publisher.Publish(ctx, copies) {
		it := items[i]
		kind, point := kindRetry, PointRetryCopy
		if _, again := it.settle.(retryAfter); !again {
			kind, point = kindLetter, PointLetter
		}
		if err == nil {
			w.c.metrics.publishes.WithLabelValues(kind, copyConfirmed).Inc()
			it.copy.refused, it.copy.unsure = nil, nil
			it.move(stagePublished)
			w.c.at(point)
			continue
		}
		it.copy.tried = true
		err = fmt.Errorf("publish the %s copy of %v to %s: %w", kind, it.id.Identity, copies[i].Key, err)
		if errors.Is(err, rabbit.ErrUnconfirmed) {
			w.c.metrics.publishes.WithLabelValues(kind, copyUnknown).Inc()
			it.copy.unsure = err
			unsure++
		} else {
			w.c.metrics.publishes.WithLabelValues(kind, copyFailed).Inc()
		}
		if rabbit.Refused(err) {
			it.copy.refused = err
			continue
		}
		unknown = append(unknown, it)
		if trouble == nil {
			trouble = err
		}
	}
	if unsure > 0 {
		w.c.log.WarnContext(ctx, "RabbitMQ may have copies that it did not confirm: their rows are looked at, and the "+
			"copies published again; of two copies one is absorbed", "copies", unsure, "err", trouble)
	}
	return unknown, trouble
}

// recordAtOnce is how many rows share a transaction that keeps the reasons of their letters, or makes them dead.
const recordAtOnce = 200

// condemn keeps the reasons of letters that could not be published, or whose message is claimed: they get no further
// attempt, although their claims end or the process does. A row that somebody else moved is theirs, and a copy comes
// back later to see what became of it: moved reports that there is such a copy to publish.
func (w *worker) condemn(ctx context.Context, items []*item) (moved bool, err error) {
	var waiting []*item
	for _, it := range items {
		letter, ok := it.settle.(deadLetter)
		if ok && it.stage < stagePublished && (it.copy.tried && letter.from.Status != dedup.Failed || it.claimedLetter()) {
			waiting = append(waiting, it)
		}
	}
	for some := range slices.Chunk(waiting, recordAtOnce) {
		all := eachOf(some, func(it *item) dedup.Condemnation {
			letter := it.settle.(deadLetter)
			return dedup.Condemnation{From: letter.from, Entry: it.fullEntry(), Reason: letter.reason,
				Cause: letter.cause, Owner: w.owner()}
		})
		var rows []dedup.Row
		errs, err := w.untilAllKnown(ctx, func(ctx context.Context) (errs []error) {
			rows, errs = w.c.records.CondemnAll(ctx, all)
			return errs
		})
		if err != nil {
			return moved, err
		}
		for i, it := range some {
			if errs[i] != nil {
				w.leaseLost(it)
				moved = true
				continue
			}
			letter := it.settle.(deadLetter)
			letter.from = rows[i]
			it.row, it.settle, it.claim = rows[i], letter, nil
			w.c.at(PointCondemned)
		}
	}
	return moved, nil
}

// copyOf is the copy that it's settlement asks for. Copies go through the default exchange to our queue by name: the
// first exchange would hand them to every other queue bound there.
func (w *worker) copyOf(it *item) rabbit.Publishing {
	o := wire.CopyOptions{Identity: it.id, Replays: it.row.Replays}
	switch end := it.settle.(type) {
	case retryAfter:
		o.Attempt, o.Error, o.Deliveries = end.attempt, end.cause, it.deliveries()
		if it.outcome != Retried && !it.copied.DeadAt.IsZero() {
			// A letter that was moved by hand and came too early stays the letter of its row: it may be the only one
			// when the row says dead.
			o.DeadAt, o.Replays = it.copied.DeadAt, it.copied.Replays
		}
	case moveLetter:
		o.Attempt, o.Error, o.Replays = it.copied.Attempt, it.copied.Error, it.copied.Replays
		o.Reason, o.DeadAt = cmp.Or(it.copied.Reason, dedup.Reason(it.row.Reason)), it.copied.DeadAt
	case deadLetter:
		o.Attempt, o.Error, o.Reason, o.Replays = end.from.Attempts, end.cause, end.reason, end.from.Replays
	}
	return rabbit.Publishing{Key: w.queueOf(it), Message: wire.Copy(it.delivery, w.c.cfg.Queue, o)}
}

// queueOf is the queue of the copy that it's settlement asks for.
func (w *worker) queueOf(it *item) string {
	if later, again := it.settle.(retryAfter); again {
		return rabbit.RetryQueue(w.c.cfg.Queue, later.delay)
	}
	return rabbit.DeadQueue(w.c.cfg.Queue)
}

// recordLetters makes the rows of confirmed letters say dead. A row that somebody else moved meanwhile is theirs: the
// letter stays, and a copy comes back later to see what became of it; lost reports that there is such a copy to
// publish.
func (w *worker) recordLetters(ctx context.Context, items []*item) (lost bool, err error) {
	var letters []*item
	for _, it := range items {
		if _, ok := it.settle.(deadLetter); ok && it.stage == stagePublished {
			letters = append(letters, it)
		}
	}
	for some := range slices.Chunk(letters, recordAtOnce) {
		if err := w.recordRows(ctx, some); err != nil {
			return lost, err
		}
		lost = lost || slices.ContainsFunc(some, func(it *item) bool { return it.stage != stageDurable })
	}
	return lost, nil
}

// recordRows makes rows say dead, in one transaction. A row that says so already, of this opening and this body, may be
// the work of a call of ours whose answer was lost; else it is that of another copy, and our letter is one too many.
func (w *worker) recordRows(ctx context.Context, some []*item) error {
	all := eachOf(some, func(it *item) dedup.Death {
		letter := it.settle.(deadLetter)
		return dedup.Death{From: letter.from, Entry: it.fullEntry(), Reason: letter.reason, Cause: letter.cause}
	})
	unanswered := false
	errs, err := w.untilAllKnown(ctx, func(ctx context.Context) []error {
		errs := w.c.records.DeadRows(ctx, all)
		unanswered = unanswered || errors.Is(errors.Join(errs...), dedup.ErrUnknown)
		return errs
	})
	if err != nil {
		return err
	}
	var moved []*item
	for i, it := range some {
		if errs[i] == nil {
			w.recorded(ctx, it)
		} else {
			moved = append(moved, it)
		}
	}
	if len(moved) == 0 {
		return nil
	}
	rows, err := w.rowsOf(ctx, moved)
	if err != nil {
		return err
	}
	for _, it := range moved {
		letter := it.settle.(deadLetter)
		it.row = rows[it.id.Identity]
		switch {
		case it.row.Status != dedup.Dead || it.row.Replays != letter.from.Replays || differs(it):
			w.leaseLost(it)
		case unanswered:
			w.recorded(ctx, it)
		default:
			it.outcome = DuplicateOfDead
			it.move(stageDurable)
			w.c.brake.arrived(opening{it.id.Identity, letter.from.Replays})
		}
	}
	return nil
}

// recorded ends an item whose letter is confirmed and whose row says so.
func (w *worker) recorded(ctx context.Context, it *item) {
	letter := it.settle.(deadLetter)
	it.move(stageDurable)
	w.c.brake.arrived(opening{it.id.Identity, letter.from.Replays})
	w.c.metrics.deadLettered.WithLabelValues(string(letter.reason)).Inc()
	w.c.at(PointDead)
	w.c.log.WarnContext(ctx, "dead-lettered", "message", it.id.Identity, "reason", letter.reason, "attempt",
		letter.from.Attempts, "err", letter.cause)
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
	switch it.settle.(type) {
	case ack:
		return false
	case deadLetter:
		return it.stage < stageDurable || it.copy.refused != nil
	}
	return it.stage < stagePublished || it.copy.refused != nil
}

// acknowledge acks whatever is durable: all at once over the prefix of the batch in which everything is, and one by one
// behind it unless the rest will be durable soon. While the lane holds older deliveries it acks one by one.
func (w *worker) acknowledge(b *batch) error {
	for _, it := range b.all {
		it.carryFollowers()
	}
	prefix, last := w.withheld == 0, -1 // what is held came before: no ack may pass it
	var single []*item
	for i, it := range b.all {
		_, plain := it.settle.(ack)
		prefix = prefix && it.stage >= stageDurable
		switch {
		case it.stage != stageDurable:
		case prefix:
			last = i
		// a copy that comes back beside its original makes two messages of one
		case w.withheld == 0 && b.waits() && plain:
		default:
			single = append(single, it)
		}
	}
	if last >= 0 {
		if err := w.sub.Ack(b.all[last].delivery.Tag, true); err != nil {
			return fmt.Errorf("ack up to %v: %w", b.all[last].id.Identity, err)
		}
		for _, it := range b.all[:last+1] {
			w.acked(it)
		}
	}
	for _, it := range single {
		if err := w.sub.Ack(it.delivery.Tag, false); err != nil {
			return fmt.Errorf("ack %v: %w", it.id.Identity, err)
		}
		w.acked(it)
	}
	if last >= 0 || len(single) > 0 {
		w.c.at(PointAcked)
	}
	return nil
}

// carryFollowers makes an item durable whose settlement is complete, and its followers with it: the leader's effect or
// its confirmed copy carries them.
func (it *item) carryFollowers() {
	switch it.settle.(type) {
	case ack:
		if it.stage < stageDurable {
			it.move(stageDurable)
		}
	case retryAfter, moveLetter:
		if it.stage == stagePublished {
			it.move(stageDurable)
		}
	}
	if it.stage < stageDurable {
		return
	}
	for _, f := range it.followers {
		if f.stage == stageOpen {
			f.end(it.outcome.ofFollower(), ack{})
			f.move(stageDurable)
		}
	}
}

func (w *worker) acked(it *item) {
	if it.stage != stageAcked {
		it.move(stageAcked)
		w.c.ended(it, it.outcome)
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
func (w *worker) abandon(b *batch) {
	for _, it := range b.all {
		switch {
		case it.stage == stageAcked:
		case it.stage == stageDurable:
			w.acked(it)
		default:
			w.c.ended(it, Abandoned)
		}
	}
}
