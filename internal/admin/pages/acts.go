package pages

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

const (
	// actTime bounds an act. It goes on when the browser that asked for it has gone away, as after a double click.
	actTime = 10 * time.Second
	// awaitFirst is how long the second of two same forms waits for the answer of the first.
	awaitFirst = 8 * time.Second
)

// doer does what a form asks for; path shows what was done.
type doer func(ctx context.Context, r *http.Request) (path string, err error)

// act answers to a form: it does it, or says why not, as a page.
func (p *Pages) act(do doer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actTime)
		defer cancel()
		err := r.ParseForm()
		if err != nil {
			p.fail(w, r, problem{http.StatusBadRequest, "The form could not be read: " + err.Error()})
			return
		}
		path, err := do(ctx, r)
		if err != nil {
			p.fail(w, r, err)
			return
		}
		http.Redirect(w, r, p.o.Guard.BasePath()+path, http.StatusSeeOther)
	})
}

// once does what a form asks for unless it was done before, and returns the path of its act, or of the same one that
// goes on.
func (p *Pages) once(
	ctx context.Context, r *http.Request, do func(id string) (operator.Act, error),
) (string, error) {
	a, _, err := view.Once(ctx, p.o.Desk, p.o.Logger, operator.OnceRequest{
		Name: r.PostForm.Get("token"), Hash: sha256.Sum256([]byte(r.URL.Path + "?" + r.PostForm.Encode())), Issued: true,
	}, awaitFirst, func(id string) (operator.Answer, error) {
		a, err := do(id)
		path := "/acts/" + a.ID
		if same, ok := errors.AsType[*operator.SameSetError](err); ok {
			path, err = "/acts/"+same.Act.ID+"?same=1", nil
		}
		return operator.Answer{Status: http.StatusSeeOther, Location: path}, err
	})
	return a.Location, err
}

// start begins a run over the letters that a preview has shown.
func (p *Pages) start(ctx context.Context, r *http.Request) (string, error) {
	ask, err := requestOf(r)
	if err == nil {
		err = p.o.View.Shows(ask.Filter.Body)
	}
	if err != nil {
		return "", err
	}
	return p.once(ctx, r, func(id string) (operator.Act, error) {
		ask.ID = id
		return p.o.Desk.Start(ctx, view.Actor(ctx), ask)
	})
}

// requestOf reads the form of a preview. All that can be wrong with it is found before its token is taken, so that one
// can go back and send it again.
func requestOf(r *http.Request) (operator.Request, error) {
	var s set
	text, err := base64.RawURLEncoding.DecodeString(r.PostForm.Get("set"))
	if err == nil {
		form := json.NewDecoder(bytes.NewReader(text))
		form.DisallowUnknownFields()
		err = form.Decode(&s)
	}
	if err != nil {
		return operator.Request{}, problem{http.StatusBadRequest,
			"The form does not say which letters: open it from their page."}
	}
	ask := operator.Request{
		Kind: s.Kind, Filter: s.Filter, CutOff: s.CutOff, Force: s.Force, Why: strings.TrimSpace(r.PostForm.Get("why")),
	}
	rate, failures := strings.TrimSpace(r.PostForm.Get("rate")), strings.TrimSpace(r.PostForm.Get("max_failures"))
	wrong := ""
	if s.Kind == operator.KindDiscard {
		if ask.Why == "" {
			wrong = "Say why these letters may end without an effect: go back and write a reason. Nothing was done."
		}
	} else if ask.Rate, err = strconv.ParseFloat(cmp.Or(rate, "0"), 64); err != nil || !(ask.Rate >= 0) ||
		math.IsInf(ask.Rate, 0) {
		wrong = fmt.Sprintf("%q letters a second is no rate: go back and write a number, or nothing. Nothing was done.", rate)
	} else if ask.MaxFailures, err = strconv.Atoi(cmp.Or(failures, "0")); err != nil || ask.MaxFailures < 0 {
		wrong = fmt.Sprintf("%q is no number of failures: go back and write one, or nothing. Nothing was done.", failures)
	}
	if wrong != "" {
		return ask, problem{http.StatusUnprocessableEntity, wrong}
	}
	return ask, nil
}

// stop asks a run to stop. To ask twice is to ask once, so its form needs no token.
func (p *Pages) stop(ctx context.Context, r *http.Request) (string, error) {
	a, err := p.o.Desk.Stop(ctx, view.Actor(ctx), r.PathValue("id"))
	if err != nil && !errors.Is(err, operator.ErrEnded) {
		return "", err
	}
	return "/acts/" + a.ID, nil
}
