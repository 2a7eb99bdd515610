package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// CallOptions say how the function of [Calls] is called.
type CallOptions struct {
	// Concurrency is how many calls this process makes at once. 1 to 10,000. Default 64.
	Concurrency int
	// Timeout bounds one call; its ctx ends then. At most Config.HandlerTimeout, which is the default.
	Timeout time.Duration
	// ProbeAfter is how long the service is left alone when it was found away, before one call asks it again. Default 5s.
	ProbeAfter time.Duration
	// Validate refuses a message that nobody can ever read, as a [Validator]'s method does. Nil: every body is good.
	Validate func(m *Message) error
}

// Calls makes a Handler of a function whose effect is outside MySQL, in a service that it calls. No transaction is open
// meanwhile: the message is claimed and that is committed, then f is called, then success is committed. So the effect
// is at least once, and exactly once when the service knows a message again by something that f sends with it: a
// process that dies after the call makes the same call again.
//
// Several messages are claimed together, called at the same time, and marked together. Nil means that the service has
// applied the message. What else f may say of it:
//
//   - [Permanent], [Malformed]: it is refused for good, and dead-lettered.
//   - [Later]: it comes again when that time is over, and no attempt is counted.
//   - [Unavailable], [Misconfigured]: the service is not there, or refuses whoever asks. After some such answers in a
//     row, or at once, nothing is consumed until a call for one message, from time to time, is answered. No attempt is
//     counted, unless the same message meets this three times while others succeed.
//   - [Unanswered], or any error once ctx has ended: nobody knows what became of the call. It is an attempt if other
//     calls succeeded meanwhile; else it is as Unavailable.
//   - Any other error, and a panic: an attempt failed.
//
// Messages of one identity are never in two calls of one process at a time, but f may be called by many goroutines at
// once. m.Attempt is 1 and more.
func Calls(f func(ctx context.Context, m Message) error, o CallOptions) Handler {
	return &callHandler{f: f, o: o}
}

// callHandler is a Handler for its type alone: the engine never calls Handle.
type callHandler struct {
	f func(context.Context, Message) error
	o CallOptions
}

var (
	_ Handler   = (*callHandler)(nil)
	_ Validator = (*callHandler)(nil)
)

// Handle refuses: there is no place for it in a transaction.
func (h *callHandler) Handle(context.Context, *gorm.DB, []Message) error {
	return errors.New("a handler made by Calls is run by the engine only, outside any transaction")
}

// Validate is a [Validator]'s.
func (h *callHandler) Validate(m *Message) error {
	if h.o.Validate == nil {
		return nil
	}
	return h.o.Validate(m)
}

// around has middleware see each call, without a transaction.
func (h *callHandler) around(mw Middleware) Handler {
	if h.f == nil {
		return h
	}
	one := single{f: func(ctx context.Context, _ *gorm.DB, m Message) error { return h.f(ctx, m) }}.behind(mw)
	return &callHandler{f: func(ctx context.Context, m Message) error { return one.f(ctx, nil, m) }, o: h.o}
}

const (
	callsAtOnce    = 64
	mostCalls      = 10_000
	callProbeAfter = 5 * time.Second
)

// options are o with their defaults; cfg has its own.
func (h *callHandler) options(cfg Config) CallOptions {
	o := h.o
	o.Concurrency = cmp.Or(o.Concurrency, callsAtOnce)
	o.Timeout = cmp.Or(o.Timeout, cfg.HandlerTimeout)
	o.ProbeAfter = cmp.Or(o.ProbeAfter, callProbeAfter)
	return o
}

// check refuses what cannot work; cfg has its defaults.
func (h *callHandler) check(cfg Config) error {
	o := h.options(cfg)
	switch {
	case h.f == nil:
		return errors.New("Calls without a function")
	case o.Concurrency < 1 || o.Concurrency > mostCalls:
		return fmt.Errorf("CallOptions.Concurrency %d must be 1 to %d", o.Concurrency, mostCalls)
	case o.Timeout < 0 || o.Timeout > cfg.HandlerTimeout:
		return fmt.Errorf("CallOptions.Timeout %v must be at most HandlerTimeout %v", o.Timeout, cfg.HandlerTimeout)
	case o.ProbeAfter < 0:
		return fmt.Errorf("CallOptions.ProbeAfter %v must not be negative", o.ProbeAfter)
	}
	return nil
}

// Later says that it is too early for the message: nothing of it is applied, it comes again when after is over, and no
// attempt is counted, however often that is said. After is bounded by Config.MaxDelay, and kept by the consumer log to
// the shortest of Config.RetryDelays; what is 0 or less is no wish: the message then waits about as long as it has
// waited already, so the pauses grow to the longest of RetryDelays. Of a batch it is said in [Blame] or [Except]; said
// without, it holds for all messages of the call. Any handler may say it. Later(nil, …) is nil.
func Later(err error, after time.Duration) error {
	return callErrorOf(err, CallLater, after)
}

// Unavailable says that the service is not there: the call did not reach it, or somebody in front of it said so. For
// functions of [Calls]. Unavailable(nil) is nil.
func Unavailable(err error) error { return callErrorOf(err, CallUnavailable, 0) }

// Unanswered says that the call was sent and nothing came back: perhaps the service has applied it. For functions of
// [Calls]. Unanswered(nil) is nil.
func Unanswered(err error) error { return callErrorOf(err, CallUnanswered, 0) }

// Misconfigured says that the service refuses whoever asks, whatever the message: a wrong password, a wrong address.
// Only a person can mend that, so consuming pauses at once. For functions of [Calls]. Misconfigured(nil) is nil.
func Misconfigured(err error) error { return callErrorOf(err, CallMisconfigured, 0) }

// CallMeaning is what an error says of a call, see [Calls].
type CallMeaning uint8

// The meanings of a call.
const (
	CallApplied       CallMeaning = iota + 1 // no error
	CallFailed                               // an attempt failed
	CallPermanent                            // no attempt can succeed
	CallLater                                // it comes again when its time has come
	CallUnavailable                          // the service is not there
	CallUnanswered                           // sent, and nothing came back
	CallMisconfigured                        // the service refuses whoever asks
	callStopped                              // by the end of the engine
)

var callMeanings = [...]string{
	"unknown", "applied", "failed", "permanent", "later", "unavailable", "unanswered", "misconfigured", "stopped",
}

// String is its word.
func (k CallMeaning) String() string {
	if int(k) < len(callMeanings) {
		return callMeanings[k]
	}
	return callMeanings[0]
}

// CallMeans is how the engine reads an error of a function of [Calls] whose ctx has not ended; after is that of
// [Later].
func CallMeans(err error) (what CallMeaning, after time.Duration) {
	told, ok := errors.AsType[*callError](err)
	switch {
	case err == nil:
		return CallApplied, 0
	case IsPermanent(err):
		return CallPermanent, 0
	case ok:
		return told.kind, told.after
	}
	return CallFailed, 0
}

// ofEach is err, or where that says Later of a whole call, the blame of each of its n messages.
func ofEach(err error, n int) error {
	if what, _ := CallMeans(err); what != CallLater {
		return err
	}
	each := make([]BlamedMessage, n)
	for i := range each {
		each[i] = BlamedMessage{Index: i, Err: err}
	}
	return Blame(each...)
}

// callError is an error that says more than that an attempt failed.
type callError struct {
	err   error
	kind  CallMeaning
	after time.Duration
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

func callErrorOf(err error, kind CallMeaning, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &callError{err, kind, after}
}
