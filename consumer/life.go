package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// process is the life of a batch. Each step ends some of the open items with an outcome and leaves the rest to the
// next; what had to wait for its twin or for another worker's lock goes through a second time. Whatever step fails,
// every item is either settled or still unacked.
func (l *lane) process(ctx context.Context, b *batch) error {
	settled := l.c.inHand.enter(b.token)
	defer settled()
	l.look.identify(ctx, b) // 1 name each message; the first of an identity leads its copies
	for ; len(b.open) > 0; b.nextPass() {
		for _, step := range l.steps(settled) {
			err := step(ctx, b)
			if givesBackRest(err) || errors.Is(err, errBraked) && !b.braked { // what is done so far stays done
				b.parting = true
				err = errors.Join(err, l.settler.settle(ctx, b))
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
	letOn := func(context.Context, *batch) error { settled(); return nil }
	if l.calling != nil {
		return []step{
			l.look.lock,          // 2 as below
			l.look.lookUp,        // 3 as below
			l.settler.settle,     //   as below
			l.spare,              //   as below
			letOn,                //   as below
			l.calling.apply,      // 4 claim, call, record, each for many at once (calling.go)
			l.calling.applyAlone, // 7 what may be a danger: the same for one at a time
			l.settler.settle,     // 8 as below
		}
	}
	return []step{
		l.look.lock,       // 2 one pipeline; what has a done marker is looked up
		l.look.lookUp,     // 3 one query; success and dead rows end here
		l.spare,           //   while everything fails, few are attempted
		l.together.apply,  // 4 one transaction for all without a row; who is blamed leaves it
		l.together.record, // 5 few commits for the blamed
		l.again.apply,     // 6 what failed before: claim, attempt, record, each for many at once
		l.settler.settle,  //   what is done so far must not wait for what follows
		letOn,             //   nor must the lanes that met our locks
		l.alone.apply,     // 7 what may be a danger, or would not go with others: the same for one at a time
		l.settler.settle,  // 8 copies confirmed, rows dead, marks and releases, then acks
	}
}

// looker finds out what a message is, who works on it, and what its row says.
type looker struct {
	*worker
	skipper lookUpSkipper
}

// 1. identify names each message. The unreadable ones keep a name too, so that every dead letter has a row.
func (k *looker) identify(ctx context.Context, b *batch) {
	var unread []*item
	for _, it := range b.all {
		it.copied = wire.ReadCopy(it.delivery.Headers)
		id, err := wire.Identify(k.c.cfg.Group, k.c.keyFrom, k.c.cfg.Queue, it.delivery)
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
		case k.mayKill(it): // read it when a claim is there to count it
		default:
			unread = append(unread, it)
		}
	}
	msgs := make([]*Message, len(unread))
	for i, it := range unread {
		msgs[i] = &it.msg
	}
	for i, err := range k.validate(ctx, msgs...) {
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
func (k *looker) lock(ctx context.Context, b *batch) error {
	defer k.c.metrics.phase(phaseLock, time.Now())
	if b.pass > 0 {
		if err := k.waitForHolders(ctx, b); err != nil {
			return err
		}
	}
	names := make([]lock.Name, len(b.open))
	for i, it := range b.open {
		it.lockName = k.locker.nameOf(it.id.Identity)
		names[i] = it.lockName
	}
	var held []lock.Held
	err := k.untilAnswered(ctx, k.c.locks.name, func(ctx context.Context) (err error) {
		held, err = k.locker.Lock(ctx, b.token, names)
		return err
	})
	if err != nil {
		return err
	}
	for i, it := range b.open {
		it.heldByOther, it.holder = held[i].Hold == lock.HeldByOther, held[i].Holder
		it.locked = held[i].Hold == lock.Mine
		it.hinted = !it.heldByOther && !it.locked
		it.marked = held[i].Hold == lock.DoneMarker && held[i].BodyHash == it.id.BodyHash
	}
	return nil
}

//  3. lookUp reads the rows of all open identities and gives each item its way. What looks new is not looked up while
//     no such message had a row: its insert would meet it (1062) and together look again. A body that differs from
//     its row's is a conflict whatever the row's status; it is filed under a name of its own, which has a row or not.
func (k *looker) lookUp(ctx context.Context, b *batch) error {
	var known []*item
	for _, it := range b.open {
		if k.skipper.trusted() && it.looksNew() {
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
	defer k.c.metrics.phase(phaseLookUp, time.Now())
	rows, err := k.rowsOf(ctx, known)
	if err != nil {
		return err
	}
	for _, it := range known {
		it.row = rows[it.id.Identity]
		k.skipper.saw(it)
		if differs(it) {
			k.conflict(b, it)
		} else {
			k.route(b, it)
		}
	}
	return nil
}

// route sends an item the way its row asks for.
func (k *looker) route(b *batch, it *item) {
	v := decide(it.row, it.circumstances(), k.c.cfg.MaxAttempts)
	if v.works() && k.c.holding.has(it.id.Identity) {
		v = comeBack // a letter of it waits for room, in this process: one is enough
	}
	if it.heldByOther && v.works() { // a row may say more than a lock: only work waits for the lock
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
		wait := it.row.Wait
		if it.row.Condemned() {
			wait = longest // nothing is gained by coming soon
		}
		it.end(InProgress, retryAfter{delay: fit(k.c.cfg.RetryDelays, wait), attempt: it.row.Attempts})
	case bury:
		it.end(DeadLettered, deadLetter{it.rejected.reason, it.row, it.rejected.err.Error()})
	case giveUp:
		it.end(DeadLettered, deadLetter{reasonOf(it.row), it.row, k.lastWords(it.row)})
	case runAgain:
		b.again = append(b.again, it)
	default:
		it.next = v
		b.alone = append(b.alone, it)
	}
}

// together is the fast path.
type together struct {
	*worker
	look *looker
}

// 4. apply applies the messages without a row: rows and effects in one transaction per group. Whoever is blamed leaves
// the group; a group that fails without blame is halved until the guilty stand alone.
func (t *together) apply(ctx context.Context, b *batch) error {
	if len(b.fresh) == 0 {
		return nil
	}
	defer t.c.metrics.phase(phaseFast, time.Now())
	turn := turn{worker: t.worker}
	defer turn.end()
	groups := []group{{items: b.fresh, tries: maxMeetings}}
	b.fresh = nil
	for first := true; len(groups) > 0; first = false {
		if err := t.enough(b); err != nil && !first {
			return err
		}
		g := groups[len(groups)-1]
		groups = groups[:len(groups)-1]
		if len(g.items) == 0 {
			continue
		}
		if !g.trial {
			rest, trial := t.stepAside(g.items)
			groups = slices.Insert(groups, 0, group{items: trial, tries: 1, trial: true}) // behind all others
			n := t.c.obstacles.most(len(rest))
			if g.items = rest[:n:n]; n < len(rest) {
				groups = append(groups, group{items: rest[n:], tries: g.tries})
			}
			if n == 0 {
				continue
			}
		}
		if turn.taken == 0 || len(g.items) > 1 { // who is left of a group that waited in vain is found in the same turn
			if err := turn.take(ctx, t.c.obstacles.unclear()); err != nil {
				return err
			}
		}
		began := time.Now()
		blamed, err := t.run(ctx, g)
		failure, failed := errors.AsType[*handlerError](err)
		switch {
		case err == nil:
			t.applied(t.separate(b, g.items, blamed, true))
		case errors.Is(err, dedup.ErrExists), errors.Is(err, dedup.ErrUnknown):
			rest, err := t.lookAgain(ctx, b, t.separate(b, g.items, blamed, true), errors.Is(err, dedup.ErrUnknown))
			if err != nil {
				return err
			}
			groups = append(groups, group{items: rest, tries: g.tries})
		case failed && blameOf(failure.err, len(g.items)) != nil:
			blamed := blameOf(failure.err, len(g.items))
			groups = append(groups, group{items: t.separate(b, g.items, blamed, !failure.late), tries: g.tries})
		case contended(err) && (len(g.items) == 1 || t.lateFor(b)):
			for _, it := range g.items {
				t.putOff(it, err)
			}
		case failed || errors.Is(err, errHalve):
			if len(g.items) == 1 {
				t.blame(b, g.items[0], err, failed && !failure.late)
				continue
			}
			if contended(err) && len(g.items) <= fewAtOnce {
				groups = append(groups, g.single()...)
				continue
			}
			groups = append(groups, g.halves(time.Since(began) > t.c.cfg.HandlerTimeout)...)
		default:
			return err
		}
	}
	return nil
}

// group is messages that share a transaction, and how often that may meet trouble before it is halved.
type group struct {
	items []*item
	tries int
	trial bool // whether the lock of others is gone that it would meet
}

// halves are the two halves, the first one last, as it is taken next. What has cost its time already gets one try: the
// lane must not stand still for as long again at each of the ten halvings that find one message among a thousand.
func (g group) halves(slow bool) []group {
	if slow {
		g.tries = 1
	}
	half := len(g.items) / 2
	return []group{{items: g.items[half:], tries: g.tries}, {items: g.items[:half], tries: g.tries}}
}

// single is each of the group by itself.
func (g group) single() []group {
	all := make([]group, len(g.items))
	for i := range g.items {
		all[len(all)-1-i] = group{items: g.items[i : i+1 : i+1], tries: g.tries}
	}
	return all
}

// run runs one group until it is applied or somebody is to blame. Two transactions that meet, a statement
// that takes too long or grew too large, are nobody's fault: the group is tried again, then halved.
func (t *together) run(ctx context.Context, g group) (blamed map[int]error, err error) {
	entries, msgs := entriesOf(g.items), messagesOf(g.items)
	rows := marker{
		mark: func(ctx context.Context, tx dedup.Execer) error {
			return t.c.records.InsertSuccess(ctx, tx, entries)
		},
		unmark: func(ctx context.Context, tx dedup.Execer, blamed map[int]error) error {
			keys := make([]dedup.Identity, 0, len(blamed))
			for i := range blamed {
				keys = append(keys, entries[i].Identity)
			}
			return t.c.records.TakeBack(ctx, tx, keys)
		},
	}
	meetings := 0
	var unknown unanswered
	err = t.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) error {
		now, inVain, err := t.c.obstacles.try(ctx, g.items, func(ctx context.Context) (map[int]error, error) {
			return t.c.effects.apply(ctx, msgs, rows)
		})
		if err == nil || errors.Is(err, dedup.ErrUnknown) { // else the blame of the COMMIT that was lost holds
			blamed = now
		}
		unknown.note(err)
		if errors.Is(err, dedup.ErrExists) || errors.Is(err, dedup.ErrUnknown) {
			err = t.resolveDuplicate(ctx, g.items, err, unknown)
		}
		trouble, ok := errors.AsType[*troubleError](err)
		if !ok {
			return err
		}
		if contended(err) || errors.Is(err, errSlow) {
			meetings++
		}
		if trouble.fault == mysqldb.FaultTooLarge || inVain || meetings >= g.tries {
			return fmt.Errorf("%w: %w", errHalve, err)
		}
		return err
	})
	return blamed, err
}

// resolveDuplicate is err, of an insert that met a row or of a COMMIT without an answer, when a row of the group is
// there to look at. While there is none nothing can go on (a COMMIT that fails each time, a trigger that raises 1062):
// that is trouble, and not err any more, because who gives up then must not look for rows again. A lost answer is
// remembered, because the COMMIT may still be decided.
func (t *together) resolveDuplicate(ctx context.Context, group []*item, err error, unknown unanswered) error {
	ctx, cancel := context.WithTimeout(ctx, t.c.opTimeout)
	defer cancel()
	rows, lookErr := t.c.records.LookUp(ctx, keysOf(group))
	if lookErr != nil {
		return lookErr
	}
	for _, row := range rows {
		if row.Status != dedup.Absent {
			if unknown.lost {
				return fmt.Errorf("%w: %w", dedup.ErrUnknown, err)
			}
			return err
		}
	}
	//nolint:errorlint // see above
	return &troubleError{notCommitted(err).fault, fmt.Errorf("no row of the batch is there: %v", err)}
}

// lookAgain reads a group's rows after our insert met another's, or after a COMMIT whose answer was lost: never assume.
// What has a row goes its row's way; the rest is returned to be tried anew.
func (t *together) lookAgain(ctx context.Context, b *batch, group []*item, unknown bool) ([]*item, error) {
	rows, err := t.rowsOf(ctx, group)
	if err != nil {
		return nil, err
	}
	done := 0
	for _, it := range group {
		if it.row = rows[it.id.Identity]; it.row.Status == dedup.Success && !differs(it) {
			done++
		}
		if it.looksNew() && it.row.Status != dedup.Absent && !unknown {
			t.look.skipper.reset()
		}
	}
	if unknown && done == len(group) { // all or nothing: it was our COMMIT
		t.applied(group)
		return nil, nil
	}
	var rest []*item
	for _, it := range group {
		switch {
		case it.row.Status == dedup.Absent:
			rest = append(rest, it)
		case differs(it):
			t.look.conflict(b, it)
		default:
			t.look.route(b, it)
		}
	}
	return rest, nil
}

// separate takes the blamed out of the group. Nobody else pays for them, and a permanent error needs no attempt.
func (t *together) separate(b *batch, group []*item, blamed map[int]error, timely bool) (rest []*item) {
	for i, it := range group {
		if err, guilty := blamed[i]; guilty {
			t.blame(b, it, err, timely)
		} else {
			rest = append(rest, it)
		}
	}
	return rest
}

// blame ends a message's way through the fast path. What the handler said of it in time was its attempt. After that, or
// when what it said is about a server, only a claim can tell whose fault it is: the handler names whichever message it
// was at when its time ended.
func (t *together) blame(b *batch, it *item, err error, timely bool) {
	switch {
	case !timely || excuses(err):
		it.next = runAlone
		b.alone = append(b.alone, it)
	case IsPermanent(err):
		it.end(DeadLettered, deadLetter{permanentReason(err), it.row, err.Error()})
	default:
		b.blamed = append(b.blamed, blamed{it, err})
	}
}

// 5. record writes down the failed attempts of the blamed, whose groups have come to an end. Who has a row by now goes
// its row's way, and nothing is counted. A process that dies before this has counted nothing either.
func (t *together) record(ctx context.Context, b *batch) error {
	for some := range slices.Chunk(b.blamed, claimAtOnce) {
		if err := t.recordSome(ctx, b, some); err != nil {
			return err
		}
	}
	b.blamed = nil
	return nil
}

// recordSome is record for so few that each may have statements of its own, should one of them have a row.
func (t *together) recordSome(ctx context.Context, b *batch, some []blamed) error {
	all := make([]dedup.Blamed, len(some))
	for i, f := range some {
		all[i] = dedup.Blamed{Entry: f.it.fullEntry(), Cause: f.cause.Error()}
	}
	owner := t.owner()
	var rows []dedup.Row
	var errs []error
	err := t.untilKnown(ctx, func(ctx context.Context) error {
		rows, errs = t.c.records.BlameAll(ctx, all, owner)
		return firstBut(errs, dedup.ErrLost)
	})
	if err != nil {
		return err
	}
	t.c.at(PointFailed)
	var met []*item
	for i, f := range some {
		if f.it.row = rows[i]; errs[i] != nil {
			met = append(met, f.it)
		} else {
			t.failedOnce(f.it, rows[i], all[i].Cause)
		}
	}
	if len(met) == 0 {
		return nil
	}
	gone, err := t.lookAgain(ctx, b, met, false)
	for _, it := range gone { // the row that was met is not there any more
		t.leaseLost(it)
	}
	return err
}

// alone is the slow path of one message.
type alone struct {
	*worker
	settler *settler
}

// 7. apply takes what was delivered more often, or lost its process, or would not go with others, one message at a
// time.
func (a *alone) apply(ctx context.Context, b *batch) error {
	if len(b.alone) == 0 {
		return nil
	}
	defer a.c.metrics.phase(phaseSlow, time.Now())
	settled := time.Now()
	turn := turn{worker: a.worker}
	defer turn.end()
	for len(b.alone) > 0 {
		if err := a.enough(b); err != nil {
			return err
		}
		it := b.alone[0]
		if it.next == runAlone {
			if a.stepAside(b.alone[:1]); it.outcome != 0 {
				b.alone = b.alone[1:]
				continue
			}
		}
		if err := turn.take(ctx, it.runsByItself() || a.c.obstacles.unclear()); err != nil {
			return err
		}
		tries := maxMeetings
		if a.lateFor(b) || a.c.obstacles.flow() {
			tries = 1
		}
		if err := a.attempt(ctx, it, tries); err != nil {
			return err
		}
		if err := a.settler.keepReasons(ctx, b); err != nil {
			return err
		}
		b.alone = b.alone[1:]
		if time.Since(settled) > settleEvery {
			turn.end()
			if err := a.settler.settle(ctx, b); err != nil {
				return err
			}
			settled = time.Now()
		}
	}
	return nil
}

// attempt runs one message by itself: claim (committed), then effect and success in one transaction, or the failure
// recorded. Tries is how often it may lose to locks of others before it comes back later.
func (a *alone) attempt(ctx context.Context, it *item, tries int) error {
	if err := a.prepare(ctx, it); err != nil || it.outcome != 0 {
		return err
	}
	if err := a.claim(ctx, it); err != nil || it.outcome != 0 {
		return err
	}
	spanned, span := a.c.tracing.message(ctx, it.msg)
	err := a.applyClaimed(spanned, it, tries)
	endSpan(span, err)
	failure, failed := errors.AsType[*handlerError](err)
	switch {
	case err == nil:
		a.c.suspects.clear(it.id.Identity)
		a.applied([]*item{it})
	case errors.Is(err, dedup.ErrLost):
		a.leaseLost(it)
	case failed:
		return a.failed(ctx, it, failure.err)
	case errors.Is(err, errComeBack):
		err = a.giveBackAndPutOff(ctx, it, err)
	}
	if err != nil && it.outcome == 0 && it.claim != nil {
		a.c.debts.owe(*it.claim) // it never ran to an end: no attempt may be counted
	}
	if it.outcome != 0 {
		return nil
	}
	return err
}

// prepare does what a row asks for before a claim; it may end the item.
func (a *alone) prepare(ctx context.Context, it *item) error {
	switch it.next {
	case exhaust:
		return a.transition(ctx, it, func(ctx context.Context) error {
			row, err := a.c.records.Exhaust(ctx, it.row)
			if err == nil {
				it.end(DeadLettered, deadLetter{dedup.ReasonCrashed, row, a.lastWords(row)})
			}
			return err
		})
	case forgive:
		return a.transition(ctx, it, func(ctx context.Context) error {
			row, err := a.c.records.Forgive(ctx, it.row)
			if err == nil {
				it.row = row
			}
			return err
		})
	case reopen: // its letter was moved here by hand, or the row has lost a replay
		byHand := dedup.ReplayNote{
			By: "by hand", Filter: "a letter moved to the main queue", Token: it.row.ReplayToken(a.owner()),
		}
		if it.circumstances().LetterOf != it.row.Replays {
			byHand.By, byHand.Filter = "the daemon", "a copy of a replay that this row does not know"
		}
		return a.transition(ctx, it, func(ctx context.Context) error {
			row, err := a.c.records.Reopen(ctx, it.row, it.fullEntry(), byHand)
			if err == nil { // else it is asked for again, from the row as it was read
				it.row = row
			}
			return err
		})
	}
	return nil
}

// claim commits the row as processing with one more attempt.
func (a *alone) claim(ctx context.Context, it *item) error {
	var c claiming
	err := a.transition(ctx, it, func(ctx context.Context) error { return a.ask(ctx, it, &c) })
	if err != nil {
		a.forgo(it, c)
	}
	return err
}

// applyClaimed runs the attempt. An unknown COMMIT is looked up: it is ours, still open, or somebody else's by now.
func (a *alone) applyClaimed(ctx context.Context, it *item, tries int) error {
	if a.mayKill(it) && it.rejected == nil {
		if err := a.validate(ctx, &it.msg)[0]; err != nil {
			it.rejected = &unreadable{dedup.ReasonMalformed, err}
		}
	}
	if it.rejected != nil {
		return &handlerError{err: it.rejected.asError()}
	}
	t := &claimedTry{alone: a, it: it, tries: tries}
	err := a.repeat(ctx, DependencyMySQL, t.try, t.beforePause)
	if err != nil && it.claim == nil {
		a.forgo(it, t.again)
	}
	return err
}

// failed records a counted failure and says what comes next.
func (a *alone) failed(ctx context.Context, it *item, cause error) error {
	if blamed := blameOf(cause, 1); blamed != nil {
		cause = blamed[0]
	}
	if errors.Is(cause, ErrStuck) {
		it.copied.Deliveries++ // as if its process had died: from now on it is attempted alone
	}
	if IsPermanent(cause) { // the row says dead when the letter is confirmed; before that keepReasons ends the claim
		it.end(DeadLettered, deadLetter{permanentReason(cause), it.claim.Row(), cause.Error()})
		return nil
	}
	return a.transition(ctx, it, func(ctx context.Context) error {
		row, err := a.c.records.Fail(ctx, *it.claim, cause.Error())
		if err != nil {
			return err
		}
		a.c.at(PointFailed)
		a.failedOnce(it, row, cause.Error())
		return nil
	})
}
