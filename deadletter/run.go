package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// run is one Replay, ReplayFrom, Discard, Republish or Sweep, or one pass over a Set: what was asked for, and what came
// of it.
type run struct {
	l      *Letters
	filter Filter
	o      ReplayOptions
	asked  string // what was asked for, for the story of a row
	began  time.Time
	token  string // begins the owner of every row that it reopens; no other run has it
	calls  int    // of change, each of which has a token of its own
	tally  *tally
}

func newRun(l *Letters, f Filter, o ReplayOptions, asked string) *run {
	return &run{
		l: l, filter: f, o: o, asked: asked, began: time.Now(), tally: newTally(f, o),
		token: cmp.Or(o.token, "replay/") + uuid.NewString() + "/",
	}
}

// connected does something with the dead-letter queue and a publisher to the main queue.
func (r *run) connected(ctx context.Context, do func(*queue, *rabbit.Publisher) error) (err error) {
	if err := errors.Join(r.filter.validate(), r.o.validate()); err != nil {
		return err
	}
	conn, err := rabbit.Dial(ctx, r.l.o.amqp())
	if err != nil {
		return brokerError(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }() // which gives back what was not taken
	return r.publishing(ctx, func(p *rabbit.Publisher) error { return do(&queue{conn: conn, name: r.l.Queue()}, p) })
}

// publishing does something with a publisher to the main queue.
func (r *run) publishing(ctx context.Context, do func(*rabbit.Publisher) error) (err error) {
	publisher := rabbit.NewPublisher(r.l.o.amqp())
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
	return do(publisher)
}

// finishing is a context for letters in hand: they are finished although ctx ends.
func (r *run) finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	within := cmp.Or(r.o.within, windowTimeout)
	return context.WithTimeoutCause(context.WithoutCancel(ctx), within, fmt.Errorf("some letters took over %v", within))
}
