package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin"
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

// done is the answer to a request that did something.
type done struct {
	Status   int
	Location string `header:"Location" doc:"The address of the act."`
	Replayed string `header:"Idempotency-Replayed"`
	Body     operator.Act
}

// RunRequest asks for a run over dead letters.
type RunRequest struct {
	Kind        operator.Kind     `json:"kind" enum:"replay,discard"`
	Filter      deadletter.Filter `json:"filter" doc:"Which letters: that of a preview or of a group, or any other."`
	CutOff      time.Time         `json:"cut_off,omitzero"`
	Why         string            `json:"why,omitempty" maxLength:"1000" doc:"Required to discard."`
	Force       bool              `json:"force,omitempty" doc:"Of a replay: also letters that are parked."`
	Rate        float64           `json:"rate,omitempty" minimum:"0"`
	Window      int               `json:"window,omitempty" minimum:"1" maximum:"10000"`
	MaxFailures int               `json:"max_failures,omitempty" minimum:"0"`
}

// PauseRequest asks for a pause of consuming.
type PauseRequest struct {
	Why     string  `json:"why" minLength:"1" maxLength:"1000" doc:"For whoever finds it so."`
	Seconds float64 `json:"seconds,omitempty" minimum:"1" maximum:"86400" doc:"How long. Missing: an hour."`
	Instead string  `json:"instead,omitempty" maxLength:"100"`
}

// ResumeRequest asks for the end of a pause.
type ResumeRequest struct {
	Why   string `json:"why,omitempty" maxLength:"1000" doc:"For the record."`
	Pause string `json:"pause,omitempty" maxLength:"100"`
}

const onceWords = " Under the same Idempotency-Key it is done once: the same request again gets the first answer " +
	"again, for a day, from any daemon; another request under that key is refused with 422, and the same one with 409 " +
	"while the first is being done. What was refused was not done, and may be sent again under its key."

func (a *API) writes() {
	act(a, route{
		id: "start-run", path: "/runs", tag: "Acts", summary: "Replay or discard dead letters",
		details: "Begins a run over all letters that the filter chooses and that were dead at cut_off. Any daemon of the " +
			"group works on it, and another goes on where one dies; GET /acts/{id} tells how far it is. 409: a run of the " +
			"same letters goes on, whose address is the problem's instance." + onceWords,
	}, http.StatusCreated, a.startRun)
	act(a, route{
		id: "stop-run", path: "/runs/{id}/stop", tag: "Acts", summary: "Stop a run",
		details: "It finishes the letters that it has in hand, within seconds. 409: it has ended already." + onceWords,
		errors:  []int{http.StatusNotFound},
	}, http.StatusOK, a.stopRun)
	act(a, route{
		id: "pause", path: "/pause", tag: "Acts", summary: "Pause consuming",
		details: "All daemons of the group and queue take no more deliveries, within seconds, until the pause ends. 409: a " +
			"pause stands that instead does not name." + onceWords,
	}, http.StatusCreated, a.pause)
	act(a, route{
		id: "resume", path: "/resume", tag: "Acts", summary: "Resume consuming",
		details: "Ends the pause. 409: none stands, or another one than was named." + onceWords,
	}, http.StatusCreated, a.resume)
}

// act adds a route that does something, once under its key.
func act[I any, P interface {
	*I
	asked() (key string, what any)
}](a *API, r route, status int, do func(ctx context.Context, in P, id string) (operator.Act, error)) {
	may := []int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusBadGateway,
		http.StatusServiceUnavailable,
	}
	op := huma.Operation{
		OperationID: r.id, Method: http.MethodPost, Path: r.path, Tags: []string{r.tag}, Summary: r.summary,
		Description: r.details, Errors: slices.Concat(may, r.errors), DefaultStatus: status, MaxBodyBytes: maxBody,
	}
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*done, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTime)
		defer cancel()
		key, what := P(in).asked()
		answer, err := a.once(ctx, r.id, key, what, status, func(id string) (operator.Act, error) { return do(ctx, in, id) })
		if err != nil {
			return nil, a.trouble(ctx, r.id, err)
		}
		return answer, nil
	})
}

// once does what is asked for unless it was done before under this key, and answers as it did then.
func (a *API) once(
	ctx context.Context, id, key string, what any, status int, do func(id string) (operator.Act, error),
) (*done, error) {
	text, err := json.Marshal([]any{id, what})
	if err != nil {
		return nil, fmt.Errorf("name the request: %w", err)
	}
	said, before, err := view.Once(ctx, a.o.Desk, a.o.Logger, actorOf(ctx), operator.OnceRequest{
		Name: key, Hash: sha256.Sum256(text),
	}, 0, func(id string) (operator.Answer, error) {
		act, err := do(id)
		if err != nil {
			return operator.Answer{}, err
		}
		text, _ := json.Marshal(act) // whatever is wrong with it, the act is done, and must not be asked for again
		return operator.Answer{
			Status: status, ContentType: "application/json", Location: a.actAt(act.ID), Body: text,
		}, nil
	})
	if err != nil {
		return nil, err
	}
	answer := &done{Status: said.Status, Location: said.Location}
	if before {
		answer.Replayed = "true"
	}
	if err := json.Unmarshal(said.Body, &answer.Body); err != nil {
		return nil, fmt.Errorf("read the answer that is kept: %w", err)
	}
	return answer, nil
}

// actAt is the address of an act.
func (a *API) actAt(id string) string { return a.o.Guard.BasePath() + Prefix + "/acts/" + id }

func actorOf(ctx context.Context) operator.Actor { return operator.Actor{Name: admin.Who(ctx).Name} }

type runInput struct {
	Keyed
	Body RunRequest
}

func (in *runInput) asked() (string, any) { return in.Key, in.Body }

func (a *API) startRun(ctx context.Context, in *runInput, id string) (operator.Act, error) {
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
	return a.o.Desk.Start(ctx, actorOf(ctx), operator.Request{
		ID: id, Kind: b.Kind, Filter: b.Filter, CutOff: b.CutOff, Why: strings.TrimSpace(b.Why), Force: b.Force,
		Rate: b.Rate, Window: b.Window, MaxFailures: b.MaxFailures,
	})
}

type stopInput struct {
	Keyed
	ID string `path:"id" maxLength:"100" doc:"Of the act."`
}

func (in *stopInput) asked() (string, any) { return in.Keyed.Key, in.ID }

func (a *API) stopRun(ctx context.Context, in *stopInput, _ string) (operator.Act, error) {
	return a.o.Desk.Stop(ctx, actorOf(ctx), in.ID)
}

type pauseInput struct {
	Keyed
	Body PauseRequest
}

func (in *pauseInput) asked() (string, any) { return in.Key, in.Body }

func (a *API) pause(ctx context.Context, in *pauseInput, id string) (operator.Act, error) {
	if _, err := a.o.Desk.Pause(ctx, actorOf(ctx), operator.PauseRequest{
		ID: id, Why: in.Body.Why, For: time.Duration(in.Body.Seconds * float64(time.Second)), Instead: in.Body.Instead,
	}); err != nil {
		return operator.Act{}, err
	}
	return a.o.Desk.Act(ctx, id)
}

type resumeInput struct {
	Keyed
	Body ResumeRequest
}

func (in *resumeInput) asked() (string, any) { return in.Key, in.Body }

func (a *API) resume(ctx context.Context, in *resumeInput, id string) (operator.Act, error) {
	if _, err := a.o.Desk.Resume(ctx, actorOf(ctx), operator.ResumeRequest{
		ID: id, Why: in.Body.Why, Pause: in.Body.Pause,
	}); err != nil {
		return operator.Act{}, err
	}
	return a.o.Desk.Act(ctx, id)
}
