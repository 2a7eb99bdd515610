package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/docs"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/outbox"
)

// Prefix is where the API begins, below the base path. It changes when something that a program relies on does.
const Prefix = "/api/v1"

// API answers to programs. Make it with [New]; it is safe for many goroutines.
type API struct {
	view  *view.View
	guard *server.Guard
	desk  *operator.Operator
	mux   *http.ServeMux
	huma  huma.API
}

// New makes the API. It asks no server.
func New(v *view.View, guard *server.Guard) *API {
	a := &API{view: v, guard: guard, desk: v.Options().Desk, mux: http.NewServeMux()}
	a.huma = huma.NewAPI(huma.Config{
		OpenAPI: &huma.OpenAPI{Components: &huma.Components{
			Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
		}},
		Formats:       map[string]huma.Format{"application/json": strict, "json": strict},
		DefaultFormat: "application/json", RejectUnknownQueryParameters: true,
		Transformers: []huma.Transformer{inSentences},
	}, humago.NewAdapter(a.mux, Prefix))
	a.huma.UseMiddleware(a.unambiguous)
	a.routes()
	a.bound()
	a.mux.HandleFunc("GET "+Prefix+"/openapi.json", a.describe)
	a.mux.HandleFunc(anywhere, a.nothing)
	a.mux.HandleFunc(Prefix, a.nothing)
	return a
}

// schemaName tells two types of one name apart; the description knows a reservation by another name.
func schemaName(t reflect.Type, hint string) string {
	switch t {
	case reflect.TypeFor[outbox.Filter]():
		return "OutboxFilter"
	case reflect.TypeFor[operator.Reserved]():
		return "Reserved"
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// anywhere is the pattern of whatever no other one names.
const anywhere = Prefix + "/"

// ServeHTTP answers below the base path, which is cut off already. Who may only look may send nothing but GET.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	need := server.Act
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		need = server.Look
	}
	a.guard.Protect(need, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mux.ServeHTTP(patient{w}, r)
	})).ServeHTTP(w, r)
}

// patient is an answer to somebody who may read slowly, or go away, which is no error of the handler's.
type patient struct{ http.ResponseWriter }

// Write takes everything.
func (p patient) Write(piece []byte) (int, error) {
	_, _ = p.ResponseWriter.Write(piece)
	return len(piece), nil
}

// Unwrap is for whoever sets deadlines.
func (p patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// describe answers with the description of the API, whose addresses have this daemon's base path.
func (a *API) describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	at := []byte(`"url": "` + a.guard.BasePath())
	_, _ = w.Write(bytes.Replace(docs.OpenAPI, []byte(`"url": "`), at, 1)) // who went away needs no answer
}

// nothing answers where nothing is, and says which methods there would be.
func (a *API) nothing(w http.ResponseWriter, r *http.Request) {
	var there []string
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := a.mux.Handler(other); pattern != anywhere && pattern != Prefix && pattern != "" {
			there = append(there, method)
		}
	}
	if len(there) > 0 {
		w.Header().Set("Allow", strings.Join(there, ", "))
		server.Problem(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s cannot be asked for with %s, only with %s.",
			r.URL.Path, r.Method, strings.Join(there, " or ")))
		return
	}
	server.Problem(w, http.StatusNotFound, fmt.Sprintf("There is no %s: %s/openapi.json says what there is.",
		r.URL.Path, Prefix))
}

// Nothing that a request says may be dropped: a filter that is lost makes an act take more than was meant.
// encoding/json takes the last of two properties, and one of another case for the one that is meant; the library takes
// the first of two parameters, and no body where it expects none.

func init() { huma.ValidateStrictCasing = true } // the library has it for the process only

// strict reads JSON in which each property stands once.
var strict = huma.Format{
	Marshal: huma.DefaultJSONFormat.Marshal,
	Unmarshal: func(data []byte, v any) error {
		if err := strictjson.CheckWithin(data, maxBody); err != nil {
			return err
		}
		return json.Unmarshal(data, v)
	},
}

// unambiguous refuses parameters that are there twice, unless they may be, and a body where none is expected.
func (a *API) unambiguous(ctx huma.Context, next func(huma.Context)) {
	const twice = "it is there twice"
	op, url := ctx.Operation(), ctx.URL()
	var wrongs []error
	asked, err := neturl.ParseQuery(url.RawQuery)
	if err != nil { // what cannot be read is left out
		wrongs = append(wrongs, &huma.ErrorDetail{Location: "query", Message: "it is not encoded as a query must be"})
	}
	for name, values := range asked {
		if len(values) > 1 && !slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool {
			return p.In == "query" && p.Name == name && p.Schema.Type == huma.TypeArray
		}) {
			wrongs = append(wrongs, &huma.ErrorDetail{Location: "query." + name, Message: twice})
		}
	}
	headers := map[string]int{}
	ctx.EachHeader(func(name, _ string) { headers[http.CanonicalHeaderKey(name)]++ })
	for _, p := range op.Parameters {
		if p.In == "header" && headers[http.CanonicalHeaderKey(p.Name)] > 1 {
			wrongs = append(wrongs, &huma.ErrorDetail{Location: "header." + p.Name, Message: twice})
		}
	}
	if op.RequestBody == nil {
		body, err := io.ReadAll(io.LimitReader(ctx.BodyReader(), 16))
		if text := string(bytes.TrimSpace(body)); err != nil || text != "" && text != "{}" {
			wrongs = append(wrongs, &huma.ErrorDetail{Location: "body", Message: "nothing is asked for here"})
		}
	}
	if len(wrongs) > 0 {
		slices.SortFunc(wrongs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		_ = huma.WriteErr(a.huma, ctx, http.StatusUnprocessableEntity, invalid, wrongs...) // into memory
		return
	}
	next(ctx)
}

// trouble is the answer that an error is. Those of servers are noted in the daemon's log too.
func (a *API) trouble(ctx context.Context, what string, err error) error {
	if known, ok := errors.AsType[huma.StatusError](err); ok {
		return known
	}
	if errors.Is(err, dedup.ErrCursor) {
		return wrong("query.after", "it is not what the page before said as next, with the same filter")
	}
	known := view.AnswerTo(err)
	if errors.Is(err, operator.ErrNotIssued) { // its row was cleaned between two looks at it
		known.Text = "the key was used a day ago and is just being forgotten: send the request again"
	}
	if known.Blame {
		a.view.Options().Logger.WarnContext(ctx, "a request to the API could not be answered", "what", what, "err", err)
	}
	p := problem(known.Status, known.Text)
	if id := inTheWay(err); id != "" {
		p.Instance = a.actAt(id)
	}
	if known.Again > 0 {
		again := strconv.Itoa(int(known.Again.Seconds()))
		return huma.ErrorWithHeaders(p, http.Header{"Retry-After": {again}})
	}
	return p
}

// inTheWay is the id of the act that an error names; "" when it names none.
func inTheWay(err error) string {
	if same, ok := errors.AsType[*operator.SameSetError](err); ok {
		return same.Act.ID
	}
	if paused, ok := errors.AsType[*operator.PausedError](err); ok {
		return paused.Pause.ID
	}
	return ""
}

func problem(status int, detail string, parts ...*huma.ErrorDetail) *huma.ErrorModel {
	return &huma.ErrorModel{Title: http.StatusText(status), Status: status, Detail: detail, Errors: parts}
}

// wrong says what is wrong with a part of a request.
func wrong(where, why string) error {
	return problem(http.StatusUnprocessableEntity, invalid, &huma.ErrorDetail{Location: where, Message: why})
}

// invalid is what the library says of every request that is not as the description has it.
const invalid = "validation failed"

// mostNamed is how many of a request's mistakes an answer names.
const mostNamed = 10

// inSentences says in the detail what is wrong, so that who shows nothing else shows enough. It repeats nothing of what
// was sent.
func inSentences(_ huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok || len(e.Errors) == 0 {
		return v, nil
	}
	said := *e
	said.Errors = nil
	var words []string
	for i, one := range e.Errors {
		if i == mostNamed {
			words = append(words, fmt.Sprintf("and %d more", len(e.Errors)-i))
			break
		}
		at := one.Location
		said.Errors = append(said.Errors, &huma.ErrorDetail{Location: at, Message: one.Message})
		if at != "" {
			at += ": "
		}
		words = append(words, at+one.Message)
	}
	if said.Detail == invalid {
		said.Detail = "The request is not as it must be: " + strings.Join(words, "; ") + "."
	}
	return &said, nil
}
