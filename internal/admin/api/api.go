package api

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/rollbackd/rollbackd/docs"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
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
