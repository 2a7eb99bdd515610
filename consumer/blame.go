package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
)

// sign is what a handler says of an error besides what went wrong. It is an error to be asked for by [errors.Is].
type sign string

const (
	signPermanent  sign = "no retry can cure it"
	signMalformed  sign = "its body cannot be read"
	signContention sign = "two transactions have met"
)

// Error is for nobody to see.
func (s sign) Error() string { return string(s) }

type markedError struct {
	err  error
	sign sign
}

func (e *markedError) Error() string { return e.err.Error() }

func (e *markedError) Unwrap() error { return e.err }

func (e *markedError) Is(target error) bool { return target == e.sign }

func marked(err error, s sign) error {
	if err == nil {
		return nil
	}
	return &markedError{err, s}
}

// Permanent marks err as one that no retry can cure: the message is dead-lettered at once. Permanent(nil) is nil.
func Permanent(err error) error { return marked(err, signPermanent) }

// IsPermanent reports whether any error in err's tree was marked.
func IsPermanent(err error) bool { return errors.Is(err, signPermanent) }

// Malformed marks err as [Permanent] because of what the body is: the letter's reason is then malformed, and the brake
// does not count it. Malformed(nil) is nil.
func Malformed(err error) error { return Permanent(marked(err, signMalformed)) }

// Contention marks err as one of two transactions that met, where no statement of tx failed: all is rolled back and
// tried again, and no attempt is counted. Contention(nil) is nil.
func Contention(err error) error { return marked(err, signContention) }

// retryError is an error with a delay of its own.
type retryError struct {
	error
	after time.Duration
}

func (e *retryError) Unwrap() error { return e.error }

// RetryIn says of an attempt that failed with err when the next one comes: when after is over, in place of the delay
// that Config.RetryDelays has for it. The attempt is counted all the same, and the last one is the last. After is
// bounded by Config.MaxDelay, and kept by the consumer log to the shortest of RetryDelays. [Permanent] outweighs it.
// RetryIn(nil, …) is nil.
func RetryIn(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryError{err, max(after, 1)}
}

// retryIn is the delay that err asks for; 0: none.
func retryIn(err error) time.Duration {
	if e, ok := errors.AsType[*retryError](err); ok {
		return e.after
	}
	return 0
}

// permanentReason is the reason of the letter that a permanent error makes.
func permanentReason(err error) dedup.Reason {
	if unread, ok := errors.AsType[*unreadable](err); ok {
		return unread.reason
	}
	if errors.Is(err, signMalformed) {
		return dedup.ReasonMalformed
	}
	return dedup.ReasonPermanent
}

// refusedBy is what a Validator's error makes of a message.
func refusedBy(err error) *unreadable {
	if IsPermanent(err) {
		return &unreadable{permanentReason(err), err}
	}
	return &unreadable{dedup.ReasonMalformed, err}
}

// BlamedMessage names one message of a call and what is wrong with it; the error may be [Permanent].
type BlamedMessage struct {
	Index int // into the call's msgs
	Err   error
}

// Blame says that only these messages of the call failed. Without any, it is nil.
func Blame(msgs ...BlamedMessage) error { return blame(msgs, false) }

func blame(msgs []BlamedMessage, othersApplied bool) error {
	if len(msgs) == 0 {
		return nil
	}
	for _, m := range msgs {
		_ = runner.Ask(m.Err)
	}
	return &BlameError{slices.Clone(msgs), othersApplied}
}

// Except says that all messages of the call are applied but these, for which nothing was written in tx: the engine
// commits the others without another call. It is for a handler that finds out who is to blame before it writes; one
// that has written anything for a blamed message, or is not sure, says [Blame]. Without any, it is nil.
func Except(msgs ...BlamedMessage) error { return blame(msgs, true) }

// BlameError is the error made by [Blame] and [Except].
type BlameError struct {
	Messages []BlamedMessage
	// OthersApplied: nothing was written for these, and all others of the call are applied.
	OthersApplied bool
}

// Error names the first message and how many there are.
func (e *BlameError) Error() string {
	first := e.Messages[0]
	if len(e.Messages) == 1 {
		return fmt.Sprintf("message %d of the batch: %v", first.Index, first.Err)
	}
	return fmt.Sprintf("%d messages of the batch, the first is %d: %v", len(e.Messages), first.Index, first.Err)
}

// inPlace is err, unless it blames by places that are not those of msgs any more: given is the copy of them that a
// handler was called with, and has put into another order. It may have counted before or after that.
func inPlace(err error, given, msgs []Message) error {
	same := func(a, b Message) bool { return a.Identity == b.Identity }
	_, blames := errors.AsType[*BlameError](err)
	if !blames || len(msgs) == 1 || slices.EqualFunc(given, msgs, same) {
		return err
	}
	//nolint:errorlint // it blames nobody any more
	return fmt.Errorf("the handler has put its messages into another order, so whom it blames is not known: %v", err)
}

// blameOf splits err: the error of each blamed message by its index, or nil when err blames nobody in particular. An
// index outside 0..n-1 blames nobody: it is the handler's mistake and fails the whole call.
func blameOf(err error, n int) map[int]error {
	blame, ok := errors.AsType[*BlameError](err)
	if !ok || len(blame.Messages) == 0 {
		return nil
	}
	by := make(map[int]error, len(blame.Messages))
	for _, m := range blame.Messages {
		if m.Index < 0 || m.Index >= n || m.Err == nil {
			return nil
		}
		by[m.Index] = m.Err
	}
	return by
}
