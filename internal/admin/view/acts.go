package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// What can be asked for, in the same words by a form and by a program.
type (
	// RunRequest asks for a run over dead letters.
	RunRequest struct {
		Kind        operator.Kind     `json:"kind" enum:"replay,discard"`
		Filter      deadletter.Filter `json:"filter"`
		CutOff      time.Time         `json:"cut_off,omitzero"`
		Why         string            `json:"why,omitempty" maxLength:"1000"`
		Force       bool              `json:"force,omitempty"`
		Rate        float64           `json:"rate,omitempty" minimum:"0"`
		Window      int               `json:"window,omitempty" minimum:"1" maximum:"10000"`
		MaxFailures int               `json:"max_failures,omitempty" minimum:"0"`
	}
	// MendRequest asks for the mending of a finding.
	MendRequest struct {
		Of     string `json:"of" maxLength:"100"`
		Number int    `json:"number" minimum:"0"`
		Sure   bool   `json:"sure,omitempty"`
		Why    string `json:"why,omitempty" maxLength:"1000"`
	}
)

// Actor is the person that the guard let through, as the audit names him.
func Actor(ctx context.Context) operator.Actor { return operator.Actor{Name: server.Who(ctx).Name} }

// Doing is something that was asked for and can be done, as the act with an id.
type Doing func(ctx context.Context, id string) (operator.Act, error)

// Start is a run over letters.
func (v *View) Start(ctx context.Context, r RunRequest) (_ Doing, err error) {
	if err := v.shows(r.Filter.Body); err != nil {
		return nil, err
	}
	if r.CutOff.IsZero() {
		if r.CutOff, err = v.o.Desk.Now(ctx); err != nil {
			return nil, err
		}
	}
	ask := operator.Request{
		Kind: r.Kind, Filter: r.Filter, CutOff: r.CutOff, Why: strings.TrimSpace(r.Why), Force: r.Force, Rate: r.Rate,
		Window: r.Window, MaxFailures: r.MaxFailures,
	}
	return func(ctx context.Context, id string) (operator.Act, error) {
		ask.ID = id
		return v.o.Desk.Start(ctx, Actor(ctx), ask)
	}, ask.Check()
}

// Rehearse is a rehearsal of a replay, which changes nothing.
func (v *View) Rehearse(_ context.Context, r operator.RehearsalRequest) (_ Doing, err error) {
	if err = v.shows(r.Filter.Body); err == nil {
		err = r.Check()
	}
	return func(ctx context.Context, id string) (operator.Act, error) {
		return v.o.Desk.Rehearse(ctx, Actor(ctx), id, r)
	}, err
}

// Edit is a dead letter's end, and the edited one in its place.
func (v *View) Edit(_ context.Context, r operator.EditRequest) (Doing, error) {
	if v.o.Hide.Any() {
		return nil, errNotSeen
	}
	return func(ctx context.Context, id string) (operator.Act, error) {
		return v.o.Desk.Edit(ctx, Actor(ctx), id, r)
	}, nil
}

// Editable is a dead letter as it can be edited.
func (v *View) Editable(ctx context.Context, name operator.MessageName) (operator.Editable, error) {
	if v.o.Hide.Any() {
		return operator.Editable{}, errNotSeen
	}
	return v.o.Desk.Editable(ctx, name)
}

// Pause is a pause of the fleet.
func (v *View) Pause(_ context.Context, r operator.PauseRequest) (Doing, error) {
	return func(ctx context.Context, id string) (operator.Act, error) {
		r.ID = id
		if _, err := v.o.Desk.Pause(ctx, Actor(ctx), r); err != nil {
			return operator.Act{}, err
		}
		return v.o.Desk.Act(ctx, id)
	}, r.Check()
}

// Resume is the end of a pause.
func (v *View) Resume(_ context.Context, r operator.ResumeRequest) (Doing, error) {
	return func(ctx context.Context, id string) (operator.Act, error) {
		r.ID = id
		if _, err := v.o.Desk.Resume(ctx, Actor(ctx), r); err != nil {
			return operator.Act{}, err
		}
		return v.o.Desk.Act(ctx, id)
	}, nil
}

// Compare is a comparison; only one goes on at a time.
func (v *View) Compare(context.Context, struct{}) (Doing, error) {
	return v.task(operator.TaskRequest{Kind: operator.KindReconcile, Alone: "all"}), nil
}

// Mend is the mending of one finding.
func (v *View) Mend(ctx context.Context, r MendRequest) (Doing, error) {
	of, report, err := v.Compared(ctx, r.Of)
	if err != nil {
		return nil, err
	}
	order, err := report.Order(of.ID, r.Number, r.Sure)
	return v.task(operator.TaskRequest{
		Kind: operator.KindMend, Why: strings.TrimSpace(r.Why), Detail: order, Alone: order.Alone(),
	}), err
}

// Expect is a look for the messages that should have come; only one goes on at a time.
func (v *View) Expect(_ context.Context, r operator.ExpectedRequest) (_ Doing, err error) {
	if !v.o.Desk.Expects() {
		err = fmt.Errorf("%w: ROLLBACKD_EXPECTED_FILE names no SELECT of what should have come", operator.ErrRequest)
	}
	return v.task(operator.TaskRequest{Kind: operator.KindExpected, Why: strings.TrimSpace(r.Why), Alone: "all",
		Detail: operator.ExpectedRequest{Publish: r.Publish, Force: r.Force}}), err
}

func (v *View) task(ask operator.TaskRequest) Doing {
	return func(ctx context.Context, id string) (operator.Act, error) {
		ask.ID = id
		return v.o.Desk.Ask(ctx, Actor(ctx), ask)
	}
}

// ErrNotCompared says that there is no comparison.
var ErrNotCompared = errors.New("nobody has compared anything yet")

// Compared is the comparison of log, letters and stock whose act has an id, or the latest one without an id, and what
// it has found: nil when it goes on, or found nothing out.
func (v *View) Compared(ctx context.Context, id string) (operator.Act, *operator.Report, error) {
	if id == "" {
		all, _, err := v.o.Desk.Acts(ctx, operator.ActFilter{Kind: operator.KindReconcile, Limit: 1})
		if err == nil && len(all) == 0 {
			err = ErrNotCompared
		}
		if err != nil {
			return operator.Act{}, nil, err
		}
		id = all[0].ID // the list has no reports
	}
	a, err := v.o.Desk.Act(ctx, id)
	if err == nil && a.Kind != operator.KindReconcile {
		err = operator.ErrNoAct
	}
	if err != nil || a.Result == nil || len(a.Result.Report) == 0 {
		return a, nil, err
	}
	report := new(operator.Report)
	if err := json.Unmarshal(a.Result.Report, report); err != nil {
		return a, nil, fmt.Errorf("read what act %s has found: %w", a.ID, err)
	}
	return a, report, nil
}

const (
	// actTime bounds an act. It goes on when who asked for it has gone away, as after a double click or a time-out.
	actTime = 10 * time.Second
	// awaitEvery is how often the second of two same requests looks for the answer of the first.
	awaitEvery = 50 * time.Millisecond
)

// Once does what somebody asks for unless it was done before, and then answers as it did before. While the first of two
// same requests is being done, the second waits for its answer for as long as wait says. What do refuses was not done,
// and may be asked for again.
func (v *View) Once(
	ctx context.Context, r operator.OnceRequest, wait time.Duration,
	do func(ctx context.Context, id string) (operator.Answer, error),
) (answer operator.Answer, before bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTime)
	defer cancel()
	tick, end := time.NewTicker(awaitEvery), time.NewTimer(wait)
	defer tick.Stop()
	defer end.Stop()
	once, known, err := v.o.Desk.Begin(ctx, Actor(ctx), r)
	for errors.Is(err, operator.ErrRunning) {
		select {
		case <-tick.C:
			once, known, err = v.o.Desk.Begin(ctx, Actor(ctx), r)
			continue
		case <-end.C:
		case <-ctx.Done():
		}
		return answer, false, err
	}
	if err != nil {
		return answer, false, err
	}
	if known != nil {
		return *known, true, nil
	}
	if answer, err = do(ctx, once.ActID); err != nil {
		if later := once.Release(ctx); later != nil {
			v.o.Logger.WarnContext(ctx, "a request that was not done stays taken for half a minute", "err", later)
		}
		return answer, false, err
	}
	if err := once.Finish(ctx, answer); err != nil {
		v.o.Logger.WarnContext(ctx, "the answer to a request could not be kept", "act", once.ActID, "err", err)
	}
	return answer, false, nil
}
