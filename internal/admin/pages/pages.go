package pages

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

// Pages answers to browsers. Make it with [New]; it is safe for many goroutines.
type Pages struct {
	view      *view.View
	desk      *operator.Operator // of the view
	guard     *server.Guard
	version   string // of the program that draws them
	log       *slog.Logger
	templates *template.Template
	mux       *http.ServeMux
	banner    banner
	streams   *server.Places // events that are being sent
	downloads *server.Places
	ending    chan struct{}
	end       func() // closes ending
}

// place is one entry of the navigation.
type place struct{ Path, Name string }

var nav = []place{
	{"/", "Overview"}, {"/letters", "Dead letters"}, {"/log", "Log"}, {"/find", "Message or order"},
	{"/reconcile", "Reconcile"}, {"/acts", "Acts"}, {"/pause", "Pause"},
}

// New reads the templates.
func New(v *view.View, guard *server.Guard, version string) *Pages {
	p := &Pages{
		view: v, desk: v.Options().Desk, guard: guard, version: version, log: v.Options().Logger,
		mux: http.NewServeMux(), ending: make(chan struct{}),
		streams: server.NewPlaces(mostStreams, mostOfOne), downloads: server.NewPlaces(mostDownloads, downloadsOfOne),
	}
	p.end = sync.OnceFunc(func() { close(p.ending) })
	drawn := template.New("").Option("missingkey=error").Funcs(p.words())
	p.templates = template.Must(drawn.ParseFS(templateFiles, "templates/*.html"))
	p.routes()
	return p
}

// End ends the events that are being sent, so that the server can stop.
func (p *Pages) End() { p.end() }

func (p *Pages) routes() {
	look := func(pattern, name string, make maker) {
		p.mux.Handle(pattern, p.guard.Protect(server.Look, p.page(name, make)))
	}
	look("GET /{$}", "overview", p.overview)
	look("GET /letters", "letters", p.letters)
	look("GET /letters/groups/{id}", "group", p.group)
	look("GET /letters/act", "preview", ours(p.preview))
	look("GET /letter/edit", "edit", p.edit)
	look("GET /acts", "acts", p.acts)
	look("GET /acts/{id}", "run", p.run)
	look("GET /message", "message", p.message)
	look("GET /order", "message", p.message)
	look("GET /find", "find", p.find)
	look("GET /log", "log", p.logged)
	look("GET /reconcile", "reconcile", p.comparison)
	look("GET /reconcile/finding", "finding", p.finding)
	look("GET /pause", "pause", p.pausePage)
	look("GET /outbox", "outbox", p.outbox)
	look("GET /outbox/message", "outbox-message", p.outboxMessage)
	look("GET /outbox/act", "outbox-act", ours(p.outboxAct))
	look("GET /", "trouble", p.nothing)
	p.mux.Handle("GET /letters/download", p.guard.Protect(server.Look, http.HandlerFunc(p.download)))
	for path, do := range map[string]doer{
		"/letters/act":        once(p, "", runAsked, p.view.Start),
		"/letters/rehearse":   once(p, "", rehearsalAsked, p.view.Rehearse),
		"/letter/edit/send":   once(p, "", editAsked, p.view.Edit),
		"/acts/{id}/stop":     p.stop,
		"/reconcile":          once(p, "/reconcile", nothingAsked, p.view.Compare),
		"/reconcile/expected": once(p, "", expectAsked, p.view.Expect),
		"/reconcile/mend":     once(p, "", mendAsked, p.view.Mend),
		"/pause":              once(p, "", pauseAsked, p.view.Pause),
		"/resume":             once(p, "", resumeAsked, p.view.Resume),
		"/outbox/act":         once(p, "", outboxActAsked, p.view.ChangeOutbox),
	} {
		p.mux.Handle("POST "+path, p.guard.Protect(server.Act, p.act(do)))
	}
	p.mux.Handle("POST /letter/edit", p.guard.Protect(server.Act, p.page("edit", ours(p.edited))))
	p.mux.Handle("GET /static/", p.guard.Public(cached(http.FileServerFS(staticFiles))))
	p.mux.Handle("GET /sign-in", p.guard.Public(p.page("sign-in", p.signIn)))
	p.mux.Handle("POST /sign-in", p.guard.Public(http.HandlerFunc(p.signedIn)))
	p.mux.Handle("POST /sign-out", p.guard.Public(http.HandlerFunc(p.signedOut)))
}

// cached lets a browser keep a file for an hour. Its address names the version, so a newer one is asked for at once.
func cached(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=3600")
		h.ServeHTTP(w, r)
	})
}

// policy lets a page use nothing but what this server sends as a file of its own.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers below the base path, which is cut off already.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	p.mux.ServeHTTP(w, r)
}

// drawn is what a template is given.
type drawn struct {
	Title  string
	Status int
	Here   string
	Nav    []place
	Main   template.HTML // the page itself, inside the layout
	Person server.Person
	Signs  bool // there is a token to sign in with
	Group  string
	Queue  string
	Paused *dedup.Pause // that every page shows; nil when there is none
	Events string       // where the live parts come from; "" for a page without
	Data   any
}

// shown is what a template is given of a page, by name. To draw what is not there is an error.
type shown map[string]any

// CanAct reports whether who looks may act too.
func (d *drawn) CanAct() bool { return d.Person.Right >= server.Act }

// token is that of a form; "" for who may not send it, and while parts are sent anew. Of an account that may only read,
// it is a word that nobody has issued: whoever sends the form is told what the account lacks.
func (p *Pages) token(ctx context.Context, r *http.Request, d *drawn) (string, error) {
	if !d.CanAct() || r.URL.Query().Has("live") {
		return "", nil
	}
	token, err := p.desk.Issue(ctx, view.Actor(ctx))
	if operator.Forbidden(err) {
		return "none", nil
	}
	return token, err
}

// maker gathers what a page shows.
type maker func(ctx context.Context, r *http.Request, d *drawn) error

// refuse is an error that a person may see as it is.
func refuse(status int, format string, args ...any) error {
	return view.Answer{Status: status, Text: fmt.Sprintf(format, args...)}
}

// page draws a page, or sends the live parts of it as events.
func (p *Pages) page(name string, make maker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Whoever is not signed in yet must not take the streams from those who are.
		if r.URL.Query().Has("live") && server.Who(r.Context()).Right >= server.Look {
			p.events(w, r, name, make)
			return
		}
		text, status := p.draw(w, r, name, make)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write(text) // who went away needs no answer
	})
}

// fail answers with the page of an error.
func (p *Pages) fail(w http.ResponseWriter, r *http.Request, err error) {
	p.page("trouble", func(context.Context, *http.Request, *drawn) error { return err }).ServeHTTP(w, r)
}

// draw makes the text of a page; of what went wrong, a page that says so.
func (p *Pages) draw(w http.ResponseWriter, r *http.Request, name string, make maker) ([]byte, int) {
	of := p.view.Options()
	d := &drawn{
		Nav: nav, Here: r.URL.Path, Person: server.Who(r.Context()), Signs: p.guard.SignsIn(), Group: of.Group,
		Queue: of.Names.Queue, Status: http.StatusOK,
	}
	if d.Person.Right >= server.Look {
		d.Paused = p.paused(r.Context())
		if p.view.Outbox().Value != nil {
			d.Nav = append(slices.Clip(nav), outboxPlace)
		}
	}
	most := view.ActsTime
	if inWhole(r.URL.Query()) {
		most += view.WholeTime
	}
	_, err := view.Within(r.Context(), most, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, make(ctx, r, d)
	})
	if err != nil { // when to ask again stands in the header of the answer
		a := view.AnswerTo(err)
		if a.Blame {
			p.log.WarnContext(r.Context(), "a page could not be made", "path", r.URL.Path, "err", err)
		}
		if a.Again > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(a.Again.Seconds())))
		}
		name, d.Title, d.Status, d.Events, d.Data = "trouble", http.StatusText(a.Status), a.Status, "", a.Text
	}
	var main, whole bytes.Buffer
	err = p.templates.ExecuteTemplate(&main, name+".html", d)
	d.Main = template.HTML(main.String()) // a template has escaped it
	if err = errors.Join(err, p.templates.ExecuteTemplate(&whole, "layout.html", d)); err != nil {
		p.log.ErrorContext(r.Context(), "a page could not be drawn", "page", name, "err", err)
		return []byte("the page could not be drawn; the daemon's log says why\n"), http.StatusInternalServerError
	}
	return whole.Bytes(), d.Status
}

func (p *Pages) nothing(_ context.Context, r *http.Request, _ *drawn) error {
	return refuse(http.StatusNotFound, "There is no page %s.", r.URL.Path)
}

// link is an address of this server's: the path and pairs of names and values; empty values are left out.
func (p *Pages) link(path string, pairs ...any) (template.URL, error) {
	if len(pairs)%2 != 0 {
		return "", errors.New("a link wants pairs")
	}
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if v := fmt.Sprint(pairs[i+1]); v != "" {
			q.Set(fmt.Sprint(pairs[i]), v)
		}
	}
	to := p.guard.BasePath() + path
	if len(q) > 0 {
		to += "?" + q.Encode()
	}
	return template.URL(to), nil // made of a fixed path and encoded values
}

// query is an address of this server's with values.
func (p *Pages) query(path string, q url.Values) template.URL {
	return template.URL(p.guard.BasePath() + path + "?" + q.Encode()) // made of a fixed path and encoded values
}

// liveAt is where the events of this very page come from.
func (p *Pages) liveAt(r *http.Request) string {
	q := r.URL.Query()
	q.Set("live", "1")
	return p.guard.BasePath() + r.URL.EscapedPath() + "?" + q.Encode()
}

// moment reads a time of a form.
func moment(text string, now time.Time) (time.Time, error) {
	at, ok := screen.Moment(text, now)
	if !ok {
		return at, refuse(http.StatusBadRequest, "%q is no time: write 2026-11-22T21:00 in UTC, or how long ago, like 90m",
			text)
	}
	return at, nil
}

const (
	// liveEvery is how often a page is drawn anew for who watches it.
	liveEvery = 2 * time.Second
	// liveTime ends a stream: the browser asks again, and is let in again or not.
	liveTime = 5 * time.Minute
	// mostStreams bounds the streams of a process, mostOfOne those of a person: a token may be that of several people.
	mostStreams, mostOfOne = 64, 32
	// liveWrite bounds how long a browser may take to read what it is sent.
	liveWrite = 10 * time.Second
)

// events sends each part of a page that is marked as live, whenever it has changed.
func (p *Pages) events(w http.ResponseWriter, r *http.Request, name string, make maker) {
	leave, ok := p.streams.Enter(server.Who(r.Context()).Name)
	if !ok {
		server.Crowded(w, "pages are watched")
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	out := http.NewResponseController(w)
	sent := map[string]string{}
	end := time.After(liveTime)
	for {
		text, status := p.draw(w, r, name, make)
		if status != http.StatusOK {
			return
		}
		var b bytes.Buffer
		b.WriteString(": still here\n\n")
		for id, part := range liveParts(text) {
			if sent[id] == part {
				continue
			}
			sent[id] = part
			data, _ := json.Marshal(map[string]string{"id": id, "html": part}) // which has a JSON form
			fmt.Fprintf(&b, "event: part\ndata: %s\n\n", data)
		}
		err := out.SetWriteDeadline(time.Now().Add(liveWrite))
		if err == nil {
			_, err = w.Write(b.Bytes())
		}
		if err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-time.After(liveEvery):
		case <-end:
			return
		case <-p.ending:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// livePart is the mark of a live part in a page. Templates escape what comes from strangers, so only they can write it.
var livePart = regexp.MustCompile(`(?s)<live-part id="(.*?)">(.*?)</live-part>`)

// liveParts are the insides of the parts of a page that are marked as live, by their ids.
func liveParts(page []byte) map[string]string {
	parts := map[string]string{}
	for _, m := range livePart.FindAllSubmatch(page, -1) {
		parts[string(m[1])] = string(m[2])
	}
	return parts
}

func (p *Pages) signIn(_ context.Context, r *http.Request, d *drawn) error {
	d.Title, d.Data = "Sign in", shown{"Next": p.next(r.URL.Query().Get("next")), "Wrong": false, "Later": 0}
	return nil
}

// maxForm bounds what a form may send.
const maxForm = 64 << 10

func (p *Pages) signedIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	next := p.next(r.PostFormValue("next"))
	_, err := p.guard.SignIn(w, r, r.PostFormValue("token"))
	if err == nil {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return
	}
	p.page("sign-in", func(_ context.Context, _ *http.Request, d *drawn) error {
		d.Title, d.Status, d.Person = "Sign in", http.StatusUnauthorized, server.Person{}
		many, ok := errors.AsType[server.TooManyError](err)
		later := 0 // seconds until a token is looked at again, after too many wrong ones
		if ok {
			d.Status, later = http.StatusTooManyRequests, many.Seconds()
		}
		d.Data = shown{"Next": next, "Wrong": !ok, "Later": later}
		return nil
	}).ServeHTTP(w, r)
}

func (p *Pages) signedOut(w http.ResponseWriter, r *http.Request) {
	p.guard.SignOut(w, r)
	http.Redirect(w, r, p.guard.BasePath()+"/sign-in", http.StatusSeeOther)
}

// next is where to go after a sign-in: a page of ours and nowhere else.
func (p *Pages) next(asked string) string {
	home := p.guard.BasePath() + "/"
	u, err := url.Parse(asked)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") ||
		strings.HasPrefix(asked, "//") || strings.ContainsAny(asked, "\\\r\n\t") {
		return home
	}
	if !strings.HasPrefix(u.Path, home) { // a proxy has cut the base path off
		u.Path = strings.TrimSuffix(home, "/") + u.Path
	}
	u.Fragment = ""
	return u.String()
}
