package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/docs"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// described is an API that asks nobody.
func described(t *testing.T, base string) *API {
	t.Helper()
	guard := require.Get(server.NewGuard(server.GuardOptions{BasePath: base, Logger: slog.New(slog.DiscardHandler)}))(t)
	return New(view.New(view.Options{}), guard)
}

type object = map[string]any

// description is one of the API: of docs/openapi.json, or what the library makes of the types.
type description struct {
	Components struct{ Schemas object }
	Paths      map[string]map[string]object
}

// shape is what the types say of the API in a description. The problems are the library's own; a test from outside
// holds each answer to the document.
func shape(t *testing.T, text []byte) (d description) {
	t.Helper()
	require.OK(t, json.Unmarshal(text, &d))
	for name, s := range d.Components.Schemas {
		if name != "Filter" && !strings.HasSuffix(name, "Request") {
			delete(s.(object), "additionalProperties") // a later version may say more
		}
		if strings.HasPrefix(name, "Problem") || strings.HasPrefix(name, "Error") {
			delete(d.Components.Schemas, name)
		}
		wordless(s)
	}
	for _, path := range d.Paths {
		for _, op := range path {
			answers := op["responses"].(object)
			for status := range answers {
				if !strings.HasPrefix(status, "2") {
					delete(answers, status)
				}
			}
			wordless(op)
		}
	}
	return d
}

// wordless takes away what a person writes.
func wordless(part any) {
	switch v := part.(type) {
	case object:
		for _, name := range []string{"description", "summary", "tags"} {
			if _, is := v[name].(object); !is { // a property may be called like that
				delete(v, name)
			}
		}
		for name, inner := range v {
			if wordless(inner); name == "detail" || name == "report" || name == "headers" || name == "properties" {
				if of, ok := inner.(object); ok && of["additionalProperties"] == true {
					v[name] = object{} // whatever is in it
				}
			}
		}
	case []any:
		for _, inner := range v {
			wordless(inner)
		}
	}
}

func TestTheDescriptionInDocsIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	made := require.Get(json.Marshal(described(t, "").huma.OpenAPI()))(t)
	if diff := cmp.Diff(shape(t, docs.OpenAPI), shape(t, made)); diff != "" {
		t.Errorf("docs/openapi.json (-) does not say what the types say (+): mend it by hand, with words\n%s", diff)
	}
}

func TestTheDescriptionExplainsEveryPropertyParameterAndOperation(t *testing.T) {
	t.Parallel()
	type words struct{ Description string }
	var document struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]words }
		}
		Paths map[string]map[string]struct {
			words
			Summary    string
			Tags       []string
			Parameters []struct {
				words
				Name string
			}
		}
	}
	require.OK(t, json.Unmarshal(docs.OpenAPI, &document))
	for name, s := range document.Components.Schemas {
		for property, p := range s.Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no words", name, property)
			}
		}
	}
	for path, operations := range document.Paths {
		for method, op := range operations {
			if op.Summary == "" || op.Description == "" || len(op.Tags) != 1 {
				t.Errorf("%s %s lacks words: %+v", method, path, op)
			}
			for _, p := range op.Parameters {
				if p.Description == "" {
					t.Errorf("%s %s: the parameter %s has no words", method, path, p.Name)
				}
			}
		}
	}
}

func TestTheDescriptionNamesTheBasePath(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodGet, Prefix+"/openapi.json", http.NoBody)
	r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
	w := httptest.NewRecorder()
	described(t, "/x/y").ServeHTTP(w, r)
	var document struct{ Servers []struct{ URL string } }
	require.OK(t, json.Unmarshal(w.Body.Bytes(), &document))
	assert.Is(t, document.Servers[0].URL, "/x/y/api/v1", "the server")
}
