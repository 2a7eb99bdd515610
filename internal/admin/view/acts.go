package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/outbox"
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
// same requests is being done, the second waits for its answer for as long as most says. What do refuses was not done,
// and may be asked for again.
func (v *View) Once(
	ctx context.Context, r operator.OnceRequest, most time.Duration,
	do func(ctx context.Context, id string) (operator.Answer, error),
) (answer operator.Answer, before bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTime)
	defer cancel()
	began := time.Now()
	once, known, err := v.o.Desk.Begin(ctx, Actor(ctx), r)
	for errors.Is(err, operator.ErrRunning) && time.Since(began) < most && wait.For(ctx, awaitEvery) == nil {
		once, known, err = v.o.Desk.Begin(ctx, Actor(ctx), r)
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

// Answer is what an error means to whoever asked, a person or a program. It is an error too, that means itself.
type Answer struct {
	Status int // of HTTP
	Text   string
	// Again is after how long it is worth asking again; 0: nobody knows.
	Again time.Duration
	// Blame is true where a server is to blame: the daemon's log should have the error as it was.
	Blame bool
}

func (a Answer) Error() string { return a.Text }

// askAgain is after how long what was in the way may be gone.
const askAgain = time.Second

// What a view cannot or must not tell.
var (
	ErrNothing  = errors.New("nothing is known of it")
	ErrNoOrders = errors.New("orders are known to ROLLBACKD_HANDLER=stock only")
	ErrHidden   = errors.New("bodies are hidden here: to look for a text of theirs would tell bit by bit what they hold")
	errNotSeen  = errors.New("bodies are hidden here, and what cannot be seen is not edited: `dlq edit` does it")
	ErrEnding   = errors.New("this daemon is ending: ask another one")
	// ErrTooLong says that the answer took longer than somebody waits; of a search it says too what would shorten it.
	ErrTooLong = errors.New("the database took too long: try again in a moment")
	errTooWide = fmt.Errorf("%w, or narrow the search by key, tag, reason or time", ErrTooLong)
)

// answers are the statuses of errors that are no server's fault.
var answers = []struct {
	status int
	to     []error
}{
	{http.StatusNotFound, []error{ErrNothing, operator.ErrNoAct, ErrNotCompared, operator.ErrNoFinding,
		outbox.ErrNoTable}},
	{http.StatusForbidden, []error{ErrHidden, errNotSeen}},
	{http.StatusUnprocessableEntity, []error{
		operator.ErrRequest, operator.ErrOtherRequest, deadletter.ErrNoEdit, deadletter.ErrNoFilter, ErrNoOrders,
		operator.ErrNoRepair,
	}},
	{http.StatusConflict, []error{
		operator.ErrSameSet, operator.ErrEnded, operator.ErrNotIssued, dedup.ErrPaused, dedup.ErrNotPaused,
		operator.ErrRunning,
	}},
	{http.StatusServiceUnavailable, []error{ErrTooLong, ErrEnding}},
}

// AnswerTo says what an error of the view or the operator means.
func AnswerTo(err error) Answer {
	if a, ok := errors.AsType[Answer](err); ok {
		return a
	}
	for _, one := range answers {
		if slices.ContainsFunc(one.to, func(to error) bool { return errors.Is(err, to) }) {
			a := Answer{Status: one.status, Text: err.Error()}
			if one.status == http.StatusServiceUnavailable || errors.Is(err, operator.ErrRunning) {
				a.Again = askAgain
			}
			return a
		}
	}
	switch {
	case errors.Is(err, dedup.ErrCursor), errors.Is(err, outbox.ErrCursor):
		return Answer{Status: http.StatusBadRequest,
			Text: "This address does not say where the next page begins: begin at the first one."}
	case operator.Forbidden(err):
		return Answer{Status: http.StatusBadGateway, Blame: true, Text: "The account of this process may not do that: " +
			err.Error() + "; docs/rights.md says what pages need"}
	case operator.Busy(err):
		return Answer{Status: http.StatusServiceUnavailable, Again: askAgain, Blame: true, Text: "MySQL let this wait in " +
			"vain for somebody else's lock, as while a table is changed: try again in a moment"}
	}
	return Answer{Status: http.StatusBadGateway, Text: err.Error(), Blame: true}
}
