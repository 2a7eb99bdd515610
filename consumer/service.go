package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/semaphore"
)

// service is what the function of [Calls] calls, as all workers of the process know it: whether it is there, and how
// many calls are on their way.
type service struct {
	*engine
	f       func(context.Context, Message) error
	o       CallOptions
	slots   *semaphore.Weighted
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	// succeeded counts the calls that the service has applied.
	succeeded atomic.Uint64
	why       atomic.Pointer[error] // of the last call that found it away
}

// awayAfter is how many calls in a row must find the service away before nothing is consumed.
const awayAfter = 5

// errNotCalled tells the breaker that a call was never made.
var errNotCalled = errors.New("the call was not made")

func newService(h *callHandler, c *engine) *service {
	s := &service{engine: c, f: h.f, o: h.options(c.cfg)}
	s.slots = semaphore.NewWeighted(int64(s.o.Concurrency))
	s.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: DependencyService, MaxRequests: 1, Timeout: s.o.ProbeAfter,
		ReadyToTrip: func(c gobreaker.Counts) bool { // also at once, when a person must do something
			return c.ConsecutiveFailures >= awayAfter || isCall(*s.why.Load(), CallMisconfigured)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errNotCalled) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			switch to {
			case gobreaker.StateOpen:
				s.health.missing(context.Background(), DependencyService,
					fmt.Errorf("%w; one message asks again every %v", *s.why.Load(), s.o.ProbeAfter))
			case gobreaker.StateClosed:
				s.health.back(context.Background(), DependencyService)
			}
		},
	})
	return s
}

// away reports whether the service was found away and has not answered since. Nil is no service at all.
func (s *service) away() bool { return s != nil && s.breaker.State() != gobreaker.StateClosed }

// ticket is the right to one call; whoever has one must end it.
type ticket func(error)

// called is what a call came to.
type called struct {
	kind CallMeaning
	err  error
	// after is when it may be made again.
	after time.Duration
}

// call makes one call and tells the breaker of it.
func (s *service) call(ctx context.Context, m Message, done ticket) called {
	before := s.succeeded.Load()
	over := fmt.Errorf("%w: over %v", errHandlerTimeout, s.o.Timeout)
	bounded, cancel := context.WithTimeoutCause(ctx, s.o.Timeout, over)
	defer cancel()
	spanned, span := s.tracing.message(bounded, m)
	began := time.Now()
	_, err := s.runner.Run(spanned, calling{m}, func(ctx context.Context) error { return s.f(ctx, m) })
	s.metrics.handled(began, err)
	endSpan(span, err)
	out := s.explain(ctx, bounded, err)
	s.metrics.calls.WithLabelValues(out.kind.String()).Inc()
	switch out.kind {
	case CallUnavailable, CallUnanswered, CallMisconfigured:
		s.why.Store(&err)
		done(err)
	case callStopped:
		done(errNotCalled)
	default:
		if out.kind == CallApplied {
			s.succeeded.Add(1)
		}
		done(nil)
	}
	if out.kind == CallUnanswered && s.succeeded.Load() > before {
		out.kind = CallFailed // it is this message's: others are answered
	}
	return out
}

// explain sorts what a call has returned. What it has said for sure holds, although its time or the engine's is over.
func (s *service) explain(ctx, bounded context.Context, err error) called {
	what, after := CallMeans(err)
	switch what {
	case CallApplied, CallPermanent, CallLater:
	case CallFailed:
		if bounded.Err() != nil {
			what, err = CallUnanswered, fmt.Errorf("%w; perhaps applied: %w", context.Cause(bounded), err)
		}
		fallthrough
	default:
		if ctx.Err() != nil {
			what = callStopped
		}
	}
	return called{what, err, after}
}

// isCall reports whether err says this of a call.
func isCall(err error, kind CallMeaning) bool {
	told, ok := errors.AsType[*callError](err)
	return ok && told.kind == kind
}
