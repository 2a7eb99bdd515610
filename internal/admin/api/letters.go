package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// LetterFilter chooses dead letters. All that is named must hold.
type LetterFilter struct {
	Key         []string  `query:"key,explode" maxItems:"100" doc:"One of these keys; may be repeated."`
	Tag         string    `query:"tag" maxLength:"100" doc:"The kind of message."`
	Order       string    `query:"order" maxLength:"255"`
	Reason      []string  `query:"reason,explode" maxItems:"20"`
	Since       time.Time `query:"since" doc:"It died then or later."`
	Until       time.Time `query:"until" doc:"It died before then."`
	Error       string    `query:"error" maxLength:"1000" doc:"Its last error holds this text, letter by letter."`
	Fingerprint string    `query:"fingerprint" maxLength:"1000"`
	InBody      string    `query:"body" maxLength:"1000" doc:"Its body holds this text, letter by letter."`
	SKU         int64     `query:"sku" minimum:"1" doc:"Its body names this sku_id, at whatever depth."`
}

// letters is the filter as package deadletter knows it.
func (f LetterFilter) letters() deadletter.Filter {
	l := deadletter.Filter{
		Keys: f.Key, Tag: f.Tag, Order: f.Order, Since: f.Since, Until: f.Until, Error: f.Error, Fingerprint: f.Fingerprint,
		Body: f.InBody, SKU: f.SKU,
	}
	for _, r := range f.Reason {
		l.Reasons = append(l.Reasons, dedup.Reason(r))
	}
	return l
}

// Paging says which page of a list.
type Paging struct {
	After string `query:"after" maxLength:"2000" doc:"The next of the page before; missing: the first page."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

func (a *API) letters() {
	look(a, route{
		id: "list-groups", path: "/letters/groups", tag: "Dead letters", summary: "Groups of failures",
		details: "The dead letters by why they are dead and by their last errors without what differs from letter to " +
			"letter, the largest group first. At most 100,000 letters are looked at, the latest first; what is answered is " +
			"at most some seconds old. 503: the first look of this daemon goes on; ask again in a second.",
	}, a.listGroups)
	look(a, route{
		id: "get-group", path: "/letters/groups/{id}", tag: "Dead letters", summary: "One group of failures",
		details: "With its latest letters, 50 at most.", errors: []int{http.StatusNotFound},
	}, a.getGroup)
	look(a, route{
		id: "list-letters", path: "/letters", tag: "Dead letters", summary: "Dead letters",
		details: "The latest first. Nothing named chooses all.",
	}, a.listLetters)
	look(a, route{
		id: "get-letter", path: "/letter", tag: "Dead letters", summary: "One dead letter",
		details: "With body, headers and story, from the consumer log; of a key that is dead under several tags, all. Key " +
			"and tag are parameters and not a part of the path, because a key may hold anything, a slash too.",
		errors: []int{http.StatusNotFound},
	}, a.getLetter)
	look(a, route{
		id: "preview-run", path: "/runs/preview", tag: "Acts", summary: "What a replay or a discard would do",
		details: "Judges each letter of a page and counts the set, up to 10,000. It changes nothing. Hand the answer's at " +
			"as cut_off to POST /runs, with the same filter: what dies after that moment is not of the run. A filter must " +
			"name something; all=true names all.",
	}, a.preview)
}

func (a *API) listGroups(ctx context.Context, _ *struct{}) (view.Groups, error) {
	known, err := a.o.View.GroupsNow(ctx)
	g := known.Value
	g.All = slices.Clone(g.All)
	for i := range g.All {
		g.All[i].Letters = nil // which one that is asked for has
	}
	return g, err
}

func (a *API) getGroup(ctx context.Context, in *struct {
	ID string `path:"id" maxLength:"100" doc:"Of a group that was listed."`
}) (view.Group, error) {
	known, err := a.o.View.GroupsNow(ctx)
	if err != nil {
		return view.Group{}, err
	}
	g, ok := known.Value.Group(in.ID)
	if !ok {
		return g, fmt.Errorf("%w: no dead letter that was looked at is of the group %q", errNothing, in.ID)
	}
	return g, nil
}

func (a *API) listLetters(ctx context.Context, in *struct {
	LetterFilter
	Paging
}) (Page[deadletter.Letter], error) {
	f := in.letters()
	f.All, f.Limit = true, in.Limit
	page, err := a.o.View.Letters(ctx, f, dedup.Cursor(in.After), false)
	return pageOf(page.Items, string(page.Next)), err
}

// Letters are all dead letters with a key.
type Letters struct {
	Letters []deadletter.Shown `json:"letters" doc:"One for each tag."`
}

func (a *API) getLetter(ctx context.Context, in *struct {
	Key string `query:"key" required:"true" maxLength:"255" doc:"Of the message."`
	Tag string `query:"tag" maxLength:"100" doc:"The kind of message; missing: all that have the key."`
}) (Letters, error) {
	all, err := a.o.View.Letter(ctx, in.Key, in.Tag)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%w: no dead letter has the key %q; /message tells of a message that is not dead", errNothing,
			in.Key)
	}
	return Letters{all}, err
}

func (a *API) preview(ctx context.Context, in *struct {
	Kind  string `query:"kind" required:"true" enum:"replay,discard" doc:"What would be done."`
	All   bool   `query:"all" doc:"All letters; nothing else may be named beside it."`
	Force bool   `query:"force" doc:"Of a replay: also letters that are parked."`
	LetterFilter
	At    time.Time `query:"at" doc:"The at of an earlier page of the same preview; missing: now."`
	After string    `query:"after" maxLength:"2000" doc:"The next of the page before; missing: the first page."`
	Limit int       `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many letters at most."`
	Whole bool      `query:"whole" doc:"Look through all letters, which may take seconds."`
}) (operator.Preview, error) {
	f := in.letters()
	f.All = in.All
	p, err := a.o.View.Preview(ctx, a.o.Desk, operator.PreviewRequest{
		Kind: operator.Kind(in.Kind), Force: in.Force, At: in.At, After: dedup.Cursor(in.After), Limit: in.Limit,
		Whole: in.Whole, Filter: f,
	})
	if p.Letters == nil {
		p.Letters = []deadletter.Judged{}
	}
	return p, err
}
