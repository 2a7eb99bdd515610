package pages

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/desk"
)

// run is one act, with what it was asked for.
type run struct {
	Act     desk.Act
	Request *desk.Request // nil when it is no run over letters
	Chosen  string
	Same    bool // a form led here instead of beginning a second run
	LeftBy  []leftBy
	CanAct  bool
}

type leftBy struct {
	Why   deadletter.Why
	Count int
}

// run shows one act under its stable address.
func (p *Pages) run(ctx context.Context, r *http.Request, d *drawn) error {
	a, err := p.o.Desk.Act(ctx, r.PathValue("id"))
	if err != nil {
		return deskError(err)
	}
	v := runOf(a)
	v.Same, v.CanAct = r.URL.Query().Has("same"), d.Person.Right >= admin.Act
	d.Title, d.Events, d.Data = "Act: "+string(a.Kind), p.liveAt(r), v
	return nil
}

func runOf(a desk.Act) run {
	v := run{Act: a}
	if asked, err := a.Request(); err == nil {
		v.Request, v.Chosen = &asked, filterText(asked.Filter)
	}
	if a.Result != nil {
		for _, why := range slices.SortedFunc(maps.Keys(a.Result.LeftBy), func(x, y deadletter.Why) int {
			return cmp.Or(cmp.Compare(a.Result.LeftBy[y], a.Result.LeftBy[x]), cmp.Compare(x, y))
		}) {
			v.LeftBy = append(v.LeftBy, leftBy{why, a.Result.LeftBy[why]})
		}
	}
	return v
}

type acts struct {
	Acts    []run
	Next    string
	Further bool
}

// acts lists who did what, the latest first.
func (p *Pages) acts(ctx context.Context, r *http.Request, d *drawn) error {
	before := r.URL.Query().Get("before")
	all, next, err := p.o.Desk.Acts(ctx, desk.ActFilter{Before: before, Limit: onePage})
	if err != nil {
		return deskError(err)
	}
	v := acts{Next: next, Further: before != ""}
	for _, a := range all {
		v.Acts = append(v.Acts, runOf(a))
	}
	d.Title, d.Data = "Acts", v
	if !v.Further {
		d.Events = p.liveAt(r)
	}
	return nil
}
