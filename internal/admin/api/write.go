package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

const (
	// actTime bounds an act. It goes on when who asked for it has gone away, as after a time-out.
	actTime = 10 * time.Second
	// maxBody bounds what a request may send: a filter with as many keys as it may have.
	maxBody = 300 << 10
)

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

// RunRequest asks for a run over dead letters.
type RunRequest struct {
	Kind        operator.Kind     `json:"kind" enum:"replay,discard"`
	Filter      deadletter.Filter `json:"filter"`
	CutOff      time.Time         `json:"cut_off,omitzero"`
	Why         string            `json:"why,omitempty" maxLength:"1000"`
	Force       bool              `json:"force,omitempty"`
	Rate        float64           `json:"rate,omitempty" minimum:"0"`
	Window      int               `json:"window,omitempty" minimum:"1" maximum:"10000"`
	MaxFailures int               `json:"max_failures,omitempty" minimum:"0"`
}

// PauseRequest asks for a pause of consuming.
type PauseRequest struct {
	Why     string  `json:"why" minLength:"1" maxLength:"1000"`
	Seconds float64 `json:"seconds,omitempty" minimum:"1" maximum:"86400"`
	Instead string  `json:"instead,omitempty" maxLength:"100"`
}

// ResumeRequest asks for the end of a pause.
type ResumeRequest struct {
	Why   string `json:"why,omitempty" maxLength:"1000"`
	Pause string `json:"pause,omitempty" maxLength:"100"`
}

// actAt is the address of an act.
func (a *API) actAt(id string) string { return a.o.Guard.BasePath() + Prefix + "/acts/" + id }

func (a *API) startRun(ctx context.Context, in *bodied[RunRequest], id string) (operator.Act, error) {
	b := in.Body
	if err := a.o.View.Shows(b.Filter.Body); err != nil {
		return operator.Act{}, err
	}
	if b.CutOff.IsZero() {
		var err error
		if b.CutOff, err = a.o.Desk.Now(ctx); err != nil {
			return operator.Act{}, err
		}
	}
	return a.o.Desk.Start(ctx, view.Actor(ctx), operator.Request{
		ID: id, Kind: b.Kind, Filter: b.Filter, CutOff: b.CutOff, Why: strings.TrimSpace(b.Why), Force: b.Force,
		Rate: b.Rate, Window: b.Window, MaxFailures: b.MaxFailures,
	})
}

type stopInput struct {
	Keyed
	ID string `path:"id" maxLength:"100"`
}

func (in *stopInput) asked() (key string, what any) { return in.Key, in.ID }

func (a *API) stopRun(ctx context.Context, in *stopInput, _ string) (operator.Act, error) {
	return a.o.Desk.Stop(ctx, view.Actor(ctx), in.ID)
}

func (a *API) pause(ctx context.Context, in *bodied[PauseRequest], id string) (operator.Act, error) {
	if _, err := a.o.Desk.Pause(ctx, view.Actor(ctx), operator.PauseRequest{
		ID: id, Why: in.Body.Why, For: time.Duration(in.Body.Seconds * float64(time.Second)), Instead: in.Body.Instead,
	}); err != nil {
		return operator.Act{}, err
	}
	return a.o.Desk.Act(ctx, id)
}

func (a *API) resume(ctx context.Context, in *bodied[ResumeRequest], id string) (operator.Act, error) {
	if _, err := a.o.Desk.Resume(ctx, view.Actor(ctx), operator.ResumeRequest{
		ID: id, Why: in.Body.Why, Pause: in.Body.Pause,
	}); err != nil {
		return operator.Act{}, err
	}
	return a.o.Desk.Act(ctx, id)
}

func (a *API) compare(ctx context.Context, _ *Keyed, id string) (operator.Act, error) {
	return view.Compare(ctx, a.o.Desk, id)
}

// MendRequest asks for the mending of a finding.
type MendRequest struct {
	Of     string `json:"of" maxLength:"100"`
	Number int    `json:"number" minimum:"0"`
	Sure   bool   `json:"sure,omitempty"`
	Why    string `json:"why,omitempty" maxLength:"1000"`
}

func (a *API) mend(ctx context.Context, in *bodied[MendRequest], id string) (operator.Act, error) {
	of, w, err := view.Compared(ctx, a.o.Desk, in.Body.Of)
	if err != nil {
		return operator.Act{}, err
	}
	order, err := w.Order(of.ID, in.Body.Number, in.Body.Sure)
	switch {
	case errors.Is(err, operator.ErrNoFinding):
		return operator.Act{}, fmt.Errorf("%w: %w", view.ErrNothing, err)
	case err != nil:
		return operator.Act{}, problem(http.StatusUnprocessableEntity, err.Error())
	}
	return view.Mend(ctx, a.o.Desk, id, order, in.Body.Why)
}
