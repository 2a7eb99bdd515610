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

// settler tells the broker, and the log where a letter is concerned.
type settler struct{ *worker }

// 7. settle tells the broker what became of every item that has ended: copies are confirmed before the rows of letters
// say dead, and nothing is acked before its outcome is durable or its copy confirmed. A copy that its queue refuses
// holds back its own delivery only (held.go). It may run several times in the life of a batch and takes up only what is
// new.
func (s *settler) settle(ctx context.Context, b *batch) error {
	defer s.c.metrics.phase(phaseSettle, time.Now())
	if err := s.brake(ctx, b); err != nil {
		return err
	}
	for again := true; again; {
		if _, err := s.condemn(ctx, b.all); err != nil { // claims: see keepReasons
			return err
		}
		if err := s.lookAtCondemned(ctx, b.all); err != nil {
			return err
		}
		unknown, err := s.publishCopies(ctx, b)
		if err != nil {
			return err
		}
		moved, err := s.condemn(ctx, b.all)
		if err != nil {
			return err
		}
		lost, err := s.recordLetters(ctx, b.all)
		if err != nil {
			return err
		}
		if again = unknown || moved || lost; again { // what is done does not wait for what is not
			s.unlock(ctx, b)
			if err := s.acknowledge(b); err != nil {
				return err
			}
		}
	}
	s.unlock(ctx, b)
	b.parting = b.parting || b.braked
	if err := s.acknowledge(b); err != nil {
		return err
	}
	if b.braked {
		return errBraked
	}
	return nil
}

// keepReasons writes down at once why claimed messages failed for good: until their letters are confirmed nothing else
// keeps copies of them away once their leases end, and nobody knows how long the attempts behind them in the batch will
// take, or the letters. What the brake holds back keeps nothing: it is given back.
func (s *settler) keepReasons(ctx context.Context, b *batch) error {
	if !slices.ContainsFunc(b.all, (*item).claimedLetter) {
		return nil
	}
	if err := s.brake(ctx, b); err != nil {
		return err
	}
	if b.braked {
		return s.settle(ctx, b)
	}
	_, err := s.condemn(ctx, b.all)
	return err
}

// lookAtCondemned reads the rows of letters that are written down and not published: no lease keeps a copy of the
// message off them, and it may have been the letter meanwhile.
func (s *settler) lookAtCondemned(ctx context.Context, items []*item) error {
	var waiting []*item
	for _, it := range items {
		if _, ok := it.settle.(deadLetter); ok && it.row.Condemned() && !it.copyOut && it.refused == nil {
			waiting = append(waiting, it)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	rows, err := s.rowsOf(ctx, waiting)
	if err != nil {
		return err
	}
	for _, it := range waiting {
		s.reconsider(it, rows[it.id.Identity])
	}
	return nil
}

// claimedLetter reports whether a letter is to be published of a message that is claimed still.
func (it *item) claimedLetter() bool {
	letter, ok := it.settle.(deadLetter)
	return ok && it.claim != nil && letter.from.Status == dedup.Processing
}

// brake tells the brake what became of this batch, and asks for leave to publish its letters. What gets none is open
// again and goes back to the broker. The backstop attempts nothing, and what it files is no failure of a handler.
func (s *settler) brake(ctx context.Context, b *batch) error {
	if s.backstop || s.c.cfg.MaxDead == 0 {
		return nil
	}
	var letters []*item
	var first []dedup.Identity
	applied, failed := false, false
	for _, it := range b.all {
		if it.outcome == 0 || it.counted {
			continue
		}
		it.counted = true
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
			if !it.row.Condemned() && !s.c.brake.counted(opening{it.id.Identity, end.from.Replays}) {
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
	s.c.brake.note(applied, failed, first)
	if len(letters) == 0 {
		return nil
	}
	var got int
	var holds time.Duration
	err := s.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, s.c.opTimeout)
		defer cancel()
		got, holds, err = s.c.records.ReserveLetters(ctx, s.c.brake.limit, len(letters))
		return err
	})
	if err != nil {
		return err
	}
	for _, it := range letters[:got] {
		s.c.brake.let(opening{it.id.Identity, it.settle.(deadLetter).from.Replays})
	}
	for _, it := range letters[got:] {
		it.end(0, nil)
		if it.claim != nil {
			s.c.debts.owe(*it.claim)
		}
	}
	if got < len(letters) {
		b.braked = true
		s.c.brake.holdLetters(holds)
	}
	return nil
}

// publishCopies publishes the copies that are still missing. It returns when every one of them is confirmed or refused,
// or, with unknown, when there is something to record before the rest is published again: what was confirmed meanwhile,
// and, the first time, what the letters that may not have arrived are about.
func (s *settler) publishCopies(ctx context.Context, b *batch) (unknown bool, err error) {
	var waiting []*item
	for _, it := range b.all {
		if _, acked := it.settle.(ack); it.outcome != 0 && !acked && !it.copyOut && it.refused == nil {
			waiting = append(waiting, it)
		}
	}
	if len(waiting) == 0 {
		return false, nil
	}
	err = s.untilAnswered(ctx, DependencyRabbitMQ, func(ctx context.Context) error {
		before := len(waiting)
		var trouble error
		waiting, trouble = s.publish(ctx, waiting)
		if trouble == nil || len(waiting) < before || !b.stuck {
			return nil
		}
		return &troubleError{mysqldb.FaultUnavailable, trouble}
	})
	b.stuck = len(waiting) > 0
	return len(waiting) > 0, err
}

// publish publishes the copies of items once. A copy is confirmed, or refused for itself, or, because of the
// connection, unknown; trouble is why.
func (s *settler) publish(ctx context.Context, items []*item) (unknown []*item, trouble error) {
	copies := make([]rabbit.Publishing, len(items))
	for i, it := range items {
		copies[i] = s.copyOf(it)
	}
	unsure := 0
	for i, err := range s.c.publisher.Publish(ctx, copies) {
		it := items[i]
		kind, point := kindRetry, PointRetryCopy
		if _, again := it.settle.(retryAfter); !again {
			kind, point = kindLetter, PointLetter
		}
		if err == nil {
			s.c.metrics.publishes.WithLabelValues(kind, copyConfirmed).Inc()
			it.copyOut, it.refused, it.unsure = true, nil, nil
			s.c.at(point)
			continue
		}
		it.tried = true
		err = fmt.Errorf("publish the %s copy of %v to %s: %w", kind, it.id.Identity, copies[i].Key, err)
		if errors.Is(err, rabbit.ErrUnconfirmed) {
			s.c.metrics.publishes.WithLabelValues(kind, copyUnknown).Inc()
			it.unsure = err
			unsure++
		} else {
			s.c.metrics.publishes.WithLabelValues(kind, copyFailed).Inc()
		}
		if rabbit.Refused(err) {
			it.refused = err
			continue
		}
		unknown = append(unknown, it)
		if trouble == nil {
			trouble = err
		}
	}
	if unsure > 0 {
		s.c.log.WarnContext(ctx, "RabbitMQ may have copies that it did not confirm: their rows are looked at, and the "+
			"copies published again; of two copies one is absorbed", "copies", unsure, "err", trouble)
	}
	return unknown, trouble
}

// recordAtOnce is how many rows share a transaction that keeps the reasons of their letters, or makes them dead.
const recordAtOnce = 200

// condemn keeps the reasons of letters that could not be published, or whose message is claimed: they get no further
// attempt, although their claims end or the process does. A row that somebody else moved is theirs, and a copy comes
// back later to see what became of it: moved reports that there is such a copy to publish.
func (s *settler) condemn(ctx context.Context, items []*item) (moved bool, err error) {
	var waiting []*item
	for _, it := range items {
		letter, ok := it.settle.(deadLetter)
		if ok && !it.copyOut && (it.tried && letter.from.Status != dedup.Failed || it.claimedLetter()) {
			waiting = append(waiting, it)
		}
	}
	for some := range slices.Chunk(waiting, recordAtOnce) {
		lost, err := s.condemnSome(ctx, some)
		if err != nil {
			return moved, err
		}
		moved = moved || lost
	}
	return moved, nil
}

func (s *settler) condemnSome(ctx context.Context, some []*item) (moved bool, err error) {
	all := make([]dedup.Condemnation, len(some))
	for i, it := range some {
		letter := it.settle.(deadLetter)
		all[i] = dedup.Condemnation{From: letter.from, Entry: it.fullEntry(), Reason: letter.reason,
			Cause: letter.cause, Owner: s.owner()}
	}
	var rows []dedup.Row
	var errs []error
	err = s.untilKnown(ctx, func(ctx context.Context) error {
		rows, errs = s.c.records.CondemnAll(ctx, all)
		for _, err := range errs {
			if err != nil && !errors.Is(err, dedup.ErrLost) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for i, it := range some {
		if errs[i] != nil {
			s.leaseLost(it)
			moved = true
			continue
		}
		letter := it.settle.(deadLetter)
		letter.from = rows[i]
		it.row, it.settle, it.claim = rows[i], letter, nil
		s.c.at(PointCondemned)
	}
	return moved, nil
}

// copyOf is the copy that it's settlement asks for. Copies go through the default exchange to our queue by name: the
// first exchange would hand them to every other queue bound there.
func (s *settler) copyOf(it *item) rabbit.Publishing {
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
	return rabbit.Publishing{Key: s.queueOf(it), Message: wire.Copy(it.delivery, s.c.cfg.Queue, o)}
}

// queueOf is the queue of the copy that it's settlement asks for.
func (s *settler) queueOf(it *item) string {
	if later, again := it.settle.(retryAfter); again {
		return rabbit.RetryQueue(s.c.cfg.Queue, later.delay)
	}
	return rabbit.DeadQueue(s.c.cfg.Queue)
}

// recordLetters makes the rows of confirmed letters say dead: all that have none in one transaction, the others in
// others. A row that somebody else moved meanwhile is theirs: the letter stays, and a copy comes back later to see what
// became of it; lost reports that there is such a copy to publish.
func (s *settler) recordLetters(ctx context.Context, items []*item) (lost bool, err error) {
	var letters, rowless []*item
	for _, it := range items {
		letter, ok := it.settle.(deadLetter)
		if !ok || !it.copyOut || it.durable {
			continue
		}
		letters = append(letters, it)
		if letter.from.Status == dedup.Absent {
			rowless = append(rowless, it)
		}
	}
	if err := s.recordTogether(ctx, rowless); err != nil {
		return false, err
	}
	letters = slices.DeleteFunc(letters, func(it *item) bool { return it.durable })
	for some := range slices.Chunk(letters, recordAtOnce) {
		if err := s.recordRows(ctx, some); err != nil {
			return lost, err
		}
		lost = lost || slices.ContainsFunc(some, func(it *item) bool { return !it.durable })
	}
	return lost, nil
}

// recordTogether inserts the rows of letters that have none. When one has a row by now, or the answer to COMMIT was
// lost, it leaves them to be looked at one by one.
func (s *settler) recordTogether(ctx context.Context, rowless []*item) error {
	if len(rowless) < 2 {
		return nil
	}
	letters := make([]dedup.Letter, len(rowless))
	for i, it := range rowless {
		letter := it.settle.(deadLetter)
		letters[i] = dedup.Letter{Entry: it.fullEntry(), Reason: letter.reason, Cause: letter.cause}
	}
	err := s.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, s.c.opTimeout)
		defer cancel()
		return s.c.records.DeadAll(ctx, letters)
	})
	if errors.Is(err, dedup.ErrExists) || errors.Is(err, dedup.ErrUnknown) {
		for _, it := range rowless {
			it.unknown = it.unknown || errors.Is(err, dedup.ErrUnknown)
		}
		return nil
	}
	if err != nil {
		return err
	}
	for _, it := range rowless {
		s.recorded(ctx, it)
	}
	return nil
}

// recordRows makes rows say dead, in one transaction. A row that says so already, of this opening and this body, may be
// the work of a call of ours whose answer was lost; else it is that of another copy, and our letter is one too many.
func (s *settler) recordRows(ctx context.Context, some []*item) error {
	all, unknown := make([]dedup.Death, len(some)), make([]bool, len(some))
	for i, it := range some {
		letter := it.settle.(deadLetter)
		all[i] = dedup.Death{From: letter.from, Entry: it.fullEntry(), Reason: letter.reason, Cause: letter.cause}
		unknown[i] = it.unknown
	}
	var errs []error
	err := s.untilKnown(ctx, func(ctx context.Context) error {
		errs = s.c.records.DeadRows(ctx, all)
		for i, err := range errs {
			unknown[i] = unknown[i] || errors.Is(err, dedup.ErrUnknown)
		}
		return firstBut(errs, dedup.ErrLost)
	})
	if err != nil {
		return err
	}
	var moved []*item
	for i, it := range some {
		if errs[i] == nil {
			s.recorded(ctx, it)
		} else {
			moved = append(moved, it)
		}
	}
	if len(moved) == 0 {
		return nil
	}
	rows, err := s.rowsOf(ctx, moved)
	if err != nil {
		return err
	}
	for i, it := range some {
		if errs[i] == nil {
			continue
		}
		letter := it.settle.(deadLetter)
		it.row = rows[it.id.Identity]
		switch {
		case it.row.Status != dedup.Dead || it.row.Replays != letter.from.Replays || differs(it):
			s.leaseLost(it)
			it.copyOut = false
		case unknown[i]:
			s.recorded(ctx, it)
		default:
			it.outcome, it.durable = DuplicateOfDead, true
			s.c.brake.arrived(opening{it.id.Identity, letter.from.Replays})
		}
	}
	return nil
}

// recorded ends an item whose letter is confirmed and whose row says so.
func (s *settler) recorded(ctx context.Context, it *item) {
	letter := it.settle.(deadLetter)
	it.durable = true
	s.c.brake.arrived(opening{it.id.Identity, letter.from.Replays})
	s.c.metrics.deadLettered.WithLabelValues(string(letter.reason)).Inc()
	s.c.at(PointDead)
	s.c.log.WarnContext(ctx, "dead-lettered", "message", it.id.Identity, "reason", letter.reason, "attempt",
		letter.from.Attempts, "err", letter.cause)
}

// unlock writes the done markers of what is success, unless they stand there, and releases the other locks; those of
// open items, and of those whose copy is refused or not out yet, only when the batch has failed, because their
// deliveries come again and must not find them held. A marker that lies stays until its message is success. It only
// saves work, so its errors are the lock's own business.
func (s *settler) unlock(ctx context.Context, b *batch) {
	var marks []lock.Mark
	var release []lock.Name
	for _, it := range b.all {
		if !it.locked && !it.hinted || it.atWork() && !b.failed {
			continue
		}
		switch {
		case it.outcome == Applied, it.outcome == Duplicate && !it.marked:
			marks = append(marks, lock.Mark{Name: it.lockName, BodyHash: it.id.BodyHash})
		case it.locked:
			release = append(release, it.lockName)
		}
		it.locked, it.hinted = false, false
	}
	_ = s.locker.Done(ctx, marks)
	_ = s.locker.Release(ctx, b.token, append(release, b.stray...))
	b.stray = nil
}

// atWork reports whether a copy of the message must still wait for this one: whoever took it up would publish a letter
// of its own beside that of this one.
func (it *item) atWork() bool {
	switch it.settle.(type) {
	case ack:
		return false
	case deadLetter:
		return !it.durable || it.refused != nil
	}
	return !it.copyOut || it.refused != nil
}

// acknowledge acks whatever is durable: all at once over the prefix of the batch in which everything is, and one by one
// behind it unless the rest will be durable soon. While the lane holds older deliveries it acks one by one.
func (s *settler) acknowledge(b *batch) error {
	for _, it := range b.all {
		it.carryFollowers()
	}
	prefix, last := s.withheld == 0, -1 // what is held came before: no ack may pass it
	var single []*item
	for i, it := range b.all {
		prefix = prefix && it.durable
		switch {
		case !it.durable || it.acked:
		case prefix:
			last = i
		// a copy that comes back beside its original makes two messages of one
		case s.withheld == 0 && b.waits() && !it.copyOut:
		default:
			single = append(single, it)
		}
	}
	if last >= 0 {
		if err := s.sub.Ack(b.all[last].delivery.Tag, true); err != nil {
			return fmt.Errorf("ack up to %v: %w", b.all[last].id.Identity, err)
		}
		for _, it := range b.all[:last+1] {
			s.acked(it)
		}
	}
	for _, it := range single {
		if err := s.sub.Ack(it.delivery.Tag, false); err != nil {
			return fmt.Errorf("ack %v: %w", it.id.Identity, err)
		}
		s.acked(it)
	}
	if last >= 0 || len(single) > 0 {
		s.c.at(PointAcked)
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

func (s *settler) acked(it *item) {
	if !it.acked {
		it.acked = true
		s.c.ended(it, it.outcome)
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
func (s *settler) abandon(b *batch) {
	for _, it := range b.all {
		switch {
		case it.acked:
		case it.durable:
			s.acked(it)
		default:
			s.c.ended(it, Abandoned)
		}
	}
}
