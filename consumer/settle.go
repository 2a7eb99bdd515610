package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// The kinds of copies in rollbackd_publishes_total.
const (
	kindRetry  = "retry"
	kindLetter = "letter"
)

// 7. settle tells the broker what became of every item that has ended: copies are confirmed before the rows of letters
// say dead, and nothing is acked before its outcome is durable or its copy confirmed. It may run several times in the
// life of a batch and takes up only what is new.
func (l *lane) settle(ctx context.Context, b *batch) error {
	defer l.c.metrics.phase(phaseSettle, time.Now())
	braked := l.brake(b)
	for {
		if err := l.publishCopies(ctx, b); err != nil {
			return err
		}
		lost, err := l.recordLetters(ctx, b)
		if err != nil {
			return err
		}
		if !lost {
			break
		}
	}
	l.unlock(ctx, b)
	b.parting = b.parting || braked
	if err := l.acknowledge(b); err != nil {
		return err
	}
	if braked {
		return errBraked
	}
	return nil
}

// brake asks whether the letters of this batch may be published. What may not is open again and goes back to the broker.
func (l *lane) brake(b *batch) (tripped bool) {
	var letters []*item
	others := 0
	for _, it := range b.all {
		if it.outcome == 0 || it.counted {
			continue
		}
		it.counted = true
		if d, ok := it.settle.(deadLetter); ok && brakes(d.reason) {
			letters = append(letters, it)
		} else {
			others++
		}
	}
	allowed := l.c.brake.allow(others, len(letters))
	for _, it := range letters[allowed:] {
		it.end(0, nil)
		if it.claim != nil {
			l.c.debts.owe(*it.claim)
		}
	}
	return allowed < len(letters)
}

// publishCopies publishes the copies that are still missing, confirmed and routed.
func (l *lane) publishCopies(ctx context.Context, b *batch) error {
	var waiting []*item
	for _, it := range b.all {
		if _, acked := it.settle.(ack); it.outcome != 0 && !acked && !it.copyOut {
			waiting = append(waiting, it)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	return l.until(ctx, DependencyRabbitMQ, func(ctx context.Context) error {
		copies := make([]rabbit.Publishing, len(waiting))
		for i, it := range waiting {
			copies[i] = l.copyOf(it)
		}
		var firstErr error
		var rest []*item
		for i, err := range l.c.publisher.Publish(ctx, copies) {
			it := waiting[i]
			kind := kindRetry
			point := PointRetryCopy
			if _, again := it.settle.(retryAfter); !again {
				kind, point = kindLetter, PointLetter
			}
			if err != nil {
				l.c.metrics.publishes.WithLabelValues(kind, "failed").Inc()
				rest = append(rest, it)
				if firstErr == nil {
					firstErr = fmt.Errorf("publish the %s copy of %v to %s: %w", kind, it.id.Key, copies[i].Key, err)
				}
				continue
			}
			l.c.metrics.publishes.WithLabelValues(kind, "confirmed").Inc()
			it.copyOut = true
			l.c.at(point)
		}
		waiting = rest
		if firstErr != nil {
			return &troubleError{dedup.FaultUnavailable, firstErr}
		}
		return nil
	})
}

// copyOf is the copy that it's settlement asks for. Copies go through the default exchange to our queue by name: the
// first exchange would hand them to every other queue bound there.
func (l *lane) copyOf(it *item) rabbit.Publishing {
	o := wire.CopyOptions{Identity: it.id, Replays: it.row.Replays}
	queue := ""
	switch s := it.settle.(type) {
	case retryAfter:
		queue = rabbit.RetryQueue(l.c.cfg.Queue, s.delay)
		o.Attempt, o.Error, o.Deliveries = s.attempt, s.cause, it.deliveries()
		if it.outcome != Retried && !it.copied.DeadAt.IsZero() {
			// A letter that was moved by hand and came too early stays the letter of its row: it may be the only one
			// when the row says dead.
			o.DeadAt, o.Replays = it.copied.DeadAt, it.copied.Replays
		}
	case moveLetter:
		queue = rabbit.DeadQueue(l.c.cfg.Queue)
		o.Attempt, o.Error, o.Replays = it.copied.Attempt, it.copied.Error, it.copied.Replays
		o.Reason, o.DeadAt = cmp.Or(it.copied.Reason, wire.Reason(it.row.Reason)), it.copied.DeadAt
	case deadLetter:
		queue = rabbit.DeadQueue(l.c.cfg.Queue)
		o.Attempt, o.Error, o.Reason, o.Replays = s.from.Attempts, s.cause, s.reason, s.from.Replays
	}
	return rabbit.Publishing{Key: queue, Message: wire.Copy(it.delivery, l.c.cfg.Queue, o)}
}

// recordLetters makes the rows of confirmed letters say dead: all that have none in one transaction, the others one by
// one. A row that somebody else moved meanwhile is theirs: the letter stays, and a copy comes back later to see what
// became of it; lost reports that there is such a copy to publish.
func (l *lane) recordLetters(ctx context.Context, b *batch) (lost bool, err error) {
	var letters, rowless []*item
	for _, it := range b.all {
		letter, ok := it.settle.(deadLetter)
		if !ok || !it.copyOut || it.durable {
			continue
		}
		letters = append(letters, it)
		if letter.from.Status == dedup.Absent {
			rowless = append(rowless, it)
		}
	}
	if err := l.recordTogether(ctx, rowless); err != nil {
		return false, err
	}
	for _, it := range letters {
		if it.durable {
			continue
		}
		if err := l.recordLetter(ctx, it); err != nil {
			return lost, err
		}
		lost = lost || !it.durable
	}
	return lost, nil
}

// recordTogether inserts the rows of letters that have none. When one has a row by now, or the answer to COMMIT was
// lost, it leaves them to be looked at one by one.
func (l *lane) recordTogether(ctx context.Context, rowless []*item) error {
	if len(rowless) < 2 {
		return nil
	}
	letters := make([]dedup.Letter, len(rowless))
	for i, it := range rowless {
		letter := it.settle.(deadLetter)
		letters[i] = dedup.Letter{Entry: it.fullEntry(), Reason: string(letter.reason), Cause: letter.cause}
	}
	err := l.until(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, l.c.opTimeout)
		defer cancel()
		return l.c.records.DeadAll(ctx, letters)
	})
	if errors.Is(err, dedup.ErrExists) || errors.Is(err, dedup.ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, it := range rowless {
		l.recorded(ctx, it)
	}
	return nil
}

// recordLetter makes one row say dead. A row that says so already, of this opening and this body, may be the work of a
// call of ours whose answer was lost; else it is that of another copy, and our letter is one too many.
func (l *lane) recordLetter(ctx context.Context, it *item) error {
	letter := it.settle.(deadLetter)
	unknown := false
	err := l.untilKnown(ctx, func(ctx context.Context) error {
		err := l.c.records.Dead(ctx, letter.from, it.fullEntry(), string(letter.reason), letter.cause)
		unknown = unknown || errors.Is(err, dedup.ErrUnknown)
		return err
	})
	if err == nil {
		l.recorded(ctx, it)
		return nil
	}
	if !errors.Is(err, dedup.ErrLost) {
		return err
	}
	rows, err := l.rowsOf(ctx, []*item{it})
	if err != nil {
		return err
	}
	it.row = rows[it.id.Key]
	switch {
	case it.row.Status != dedup.Dead || it.row.Replays != letter.from.Replays || differs(it):
		l.leaseLost(it)
		it.copyOut = false
	case unknown:
		l.recorded(ctx, it)
	default:
		it.outcome, it.durable = DuplicateOfDead, true
	}
	return nil
}

// recorded ends an item whose letter is confirmed and whose row says so.
func (l *lane) recorded(ctx context.Context, it *item) {
	letter := it.settle.(deadLetter)
	it.durable = true
	l.c.metrics.deadLettered.WithLabelValues(string(letter.reason)).Inc()
	l.c.at(PointDead)
	l.c.log.WarnContext(ctx, "dead-lettered", "message", it.id.Key, "reason", letter.reason, "attempt", letter.from.Attempts, "err", letter.cause)
}

// unlock writes the done markers of what is success and releases the other locks; those of open items only when the
// batch has failed, because their deliveries come again and must not find them held. It only saves work, so its errors
// are the lock's own business.
func (l *lane) unlock(ctx context.Context, b *batch) {
	var marks []dedup.Mark
	var release []dedup.LockKey
	for _, it := range b.all {
		if !it.locked || it.outcome == 0 && !b.failed {
			continue
		}
		it.locked = false
		if it.outcome == Applied || it.outcome == Duplicate {
			marks = append(marks, dedup.Mark{Key: it.lockKey, BodyHash: it.id.BodyHash})
		} else {
			release = append(release, it.lockKey)
		}
	}
	_ = l.c.locker.Done(ctx, marks)
	_ = l.c.locker.Release(ctx, b.token, append(release, b.stray...))
	b.stray = nil
}

// acknowledge acks whatever is durable: all at once over the prefix of the batch in which everything is, and one by one
// behind it unless the rest will be durable soon.
func (l *lane) acknowledge(b *batch) error {
	for _, it := range b.all {
		it.carryFollowers()
	}
	prefix, last := true, -1
	var single []*item
	for i, it := range b.all {
		prefix = prefix && it.durable
		switch {
		case !it.durable || it.acked:
		case prefix:
			last = i
		case b.waits() && !it.copyOut: // a copy that comes back beside its original makes two messages of one
		default:
			single = append(single, it)
		}
	}
	if last >= 0 {
		if err := l.sub.Ack(b.all[last].delivery.Tag, true); err != nil {
			return fmt.Errorf("ack up to %v: %w", b.all[last].id.Key, err)
		}
		for _, it := range b.all[:last+1] {
			l.acked(it)
		}
	}
	for _, it := range single {
		if err := l.sub.Ack(it.delivery.Tag, false); err != nil {
			return fmt.Errorf("ack %v: %w", it.id.Key, err)
		}
		l.acked(it)
	}
	if last >= 0 || len(single) > 0 {
		l.c.at(PointAcked)
	}
	return nil
}

// carryFollowers makes an item durable whose settlement is complete, and its followers with it: the leader's effect or
// its confirmed copy carries them.
func (it *item) carryFollowers() {
	switch it.settle.(type) {
	case ack:
		it.durable = true
	case retryAfter, moveLetter:
		it.durable = it.copyOut
	}
	if !it.durable {
		return
	}
	for _, f := range it.followers {
		f.end(it.outcome.ofFollower(), ack{})
		f.durable = true
	}
}

func (l *lane) acked(it *item) {
	if !it.acked {
		it.acked = true
		l.c.metrics.deliveries[it.outcome].Inc()
	}
}

// abandon counts what a failed batch leaves to the broker. What is durable keeps its outcome, although its ack was lost
// and it comes again.
func (l *lane) abandon(b *batch) {
	for _, it := range b.all {
		switch {
		case it.acked:
		case it.durable:
			l.acked(it)
		default:
			l.c.metrics.deliveries[Abandoned].Inc()
		}
	}
}
