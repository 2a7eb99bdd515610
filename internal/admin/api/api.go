package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// Prefix is where the API begins, below the base path. It changes when something that a program relies on does.
const Prefix = "/api/v1"

// Options are what the API is made of.
type Options struct {
	View  *view.View
	Guard *admin.Guard
	// Desk is where what programs ask for is done.
	Desk   *operator.Operator
	Logger *slog.Logger
}

// API answers to programs. Make it with [New]; it is safe for many goroutines.
type API struct {
	o        Options
	mux      *http.ServeMux
	huma     huma.API
	document []byte
}

// New makes the API. It asks no server.
func New(o Options) (*API, error) {
	a := &API{o: o, mux: http.NewServeMux()}
	a.huma = huma.NewAPI(huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info:    &huma.Info{Title: "rollbackd", Version: "1", Description: about},
			Servers: []*huma.Server{{URL: o.Guard.BasePath() + Prefix}},
			Tags:    tags(),
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", named),
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": {
					Type: "http", Scheme: "bearer",
					Description: "ROLLBACKD_ADMIN_TOKEN, or one of ROLLBACKD_ADMIN_TOKENS_FILE. Without any of them, and without " +
						"ROLLBACKD_ADMIN_PROXY, whoever asks from the daemon's own machine needs none.",
				}},
			},
			Security: []map[string][]string{{"token": {}}},
		},
		Formats:       map[string]huma.Format{"application/json": strict, "json": strict},
		DefaultFormat: "application/json", RejectUnknownQueryParameters: true,
		Transformers: []huma.Transformer{inSentences},
	}, humago.NewAdapter(a.mux, Prefix))
	a.huma.UseMiddleware(a.unambiguous)
	a.overview()
	a.letters()
	a.messages()
	a.acts()
	a.writes()
	a.reconciles()
	explain(a.huma.OpenAPI())
	var err error
	if a.document, err = indented(a.huma.OpenAPI()); err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	a.mux.HandleFunc("GET "+Prefix+"/openapi.json", a.describe)
	a.mux.HandleFunc(anywhere, a.nothing)
	a.mux.HandleFunc(Prefix, a.nothing)
	return a, nil
}

// anywhere is the pattern of whatever no other one names.
const anywhere = Prefix + "/"

// ServeHTTP answers below the base path, which is cut off already. Who may only look may send nothing but GET.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	need := admin.Act
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		need = admin.Look
	}
	a.o.Guard.Protect(need, http.HandlerFunc(a.whole)).ServeHTTP(w, r)
}

// whole answers from memory: an answer that could not be made whole is none, and who reads slowly, or goes away, is no
// error of the handler's.
func (a *API) whole(w http.ResponseWriter, r *http.Request) {
	b := &buffered{ResponseWriter: w}
	a.mux.ServeHTTP(b, r)
	w.Header().Set("Content-Length", strconv.Itoa(b.body.Len()))
	if b.status != 0 {
		w.WriteHeader(b.status)
	}
	_, _ = w.Write(b.body.Bytes()) // who went away needs no answer
}

// buffered keeps an answer until it is whole. Answers are bounded: a page of a list has an end.
type buffered struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// WriteHeader keeps the first status.
func (b *buffered) WriteHeader(status int) {
	if b.status == 0 {
		b.status = status
	}
}

// Write keeps a piece.
func (b *buffered) Write(piece []byte) (int, error) { return b.body.Write(piece) }

// Unwrap is for whoever sets deadlines.
func (b *buffered) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// describe answers with the description of the API, whose addresses have this daemon's base path.
func (a *API) describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(a.document) // into memory
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
		admin.Problem(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s cannot be asked for with %s, only with %s.",
			r.URL.Path, r.Method, strings.Join(there, " or ")))
		return
	}
	admin.Problem(w, http.StatusNotFound, fmt.Sprintf("There is no %s: %s/openapi.json says what there is.",
		r.URL.Path, Prefix))
}

func indented(document *huma.OpenAPI) ([]byte, error) {
	text, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// answer is what a route answers with.
type answer[T any] struct{ Body T }

// Page is one page of a list.
type Page[T any] struct {
	Items []T    `json:"items" doc:"Those of this page."`
	Next  string `json:"next,omitempty" doc:"Give it as after for the next page. Missing: the list ends here."`
}

// pageOf never has null for no items.
func pageOf[T any](items []T, next string) Page[T] {
	if items == nil {
		items = []T{}
	}
	return Page[T]{items, next}
}

// route is one that reads.
type route struct {
	id, path, tag    string
	summary, details string
	errors           []int // beside those that any may have
}

// look adds a route that reads.
func look[I, T any](a *API, r route, do func(context.Context, *I) (T, error)) {
	may := []int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable,
	}
	huma.Register(a.huma, huma.Operation{
		OperationID: r.id, Method: http.MethodGet, Path: r.path, Tags: []string{r.tag}, Summary: r.summary,
		Description: r.details, Errors: slices.Concat(may, r.errors),
	}, func(ctx context.Context, in *I) (*answer[T], error) {
		body, err := do(ctx, in)
		if err != nil {
			return nil, a.trouble(ctx, r.id, err)
		}
		return &answer[T]{body}, nil
	})
}

// soon gives up what the operator is asked when its servers take longer than somebody waits.
func soon[I, T any](do func(context.Context, *I) (T, error)) func(context.Context, *I) (T, error) {
	return func(ctx context.Context, in *I) (T, error) {
		return view.Within(ctx, view.ActsTime, func(ctx context.Context) (T, error) { return do(ctx, in) })
	}
}

// errNothing says that what is asked for is not there.
var errNothing = errors.New("nothing is known of it")
