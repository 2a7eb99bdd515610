package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// claimAtOnce is how many messages share a claim. A process that dies holding one for each worker leaves them to be
// taken over while nothing else runs, and after a second death one at a time, which must be done within seconds.
const claimAtOnce = 200

const (
	// settleGroupsEvery bounds how long what is done waits for the groups behind it: settling once a batch costs RabbitMQ
	// half of settling twice.
	settleGroupsEvery = time.Second
	// settleEvery is the same for messages that go one at a time.
	settleEvery = 50 * time.Millisecond
)

// 4. attemptFresh attempts what has no row, then what has one that was reopened and not tried since: rows and effects
// in one transaction for as many as possible.
func (w *worker) attemptFresh(ctx context.Context, b *batch) error {
	if w.c.service != nil {
		return w.attemptAll(ctx, b, &b.fresh, way{fresh: true, claimed: true, most: claimAtOnce})
	}
	if err := w.attemptAll(ctx, b, &b.fresh, way{fresh: true, most: len(b.fresh)}); err != nil {
		return err
	}
	return w.attemptAll(ctx, b, &b.opened, way{most: len(b.opened)})
}

// 6. attemptFailed attempts what failed before, and is nobody's danger, in groups.
func (w *worker) attemptFailed(ctx context.Context, b *batch) error {
	return w.attemptAll(ctx, b, &b.again, way{claimed: true, most: claimAtOnce})
}

// 7. attemptAlone takes over what lost its process together with others; then it attempts what was delivered more
// often, or has lost two, or would not go with others, one message at a time.
func (w *worker) attemptAlone(ctx context.Context, b *batch) error {
	if err := w.attemptAll(ctx, b, &b.orphans, way{claimed: true, most: claimAtOnce}); err != nil {
		return err
	}
	return w.attemptAll(ctx, b, &b.alone, way{claimed: true, most: 1})
}

// attemptAll attempts the messages of a queue of the batch, group by group, until none is left. What is claimed is
// settled from time to time between two groups.
func (w *worker) attemptAll(ctx context.Context, b *batch, queue *[]*item, how way) error {
	if len(*queue) == 0 {
		return nil
	}
	phase, rest := phaseSlow, settleEvery
	switch {
	case !how.claimed:
		phase = phaseFast
	case how.most > 1 && w.c.service == nil:
		rest = settleGroupsEvery
	}
	defer w.c.metrics.phase(phase, time.Now())
	slot := slot{worker: w}
	defer slot.end()
	b.groups = append(b.groups[:0], group{items: *queue, tries: maxMeetings})
	*queue = nil
	settled := time.Now()
	for first := !how.claimed; len(b.groups) > 0; first = false {
		if err := w.enough(b); err != nil && !first {
			return err
		}
		if w.c.service.away() {
			slot.end() // the others may be where the service is not asked for
		}
		probe, err := w.admitted(ctx, b)
		if err != nil {
			return err
		}
		g := w.nextGroup(b, how, probe != nil)
		if len(g.items) == 0 {
			continue
		}
		t := &attempt{worker: w, b: b, way: how, group: g, probe: probe}
		// who is left of a group that waited in vain is found in the same slot
		if how.claimed || slot.taken == 0 || len(g.items) > 1 {
			if err := slot.take(ctx, t.runsByItself() || w.c.contention.Unclear()); err != nil {
				t.unused()
				return err
			}
		}
		if err := t.run(ctx); err != nil {
			return err
		}
		if how.claimed && len(b.groups) > 0 && time.Since(settled) > rest {
			slot.end()
			if err := w.settle(ctx, b); err != nil {
				return err
			}
			settled = time.Now()
		}
	}
	return nil
}

func (t *attempt) run(ctx context.Context) (err error) {
	defer t.unused()
	if t.claimed {
		err = t.runClaimed(ctx)
	} else {
		err = t.transact(ctx)
		t.b.blamed = append(t.b.blamed, t.blamed...) // recorded when the outcome of all is known
	}
	var apart []*item
	for _, p := range t.back {
		switch {
		case err != nil || p.it.outcome != 0:
		case p.comes.by != byNothing:
			p.it.end(InProgress, p.comes)
		default:
			p.it.next = decide.RunAlone
			apart = append(apart, p.it)
		}
	}
	switch {
	case t.c.service == nil:
		t.b.alone = append(t.b.alone, apart...)
	case len(apart) > 0: // they were not called: behind all others
		t.b.groups = slices.Insert(t.b.groups, 0, group{items: apart, tries: maxMeetings})
	}
	if t.c.service != nil && t.most > 1 {
		t.learn(t, len(apart) > 0)
	}
	return err
}

// runClaimed claims, attempts and records.
func (t *attempt) runClaimed(ctx context.Context) (err error) {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := t.claim(ctx); err != nil {
		return err
	}
	defer func() { t.owe(err) }()
	t.readNow(ctx)
	effect := t.transact
	if t.c.service != nil {
		effect = t.call
	}
	if err := effect(ctx); err != nil {
		return err
	}
	return t.record(ctx)
}

// prepare does what the row of a message asks for before a claim; it may end the item.
func (t *attempt) prepare(ctx context.Context) error {
	it := t.items[0]
	var step func(context.Context) (dedup.Row, error)
	switch it.next {
	case decide.Exhaust:
		step = func(ctx context.Context) (dedup.Row, error) { return t.c.records.Exhaust(ctx, it.row) }
	case decide.Forgive:
		step = func(ctx context.Context) (dedup.Row, error) { return t.c.records.Forgive(ctx, it.row) }
	case decide.Reopen: // its letter was moved here by hand, or the row has lost a replay
		note := dedup.ReplayNote{
			By: "by hand", Filter: "a letter moved to the main queue", Token: it.row.ReplayToken(t.owner()),
		}
		if it.circumstances().LetterOf != it.row.Replays {
			note.By, note.Filter = "the daemon", "a copy of a replay that this row does not know"
		}
		step = func(ctx context.Context) (dedup.Row, error) {
			return t.c.records.Reopen(ctx, it.row, it.fullEntry(), note)
		}
	default:
		return nil
	}
	err := t.transition(ctx, it, step)
	if err == nil && it.outcome == 0 && it.next == decide.Exhaust {
		it.bury(dedup.ReasonCrashed, t.lastWords(it.row))
	}
	t.dropEnded()
	return err
}

// readNow lets the handler read a message that it might not see before a claim: see mayKill.
func (t *attempt) readNow(ctx context.Context) {
	if len(t.items) != 1 {
		return
	}
	it := t.items[0]
	if t.mayKill(it) && it.rejected == nil {
		if err := t.validate(ctx, &it.msg)[0]; err != nil {
			it.rejected = refusedBy(err)
		}
	}
	if it.rejected != nil {
		t.blamed, t.items = append(t.blamed, blamed{it, it.rejected.asError()}), nil
	}
}

// transact runs the handler for all who are open, in one transaction with their success, until it is known what
// becomes of each.
func (t *attempt) transact(ctx context.Context) error {
	for len(t.items) > 0 {
		began, spanned := time.Now(), ctx
		var span trace.Span
		if t.claimed && len(t.items) == 1 {
			spanned, span = t.c.tracing.message(ctx, t.items[0].msg)
			if t.lateFor(t.b) || t.c.contention.Flow() {
				t.tries = 1
			}
		}
		t.meetings, t.left, t.said = 0, nil, decide.Told{}
		err := t.repeat(spanned, DependencyMySQL, t.try, func(ctx context.Context, pause time.Duration) {
			_ = t.makeRoom(ctx, pause) // else hold does
		})
		endSpan(span, cmp.Or(err, t.said.Err))
		if err != nil || len(t.items) == 0 { // whoever was given back meanwhile was applied, or is somebody else's
			return err
		}
		if err := t.follow(ctx, t.said, time.Since(began)); err != nil {
			return err
		}
	}
	return nil
}

// follow does what follows for the group.
func (t *attempt) follow(ctx context.Context, said decide.Told, took time.Duration) error {
	g := t.group
	all := decide.Group{Size: len(g.items), Claimed: t.claimed, Late: t.lateFor(t.b)}
	switch all.Next(said) {
	case decide.Applied:
		t.separate(said.Blamed, true)
		t.worker.applied(t.items)
		if t.claimed {
			for _, it := range t.items {
				t.c.strikes.Clear(it.id.Identity)
			}
		}
	case decide.LookAtRows:
		t.separate(t.left, true)
		rest, err := t.lookAgain(ctx, t.b, t.items, said.End == decide.Unsure)
		if err != nil {
			return err
		}
		t.then(group{items: rest, tries: g.tries})
	case decide.GoOnWithout:
		t.separate(said.Blamed, !said.Late)
		switch {
		case !t.claimed:
			t.then(group{items: t.items, tries: g.tries})
		case len(t.items) == 1: // by itself it may wait for longer than the blamed have of their leases
			if _, err := t.charge(ctx, t.blamed); err != nil {
				return err
			}
			t.blamed = nil
			return t.keepReasons(ctx, t.b)
		default:
			return nil
		}
	case decide.Halve:
		t.then(g.halves(took > t.c.cfg.HandlerTimeout)...)
	case decide.Single:
		t.then(g.single()...)
	case decide.GoApart:
		t.separate(t.left, true)
		t.goApart(t.items...)
	case decide.Charge:
		t.chargeOne(said)
	case decide.PutOff:
		for _, it := range t.items {
			t.back = append(t.back, putBack{it: it, comes: t.puttingOff(it, said.Err)})
		}
	case decide.LoseLease:
		t.leaseLost(t.items[0])
	}
	t.items = nil
	return nil
}

// separate takes the blamed out of the group: nobody else pays for them. What the handler said of one in time was its
// attempt. After that, or when what it said is about a server, only an attempt by itself can tell whose fault it is:
// the handler names whichever message it was at when its time ended.
func (t *attempt) separate(by map[int]error, timely bool) {
	if len(by) == 0 {
		return
	}
	rest := make([]*item, 0, len(t.items)-len(by))
	for i, it := range t.items {
		switch err, guilty := by[i]; {
		case !guilty:
			rest = append(rest, it)
		case !timely || excuses(err):
			t.goApart(it)
		default:
			t.blame(it, err)
		}
	}
	t.items, t.left = rest, nil
}

// chargeOne has the one message pay for what the handler said. In the fast path that may be about a server.
func (t *attempt) chargeOne(said decide.Told) {
	cause := said.Err
	if by := said.Blamed; by != nil {
		cause = by[0]
	}
	if !t.claimed {
		t.separate(map[int]error{0: cause}, true)
		return
	}
	it := t.items[0]
	if errors.Is(cause, ErrStuck) {
		it.copied.Deliveries += decide.MayKillFrom // from now on it is attempted alone
	}
	t.blame(it, cause)
}

// try makes one try of the transaction: what is said of it then holds, unless it returns an error, and is to be tried
// again. A COMMIT without an answer is looked up: it is ours, still open, or somebody else's by now.
func (t *attempt) try(ctx context.Context) (setback, error) {
	if t.claimed {
		if free, err := t.hold(ctx); err != nil || !free {
			return setbackOf(err), err
		}
	}
	began := time.Now()
	said, inVain := t.c.contention.Try(ctx, t.items, func(ctx context.Context) decide.Told {
		return t.c.effects.apply(ctx, eachOf(t.items, (*item).message), t.rows())
	})
	if said.End == decide.Failed {
		said.Blamed = blameOf(said.Err, len(t.items))
	}
	if said.End == decide.Committed || said.End == decide.Unsure { // else the blame of the COMMIT that was lost holds
		t.left = said.Blamed
	}
	t.unknown = t.unknown || said.End == decide.Unsure
	if said.End == decide.Unsure || said.End == decide.Moved {
		var err error
		if said, err = t.look(ctx, said); err != nil {
			return setbackOf(err), err
		}
	}
	if t.anotherTry(&said, inVain) || said.End == decide.Stopped {
		return setback{true, said.End == decide.Met, said.End == decide.Met || said.End == decide.Slow}, said.Err
	}
	if t.said = said; said.End == decide.Met {
		t.c.health.inVain(ctx, said.Err, time.Since(began))
	}
	return setback{}, nil
}

// look says more of a COMMIT without an answer, or of rows that are not as they were read.
func (t *attempt) look(ctx context.Context, said decide.Told) (decide.Told, error) {
	switch {
	case !t.claimed:
		return t.lookForRows(ctx, said)
	case t.unknown && len(t.items) == 1:
		done, err := t.c.records.Holds(ctx, t.items[0].id.Identity, t.items[0].claim.Applied())
		if err != nil || done {
			return decide.Told{End: decide.Committed}, err
		}
	}
	if said.End == decide.Unsure {
		said = notCommitted(said.Err) // the row's lock or its status will tell
	}
	return said, nil
}

// anotherTry reports whether the transaction of a group is tried again as it is. A dependency that fails a message
// which is claimed alone three times while others succeed is its failure, but for a disk that runs full, which has room
// for one and none for another, and for locks of others.
func (t *attempt) anotherTry(said *decide.Told, inVain bool) bool {
	one := t.claimed && len(t.items) == 1
	times, guilty := 0, false
	switch said.End {
	case decide.Met:
		t.meetings++
		if one && errors.Is(said.Err, errHandlerTimeout) {
			t.meetings++ // it has taken as long as two waits
		}
		return t.meetings < t.tries && (one || !inVain)
	case decide.Slow:
		if !t.claimed {
			t.meetings++
			return t.meetings < t.tries
		}
		if one {
			times, guilty = t.suspect(t.items[0])
		}
	case decide.TooLarge:
		if one {
			said.End = decide.Failed
		}
	case decide.Away:
		if one && !mysqldb.NoRoom(said.Err) {
			times, guilty = t.suspect(t.items[0])
		}
		if !guilty {
			return one || !t.claimed
		}
	}
	if guilty {
		*said = decide.Told{End: decide.Failed, Err: failedOften(said.Err, times)}
	}
	return false
}

// rows are those of the group.
func (t *attempt) rows() marker {
	if t.claimed {
		return marker{records: t.c.records, claims: eachOf(t.items, (*item).claimed)}
	}
	if !t.fresh {
		return marker{records: t.c.records, opened: eachOf(t.items, func(it *item) dedup.Row { return it.row })}
	}
	return marker{records: t.c.records, entries: eachOf(t.items, (*item).entry)}
}

// lookForRows is what was said, of rows that are not as they were read or of a COMMIT without an answer, when there is
// such a row in the group to look at. While there is none nothing can go on (a COMMIT that fails each time, a trigger
// that raises 1062): that is trouble, because who gives up then must not look for rows again. A lost answer is
// remembered, because the COMMIT may still be decided.
func (t *attempt) lookForRows(ctx context.Context, said decide.Told) (decide.Told, error) {
	ctx, cancel := context.WithTimeout(ctx, t.c.opTimeout)
	defer cancel()
	rows, err := t.c.records.LookUp(ctx, eachOf(t.items, (*item).identity))
	if err != nil {
		return said, err
	}
	for _, it := range t.items {
		if !it.standsAs(rows[it.id.Identity]) {
			if t.unknown {
				said.End = decide.Unsure
			}
			return said, nil
		}
	}
	said = notCommitted(said.Err)
	said.Err = fmt.Errorf("no row of the batch has changed: %v", said.Err) //nolint:errorlint // it is none any more
	return said, nil
}

// notCommitted is the trouble of a COMMIT that had no answer, or an error for one, and is not there: a lock on the
// whole server (FLUSH TABLES WITH READ LOCK) makes a COMMIT wait as it does a statement.
func notCommitted(err error) decide.Told {
	if mysqldb.Classify(err) == mysqldb.FaultContention {
		return decide.Told{End: decide.Met, Err: err}
	}
	return decide.Told{End: decide.Away, Err: err}
}

// record writes down what became of the claims: success first, which nothing tells of but the service, then the failed
// attempts, then what was none.
func (t *attempt) record(ctx context.Context) error {
	if err := t.mark(ctx); err != nil {
		return err
	}
	if _, err := t.charge(ctx, t.blamed); err != nil {
		return err
	}
	held := slices.DeleteFunc(slices.Clone(t.back), func(p putBack) bool { return p.it.claim == nil })
	if len(held) > 0 {
		err := t.untilKnown(ctx, func(ctx context.Context) error { return t.unclaim(ctx, held) })
		if err != nil {
			return err
		}
	}
	return t.keepReasons(ctx, t.b)
}
