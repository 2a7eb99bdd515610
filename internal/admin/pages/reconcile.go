package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/desk"
	"github.com/rollbackd/rollbackd/internal/reconcile"
)

// compared is a comparison of log, letters and stock, with the form that begins another one.
type compared struct {
	Act    *desk.Act // nil: nobody has compared anything yet
	Report *reconcile.Written
	Kinds  []foundKind
	Latest bool // no address names an older one
	Token  string
	CanAct bool
}

// foundKind are the findings of one kind.
type foundKind struct {
	Kind     reconcile.Kind
	Means    string
	Findings []found
	More     int // that were not kept
}

type found struct {
	Number  int
	Finding *reconcile.Finding
	Mend    *desk.Act // the last one of it; nil: none
	Repair  reconcile.Repair
}

// comparison shows the latest comparison, or the one that the address names, as a stable address does.
func (p *Pages) comparison(ctx context.Context, r *http.Request, d *drawn) error {
	of := r.URL.Query().Get("of")
	v := compared{CanAct: d.Person.Right >= admin.Act, Latest: of == ""}
	if of == "" {
		all, _, err := p.o.Desk.Acts(ctx, desk.ActFilter{Kind: desk.KindReconcile, Limit: 1})
		if err != nil {
			return err
		}
		if len(all) > 0 {
			of = all[0].ID
		}
	}
	var err error
	if of != "" {
		a, err := p.o.Desk.Act(ctx, of)
		if err == nil && a.Kind != desk.KindReconcile {
			err = desk.ErrNoAct
		}
		if err != nil {
			return err
		}
		v.Act = &a
		if v.Report, err = writtenOf(*v.Act); err != nil {
			return err
		}
	}
	if v.Report != nil {
		mends, err := p.mends(ctx, v.Act.ID)
		if err != nil {
			return err
		}
		v.Kinds = byKind(v.Report, mends)
	}
	if v.CanAct && !r.URL.Query().Has("live") {
		if v.Token, err = p.o.Desk.Issue(ctx, actorOf(ctx)); err != nil {
			return err
		}
	}
	d.Title, d.Events, d.Data = "Reconcile", p.liveAt(r), v
	return nil
}

// writtenOf is what a comparison has found; nil when it has not ended, or found nothing out.
func writtenOf(a desk.Act) (*reconcile.Written, error) {
	if a.Kind != desk.KindReconcile || a.Result == nil || len(a.Result.Report) == 0 {
		return nil, nil
	}
	w := new(reconcile.Written)
	if err := json.Unmarshal(a.Result.Report, w); err != nil {
		return nil, fmt.Errorf("read what act %s has found: %w", a.ID, err)
	}
	return w, nil
}

// mends are the last acts that were to mend findings of a comparison, by their numbers.
func (p *Pages) mends(ctx context.Context, of string) (map[int]*desk.Act, error) {
	all, _, err := p.o.Desk.Acts(ctx, desk.ActFilter{Kind: desk.KindMend, Limit: desk.MaxActs})
	if err != nil {
		return nil, err
	}
	mends := map[int]*desk.Act{}
	for i := range all { // the latest first
		var order reconcile.MendOrder
		if json.Unmarshal(all[i].Detail, &order) == nil && order.Of == of && mends[order.Number] == nil {
			mends[order.Number] = &all[i]
		}
	}
	return mends, nil
}

func byKind(w *reconcile.Written, mends map[int]*desk.Act) (all []foundKind) {
	for _, kind := range reconcile.Kinds() {
		k := foundKind{Kind: kind, Means: kind.Means(), More: w.More[kind]}
		for n := range w.Findings {
			f := &w.Findings[n].Finding
			if f.Kind != kind {
				continue
			}
			by, _ := f.Repair()
			k.Findings = append(k.Findings, found{Number: n, Finding: f, Mend: mends[n], Repair: by})
		}
		if len(k.Findings)+k.More > 0 {
			all = append(all, k)
		}
	}
	return all
}

// compare begins a comparison; while one goes on, it leads to that.
func (p *Pages) compare(ctx context.Context, r *http.Request) (string, error) {
	return p.once(ctx, r, func(id string) (string, error) {
		_, err := p.o.Desk.Ask(ctx, actorOf(ctx), desk.TaskRequest{ID: id, Kind: desk.KindReconcile, Alone: "all"})
		if err != nil && !errors.Is(err, desk.ErrSameSet) {
			return "", err
		}
		return "/reconcile", nil
	})
}

// disagreement is one finding, what mends it, and the form that does.
type disagreement struct {
	found

	Of    string // the act of its comparison
	Means string
	Does  string // what the form would do, in words; "" when a person must
	Risk  string
	Cure  string
	// Letter is the page on which it can be replayed or discarded; nil: there is none.
	Letter url.Values
	Token  string
	CanAct bool
}

// finding shows one finding under its stable address.
func (p *Pages) finding(ctx context.Context, r *http.Request, d *drawn) error {
	of := r.URL.Query().Get("of")
	report, err := p.written(ctx, of)
	if err != nil {
		return err
	}
	number := numberOf(r.URL.Query().Get("n"))
	if number < 0 || number >= len(report.Findings) {
		return errNoFinding
	}
	mends, err := p.mends(ctx, of)
	if err != nil {
		return err
	}
	f := &report.Findings[number].Finding
	v := disagreement{
		found: found{Number: number, Finding: f, Mend: mends[number]}, Of: of, Means: f.Kind.Means(),
		Cure: f.Cure(p.o.View.Options().Names.Program, time.Now()), CanAct: d.Person.Right >= admin.Act,
	}
	v.Repair, v.Risk = f.Repair()
	v.Does = repairText(f, v.Repair)
	if f.Key != "" && f.Status == dedup.Dead.String() {
		v.Letter = url.Values{"act": {"replay"}, "key": {f.Key}, "tag": {f.Tag}}
	}
	if v.CanAct && v.Repair != reconcile.NoRepair && !r.URL.Query().Has("live") {
		if v.Token, err = p.o.Desk.Issue(ctx, actorOf(ctx)); err != nil {
			return err
		}
	}
	d.Title, d.Events, d.Data = "What disagrees", p.liveAt(r), v
	return nil
}

var errNoFinding = problem{http.StatusNotFound, "This comparison has no such finding."}

// written is what the comparison with an id has found; nothing while it goes on.
func (p *Pages) written(ctx context.Context, of string) (*reconcile.Written, error) {
	a, err := p.o.Desk.Act(ctx, of)
	if err != nil {
		return nil, err
	}
	report, err := writtenOf(a)
	if report == nil {
		report = new(reconcile.Written)
	}
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
	case errors.Is(err, reconcile.ErrNoFinding):
		return "", errNoFinding
	case err != nil:
		return "", problem{http.StatusUnprocessableEntity, "Nothing was done: " + err.Error()}
	}
	return p.once(ctx, r, func(id string) (string, error) {
		a, err := p.o.Desk.Ask(ctx, actorOf(ctx), desk.TaskRequest{
			ID: id, Kind: desk.KindMend, Why: strings.TrimSpace(r.PostForm.Get("why")), Detail: order, Alone: order.Alone(),
		})
		if same, ok := errors.AsType[*desk.SameSetError](err); ok {
			return "/acts/" + same.Act.ID + "?same=1", nil
		}
		return "/acts/" + a.ID, err
	})
}

// repairText says what a repair does.
func repairText(f *reconcile.Finding, by reconcile.Repair) string {
	switch {
	case by == reconcile.RepairAdopt && f.Kind == reconcile.LetterWithoutRow:
		return "Its letter is filed as dead in the log, so that it can be replayed or discarded like any other."
	case by == reconcile.RepairAdopt:
		return "The success row is written again, which the reservation proves."
	case by == reconcile.RepairRepublish && f.Kind == reconcile.Overdue:
		return "The message is sent again, from its row. Do this when a daemon runs and the main queue is empty: else it " +
			"is only waiting. It has no second effect."
	case by == reconcile.RepairRepublish:
		return "The message is sent again, from its row. It has no second effect."
	case f.Kind == reconcile.StaleLetter:
		return "The letter is dropped from the dead-letter queue."
	case by == reconcile.RepairReplay:
		return "The replay that was cut off is ended: the message is sent again and its letter dropped."
	}
	return ""
}
