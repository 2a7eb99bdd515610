package api

import (
	"context"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// maxBody bounds what a request may send: a filter with as many keys as it may have.
const maxBody = 300 << 10

// Keyed is what every request that does something carries.
type Keyed struct {
	Key string `header:"Idempotency-Key" required:"true" minLength:"1" maxLength:"255"`
}

func (in *Keyed) asked() (key string, what any) { return in.Key, nil }

// bodied is a request with a body.
type bodied[B any] struct {
	Keyed
	Body B
}

func (in *bodied[B]) asked() (key string, what any) { return in.Key, in.Body }

// done is the answer to a request that did something.
type done struct {
	Status   int
	Location string `header:"Location"`
	Replayed string `header:"Idempotency-Replayed"`
	Body     operator.Act
}

// actAt is the address of an act.
func (a *API) actAt(id string) string { return a.guard.BasePath() + Prefix + "/acts/" + id }

// by is how something is done that is asked for in a body.
func by[B any](ask func(context.Context, B) (view.Doing, error)) func(
	context.Context, *bodied[B], string) (operator.Act, error) {
	return func(ctx context.Context, in *bodied[B], id string) (operator.Act, error) {
		do, err := ask(ctx, in.Body)
		if err != nil {
			return operator.Act{}, err
		}
		return do(ctx, id)
	}
}

type stopInput struct {
	Keyed
	ID string `path:"id" maxLength:"100"`
}

func (in *stopInput) asked() (key string, what any) { return in.Key, in.ID }

func (a *API) stopRun(ctx context.Context, in *stopInput, _ string) (operator.Act, error) {
	return a.desk.Stop(ctx, view.Actor(ctx), in.ID)
}

func (a *API) compare(ctx context.Context, _ *Keyed, id string) (operator.Act, error) {
	do, err := a.view.Compare(ctx, struct{}{})
	if err != nil {
		return operator.Act{}, err
	}
	return do(ctx, id)
}
