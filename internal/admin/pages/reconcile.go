package pages

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
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
	a, report, err := p.view.Compared(ctx, of)
	none := errors.Is(err, view.ErrNotCompared) // which the page says
	if err != nil && !none {
		return err
	}
	var kinds []foundKind
	if report != nil {
		mends, err := p.mends(ctx, a.ID)
		if err != nil {
			return err
		}
		kinds = p.byKind(report, mends)
	}
	token, err := p.token(ctx, r, d)
	d.Title, d.Events = "Reconcile", p.liveAt(r)
	d.Data = shown{"None": none, "Act": a, "Report": report, "Kinds": kinds, "Latest": of == "", "Token": token,
		"Expects": p.desk.Expects()}
	return err
}

// mends are the last acts that were to mend findings of a comparison, by their numbers.
func (p *Pages) mends(ctx context.Context, of string) (map[int]*operator.Act, error) {
	all, _, err := p.desk.Acts(ctx, operator.ActFilter{Kind: operator.KindMend, Limit: operator.MaxActs})
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
	return found{Advice: f.Advice(p.view.Options().Names.Program, time.Now()), Number: n, Finding: f, Mend: mend}
}

// finding shows one finding under its stable address, what mends it, and the form that does.
func (p *Pages) finding(ctx context.Context, r *http.Request, d *drawn) error {
	of, number := r.URL.Query().Get("of"), numberOf(r.URL.Query().Get("n"))
	if of == "" { // an address that somebody cut off: the latest one may be another
		return operator.ErrNoAct
	}
	_, report, err := p.view.Compared(ctx, of)
	if err != nil {
		return err
	}
	if report == nil || number < 0 || number >= len(report.Findings) {
		return operator.ErrNoFinding
	}
	mends, err := p.mends(ctx, of)
	if err != nil {
		return err
	}
	one, token := p.found(report, number, mends[number]), ""
	var letter url.Values // the page on which it can be replayed or discarded
	if f := one.Finding; f.Key != "" && f.Status == dedup.Dead.String() {
		letter = url.Values{"act": {"replay"}, "key": {f.Key}, "tag": {f.Tag}}
	}
	if one.Repair != operator.NoRepair {
		token, err = p.token(ctx, r, d)
	}
	d.Title, d.Events = "What disagrees", p.liveAt(r)
	d.Data = shown{"Of": of, "One": one, "Letter": letter, "Token": token}
	return err
}
