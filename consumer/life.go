package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// process is the life of a batch. Each step ends some of the open items with an outcome and leaves the rest to the next;
// what had to wait for its twin or for another worker's lock goes through a second time. Whatever step fails, every item
// is either settled or still unacked.
func (l *lane) process(ctx context.Context, b *batch) error {
	settled := l.c.inHand.enter(b.token)
	defer settled()
	l.identify(b) // 1 name each message; the first of an identity leads its copies
	for ; len(b.open) > 0; b.nextPass() {
		for _, step := range []func(context.Context, *batch) error{
			l.lock,       // 2 one pipeline; done markers end as duplicates
			l.lookUp,     // 3 one query; success and dead rows end here
			l.applyFresh, // 4 one transaction for all without a row; 5 the guilty leave it
			l.settle,     //   what is done so far must not wait for what follows
			func(context.Context, *batch) error { settled(); return nil }, // nor must the lanes that met our locks
			l.applyAlone, // 6 claim, attempt, record: one message at a time
			l.settle,     // 7 copies confirmed, rows dead, marks and releases, then acks
		} {
			err := step(ctx, b)
			if errors.Is(err, errHeldTooLong) || errors.Is(err, errStopping) { // what is done so far stays done
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

// 1. identify names each message. The unreadable ones keep a name too, so that every dead letter has a row.
func (l *lane) identify(b *batch) {
	for _, it := range b.all {
		it.copied = wire.ReadCopy(it.delivery.Headers)
		id, err := wire.Identify(l.c.cfg.Group, l.c.keyFrom, l.c.cfg.Queue, it.delivery)
		it.id = id
		it.msg = Message{
			Key: id.Key, Body: it.delivery.Body, Headers: it.delivery.Headers, MessageID: it.delivery.MessageID,
		}
		if at, ok := wire.PublishedAt(it.delivery.Message); ok {
			it.msg.PublishedAt = at
		}
		switch {
		case err != nil:
			it.unread = &unreadable{wire.ReasonUnidentified, err}
		case len(it.delivery.Body) > MaxBody:
			it.unread = &unreadable{wire.ReasonMalformed, fmt.Errorf("a body of %d bytes is over the limit of %d", len(it.delivery.Body), MaxBody)}
		case l.mayKill(it): // read it when a claim is there to count it
		default:
			if err := l.validate(&it.msg); err != nil {
				it.unread = &unreadable{wire.ReasonMalformed, err}
			}
		}
		b.lead(it)
	}
}

// 2. lock looks all open identities up in Redis and locks the unknown ones.
func (l *lane) lock(ctx context.Context, b *batch) error {
	defer l.c.metrics.phase(phaseLock, time.Now())
	if b.pass > 0 {
		if err := l.waitForHolders(ctx, b); err != nil {
			return err
		}
	}
	keys := make([]dedup.LockKey, len(b.open))
	for i, it := range b.open {
		it.lockKey = l.c.locker.LockKey(it.id.Key)
		keys[i] = it.lockKey
	}
	var held []dedup.Held
	err := l.until(ctx, DependencyRedis, func(ctx context.Context) (err error) {
		held, err = l.c.locker.Lock(ctx, b.token, keys)
		return err
	})
	if err != nil {
		return err
	}
	open := b.open
	b.open = nil
	for i, it := range open {
		it.held, it.holder = held[i].Hold == dedup.HeldByOther, held[i].Holder
		it.locked = held[i].Hold == dedup.Mine
		switch {
		case held[i].Hold != dedup.DoneMarker:
			b.open = append(b.open, it)
		case held[i].BodyHash == it.id.BodyHash:
			it.end(Duplicate, ack{})
		default:
			l.conflict(b, it)
		}
	}
	return nil
}

// 3. lookUp reads the rows of all open identities and gives each item its way. What looks new is not looked up while no
// such message had a row: its insert would meet it (1062) and applyFresh look again. A body that differs from its row's is a
// conflict whatever the row's status; it is filed under a name of its own, which has a row or not.
func (l *lane) lookUp(ctx context.Context, b *batch) error {
	var known []*item
	for _, it := range b.open {
		if l.newcomers.trusted() && it.looksNew() {
			it.row = dedup.Row{Key: it.id.Key, Version: dedup.Version{Status: dedup.Absent}}
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
		it.row = rows[it.id.Key]
		l.newcomers.met(it)
		if differs(it) {
			l.conflict(b, it)
		} else {
			l.route(b, it)
		}
	}
	return nil
}

// route sends an item the way its row asks for.
func (l *lane) route(b *batch, it *item) {
	v := decide(it.row, it.circumstances(), l.c.cfg.MaxAttempts)
	if it.held && v.works() { // a row may say more than a lock: only work waits for the lock
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
		it.end(Duplicate, ack{})
	case skipDead:
		it.end(DuplicateOfDead, ack{})
	case comeBack:
		it.end(InProgress, retryAfter{delay: fit(l.c.cfg.RetryDelays, it.row.Wait), attempt: it.row.Attempts})
	case bury:
		it.end(DeadLettered, deadLetter{it.unread.reason, it.row, it.unread.err.Error()})
	case giveUp:
		it.end(DeadLettered, deadLetter{reasonOf(it.row), it.row, it.row.Remark})
	default:
		it.attempt = v
		b.alone = append(b.alone, it)
	}
}

// 4. applyFresh applies the messages without a row: rows and effects in one transaction per group. 5. Whoever is blamed
// leaves the group; a group that fails without blame is halved until the guilty stand alone.
func (l *lane) applyFresh(ctx context.Context, b *batch) error {
	if len(b.fresh) == 0 {
		return nil
	}
	defer l.c.metrics.phase(phaseFast, time.Now())
	groups := [][]*item{b.fresh}
	b.fresh = nil
	for first := true; len(groups) > 0; first = false {
		if err := l.enough(b); err != nil && !first {
			return err
		}
		group := groups[len(groups)-1]
		groups = groups[:len(groups)-1]
		if len(group) == 0 {
			continue
		}
		blamed, err := l.applyTogether(ctx, group)
		failure, failed := errors.AsType[*handlerError](err)
		switch {
		case err == nil:
			l.applied(l.separate(b, group, blamed))
		case errors.Is(err, dedup.ErrExists), errors.Is(err, dedup.ErrUnknown):
			rest, err := l.lookAgain(ctx, b, l.separate(b, group, blamed), errors.Is(err, dedup.ErrUnknown))
			if err != nil {
				return err
			}
			groups = append(groups, rest)
		case failed && blameOf(failure.err, len(group)) != nil:
			groups = append(groups, l.separate(b, group, blameOf(failure.err, len(group))))
		case failed || errors.Is(err, errHalve):
			if len(group) == 1 {
				l.blame(b, group[0], err)
				continue
			}
			half := len(group) / 2
			groups = append(groups, group[half:], group[:half])
		default:
			return err
		}
	}
	return nil
}

// applyTogether runs one group until it is applied or somebody is to blame. Two transactions that meet, or a statement
// that grew too large, are nobody's fault: the group is tried again, then halved.
func (l *lane) applyTogether(ctx context.Context, group []*item) (blamed map[int]error, err error) {
	entries, msgs := entriesOf(group), messagesOf(group)
	rows := marker{
		mark: func(ctx context.Context, tx dedup.Execer) error {
			return l.c.records.InsertSuccess(ctx, tx, entries)
		},
		unmark: func(ctx context.Context, tx dedup.Execer, blamed map[int]error) error {
			keys := make([]dedup.Key, 0, len(blamed))
			for i := range blamed {
				keys = append(keys, entries[i].Key)
			}
			return l.c.records.TakeBack(ctx, tx, keys)
		},
	}
	meetings, unknown := 0, false
	err = l.until(ctx, DependencyMySQL, func(ctx context.Context) error {
		now, err := l.c.effects.apply(ctx, msgs, rows)
		if err == nil || errors.Is(err, dedup.ErrUnknown) { // else the blame of the COMMIT that was lost holds
			blamed = now
		}
		unknown = unknown || errors.Is(err, dedup.ErrUnknown)
		if errors.Is(err, dedup.ErrExists) || errors.Is(err, dedup.ErrUnknown) {
			return l.met(ctx, group, err, unknown)
		}
		trouble, ok := errors.AsType[*troubleError](err)
		if !ok {
			return err
		}
		if trouble.fault == dedup.FaultContention {
			meetings++
		}
		if trouble.fault == dedup.FaultTooLarge || meetings > meetingsBeforeHalving {
			return fmt.Errorf("%w: %w", errHalve, trouble.err)
		}
		return err
	})
	return blamed, err
}

// met is err, of an insert that met a row or of a COMMIT without an answer, when a row of the group is there to look at.
// While there is none nothing can go on (a COMMIT that fails each time, a trigger that raises 1062): that is trouble. A
// lost answer is remembered, because the COMMIT may still be decided.
func (l *lane) met(ctx context.Context, group []*item, err error, unknown bool) error {
	ctx, cancel := context.WithTimeout(ctx, l.c.opTimeout)
	defer cancel()
	rows, lookErr := l.c.records.LookUp(ctx, keysOf(group))
	if lookErr != nil {
		return lookErr
	}
	for _, row := range rows {
		if row.Status != dedup.Absent {
			if unknown {
				return fmt.Errorf("%w: %w", dedup.ErrUnknown, err)
			}
			return err
		}
	}
	return &troubleError{dedup.FaultUnavailable, fmt.Errorf("no row of the batch is there: %w", err)}
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
		if it.row = rows[it.id.Key]; it.row.Status == dedup.Success && !differs(it) {
			done++
		}
		if it.looksNew() && it.row.Status != dedup.Absent && !unknown {
			l.newcomers.surprise()
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

// separate takes the blamed out of the group. Nobody else pays for them, and a permanent error needs no attempt.
func (l *lane) separate(b *batch, group []*item, blamed map[int]error) (rest []*item) {
	for i, it := range group {
		if err, guilty := blamed[i]; guilty {
			l.blame(b, it, err)
		} else {
			rest = append(rest, it)
		}
	}
	return rest
}

func (l *lane) blame(b *batch, it *item, err error) {
	if IsPermanent(err) {
		it.end(DeadLettered, deadLetter{permanentReason(err), it.row, err.Error()})
		return
	}
	it.attempt = runAlone
	b.alone = append(b.alone, it)
}

// 6. applyAlone takes what failed, was delivered more often or has a row, one message at a time.
func (l *lane) applyAlone(ctx context.Context, b *batch) error {
	if len(b.alone) == 0 {
		return nil
	}
	defer l.c.metrics.phase(phaseSlow, time.Now())
	settled := time.Now()
	for len(b.alone) > 0 {
		if err := l.enough(b); err != nil {
			return err
		}
		it := b.alone[0]
		if err := l.attempt(ctx, it); err != nil {
			return err
		}
		b.alone = b.alone[1:]
		if time.Since(settled) > settleEvery {
			if err := l.settle(ctx, b); err != nil {
				return err
			}
			settled = time.Now()
		}
	}
	return nil
}

// attempt runs one message by itself: claim (committed), then effect and success in one transaction, or the failure
// recorded. While it takes over an expired lease this process holds no other claim, so that a message which kills the
// process dies alone.
func (l *lane) attempt(ctx context.Context, it *item) error {
	switch it.attempt {
	case exhaust:
		return l.onRow(ctx, it, func(ctx context.Context) error {
			row, err := l.c.records.Exhaust(ctx, it.row)
			if err == nil {
				it.end(DeadLettered, deadLetter{wire.ReasonCrashed, row, row.Remark})
			}
			return err
		})
	case reopen: // its letter was moved here by hand
		byHand := dedup.ReplayNote{By: "by hand", Filter: "a letter moved to the main queue", Token: l.owner()}
		err := l.onRow(ctx, it, func(ctx context.Context) (err error) {
			it.row, err = l.c.records.Reopen(ctx, it.row, it.fullEntry(), byHand)
			return err
		})
		if err != nil || it.outcome != 0 {
			return err
		}
	}
	release, err := l.c.claims.enter(ctx, it.attempt == takeOver)
	if err != nil {
		return err
	}
	defer release()
	if err := l.claim(ctx, it); err != nil || it.outcome != 0 {
		return err
	}
	err = l.applyClaimed(ctx, it)
	failure, failed := errors.AsType[*handlerError](err)
	switch {
	case err == nil:
		l.applied([]*item{it})
	case errors.Is(err, dedup.ErrLost):
		l.leaseLost(it)
	case failed:
		return l.failed(ctx, it, failure.err)
	default:
		l.c.debts.owe(*it.claim) // it never ran to an end: no attempt may be counted
		return err
	}
	return nil
}

// claim commits the row as processing with one more attempt. If that is given up without an answer, it may be committed
// all the same: then it is given back unrun.
func (l *lane) claim(ctx context.Context, it *item) error {
	owner := l.owner()
	err := l.onRow(ctx, it, func(ctx context.Context) error {
		claim, err := l.c.records.Claim(ctx, it.row, it.fullEntry(), owner)
		if err != nil {
			return err
		}
		it.claim = &claim
		it.msg.Attempt, it.msg.Replays = claim.Attempts, claim.Replays
		l.c.at(PointClaimed)
		return nil
	})
	if err != nil {
		l.c.debts.owe(dedup.Claim{Key: it.id.Key, Attempts: max(0, it.row.Attempts) + 1, Replays: it.row.Replays, Owner: owner})
	}
	return err
}

// applyClaimed runs the attempt. An unknown COMMIT is looked up: it is ours, still open, or somebody else's by now. A
// dependency that fails this message three times while others succeed is the message's failure, but for a disk that runs
// full: that has room for one and none for another.
func (l *lane) applyClaimed(ctx context.Context, it *item) error {
	if l.mayKill(it) && it.unread == nil {
		if err := l.validate(&it.msg); err != nil {
			it.unread = &unreadable{wire.ReasonMalformed, err}
		}
	}
	if it.unread != nil {
		return &handlerError{it.unread.asError()}
	}
	unknown := false // the answer to a COMMIT was lost: who finds the row moved must look whether it was that COMMIT
	return l.until(ctx, DependencyMySQL, func(ctx context.Context) error {
		_, err := l.c.effects.apply(ctx, []Message{it.msg}, marker{mark: func(ctx context.Context, tx dedup.Execer) error {
			return l.c.records.Success(ctx, tx, *it.claim)
		}})
		unknown = unknown || errors.Is(err, dedup.ErrUnknown)
		trouble, ok := errors.AsType[*troubleError](err)
		if ok && trouble.fault == dedup.FaultTooLarge {
			return &handlerError{err} // and it is alone
		}
		if ok && !dedup.NoRoom(err) && it.faults.blamed(l.c.commits.Load()) {
			return &handlerError{fmt.Errorf("met trouble %d times while other messages succeeded: %w", it.faults.met, err)}
		}
		if unknown && (errors.Is(err, dedup.ErrUnknown) || errors.Is(err, dedup.ErrLost)) {
			done, lookErr := l.c.records.Holds(ctx, it.id.Key, it.claim.Applied())
			if lookErr != nil || done {
				return lookErr
			}
		}
		if errors.Is(err, dedup.ErrUnknown) {
			return &troubleError{dedup.FaultUnavailable, err} // not committed yet: the row's lock or its status will tell
		}
		return err
	})
}

// failed records a counted failure and says what comes next.
func (l *lane) failed(ctx context.Context, it *item, cause error) error {
	if blamed := blameOf(cause, 1); blamed != nil {
		cause = blamed[0]
	}
	if IsPermanent(cause) { // the row says dead when the letter is confirmed; until then the lease protects it
		it.end(DeadLettered, deadLetter{permanentReason(cause), it.claim.Row(), cause.Error()})
		return nil
	}
	return l.onRow(ctx, it, func(ctx context.Context) error {
		row, err := l.c.records.Fail(ctx, *it.claim, cause.Error())
		if err != nil {
			return err
		}
		l.c.at(PointFailed)
		if row.Attempts >= l.c.cfg.MaxAttempts {
			it.end(DeadLettered, deadLetter{wire.ReasonExhausted, row, cause.Error()})
		} else {
			it.end(Retried, retryAfter{l.c.cfg.RetryDelays[row.Attempts-1], row.Attempts, cause.Error()})
		}
		return nil
	})
}

// onRow runs one transition of it's row until MySQL answers; one whose answer was lost is repeated, which the log
// recognises. A row that somebody else moved is theirs: a copy of the message comes back later, and no attempt is counted.
func (l *lane) onRow(ctx context.Context, it *item, transition func(context.Context) error) error {
	err := l.untilKnown(ctx, transition)
	if errors.Is(err, dedup.ErrLost) {
		l.leaseLost(it)
		return nil
	}
	return err
}

func (l *lane) leaseLost(it *item) {
	it.end(LeaseLost, retryAfter{delay: l.c.cfg.RetryDelays[0], attempt: it.row.Attempts})
}

// applied ends items whose effect is committed.
func (l *lane) applied(items []*item) {
	l.c.commits.Add(1)
	now := time.Now()
	for _, it := range items {
		it.end(Applied, ack{})
		if !it.msg.PublishedAt.IsZero() {
			l.c.metrics.lag.Observe(now.Sub(it.msg.PublishedAt).Seconds())
		}
	}
}
