package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/reconcile"
)

func (a *API) reconciles() {
	look(a, route{
		id: "get-comparison", path: "/reconcile", tag: "Reconcile", summary: "What disagrees",
		details: "What a comparison of log, dead letters and stock has found: the latest one, or the one that is named. " +
			"While it goes on it has no findings yet. 404: nobody has compared anything, or not that.",
		errors: []int{http.StatusNotFound},
	}, soon(a.getComparison))
	act(a, route{
		id: "compare", path: "/reconcile", tag: "Reconcile", summary: "Compare log, dead letters and stock",
		details: "A daemon does it, at rest, within minutes. 409: a comparison goes on, whose address is the problem's " +
			"instance." + onceWords,
	}, http.StatusCreated, a.compare)
	act(a, route{
		id: "mend", path: "/reconcile/mend", tag: "Reconcile", summary: "Mend one finding",
		details: "Does what the finding's repair says, to that message alone; what has moved since it was found is left as " +
			"it is. 422: a person must mend it, or it has a risk and nobody said to be sure." + onceWords,
		errors: []int{http.StatusNotFound},
	}, http.StatusCreated, a.mend)
}

// Comparison is a comparison of log, dead letters and stock.
type Comparison struct {
	Act      operator.Act   `json:"act" doc:"Who began it, and how far it is."`
	Findings []Finding      `json:"findings" doc:"What disagrees, by kind; 200 at most."`
	More     map[string]int `json:"more" doc:"Findings of each kind that were not kept."`
	Unclear  []string       `json:"unclear" doc:"What could not be compared. What was found is true, but not all."`
}

// Finding is one disagreement.
type Finding struct {
	Number int       `json:"number" doc:"Names it in POST /reconcile/mend."`
	Kind   string    `json:"kind" doc:"What disagrees with what."`
	Means  string    `json:"means" doc:"In words."`
	Tag    string    `json:"tag,omitempty" doc:"The kind of message."`
	Key    string    `json:"key,omitempty" doc:"Of the message."`
	Status string    `json:"status,omitempty" doc:"Of its row."`
	Since  time.Time `json:"since,omitzero" doc:"The row's last transition."`
	Order  string    `json:"order_sn,omitempty" doc:"The number of the order."`
	SKU    int64     `json:"sku_id,omitempty" doc:"The goods."`
	Repair string    `json:"repair,omitempty" doc:"adopt, republish or replay. Missing: a person must mend it."`
	Does   string    `json:"does,omitempty" doc:"What the repair would do, in words."`
	Risk   string    `json:"risk,omitempty" doc:"What a person must be sure of before it is mended."`
	Cure   string    `json:"cure,omitempty" doc:"What to do, as commands."`
}

func (a *API) getComparison(ctx context.Context, in *struct {
	Of string `query:"of" maxLength:"100" doc:"The id of its act; missing: the latest."`
}) (Comparison, error) {
	of, w, err := view.Compared(ctx, a.o.Desk, in.Of)
	c := Comparison{Act: of, Findings: []Finding{}, More: map[string]int{}, Unclear: []string{}}
	if err != nil || w == nil {
		return c, err
	}
	without := *of.Result
	without.Report = nil // it is said below, in whole words
	c.Act.Result = &without
	for n := range w.Findings {
		f := &w.Findings[n].Finding
		advice := f.Advice(a.o.View.Options().Names.Program, time.Now())
		one := Finding{
			Number: n, Kind: string(f.Kind), Means: advice.Means, Tag: f.Tag, Key: f.Key, Status: f.Status, Order: f.Order,
			SKU: f.SKU, Repair: string(advice.Repair), Does: advice.Does, Risk: advice.Risk, Cure: advice.Cure,
		}
		if f.Since != nil {
			one.Since = *f.Since
		}
		c.Findings = append(c.Findings, one)
	}
	for kind, n := range w.More {
		c.More[string(kind)] = n
	}
	c.Unclear = append(c.Unclear, w.Unclear...)
	return c, nil
}

type compareInput struct{ Keyed }

func (in *compareInput) asked() (string, any) { return in.Key, nil }

func (a *API) compare(ctx context.Context, _ *compareInput, id string) (operator.Act, error) {
	return a.o.Desk.Ask(ctx, actorOf(ctx), operator.TaskRequest{ID: id, Kind: operator.KindReconcile, Alone: "all"})
}

// MendRequest asks for the mending of a finding.
type MendRequest struct {
	Of     string `json:"of" maxLength:"100" doc:"The id of the comparison's act."`
	Number int    `json:"number" minimum:"0" doc:"Of the finding."`
	Sure   bool   `json:"sure,omitempty" doc:"You are sure of what the finding's risk says."`
	Why    string `json:"why,omitempty" maxLength:"1000" doc:"For the record."`
}

type mendInput struct {
	Keyed
	Body MendRequest
}

func (in *mendInput) asked() (string, any) { return in.Key, in.Body }

func (a *API) mend(ctx context.Context, in *mendInput, id string) (operator.Act, error) {
	of, w, err := view.Compared(ctx, a.o.Desk, in.Body.Of)
	if err != nil {
		return operator.Act{}, err
	}
	order, err := w.Order(of.ID, in.Body.Number, in.Body.Sure)
	switch {
	case errors.Is(err, reconcile.ErrNoFinding):
		return operator.Act{}, fmt.Errorf("%w: %w", errNothing, err)
	case err != nil:
		return operator.Act{}, problem(http.StatusUnprocessableEntity, err.Error())
	}
	return a.o.Desk.Ask(ctx, actorOf(ctx), operator.TaskRequest{
		ID: id, Kind: operator.KindMend, Why: strings.TrimSpace(in.Body.Why), Detail: order, Alone: order.Alone(),
	})
}
