package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/docs"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// made is an API that asks nobody: what is refused is refused before a server would be asked.
func made(t *testing.T) *API {
	t.Helper()
	guard := require.Get(server.NewGuard(server.GuardOptions{Logger: slog.New(slog.DiscardHandler)}))(t)
	return New(view.New(view.Options{}), guard)
}

// ask sends a request from this machine, and gives the answer's status and the detail of its problem.
func ask(a *API, r *http.Request) (status int, detail string) {
	r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	var said struct{ Detail string }
	_ = json.Unmarshal(w.Body.Bytes(), &said) // what is no problem has none
	return w.Code, said.Detail
}

// draw makes a document that a schema allows.
func draw(t *rapid.T, all huma.Registry, s *huma.Schema) string {
	for s.Ref != "" {
		s = all.SchemaFromRef(s.Ref)
	}
	switch {
	case s.Type == huma.TypeObject:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if slices.Contains(s.Required, name) || rapid.Bool().Draw(t, name) {
				parts = append(parts, strconv.Quote(name)+":"+draw(t, all, s.Properties[name]))
			}
		}
		return "{" + strings.Join(parts, ",") + "}"
	case len(s.Enum) > 0:
		return strconv.Quote(fmt.Sprint(rapid.SampledFrom(s.Enum).Draw(t, "word")))
	case s.Format == "date-time":
		return `"2026-11-24T06:00:00Z"`
	case s.Type == huma.TypeArray:
		return "[" + draw(t, all, s.Items) + "]"
	case s.Type == huma.TypeString:
		return `"a"`
	case s.Type == huma.TypeBoolean:
		return "true"
	}
	return "1" // all numbers that there are allow it
}

var (
	property = regexp.MustCompile(`"(\w+)":`)
	// slipped is the one thing that is wrong with a request: where a property that must be there is called otherwise, it
	// is missing too.
	slipped = regexp.MustCompile(`^The request is not as it must be: (body[^;]* expected required property [^;]*; )?` +
		`body[^;]*( comes twice|: unexpected property)\.$`)
)

// Given any request that does something, with a property twice or in another case, anywhere in it, then it is refused
// for that alone, before anybody is asked to do it.
func TestNoPropertyOfARequestIsDropped(t *testing.T) {
	t.Parallel()
	a, bodies := made(t), 0
	document := a.huma.OpenAPI()
	for path, item := range document.Paths {
		if item.Post == nil || item.Post.RequestBody == nil {
			continue
		}
		bodies++
		schema := item.Post.RequestBody.Content["application/json"].Schema
		t.Run(item.Post.OperationID, rapid.MakeCheck(func(t *rapid.T) {
			body := draw(t, document.Components.Schemas, schema)
			places := property.FindAllStringSubmatchIndex(body, -1)
			if places == nil {
				return
			}
			at := rapid.SampledFrom(places).Draw(t, "place")
			name, rest := body[at[2]:at[3]], body[at[1]:]
			last := len(name) - 1
			other := rapid.SampledFrom([]string{
				strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:], name[:last] + strings.ToUpper(name[last:]),
			}).Draw(t, "case")
			body = body[:at[0]] + rapid.SampledFrom([]string{
				fmt.Sprintf(`"%s":1,"%[1]s":`, name), fmt.Sprintf(`"\u%04x%s":1,"%s":`, name[0], name[1:], name),
				fmt.Sprintf(`"%s":1,"%s":`, other, name), fmt.Sprintf(`"%s":`, other),
			}).Draw(t, "slip") + rest
			r := httptest.NewRequest(http.MethodPost, Prefix+path, strings.NewReader(body))
			r.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
			status, detail := ask(a, r)
			require.That(t, slipped.MatchString(detail), "%s gets HTTP %d: %s", body, status, detail)
		}))
	}
	assert.AtLeast(t, bodies, 4, "only requests have a body: does this test still look at the right thing?")
}

// Given a parameter or a header twice, a query that is not encoded, or a body where none is asked for, then it is
// refused; what may be repeated may be.
func TestNoParameterOfARequestIsDropped(t *testing.T) {
	t.Parallel()
	a := made(t)
	for query, want := range map[string]string{
		"tag=zzz&tag=qqq": "query.tag: it is there twice", "limit=1&limit=2": "query.limit: it is there twice",
		"Tag=zzz": "query.Tag: unknown", "tag=a;b": "query: it is not encoded", "tag=%zz": "query: it is not encoded",
		"key=a&key=b&limit=0": "not as it must be: query.limit: expected", // and no more
	} {
		status, detail := ask(a, httptest.NewRequest(http.MethodGet, Prefix+"/letters?"+query, http.NoBody))
		assert.Is(t, status, http.StatusUnprocessableEntity, "%s: HTTP", query)
		assert.Has(t, detail, want, "%s", query)
	}
	r := httptest.NewRequest(http.MethodPost, Prefix+"/reconcile", strings.NewReader(`{"of":"another"}`))
	r.Header["Idempotency-Key"] = []string{"k", "l"}
	_, detail := ask(a, r)
	assert.Has(t, detail, "header.Idempotency-Key: it is there twice; body: nothing is asked for here", "of both")
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
	types := require.Get(json.Marshal(made(t).huma.OpenAPI()))(t)
	if diff := cmp.Diff(shape(t, docs.OpenAPI), shape(t, types)); diff != "" {
		t.Errorf("docs/openapi.json (-) does not say what the types say (+): mend it by hand, with words\n%s", diff)
	}
}

func TestTheDescriptionExplainsEveryPropertyParameterAndOperation(t *testing.T) {
	t.Parallel()
	var d description
	require.OK(t, json.Unmarshal(docs.OpenAPI, &d))
	says := func(part object, what string, where ...any) {
		words, _ := part[what].(string)
		assert.That(t, words != "", "%v: there is no %s", where, what)
	}
	for name, s := range d.Components.Schemas {
		properties, _ := s.(object)["properties"].(object)
		for property, p := range properties {
			says(p.(object), "description", name, property)
		}
	}
	for path, operations := range d.Paths {
		for method, op := range operations {
			says(op, "summary", method, path)
			says(op, "description", method, path)
			tags, _ := op["tags"].([]any)
			assert.Is(t, len(tags), 1, "%s %s: tags", method, path)
			parameters, _ := op["parameters"].([]any)
			for _, p := range parameters {
				says(p.(object), "description", method, path, p.(object)["name"])
			}
		}
	}
}
