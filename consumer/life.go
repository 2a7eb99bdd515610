package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// process is the life of a batch. Each step ends some of the open items with an outcome and leaves the rest to the
// next; what had to wait for its twin or for another worker's lock goes through a second time. Whatever step fails,
// every item is either settled or still unacked.
func (w *worker) process(ctx context.Context, b *batch) error {
	settled := w.c.inHand.enter(b.token)
	defer settled()
	w.identify(ctx, b) // 1 name each message; the first of an identity leads its copies
	for ; len(b.open) > 0; b.nextPass() {
		for _, step := range w.steps(settled) {
			err := step(ctx, b)
			if givesBackRest(err) || errors.Is(err, errTripped) && !b.tripped { // what is done so far stays done
				b.parting = true
				err = errors.Join(err, w.settle(ctx, b))
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
	return errors.Is(err, errInHandTooLong) || errors.Is(err, errStopping) || errors.Is(err, runner.ErrManyStuck)
}

// step is one in the life of a batch.
type step func(context.Context, *batch) error

// steps are those of a pass, in order; settled says that what the workers which met our locks wait for is done.
func (w *worker) steps(settled func()) []step {
	if w.backstop {
		return []step{w.lookUp, w.buryAll, w.settle, w.waitForLeases}
	}
	letOn := func(context.Context, *batch) error { settled(); return nil }
	steps := []step{
		w.lock,   // 2 one pipeline; what has a done marker is looked up
		w.lookUp, // 3 one query; success and dead rows end here
	}
	if w.c.service != nil { // calls take their time: nobody waits for them
		steps = append(steps, w.settle, letOn)
	}
	return append(steps,
		w.spare,         //   while everything fails, few are attempted
		w.attemptFresh,  // 4 what has no row: one transaction for all; who is blamed leaves it
		w.record,        // 5 few commits for the blamed
		w.attemptFailed, // 6 what failed before: claim, attempt, record, each for many at once
		w.settle,        //   what is done so far must not wait for what follows
		letOn,           //   nor must the workers that met our locks
		w.attemptAlone,  // 7 what may be a danger, or would not go with others: the same for one at a time
		w.settle,        // 8 copies confirmed, rows dead, marks and releases, then acks
	)
}

// 1. identify names each message. The unreadable ones keep a name too, so that every dead letter has a row.
func (w *worker) identify(ctx context.Context, b *batch) {
	var unread []*item
	for _, it := range b.all {
		it.copied = wire.ReadCopy(it.delivery.Headers)
		id, err := wire.Identify(w.c.cfg.Group, w.c.cfg.keyFrom, w.c.cfg.Queue, it.delivery)
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
		case w.mayKill(it): // read it when a claim is there to count it
		default:
			unread = append(unread, it)
		}
	}
	msgs := make([]*Message, len(unread))
	for i, it := range unread {
		msgs[i] = &it.msg
	}
	for i, err := range w.validate(ctx, msgs...) {
		if err != nil {
			unread[i].rejected = refusedBy(err)
		}
	}
	for _, it := range b.all {
		b.lead(it)
	}
}

// 2. lock asks the lock for all open identities, which locks the free ones. What it finds only says where to look next:
// what has a done marker or a foreign value goes on without a lock, by its row.
func (w *worker) lock(ctx context.Context, b *batch) error {
	defer w.c.metrics.phase(phaseLock, time.Now())
	if b.pass > 0 {
		if err := w.waitForHolders(ctx, b); err != nil {
			return err
		}
	}
	names := make([]lock.Name, len(b.open))
	for i, it := range b.open {
		names[i] = w.locker.nameOf(it.id.Identity)
	}
	var held []lock.Held
	err := w.untilAnswered(ctx, w.c.locks.name, func(ctx context.Context) (err error) {
		held, err = w.locker.Lock(ctx, b.token, names)
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
