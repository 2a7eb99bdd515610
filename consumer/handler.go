package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
)

// Message is one message as a handler sees it. Body and Headers belong to the engine: a handler must not change them,
// and must not keep them beyond its call.
type Message struct {
	dedup.Identity
	Body      []byte
	Headers   map[string]any
	MessageID string
	// ContentType is what the producer says of the body; often nothing.
	ContentType string
	// Attempt is 1 and more in an attempt that was counted before it began; 0 in the fast path, where an attempt is
	// counted after it failed.
	Attempt int
	// Replays says how often a person or compensation reopened the message.
	Replays int
	// PublishedAt is zero when the producer said nothing of it.
	PublishedAt time.Time
	// Value is what the handler's Validate left here, nil without a Validator.
	Value any
}

// Handler applies messages.
type Handler interface {
	// Handle applies msgs inside tx; the commit of tx marks them done. What would end the transaction is refused with
	// [ErrEndsTransaction], and what nobody can read, such as CALL, runs for one message at a time. Handle must do nothing
	// outside tx that may not happen again. Each identity occurs at most once in msgs. Several lanes call Handle at the
	// same time, each with a transaction of its own. Whoever wants another order sorts a copy: when msgs itself has one, a
	// [Blame] tells nobody whom it means, and the batch is halved as after any other error.
	//
	// A nil error applies all of msgs. [Blame] names single messages, which leave the batch while the rest is handled
	// anew, in the same transaction after what was written is undone, or in another; after [Except] the rest is committed
	// as it is. [Permanent] marks an error that no retry can cure, [Later] says that it is too early, and [RetryIn] when
	// the next attempt comes. Any other error is the whole call's: a batch is halved until the guilty stand alone, and a
	// message alone has failed an attempt. So it has when the server refuses a statement of it. What the database says of
	// itself or of two transactions that met (a lost connection, a missing table, a deadlock) never counts; pass it on,
	// wrapped or not; nor does what is marked as [Contention]. After any error of a statement tx refuses all further
	// statements, because MySQL may have rolled it back. A panic is a failed attempt, and so is the end of Handle's
	// goroutine (runtime.Goexit). ctx ends after the configured handler timeout, and tx is rolled back then: a Handle
	// that has not returned shortly after that is left behind in its goroutine and told of by [ErrStuck].
	Handle(ctx context.Context, tx *gorm.DB, msgs []Message) error
}

// Validator is a Handler that can refuse a message by its body alone, before any transaction.
type Validator interface {
	// Validate refuses a message that nobody can ever read: it is dead-lettered at once with reason malformed, or with
	// reason permanent if the error is marked as [Permanent]. It may leave the decoded body in m.Value for Handle. It must
	// not do I/O; a panic counts as an error.
	Validate(m *Message) error
}

// HandlerFunc makes a function a Handler.
type HandlerFunc func(ctx context.Context, tx *gorm.DB, msgs []Message) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, tx *gorm.DB, msgs []Message) error {
	return f(ctx, tx, msgs)
}

// ErrStuck says that the handler has not returned from a call although the call's context has ended. Nothing but the
// end of the process ends such a goroutine; the log has its stack.
var ErrStuck = runner.ErrStuck

// Each makes a one-message function a Handler. The messages of a batch share one transaction; the first that fails is
// blamed.
func Each(f func(ctx context.Context, tx *gorm.DB, m Message) error) Handler { return single{f, f} }

// single is a function for one message.
type single struct {
	f    func(ctx context.Context, tx *gorm.DB, m Message) error
	code any // of a user's, whatever is around it
}

// Handle is a [Handler]'s.
func (s single) Handle(ctx context.Context, tx *gorm.DB, msgs []Message) error {
	at := positionOf(ctx, msgs)
	for i, m := range msgs {
		at.Set(i)
		if err := ofCall(ctx, tx, s.code, &msgs[i], s.f(ctx, tx, m)); err != nil {
			return Blame(BlamedMessage{Index: i, Err: err})
		}
	}
	return nil
}

func (s single) around(mw Middleware) Handler { return s.behind(mw) }

// behind is s with middleware that sees each message by itself. Whom it blames is that message.
func (s single) behind(mw Middleware) single {
	next := mw(HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []Message) error {
		if len(msgs) != 1 {
			return errOtherMessages
		}
		of, _ := ctx.Value(givenKey{}).(*given)
		return of.once(tx, func() error { return s.f(ctx, tx, msgs[0]) })
	}))
	return single{func(ctx context.Context, tx *gorm.DB, m Message) error {
		msgs := []Message{m}
		ctx, given := withGiven(ctx, msgs)
		defer given.end()
		err := next.Handle(ctx, tx, msgs)
		if by := blameOf(err, 1); by != nil {
			return by[0]
		}
		return err
	}, s.code}
}

// errAgain is the error of a second call behind middleware, and of one that comes when the middleware has returned.
var errAgain = errors.New("middleware must call next once at most, before it returns: what the first call has " +
	"written is still in the transaction. Return an error, and all is rolled back and tried again")

// given is what middleware was given in one call; it stands in the context under givenKey.
type given struct {
	msgs    []Message
	mu      sync.Mutex
	over    bool // next was called, or the middleware has returned; guarded by mu
	running sync.WaitGroup
}

type givenKey struct{}

func withGiven(ctx context.Context, msgs []Message) (context.Context, *given) {
	g := &given{msgs: msgs}
	return context.WithValue(ctx, givenKey{}, g), g
}

// once calls next, but within a transaction only the first time, and for whoever has handed the context on.
func (g *given) once(tx *gorm.DB, next func() error) error {
	if tx == nil {
		return next()
	}
	if g == nil {
		return errOtherMessages
	}
	g.mu.Lock()
	if g.over {
		g.mu.Unlock()
		return errAgain
	}
	g.over = true
	g.running.Add(1)
	g.mu.Unlock()
	defer g.running.Done()
	return next()
}

// end waits until next has returned. Middleware that returns before, because a time of its own is over, would leave a
// handler behind that writes into the transaction of others.
func (g *given) end() {
	g.mu.Lock()
	g.over = true
	g.mu.Unlock()
	g.running.Wait()
}

// positionOf is nil unless msgs are those with which the engine has called: a handler may call another one with
// messages of its own, whose places are none among the engine's.
func positionOf(ctx context.Context, msgs []Message) *runner.Position {
	p := runner.PositionOf(ctx)
	if p == nil {
		return nil
	}
	if of, _ := p.Of.(calling); len(of) != len(msgs) || len(of) == 0 || &msgs[0] != &of[0] {
		return nil
	}
	return p
}
