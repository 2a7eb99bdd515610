package pages

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/rollbackd/rollbackd/internal/admin/server"
)

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
