package consumer

import (
	"context"
	"errors"

	"github.com/rollbackd/rollbackd/dedup"
)

// group is messages that are attempted together. Alone is a group of one.
type group struct {
	items []*item
	tries int  // how often it may meet others, or time that runs out, before it is split
	trial bool // whether the lock of others is gone that it would meet
}

// finish is how the transaction of a group ended.
type finish uint8

const (
	committed finish = iota + 1 // the effects of all whom nobody blames
	moved                       // nothing: a row is not as it was read
	unsure                      // perhaps: the COMMIT has no answer, and a row is there
	failed                      // nothing: the handler said so
	met                         // nothing: locks of others were in the way
	tooMuch                     // nothing: too large, too slow, or the database was away for too long
)

// told is what is known of a group's transaction.
type told struct {
	finish
	blamed map[int]error // by the handler
	late   bool          // its time was over: whom it names is whom it was at
	err    error
}

// tell reads how a transaction of n messages ended, in which blamed were left out; false: err is none of them, but the
// end of the lane's work.
func tell(ctx context.Context, err error, blamed map[int]error, n int) (told, bool) {
	t := told{blamed: blamed, err: err}
	failure, isFailure := errors.AsType[*handlerError](err)
	_, isDecided := errors.AsType[*decidedError](err)
	switch {
	case err == nil:
		t.finish = committed
	case ctx.Err() != nil, errors.Is(err, errGiveBack):
	case isFailure:
		t.finish, t.blamed, t.late, t.err = failed, blameOf(failure.err, n), failure.late, failure.err
	case errors.Is(err, dedup.ErrUnknown):
		t.finish = unsure
	case errors.Is(err, dedup.ErrExists), errors.Is(err, dedup.ErrLost):
		t.finish = moved
	case isDecided && contended(err):
		t.finish = met
	case isDecided:
		t.finish = tooMuch
	}
	return t, t.finish != 0
}

// sequel is what follows for a group.
type sequel uint8

const (
	endApplied  sequel = iota + 1 // all but the blamed are applied
	lookAtRows                    // who has a row goes its way, the rest is tried again
	goOnWithout                   // the blamed leave, the rest is tried again
	halve                         // until the guilty stand alone
	single                        // each by itself
	goApart                       // each by itself, and claimed for that
	charge                        // the message has failed an attempt
	putOff                        // it comes back later, and no attempt is counted
	loseLease                     // somebody else has the row: a copy comes back later
)

// next says what follows for a group whose transaction ended so; late: its batch is in hand for so long that nobody
// waits for locks of others any more.
func (g group) next(t told, claimed, late bool) sequel {
	one := len(g.items) == 1
	switch {
	case t.finish == committed:
		return endApplied
	case claimed && one:
		switch t.finish {
		case moved:
			return loseLease
		case failed:
			return charge
		}
		return putOff
	case t.finish == failed && t.blamed != nil && !(claimed && t.late):
		return goOnWithout
	case claimed:
		return goApart
	case t.finish == moved, t.finish == unsure:
		return lookAtRows
	case t.finish == met && (one || late):
		return putOff
	case one && t.finish == failed && !t.late:
		return charge
	case one:
		return goApart
	case t.finish == met && len(g.items) <= fewAtOnce:
		return single
	}
	return halve
}

// halves are the two halves, the first one last, as it is taken next. What has cost its time already gets one try: the
// lane must not stand still for as long again at each of the ten halvings that find one message among a thousand.
func (g group) halves(slow bool) []group {
	if slow {
		g.tries = 1
	}
	half := len(g.items) / 2
	return []group{{items: g.items[half:], tries: g.tries}, {items: g.items[:half:half], tries: g.tries}}
}

// single is each of the group by itself.
func (g group) single() []group {
	all := make([]group, len(g.items))
	for i := range g.items {
		all[len(all)-1-i] = group{items: g.items[i : i+1 : i+1], tries: g.tries}
	}
	return all
}

// decidedError is an error after which a transaction is not tried again as it is.
type decidedError struct{ error }

func (e *decidedError) Unwrap() error { return e.error }
