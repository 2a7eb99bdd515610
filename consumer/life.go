package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// process is the life of a batch. Each step ends some of the open items with an outcome and leaves the rest to the
// next; what had to wait for its twin or for another worker's lock goes through a second time. Whatever step fails,
// every item is either settled or still unacked.
func (l *lane) process(ctx context.Context, b *batch) error {
	settled := l.c.inHand.enter(b.token)
	defer settled()
	l.identify(ctx, b) // 1 name each message; the first of an identity leads its copies
	for ; len(b.open) > 0; b.nextPass() {
		for _, step := range l.steps(settled) {
			err := step(ctx, b)
			if givesBackRest(err) || errors.Is(err, errBraked) && !b.braked { // what is done so far stays done
				b.parting = true
				err = errors.Join(err, l.settle(ctx, b))
			}
			if err != nil {
				return fmt.Errorf("batch of %d: %w", len(b.all), err)
			}
		}
	}
	return nil
}

// givesBackRest reports whether err, of a step, is nobody's failure: the rest of the batch shall go back.
func givesBackRest(err error) bool {
	return errors.Is(err, errInHandTooLong) || errors.Is(err, errStopping) || errors.Is(err, errManyStuck)
}

// step is one in the life of a batch.
type step func(context.Context, *batch) error

// steps are those of a pass, in order; settled says that what the lanes which met our locks wait for is done.
func (l *lane) steps(settled func()) []step {
	if l.backstop {
		return []step{l.lookUp, l.buryAll, l.settle, l.waitForLeases}
	}
	letOn := func(context.Context, *batch) error { settled(); return nil }
	steps := []step{
		l.lock,   // 2 one pipeline; what has a done marker is looked up
		l.lookUp, // 3 one query; success and dead rows end here
	}
	if l.c.service != nil { // calls take their time: nobody waits for them
		steps = append(steps, l.settle, letOn)
	}
	return append(steps,
		l.spare,         //   while everything fails, few are attempted
		l.attemptFresh,  // 4 what has no row: one transaction for all; who is blamed leaves it
		l.record,        // 5 few commits for the blamed
		l.attemptFailed, // 6 what failed before: claim, attempt, record, each for many at once
		l.settle,        //   what is done so far must not wait for what follows
		letOn,           //   nor must the lanes that met our locks
		l.attemptAlone,  // 7 what may be a danger, or would not go with others: the same for one at a time
		l.settle,        // 8 copies confirmed, rows dead, marks and releases, then acks
	)
}

// 1. identify names each message. The unreadable ones keep a name too, so that every dead letter has a row.
func (l *lane) identify(ctx context.Context, b *batch) {
	var unread []*item
	for _, it := range b.all {
		it.copied = wire.ReadCopy(it.delivery.Headers)
		id, err := wire.Identify(l.c.cfg.Group, l.c.cfg.keyFrom, l.c.cfg.Queue, it.delivery)
		it.id = id
		it.msg = Message{
			Identity: id.Identity, Body: it.delivery.Body, Headers: it.delivery.Headers, MessageID: it.delivery.MessageID,
			ContentType: it.delivery.ContentType,
		}
		if at, ok := wire.PublishedAt(it.delivery.Message); ok {
			it.msg.PublishedAt = at
		}
		switch {
		case err != nil:
			it.rejected = &unreadable{dedup.ReasonUnidentified, err}
		case len(it.delivery.Body) > MaxBody:
			it.rejected = &unreadable{dedup.ReasonMalformed, fmt.Errorf("a body of %d bytes is over the limit of %d",
				len(it.delivery.Body), MaxBody)}
		case l.mayKill(it): // read it when a claim is there to count it
		default:
			unread = append(unread, it)
		}
	}
	msgs := make([]*Message, len(unread))
	for i, it := range unread {
		msgs[i] = &it.msg
	}
	for i, err := range l.validate(ctx, msgs...) {
		if err != nil {
			unread[i].rejected = &unreadable{dedup.ReasonMalformed, err}
		}
	}
	for _, it := range b.all {
		b.lead(it)
	}
}

// 2. lock asks the lock for all open identities, which locks the free ones. What it finds only says where to look next:
// what has a done marker or a foreign value goes on without a lock, by its row.
func (l *lane) lock(ctx context.Context, b *batch) error {
	defer l.c.metrics.phase(phaseLock, time.Now())
	if b.pass > 0 {
		if err := l.waitForHolders(ctx, b); err != nil {
			return err
		}
	}
	names := make([]lock.Name, len(b.open))
	for i, it := range b.open {
		names[i] = l.locker.nameOf(it.id.Identity)
	}
	var held []lock.Held
	err := l.untilAnswered(ctx, l.c.locks.name, func(ctx context.Context) (err error) {
		held, err = l.locker.Lock(ctx, b.token, names)
		return err
	})
	if err != nil {
		return err
	}
	for i, it := range b.open {
		it.lock = itsLock{
			name: names[i], hold: cmp.Or(held[i].Hold, lock.Foreign), holder: held[i].Holder,
			marked: held[i].Hold == lock.DoneMarker && held[i].BodyHash == it.id.BodyHash,
		}
	}
	return nil
}

//  3. lookUp reads the rows of all open identities and gives each item its way. What looks new is not looked up while
//     no such message had a row: its insert would meet it (1062) and lookAgain find it. A body that differs from
//     its row's is a conflict whatever the row's status; it is filed under a name of its own, which has a row or not.
func (l *lane) lookUp(ctx context.Context, b *batch) error {
	var known []*item
	for _, it := range b.open {
		if !l.backstop && l.skipper.trusted() && it.looksNew() {
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
	defer l.c.metrics.phase(phaseLookUp, time.Now())
	rows, err := l.rowsOf(ctx, known)
	if err != nil {
		return err
	}
	for _, it := range known {
		it.row = rows[it.id.Identity]
		l.skipper.saw(it)
		if differs(it) {
			l.conflict(b, it)
		} else if l.backstop {
			l.routeBackstop(b, it)
		} else {
			l.route(b, it)
		}
	}
	return nil
}

// route sends an item the way its row asks for.
func (l *lane) route(b *batch, it *item) {
	v := decide(it.row, it.circumstances(), l.c.cfg.MaxAttempts)
	if v.works() && l.c.holding.has(it.id.Identity) {
		v = comeBack // a letter of it waits for room, in this process: one is enough
	}
	if it.lock.hold == lock.HeldByOther && v.works() { // a row may say more than a lock: only work waits for the lock
		if b.pass == 0 {
			b.later = append(b.later, it)
			return
		}
		v = comeBack
	}
	switch v {
	case runFresh:
		b.fresh = append(b.fresh, it)
	case skipDone:
		it.ack(Duplicate)
	case skipDead:
		it.ack(DuplicateOfDead)
	case comeBack:
		wait := it.row.Wait
		if it.row.Condemned() {
			wait = longest // nothing is gained by coming soon
		}
		l.comeBack(it, wait)
	case bury:
		it.bury(it.rejected.reason, it.rejected.err.Error())
	case giveUp:
		it.bury(reasonOf(it.row), l.lastWords(it.row))
	case runAgain:
		b.again = append(b.again, it)
	default:
		it.next = v
		b.alone = append(b.alone, it)
	}
}

// lookAgain reads a group's rows after our insert met another's, or after a COMMIT whose answer was lost: never assume.
// What has a row goes its row's way; the rest is returned to be tried anew.
func (l *lane) lookAgain(ctx context.Context, b *batch, group []*item, unknown bool) ([]*item, error) {
	rows, err := l.rowsOf(ctx, group)
	if err != nil {
		return nil, err
	}
	done := 0
	for _, it := range group {
		if it.row = rows[it.id.Identity]; it.row.Status == dedup.Success && !differs(it) {
			done++
		}
		if it.looksNew() && it.row.Status != dedup.Absent && !unknown {
			l.skipper.reset()
		}
	}
	if unknown && done == len(group) { // all or nothing: it was our COMMIT
		l.applied(group)
		return nil, nil
	}
	var rest []*item
	for _, it := range group {
		switch {
		case it.row.Status == dedup.Absent:
			rest = append(rest, it)
		case differs(it):
			l.conflict(b, it)
		default:
			l.route(b, it)
		}
	}
	return rest, nil
}

// 5. record writes down the failed attempts of the blamed, whose groups have come to an end. Who has a row by now goes
// its row's way. A process that dies before this has counted nothing either.
func (l *lane) record(ctx context.Context, b *batch) error {
	met, err := l.charge(ctx, b.blamed)
	b.blamed = nil
	if err != nil || len(met) == 0 {
		return err
	}
	gone, err := l.lookAgain(ctx, b, met, false)
	l.leaseLost(gone...) // the row that was met is not there any more
	return err
}
