package pages

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// foundKind are the findings of one kind.
type foundKind struct {
	Kind     operator.FindingKind
	Means    string
	Findings []found
	More     int // that were not kept
}

type found struct {
	operator.Advice

	Number  int
	Finding *operator.Finding
	Mend    *operator.Act // the last one of it; nil: none
}

// comparison shows the latest comparison, or the one that the address names, as a stable address does.
func (p *Pages) comparison(ctx context.Context, r *http.Request, d *drawn) error {
	of := r.URL.Query().Get("of")
	var act *operator.Act // nil: nobody has compared anything yet
	var kinds []foundKind
	a, report, err := view.Compared(ctx, p.o.Desk, of)
	if err == nil {
		act = &a
	} else if !errors.Is(err, view.ErrNotCompared) { // else the page says so
		return err
	}
	if report != nil {
		mends, err := p.mends(ctx, act.ID)
		if err != nil {
			return err
		}
		kinds = p.byKind(report, mends)
	}
	token, err := p.token(ctx, r, d)
	d.Title, d.Events = "Reconcile", p.liveAt(r)
	d.Data = shown{"Act": act, "Report": report, "Kinds": kinds, "Latest": of == "", "Token": token}
	return err
}

// mends are the last acts that were to mend findings of a comparison, by their numbers.
func (p *Pages) mends(ctx context.Context, of string) (map[int]*operator.Act, error) {
	all, _, err := p.o.Desk.Acts(ctx, operator.ActFilter{Kind: operator.KindMend, Limit: operator.MaxActs})
	if err != nil {
		return nil, err
	}
	mends := map[int]*operator.Act{}
	for i := range all { // the latest first
		var order operator.MendOrder
		if json.Unmarshal(all[i].Detail, &order) == nil && order.Of == of && mends[order.Number] == nil {
			mends[order.Number] = &all[i]
		}
	}
	return mends, nil
}

func (p *Pages) byKind(w *operator.Report, mends map[int]*operator.Act) (all []foundKind) {
	for _, kind := range operator.FindingKinds() {
		k := foundKind{Kind: kind, Means: kind.Means(), More: w.More[kind]}
		for n := range w.Findings {
			if w.Findings[n].Kind == kind {
				k.Findings = append(k.Findings, p.found(w, n, mends[n]))
			}
		}
		if len(k.Findings)+k.More > 0 {
			all = append(all, k)
		}
	}
	return all
}

// found is the finding with a number, with what mends it.
func (p *Pages) found(w *operator.Report, n int, mend *operator.Act) found {
	f := &w.Findings[n]
	return found{Advice: f.Advice(p.o.View.Options().Names.Program, time.Now()), Number: n, Finding: f, Mend: mend}
}

// compare begins a comparison; while one goes on, it leads to that.
func (p *Pages) compare(ctx context.Context, r *http.Request) (string, error) {
	_, err := p.once(ctx, r, func(id string) (operator.Act, error) { return view.Compare(ctx, p.o.Desk, id) })
	return "/reconcile", err
}

// disagreement is one finding, what mends it, and the form that does.
type disagreement struct {
	found

	Of string // the act of its comparison
	// Letter is the page on which it can be replayed or discarded; nil: there is none.
	Letter url.Values
	Token  string
}

// finding shows one finding under its stable address.
func (p *Pages) finding(ctx context.Context, r *http.Request, d *drawn) error {
	of := r.URL.Query().Get("of")
	report, err := p.written(ctx, of)
	if err != nil {
		return err
	}
	number := numberOf(r.URL.Query().Get("n"))
	if report == nil || number < 0 || number >= len(report.Findings) {
		return errNoFinding
	}
	mends, err := p.mends(ctx, of)
	if err != nil {
		return err
	}
	v := disagreement{found: p.found(report, number, mends[number]), Of: of}
	if f := v.Finding; f.Key != "" && f.Status == dedup.Dead.String() {
		v.Letter = url.Values{"act": {"replay"}, "key": {f.Key}, "tag": {f.Tag}}
	}
	if v.Repair != operator.NoRepair {
		if v.Token, err = p.token(ctx, r, d); err != nil {
			return err
		}
	}
	d.Title, d.Events, d.Data = "What disagrees", p.liveAt(r), v
	return nil
}

var errNoFinding = problem{http.StatusNotFound, "This comparison has no such finding."}

// written is what the comparison with an id has found; nil while it goes on.
func (p *Pages) written(ctx context.Context, of string) (*operator.Report, error) {
	if of == "" { // an address or a form that somebody cut off: the latest one may be another
		return nil, operator.ErrNoAct
	}
	_, report, err := view.Compared(ctx, p.o.Desk, of)
	return report, err
}

// numberOf is the number of a finding; -1, which none has, when the text is no number.
func numberOf(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// mend asks for the mending of one finding.
func (p *Pages) mend(ctx context.Context, r *http.Request) (string, error) {
	of := r.PostForm.Get("of")
	report, err := p.written(ctx, of)
	if err != nil {
		return "", err
	}
	order, err := report.Order(of, numberOf(r.PostForm.Get("n")), r.PostForm.Get("sure") == "1")
	switch {
	case errors.Is(err, operator.ErrNoFinding):
		return "", errNoFinding
	case err != nil:
		return "", problem{http.StatusUnprocessableEntity, "Nothing was done: " + err.Error()}
	}
	return p.once(ctx, r, func(id string) (operator.Act, error) {
		return view.Mend(ctx, p.o.Desk, id, order, r.PostForm.Get("why"))
	})
}
