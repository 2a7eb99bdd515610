package pages

import (
	"bytes"
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

// act answers to a form: it does it, or says why not, as a page.
func (p *Pages) act(do func(ctx context.Context, r *http.Request) (path string, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actTime)
		defer cancel()
		err := r.ParseForm()
		if err != nil {
			err = problem{http.StatusBadRequest, "The form could not be read: " + err.Error()}
		}
		var path string
		if err == nil {
			path, err = do(ctx, r)
		}
		if err != nil {
			text, status := p.trouble(w, r, p.newDrawn(r), err)
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(status)
			_, _ = w.Write(text) // who went away needs no answer
			return
		}
		http.Redirect(w, r, p.o.Guard.BasePath()+path, http.StatusSeeOther)
	})
}

// once does what a form asks for unless it was done before, and returns the path that shows what was done.
func (p *Pages) once(
	ctx context.Context, r *http.Request, do func(id string) (path string, err error),
) (string, error) {
	a, _, err := view.Once(ctx, p.o.Desk, p.o.Logger, actorOf(ctx), operator.OnceRequest{
		Name: r.PostForm.Get("token"), Hash: sha256.Sum256([]byte(r.URL.Path + "?" + r.PostForm.Encode())), Issued: true,
	}, awaitFirst, func(id string) (operator.Answer, error) {
		path, err := do(id)
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
	return p.once(ctx, r, func(id string) (string, error) {
		ask.ID = id
		a, err := p.o.Desk.Start(ctx, actorOf(ctx), ask)
		if same, ok := errors.AsType[*operator.SameSetError](err); ok {
			return "/acts/" + same.Act.ID + "?same=1", nil
		}
		return "/acts/" + a.ID, err
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
	if s.Kind == operator.KindDiscard {
		if ask.Why == "" {
			return ask, problem{http.StatusUnprocessableEntity, "Say why these letters may end without an effect: go back and " +
				"write a reason. Nothing was done."}
		}
		return ask, nil
	}
	if text := strings.TrimSpace(r.PostForm.Get("rate")); text != "" {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate >= 0) || math.IsInf(rate, 0) {
			return ask, problem{http.StatusUnprocessableEntity, fmt.Sprintf("%q letters a second is no rate: go back and "+
				"write a number, or nothing. Nothing was done.", text)}
		}
		ask.Rate = rate
	}
	if text := strings.TrimSpace(r.PostForm.Get("max_failures")); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return ask, problem{http.StatusUnprocessableEntity, fmt.Sprintf("%q is no number of failures: go back and write "+
				"one, or nothing. Nothing was done.", text)}
		}
		ask.MaxFailures = n
	}
	return ask, nil
}

// stop asks a run to stop. To ask twice is to ask once, so its form needs no token.
func (p *Pages) stop(ctx context.Context, r *http.Request) (string, error) {
	a, err := p.o.Desk.Stop(ctx, actorOf(ctx), r.PathValue("id"))
	if err != nil && !errors.Is(err, operator.ErrEnded) {
		return "", err
	}
	return "/acts/" + a.ID, nil
}
