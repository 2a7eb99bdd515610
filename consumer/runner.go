package consumer

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

var (
	// errManyStuck ends Run: what such goroutines hold is freed by a new process only.
	errManyStuck = errors.New("too many calls of the handler have not returned, a new process must go on")
	// errGoexit is the error of code that ended its goroutine.
	errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, or FailNow of a test)")
)

// mostStuck is how many calls may be stuck before Run ends, beside as many as are made at once of a function of
// [Calls]. One message that never comes back costs one in the fast path and one for each attempt.
const mostStuck = 16

// runner runs the code of the handler, each time in a goroutine of its own: a worker outlives whatever that does. It
// may panic, end its goroutine, or never come back.
type runner struct {
	log    *slog.Logger
	health *health
	queue  string
	grace  time.Duration // how long code may take to notice that its context has ended
	most   int           // calls that may be stuck
	count  atomic.Uint64

	mu    sync.Mutex
	stuck map[uint64]*stuckError // guarded by mu; by number of the call
}

func newRunner(cfg Config, h *health) *runner {
	return &runner{
		log: cfg.Logger, health: h, queue: cfg.Queue, grace: min(killGrace/4, (cfg.Lease-cfg.HandlerTimeout)/2),
		most: mostStuck, stuck: map[uint64]*stuckError{},
	}
}

// stuckError is a call that has not returned.
type stuckError struct {
	began time.Time
	after time.Duration
	what  string // the message, or the messages, that it was called with
	at    int    // which of them it was at; -1 when nobody knows
	stack string
}

func (e *stuckError) Error() string {
	return fmt.Sprintf("%v after %v, although its context has ended; it stands at\n%s", ErrStuck,
		e.after.Round(time.Millisecond), e.stack)
}

func (e *stuckError) Unwrap() error { return ErrStuck }

// blame blames whom the call was at, or all n messages that it was called with.
func (e *stuckError) blame(n int) error {
	if e.at >= 0 {
		return Blame(BlamedMessage{Index: e.at, Err: e})
	}
	all := make([]BlamedMessage, n)
	for i := range all {
		all[i] = BlamedMessage{Index: i, Err: e}
	}
	return Blame(all...)
}

// named names the message that a call was at, or of how many it is one.
func named(msgs []Message, at int) string {
	if at >= 0 || len(msgs) == 1 {
		return msgs[max(at, 0)].Identity.String()
	}
	return fmt.Sprintf("one of %d messages, the first is %v", len(msgs), msgs[0].Identity)
}

// position is which of msgs the code of a handler is at, as far as it says.
type position struct {
	msgs []Message
	i    atomic.Int64
}

func (p *position) set(i int) {
	if p != nil {
		p.i.Store(int64(i))
	}
}

type positionKey struct{}

// positionOf is nil unless msgs are those with which the engine has called: a handler may call another one with
// messages of its own, whose places are none among the engine's.
func positionOf(ctx context.Context, msgs []Message) *position {
	p, _ := ctx.Value(positionKey{}).(*position)
	if p == nil || len(msgs) == 0 || len(msgs) != len(p.msgs) || &msgs[0] != &p.msgs[0] {
		return nil
	}
	return p
}

// callLabel is the name under which profiles of the process, too, show the number of a call.
const callLabel = "rollbackd_call"

// run runs f, which was called for msgs, and makes an error of a panic and of a goroutine that ended. When ctx has
// ended and f does not return, it is left behind: a *stuckError. at is the message that f was at when it ended, -1 when
// it does not say.
func (r *runner) run(ctx context.Context, msgs []Message, f func(context.Context) error) (at int, err error) {
	began, number, where := time.Now(), r.count.Add(1), &position{msgs: msgs}
	where.set(-1)
	done := make(chan error, 1)
	go func() { // joined below, or told of until it ends
		err := errGoexit
		defer func() {
			if p := recover(); p != nil {
				err = &panicError{value: p, stack: debug.Stack()}
			}
			r.ended(number, done, err)
		}()
		labels := pprof.Labels(callLabel, strconv.FormatUint(number, 10))
		pprof.Do(context.WithValue(ctx, positionKey{}, where), labels, func(ctx context.Context) { err = f(ctx) })
	}()
	select {
	case err = <-done:
		return int(where.i.Load()), err
	case <-ctx.Done():
	}
	grace := time.NewTimer(r.grace)
	defer grace.Stop()
	select {
	case err = <-done:
	case <-grace.C:
		at := int(where.i.Load())
		err = r.leave(ctx, number, done, &stuckError{
			began: began, after: time.Since(began), what: named(msgs, at), at: at, stack: stackOf(number),
		})
	}
	return int(where.i.Load()), err
}

// ended takes in that a call has returned, whether or not somebody waits for it.
func (r *runner) ended(number uint64, done chan<- error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	done <- err
	was := r.stuck[number]
	if was == nil {
		return
	}
	delete(r.stuck, number)
	ctx := context.Background()
	r.log.WarnContext(ctx, "the handler has returned after all, nobody waits for it", "message", was.what, "after",
		time.Since(was.began).Round(time.Millisecond), "err", err)
	if len(r.stuck) == 0 {
		r.health.sound(ctx, handlerStuck, r.queue)
	}
}

// leave leaves a call behind, unless it has returned in this moment.
func (r *runner) leave(ctx context.Context, number uint64, done <-chan error, stuck *stuckError) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case err := <-done:
		return err
	default:
	}
	r.stuck[number] = stuck
	r.log.ErrorContext(ctx, "the handler does not return; it is left behind, and its transaction is rolled back",
		"message", stuck.what, "after", stuck.after.Round(time.Millisecond), "stack", stuck.stack)
	r.health.degraded(ctx, handlerStuck, r.queue, r.describe())
	return stuck
}

// describe is what is stuck, nil when nothing is. The caller holds mu.
func (r *runner) describe() error {
	if len(r.stuck) == 0 {
		return nil
	}
	calls := slices.SortedFunc(maps.Values(r.stuck), func(a, b *stuckError) int { return a.began.Compare(b.began) })
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

// left is what is stuck, nil when nothing is.
func (r *runner) left() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.describe()
}

// full is an error when so many calls are stuck that a new process must go on.
func (r *runner) full() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.stuck) < r.most {
		return nil
	}
	return errManyStuck
}

// still is how long ago the oldest stuck call began, 0 when none is.
func (r *runner) still() (oldest time.Duration) {
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
