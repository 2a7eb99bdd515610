package pages

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// awaitFirst is how long the second of two same forms waits for the answer of the first.
const awaitFirst = 8 * time.Second

// maxActForm bounds the form of an act: that of an edited letter holds its body, each byte as three perhaps.
const maxActForm = 1 << 20

// doer does what a form asks for; path shows what was done.
type doer func(ctx context.Context, r *http.Request) (path string, err error)

// act answers to a form: it does it, or says why not, as a page.
func (p *Pages) act(do doer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxActForm)
		path, err := "", r.ParseForm()
		if err != nil {
			err = refuse(http.StatusBadRequest, "The form could not be read: %v", err)
		} else {
			path, err = do(context.WithoutCancel(r.Context()), r)
		}
		if err != nil {
			if a := view.AnswerTo(err); a.Status == http.StatusUnprocessableEntity {
				err = refuse(a.Status, "%s. Nothing was done.", a.Text)
			}
			p.fail(w, r, err)
			return
		}
		p.banner.forget()
		http.Redirect(w, r, p.guard.BasePath()+path, http.StatusSeeOther)
	})
}

// once does what is asked for in a form, unless it was done before. It leads to a page, or without one to that of the
// act, or of the same one that goes on.
func once[R any](
	p *Pages, to string, read func(*http.Request) (R, error), ask func(context.Context, R) (view.Doing, error),
) doer {
	return func(ctx context.Context, r *http.Request) (string, error) {
		var do view.Doing
		asked, err := read(r)
		if err == nil {
			do, err = ask(ctx, asked)
		}
		if err != nil { // before its token is taken, so that one can go back and send it again
			return "", err
		}
		done, _, err := p.view.Once(ctx, operator.OnceRequest{
			Name: r.PostForm.Get("token"), Hash: sha256.Sum256([]byte(r.URL.Path + "?" + r.PostForm.Encode())), Issued: true,
		}, awaitFirst, func(ctx context.Context, id string) (operator.Answer, error) {
			a, err := do(ctx, id)
			path := "/acts/" + a.ID
			if same, ok := errors.AsType[*operator.SameSetError](err); ok {
				path, err = "/acts/"+same.Act.ID+"?same=1", nil
			}
			return operator.Answer{Status: http.StatusSeeOther, Location: cmp.Or(to, path)}, err
		})
		return done.Location, err
	}
}

func nothingAsked(*http.Request) (none struct{}, err error) { return none, nil }

// setOf is what a form asks for, as it stands in it: so that no text of strangers stands there as it is.
func setOf(asked any) string {
	text, _ := json.Marshal(asked) // which has a JSON form
	return base64.RawURLEncoding.EncodeToString(text)
}

// readSet reads what setOf wrote.
func readSet(r *http.Request, asked any) error {
	text, err := base64.RawURLEncoding.DecodeString(r.PostForm.Get("set"))
	if err != nil {
		return err
	}
	set := json.NewDecoder(bytes.NewReader(text))
	set.DisallowUnknownFields()
	return set.Decode(asked)
}

// runAsked reads the form of a preview.
func runAsked(r *http.Request) (asked view.RunRequest, err error) {
	if err := readSet(r, &asked); err != nil || asked.CutOff.IsZero() {
		return asked, refuse(http.StatusBadRequest, "The form does not say which letters: open it from their page.")
	}
	if asked.Why = strings.TrimSpace(r.PostForm.Get("why")); asked.Why == "" && asked.Kind == operator.KindDiscard {
		return asked, refuse(http.StatusUnprocessableEntity,
			"To discard, say why these letters may end without an effect: go back and write a reason")
	}
	rate, failures := strings.TrimSpace(r.PostForm.Get("rate")), strings.TrimSpace(r.PostForm.Get("max_failures"))
	if asked.Rate, err = strconv.ParseFloat(cmp.Or(rate, "0"), 64); err != nil {
		return asked, refuse(http.StatusUnprocessableEntity, "%q letters a second is no rate", rate)
	}
	if asked.MaxFailures, err = strconv.Atoi(cmp.Or(failures, "0")); err != nil {
		return asked, refuse(http.StatusUnprocessableEntity, "%q is no number of failures", failures)
	}
	return asked, nil
}

// rehearsalAsked reads the form beside a preview.
func rehearsalAsked(r *http.Request) (asked operator.RehearsalRequest, err error) {
	if err := readSet(r, &asked); err != nil || asked.CutOff.IsZero() {
		return asked, refuse(http.StatusBadRequest, "The form does not say which letters: open it from their page.")
	}
	return asked, nil
}

// pauseAsked reads the form of a pause, in place of the one that it has shown if it has shown one.
func pauseAsked(r *http.Request) (operator.PauseRequest, error) {
	length, err := time.ParseDuration(r.PostForm.Get("for"))
	if err != nil {
		err = refuse(http.StatusUnprocessableEntity, "%q is no time for which consuming can be paused",
			r.PostForm.Get("for"))
	}
	return operator.PauseRequest{
		Why: r.PostForm.Get("why"), Seconds: length.Seconds(), Instead: r.PostForm.Get("instead"),
	}, err
}

// resumeAsked reads the form that ends the pause that it has shown.
func resumeAsked(r *http.Request) (asked operator.ResumeRequest, err error) {
	asked = operator.ResumeRequest{Why: r.PostForm.Get("why"), Pause: r.PostForm.Get("pause")}
	if asked.Pause == "" {
		err = refuse(http.StatusUnprocessableEntity, "The form does not say which pause is to end: load the page again")
	}
	return asked, err
}

// mendAsked reads the form of a finding. One that somebody cut off names none: the latest comparison may be another.
func mendAsked(r *http.Request) (asked view.MendRequest, err error) {
	asked = view.MendRequest{
		Of: r.PostForm.Get("of"), Number: numberOf(r.PostForm.Get("n")), Sure: r.PostForm.Get("sure") == "1",
		Why: r.PostForm.Get("why"),
	}
	if asked.Of == "" {
		err = operator.ErrNoAct
	}
	return asked, err
}

// expectAsked reads the form of what should have come.
func expectAsked(r *http.Request) (operator.ExpectedRequest, error) {
	form := r.PostForm
	return operator.ExpectedRequest{Publish: form.Has("publish"), Force: form.Has("sure"), Why: form.Get("why")}, nil
}

// numberOf is the number of a finding; -1, which none has, when the text is no number.
func numberOf(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// stop asks a run to stop. To ask twice is to ask once, so its form needs no token.
func (p *Pages) stop(ctx context.Context, r *http.Request) (string, error) {
	a, err := p.desk.Stop(ctx, view.Actor(ctx), r.PathValue("id"))
	if err != nil && !errors.Is(err, operator.ErrEnded) {
		return "", err
	}
	return "/acts/" + a.ID, nil
}
