package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// claiming is a claim in the making: it may have to be asked for several times, and may be committed although no answer
// came.
type claiming struct {
	owner   string
	since   time.Time // its lease begins no sooner
	unknown unanswered
}

// ask asks for the claim of it's row, with one more attempt.
func (a *alone) ask(ctx context.Context, it *item, c *claiming) error {
	if c.owner == "" {
		c.owner = a.owner()
		if it.runsByItself() {
			c.owner += dedup.MarkAlone // should it be given back unrun, the row still says what it may have done
		} else {
			c.owner += dedup.MarkGroup // another lane may kill the process meanwhile
		}
	}
	if !c.unknown.lost {
		c.since = time.Now()
	}
	claim, err := a.c.records.Claim(ctx, it.row, it.fullEntry(), c.owner)
	if err != nil {
		c.unknown.note(err)
		return err
	}
	it.claim, it.claimedAt = &claim, c.since
	it.msg.Attempt, it.msg.Replays = claim.Attempts, claim.Replays
	*c = claiming{}
	a.c.at(PointClaimed)
	return nil
}

// forgo gives up what was asked for. It may be committed all the same: then it is given back unrun.
func (a *alone) forgo(it *item, c claiming) {
	if c.owner != "" {
		a.c.debts.owe(dedup.Claim{
			Identity: it.id.Identity, Attempts: max(0, it.row.Attempts) + 1, Replays: it.row.Replays, Owner: c.owner,
		})
	}
}

// claimedTry repeats the attempt of a claimed message until it comes to an end. While it waits for a dependency the
// claim must not outlive its lease, because a copy of the message would then take it over and count an attempt that
// nobody made: it is given back before that, and claimed again for the next try.
type claimedTry struct {
	alone   *alone
	it      *item
	tries   int // that may be lost to locks of others
	lost    int
	unknown unanswered
	again   claiming
}

// errApplied says that a COMMIT without an answer is found to be ours.
var errApplied = errors.New("applied after all")

// try makes one try. A dependency that fails this message three times while others succeed is the message's
// failure, but for a disk that runs full, which has room for one and none for another, and for locks of others.
func (t *claimedTry) try(ctx context.Context) error {
	if err := t.hold(ctx); err != nil {
		if errors.Is(err, errApplied) {
			return nil
		}
		return err
	}
	c, it := t.alone.c, t.it
	rows := marker{
		mark: func(ctx context.Context, tx dedup.Execer) error {
			return c.records.Hold(ctx, tx, []dedup.Claim{*it.claim})
		},
		seal: func(ctx context.Context, tx dedup.Execer, _ map[int]error) error {
			return c.records.Success(ctx, tx, *it.claim)
		},
	}
	_, _, err := c.obstacles.try(ctx, []*item{it}, func(ctx context.Context) (map[int]error, error) {
		return c.effects.apply(ctx, []Message{it.msg}, rows)
	})
	t.unknown.note(err)
	if t.unknown.lost && (errors.Is(err, dedup.ErrUnknown) || errors.Is(err, dedup.ErrLost)) {
		done, lookErr := t.applied(ctx)
		if lookErr != nil || done {
			return lookErr
		}
	}
	if errors.Is(err, dedup.ErrUnknown) {
		err = notCommitted(err) // the row's lock or its status will tell
	}
	trouble, ok := errors.AsType[*troubleError](err)
	switch {
	case !ok:
	case trouble.fault == mysqldb.FaultTooLarge:
		return &handlerError{err: err} // and it is alone
	case contended(err):
		t.lost++
		if errors.Is(err, errHandlerTimeout) {
			t.lost++ // it has taken as long as two waits
		}
		if t.lost >= t.tries {
			return fmt.Errorf("%w: %w", errComeBack, err)
		}
	case errors.Is(err, errSlow):
		if met, blamed := c.suspects.blamed(it.id.Identity, c.commits.Load()); blamed {
			return &handlerError{err: fmt.Errorf("%d times, while other messages succeeded: %w", met, err)}
		}
		return fmt.Errorf("%w: %w", errComeBack, err)
	case !mysqldb.NoRoom(err) && it.faults.blamed(c.commits.Load()):
		return &handlerError{err: fmt.Errorf("met trouble %d times while other messages succeeded: %w", it.faults.met, err)}
	}
	return err
}

// applied asks whether the row says what a COMMIT of this claim would have made it say.
func (t *claimedTry) applied(ctx context.Context) (bool, error) {
	return t.alone.c.records.Holds(ctx, t.it.id.Identity, t.it.claim.Applied())
}

// notCommitted is the trouble of a COMMIT that had no answer, or an error for one, and is not there: a lock on the
// whole server (FLUSH TABLES WITH READ LOCK) makes a COMMIT wait as it does a statement.
func notCommitted(err error) *troubleError {
	if mysqldb.Classify(err) == mysqldb.FaultContention {
		return &troubleError{mysqldb.FaultContention, err}
	}
	return &troubleError{mysqldb.FaultUnavailable, err}
}

// undecided is the trouble of a transition whose COMMIT had no answer, or an error for one, and which is repeated: the
// log recognises its own. A cluster finds out at COMMIT alone that two transactions met (Galera, group replication).
// That is contention, and no *troubleError, because no count of meetings bounds it but the lane's patience; and it is
// not taken for a COMMIT that was undone, because a node that loses its cluster in that moment may say the same.
func undecided(err error) error {
	if mysqldb.Classify(err) == mysqldb.FaultContention {
		return fmt.Errorf("commit: %w", mysqldb.Answer(err))
	}
	return &troubleError{mysqldb.FaultUnavailable, err}
}

// hold makes sure of a claim whose lease has room for one more try and for giving it back.
func (t *claimedTry) hold(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.alone.c.opTimeout)
	defer cancel()
	if t.it.claim != nil && !t.alone.roomFor(t.it.claimedAt, 0) { // MySQL did not answer when it was to be given back
		if err := t.giveBack(ctx); err != nil {
			return err
		}
	}
	if t.it.claim != nil {
		return nil
	}
	err := t.alone.ask(ctx, t.it, &t.again)
	if errors.Is(err, dedup.ErrUnknown) {
		return undecided(err)
	}
	return err
}

// beforePause gives the claim back when the lane will wait for longer than its lease has room for.
func (t *claimedTry) beforePause(ctx context.Context, pause time.Duration) {
	if t.it.claim == nil || t.alone.roomFor(t.it.claimedAt, pause) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.alone.c.opTimeout)
	defer cancel()
	_ = t.giveBack(ctx) // else hold does
}

func (t *claimedTry) giveBack(ctx context.Context) error {
	err := t.alone.c.records.Unclaim(ctx, *t.it.claim)
	switch {
	case err == nil:
		t.it.row, t.it.claim = t.it.claim.GivenBack(), nil
		t.unknown.lost = false // the row's lock was free: what had no answer is not committed
	case errors.Is(err, dedup.ErrUnknown):
		return undecided(err)
	case errors.Is(err, dedup.ErrLost) && t.unknown.lost:
		done, lookErr := t.applied(ctx)
		if lookErr != nil {
			return lookErr
		}
		if done {
			return errApplied
		}
	}
	return err
}

// roomFor reports whether a try that begins after pause ends in good time before the lease of a claim does that began
// no sooner than since: half of what the lease has more than a try is left for giving the claim back.
func (w *worker) roomFor(since time.Time, pause time.Duration) bool {
	return time.Since(since)+pause <= (w.c.cfg.Lease-w.c.cfg.HandlerTimeout)/2
}

// giveBackAndPutOff puts a message off that met others' locks, or its own slow statement, too often; its claim is given
// back.
func (a *alone) giveBackAndPutOff(ctx context.Context, it *item, cause error) error {
	if it.claim != nil {
		err := a.transition(ctx, it, func(ctx context.Context) error { return a.c.records.Unclaim(ctx, *it.claim) })
		if err != nil || it.outcome != 0 {
			return err
		}
		it.row, it.claim = it.claim.GivenBack(), nil
	}
	a.putOff(it, cause)
	return nil
}
