// Package runner runs the code of a handler, each time in a goroutine of its own, and outlives whatever that does. It
// must not know what is called, nor what its end means for a message.
package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrStuck says that the handler has not returned from a call although the call's context has ended. Nothing but the
// end of the process ends such a goroutine; the log has its stack.
var ErrStuck = errors.New("the handler has not returned")

// ErrManyStuck says that what such goroutines hold is freed by a new process only.
var ErrManyStuck = errors.New("too many calls of the handler have not returned, a new process must go on")

// errGoexit is the error of code that ended its goroutine.
var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, or FailNow of a test)")

// Runner runs code that may panic, end its goroutine, or never come back.
type Runner struct {
	Log   *slog.Logger
	Tell  func(ctx context.Context, stuck error) // of what does not return; nil: nothing is stuck any more
	Grace time.Duration                          // how long code may take to notice that its context has ended
	Most  int                                    // calls that may be stuck

	count atomic.Uint64

	mu    sync.Mutex
	stuck map[uint64]*StuckError // guarded by mu; by number of the call
}

// PanicError is a panic of the code, with its stack.
type PanicError struct {
	Value any
	stack []byte
}

// Recovered is the error of a panic with this value, to be made where it is recovered.
func Recovered(value any) error { return &PanicError{Value: value, stack: debug.Stack()} }

// Error is what it panicked with, and where.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v\n%s", e.Value, e.stack) }

// Ask is err, which is asked what it says and wraps while code runs: one that panics, as a nil pointer of a type of
// errors does, would end the process elsewhere.
func Ask(err error) error {
	if err != nil && err.Error() != "" {
		_ = errors.Is(err, ErrStuck)
	}
	return err
}

// StuckError is a call that has not returned.
type StuckError struct {
	began time.Time
	after time.Duration
	what  string // the message, or the messages, that it was called with
	At    int    // which of them it was at; -1 when nobody knows
	stack string
}

// Error says where it stands.
func (e *StuckError) Error() string {
	return fmt.Sprintf("%v after %v, although its context has ended; it stands at\n%s", ErrStuck,
		e.after.Round(time.Millisecond), e.stack)
}

// Unwrap is [ErrStuck].
func (e *StuckError) Unwrap() error { return ErrStuck }

// Subject is what code is called for.
type Subject interface {
	Name(at int) string // of a message in it; -1: of all
}

// Position is which message of a subject the code is at, as far as it says.
type Position struct {
	Of Subject
	i  atomic.Int64
}

// Set says so; nil is said nothing.
func (p *Position) Set(i int) {
	if p != nil {
		p.i.Store(int64(i))
	}
}

type positionKey struct{}

// PositionOf is that of the call whose context this is; nil outside of any.
func PositionOf(ctx context.Context) *Position {
	p, _ := ctx.Value(positionKey{}).(*Position)
	return p
}

// callLabel is the name under which profiles of the process, too, show the number of a call.
const callLabel = "rollbackd_call"

// Run runs f, which is called for a subject, and makes an error of a panic and of a goroutine that ended. When ctx has
// ended and f does not return, it is left behind: a *[StuckError]. at is the message that f was at when it ended, -1
// when it does not say.
func (r *Runner) Run(ctx context.Context, of Subject, f func(context.Context) error) (at int, err error) {
	began, number, where := time.Now(), r.count.Add(1), &Position{Of: of}
	where.Set(-1)
	done := make(chan error, 1)
	go func() { // joined below, or told of until it ends
		err := errGoexit
		defer func() {
			if p := recover(); p != nil {
				err = Recovered(p)
			}
			r.ended(number, done, err)
		}()
		labels := pprof.Labels(callLabel, strconv.FormatUint(number, 10))
		pprof.Do(context.WithValue(ctx, positionKey{}, where), labels, func(ctx context.Context) { err = Ask(f(ctx)) })
	}()
	select {
	case err = <-done:
		return int(where.i.Load()), err
	case <-ctx.Done():
	}
	select {
	case err = <-done:
	case <-time.After(r.Grace):
		at := int(where.i.Load())
		err = r.leave(ctx, number, done, &StuckError{
			began: began, after: time.Since(began), what: of.Name(at), At: at, stack: stackOf(number),
		})
	}
	return int(where.i.Load()), err
}

// ended takes in that a call has returned, whether or not somebody waits for it.
func (r *Runner) ended(number uint64, done chan<- error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	done <- err
	was := r.stuck[number]
	if was == nil {
		return
	}
	delete(r.stuck, number)
	ctx := context.Background()
	r.Log.WarnContext(ctx, "the handler has returned after all, nobody waits for it", "message", was.what, "after",
		time.Since(was.began).Round(time.Millisecond), "err", err)
	r.Tell(ctx, r.describe())
}

// leave leaves a call behind, unless it has returned in this moment.
func (r *Runner) leave(ctx context.Context, number uint64, done <-chan error, stuck *StuckError) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case err := <-done:
		return err
	default:
	}
	if r.stuck == nil {
		r.stuck = map[uint64]*StuckError{}
	}
	r.stuck[number] = stuck
	r.Log.ErrorContext(ctx, "the handler does not return; it is left behind, and its transaction is rolled back",
		"message", stuck.what, "after", stuck.after.Round(time.Millisecond), "stack", stuck.stack)
	r.Tell(ctx, r.describe())
	return stuck
}

// describe is what is stuck, nil when nothing is. The caller holds mu.
func (r *Runner) describe() error {
	if len(r.stuck) == 0 {
		return nil
	}
	calls := slices.SortedFunc(maps.Values(r.stuck), func(a, b *StuckError) int { return a.began.Compare(b.began) })
	var with []string
	for _, call := range calls {
		if !slices.Contains(with, call.what) {
			with = append(with, call.what)
		}
	}
	return fmt.Errorf("%w from %d calls whose contexts ended, the first began at %s; restart the process, nothing else "+
		"ends them; the log has their stacks; called with %s", ErrStuck, len(calls),
		calls[0].began.UTC().Format(time.RFC3339), strings.Join(with, "; "))
}

// Left is what is stuck, nil when nothing is.
func (r *Runner) Left() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.describe()
}

// Full is an error when so many calls are stuck that a new process must go on.
func (r *Runner) Full() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.stuck) < r.Most {
		return nil
	}
	return ErrManyStuck
}

// Still is how long ago the oldest stuck call began, 0 when none is.
func (r *Runner) Still() (oldest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, call := range r.stuck {
		oldest = max(oldest, time.Since(call.began))
	}
	return oldest
}

// stackOf is where a call stands, and the goroutines that it has begun.
func stackOf(number uint64) string {
	var all bytes.Buffer
	const withLabels = 1
	if err := pprof.Lookup("goroutine").WriteTo(&all, withLabels); err != nil {
		return err.Error()
	}
	label := fmt.Sprintf("%q:%q", callLabel, strconv.FormatUint(number, 10))
	var stack strings.Builder
	for record := range strings.SplitSeq(all.String(), "\n\n") {
		if !strings.Contains(record, label) {
			continue
		}
		for line := range strings.SplitSeq(record, "\n") {
			if frame := strings.Fields(line); len(frame) > 2 && frame[0] == "#" && strings.HasPrefix(frame[1], "0x") {
				stack.WriteString(strings.Join(frame[2:], " ") + "\n")
			}
		}
	}
	return strings.TrimSpace(stack.String())
}
