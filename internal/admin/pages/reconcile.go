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

// compared is the latest comparison, or the one of an act, with what it has found: each with what mends it, and the
// last act that was to. The report is nil as in [view.View.Compared].
func (p *Pages) compared(
	ctx context.Context, of string,
) (a operator.Act, report *operator.Report, all []found, err error) {
	a, report, err = p.view.Compared(ctx, of)
	if err != nil || report == nil {
		return a, report, nil, err
	}
	acts, _, err := p.desk.Acts(ctx, operator.ActFilter{Kind: operator.KindMend, Limit: operator.MaxActs})
	mends := map[int]*operator.Act{}
	for i := range acts { // the latest first
		var order operator.MendOrder
		if json.Unmarshal(acts[i].Detail, &order) == nil && order.Of == a.ID && mends[order.Number] == nil {
			mends[order.Number] = &acts[i]
		}
	}
	for n := range report.Findings {
		f := &report.Findings[n]
		advice := f.Advice(p.view.Options().Names.Program, time.Now())
		all = append(all, found{Advice: advice, Number: n, Finding: f, Mend: mends[n]})
	}
	return a, report, all, err
}

// comparison shows the latest comparison, or the one that the address names, as a stable address does.
func (p *Pages) comparison(ctx context.Context, r *http.Request, d *drawn) error {
	of := r.URL.Query().Get("of")
	a, report, all, err := p.compared(ctx, of)
	none := errors.Is(err, view.ErrNotCompared) // which the page says
	if err != nil && !none {
		return err
	}
	var kinds []foundKind
	for _, kind := range operator.FindingKinds() {
		k := foundKind{Kind: kind, Means: kind.Means()}
		if report != nil {
			k.More = report.More[kind]
		}
		for _, one := range all {
			if one.Finding.Kind == kind {
				k.Findings = append(k.Findings, one)
			}
		}
		if len(k.Findings)+k.More > 0 {
			kinds = append(kinds, k)
		}
	}
	token, err := p.token(ctx, r, d)
	d.Title, d.Events = "Reconcile", p.liveAt(r)
	d.Data = shown{"None": none, "Act": a, "Report": report, "Kinds": kinds, "Latest": of == "", "Token": token,
		"Expects": p.desk.Expects()}
	return err
}

// finding shows one finding under its stable address, what mends it, and the form that does.
func (p *Pages) finding(ctx context.Context, r *http.Request, d *drawn) error {
	of, number := r.URL.Query().Get("of"), numberOf(r.URL.Query().Get("n"))
	if of == "" { // an address that somebody cut off: the latest one may be another
		return operator.ErrNoAct
	}
	_, _, all, err := p.compared(ctx, of)
	if err != nil {
		return err
	}
	if number < 0 || number >= len(all) {
		return operator.ErrNoFinding
	}
	one, token := all[number], ""
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
