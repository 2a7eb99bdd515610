package pages

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// run is one act, with what it was asked for.
type run struct {
	Act     operator.Act
	Request *operator.Request // nil when it is no run over letters
	Chosen  string            // what it is about, in words
	Facts   []fact            // of an act that is no run over letters
	Same    bool              // a form led here instead of beginning a second run
	LeftBy  []leftBy
	Came    operator.Expected // of what should have come
	// Rehearsed is what a rehearsal came to, and Preview the page on which it is done: nil of all else.
	Rehearsed *operator.Rehearsal
	Preview   url.Values
}

// fact is something that stands in an act, with the page that shows it, if there is one.
type fact struct {
	Name, Text string
	Go         template.URL // "": none
}

type leftBy struct {
	Why   deadletter.Why
	Count int
}

// run shows one act under its stable address.
func (p *Pages) run(ctx context.Context, r *http.Request, d *drawn) error {
	a, err := p.desk.Act(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	v := p.runOf(a)
	v.Same = r.URL.Query().Has("same")
	d.Title, d.Events, d.Data = "Act: "+string(a.Kind), p.liveAt(r), v
	return nil
}

func (p *Pages) runOf(a operator.Act) run {
	v := run{Act: a}
	if asked, err := a.Request(); err == nil {
		v.Request, v.Chosen = &asked, operator.Words(asked.Filter)
	} else {
		v.Facts = p.about(a)
		if a.Own {
			v.Chosen = a.Subject()
		}
		if len(v.Facts) > 0 {
			v.Chosen = v.Facts[0].Name + " " + v.Facts[0].Text
		}
	}
	if a.Kind == operator.KindRehearse {
		var asked operator.RehearsalRequest
		_ = json.Unmarshal(a.Detail, &asked) // which was written here
		if asked.CutOff.IsZero() {
			asked.CutOff = a.CutOff
		}
		v.Chosen, v.Rehearsed, v.Preview = operator.Words(asked.Filter), a.Rehearsed(), previewOf(asked)
		v.Facts = []fact{{Name: "letters", Text: v.Chosen}}
	}
	if a.Result != nil {
		if a.Kind == operator.KindExpected {
			_ = json.Unmarshal(a.Result.Report, &v.Came) // that of a command is empty
		}
		for _, why := range slices.SortedFunc(maps.Keys(a.Result.LeftBy), func(x, y deadletter.Why) int {
			return cmp.Or(cmp.Compare(a.Result.LeftBy[y], a.Result.LeftBy[x]), cmp.Compare(x, y))
		}) {
			v.LeftBy = append(v.LeftBy, leftBy{why, a.Result.LeftBy[why]})
		}
	}
	return v
}

// about says in words what was asked for in an act that is no run over letters. What it does not know is shown as it
// was written down.
func (p *Pages) about(a operator.Act) (all []fact) {
	add := func(name, text, path string, pairs ...any) {
		f := fact{Name: name, Text: text}
		if path != "" {
			f.Go, _ = p.link(path, pairs...) // which wants pairs, and has them
		}
		all = append(all, f)
	}
	var said struct {
		Seconds float64   `json:"seconds"`
		Until   time.Time `json:"until"`
		Pause   string    `json:"pause"`
		operator.MendOrder
		refusal
	}
	if json.Unmarshal(a.Detail, &said) != nil {
		return nil
	}
	switch a.Kind {
	case operator.KindPause:
		add("until", said.Until.UTC().Format("2006-01-02 15:04:05"), "")
	case operator.KindRefused:
		add("asked for", said.Method+" "+said.Path, "")
	case operator.KindResume:
		add("ended the pause", said.Pause, "/acts/"+said.Pause)
	case operator.KindReconcile:
		add("compared", "log, dead letters and stock", "/reconcile", "of", a.ID)
	case operator.KindExpected:
		add("looked for", "what should have come", "/acts", "kind", string(a.Kind))
	case operator.KindEdit:
		var did operator.Edited
		if json.Unmarshal(a.Detail, &did) == nil {
			add("ended", did.Key, "/message", "key", did.Key, "tag", did.Tag)
			add("sent in its place", did.Sent.Key, "/message", "key", did.Sent.Key, "tag", did.Sent.Tag)
		}
	case operator.KindOutboxRetry, operator.KindOutboxDrop:
		var r operator.OutboxRequest
		_ = json.Unmarshal(a.Detail, &r) // it is an object, as was seen
		add("messages", r.String(), "/outbox")
		add("outcome", a.Outcome(), "")
	case operator.KindMend:
		if a.Own {
			return nil // what was asked for says it all
		}
		f := said.Finding
		add("finding", fmt.Sprintf("%s: %s", kindName(f.Kind), cmp.Or(f.Key, f.Order)), "/reconcile/finding", "of", said.Of,
			"n", said.Number)
		if f.Key != "" {
			add("message", f.Key, "/message", "key", f.Key, "tag", f.Tag)
		}
	}
	return all
}

// acts lists who did what, the latest first.
func (p *Pages) acts(ctx context.Context, r *http.Request, d *drawn) error {
	asked, before := searchOf(r.URL.Query(), "who", "kind", "since", "until"), r.URL.Query().Get("before")
	f := operator.ActFilter{
		Actor: asked.Get("who"), Kind: operator.Kind(asked.Get("kind")), Before: before, Limit: onePage,
	}
	var err error
	if f.Since, f.Until, err = asked.span(time.Now()); err != nil {
		return err
	}
	page, err := p.view.Acts(ctx, f)
	if err != nil {
		return err
	}
	var runs []run
	for _, a := range page.Items {
		runs = append(runs, p.runOf(a))
	}
	d.Title, d.Data = "Acts", shown{
		"Asked": asked, "Kinds": operator.Kinds(), "Acts": runs, "Next": string(page.Next), "Further": before != "",
	}
	if before == "" {
		d.Events = p.liveAt(r)
	}
	return nil
}

const (
	// refusedEvery is how often the same refusal of the same person is written down: whoever sends it again and again
	// must not fill the table of acts.
	refusedEvery = time.Minute
	// mostRefused bounds the refusals that are remembered for that.
	mostRefused = 1000
	// refusedTime bounds the writing; longestAsked is how many characters of an address are kept.
	refusedTime  = 2 * time.Second
	longestAsked = 200
)

// refusal is what stands in the act of something that a person may not do.
type refusal struct {
	Method string `json:"method"`
	Path   string `json:"path"`
}

// Refusals writes down what persons asked for and may not do, for [server.GuardOptions].
type Refusals struct {
	desk *operator.Operator
	log  *slog.Logger

	mu    sync.Mutex
	known map[string]time.Time // when each was written down; guarded by mu
}

// NewRefusals makes one.
func NewRefusals(d *operator.Operator, log *slog.Logger) *Refusals {
	return &Refusals{desk: d, log: log, known: map[string]time.Time{}}
}

// Note writes a refusal down, unless the same one was within the minute before. It goes on when the request has ended.
func (f *Refusals) Note(ctx context.Context, who server.Person, r *http.Request) {
	asked := refusal{r.Method, screen.Shorten(r.URL.Path, longestAsked)}
	if !f.news(who.Name+"\x00"+asked.Method+asked.Path, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refusedTime)
	defer cancel()
	if _, err := f.desk.Note(ctx, operator.Actor{Name: who.Name}, operator.KindRefused, "", asked,
		"may look and not act, so it was refused"); err != nil {
		f.log.WarnContext(ctx, "a refusal could not be written down", "by", who.Name, "method", asked.Method, "path",
			asked.Path, "err", err)
	}
}

// news reports whether a refusal is to be written down.
func (f *Refusals) news(what string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.known, func(_ string, last time.Time) bool { return now.Sub(last) >= refusedEvery })
	if _, known := f.known[what]; known || len(f.known) >= mostRefused {
		return false
	}
	f.known[what] = now
	return true
}
