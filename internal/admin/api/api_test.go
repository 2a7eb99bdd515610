package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/docs"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// served is an API over a log on a real server, and a count of what it wrote down.
func served(t *testing.T) (a *API, written func() int) {
	t.Helper()
	db := require.First(dedup.Open(t.Context(), stack.MySQL(t), dedup.OpenOptions{}))(t)
	pool := require.Get(db.DB())(t)
	t.Cleanup(func() { _ = pool.Close() })
	require.OK(t, dedup.Migrate(t.Context(), db, dedup.MigrateOptions{Table: "consumer_log"}))
	records := require.Get(dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: time.Minute, Delays: []time.Duration{time.Second}, MaxAttempts: 5,
	}))(t)
	letters, err := deadletter.New(deadletter.Options{Records: records, Group: "g", Queue: "q", KeyFrom: "header:k"})
	if err != nil {
		t.Fatal(err)
	}
	d := require.Get(operator.New(operator.Options{
		Lookup: operator.Lookup{DB: db, Records: records, Group: "g"}, Letters: letters, Queue: "q",
	}))(t)
	log := slog.New(slog.DiscardHandler)
	guard := require.Get(server.NewGuard(server.GuardOptions{Logger: log}))(t)
	v := view.New(view.Options{
		Lookup: operator.Lookup{Records: records, Group: "g"}, Letters: letters, Desk: d, Logger: log,
	})
	return New(v, guard), func() (n int) {
		require.OK(t, pool.QueryRowContext(t.Context(), "SELECT (SELECT COUNT(*) FROM consumer_log_act) + (SELECT COUNT(*) "+
			"FROM consumer_log_once)").Scan(&n))
		return n
	}
}

// said is a JSON document whose objects keep their order and may have a name twice.
type said struct {
	names  []string // of an object, as written between the quotes
	values []said
	text   string // of what is no object
}

func (s said) String() string {
	if s.names == nil {
		return s.text
	}
	var parts []string
	for i, name := range s.names {
		parts = append(parts, `"`+name+`":`+s.values[i].String())
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// objects are the document's objects that have properties.
func (s *said) objects() (all []*said) {
	if len(s.names) > 0 {
		all = append(all, s)
	}
	for i := range s.values {
		all = append(all, s.values[i].objects()...)
	}
	return all
}

// draw makes a document that a schema allows.
func draw(t *rapid.T, all huma.Registry, s *huma.Schema) said {
	for s.Ref != "" {
		s = all.SchemaFromRef(s.Ref)
	}
	var names []string
	for name := range s.Properties {
		if slices.Contains(s.Required, name) || rapid.Bool().Draw(t, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	switch {
	case s.Type == huma.TypeObject:
		o := said{names: []string{}}
		for _, name := range names {
			o.names, o.values = append(o.names, name), append(o.values, draw(t, all, s.Properties[name]))
		}
		return o
	case len(s.Enum) > 0:
		return said{text: strconv.Quote(fmt.Sprint(rapid.SampledFrom(s.Enum).Draw(t, "word")))}
	case s.Format == "date-time":
		return said{text: `"2026-11-24T06:00:00Z"`}
	case s.Type == huma.TypeString:
		return said{text: rapid.SampledFrom([]string{`"a"`, `"zzz"`}).Draw(t, "text")}
	case s.Type == huma.TypeBoolean:
		return said{text: strconv.FormatBool(rapid.Bool().Draw(t, "bool"))}
	case s.Type == huma.TypeArray:
		return said{text: "[" + draw(t, all, s.Items).String() + "]"}
	}
	return said{text: strconv.Itoa(rapid.IntRange(1, 100).Draw(t, "number"))} // all that there are allow it
}

// otherCase is a name in another case.
func otherCase(t *rapid.T, name string) string {
	at := rapid.SampledFrom([]func(string) string{strings.ToUpper, func(s string) string {
		return strings.ToUpper(s[:1]) + s[1:]
	}, func(s string) string { return s[:len(s)-1] + strings.ToUpper(s[len(s)-1:]) }}).Draw(t, "case")
	return at(name)
}

// Given any request that does something, with a property twice or in another case, anywhere in it, then it is refused,
// says where, and nothing is done; without that it is understood.
func TestNoPropertyOfARequestIsDropped(t *testing.T) {
	t.Parallel()
	a, written := served(t)
	document := a.huma.OpenAPI()
	bodies := 0
	for path, item := range document.Paths {
		if item.Post == nil || item.Post.RequestBody == nil {
			continue
		}
		bodies++
		t.Run(item.Post.OperationID, func(t *testing.T) {
			schema := item.Post.RequestBody.Content["application/json"].Schema
			rapid.Check(t, func(t *rapid.T) {
				body := draw(t, document.Components.Schemas, schema)
				whole := body.String()
				if problem, _ := post(a, path, whole, "whole"); strings.Contains(problem, "not as it must be") {
					t.Fatalf("%s is not understood: %s", whole, problem)
				}
				objects := body.objects()
				if len(objects) == 0 {
					return
				}
				o := rapid.SampledFrom(objects).Draw(t, "object")
				i := rapid.IntRange(0, len(o.names)-1).Draw(t, "property")
				name := o.names[i]
				switch rapid.SampledFrom([]string{"twice", "escaped", "beside", "instead"}).Draw(t, "slip") {
				case "escaped":
					name = fmt.Sprintf(`\u%04x%s`, name[0], name[1:])
				case "beside":
					name = otherCase(t, name)
				case "instead":
					o.names[i] = otherCase(t, name)
					name = ""
				}
				if name != "" {
					at := rapid.IntRange(0, len(o.names)).Draw(t, "place")
					o.names, o.values = slices.Insert(o.names, at, name), slices.Insert(o.values, at, o.values[i])
				}
				before := written()
				problem, status := post(a, path, body.String(), "slip")
				if status != http.StatusUnprocessableEntity && status != http.StatusBadRequest ||
					!strings.Contains(problem, "not as it must be") {
					t.Fatalf("%s gets HTTP %d: %s", body, status, problem)
				}
				if after := written(); after != before {
					t.Fatalf("%s is refused and has written %d rows", body, after-before)
				}
			})
		})
	}
	assert.AtLeast(t, bodies, 4, "only requests have a body: does this test still look at the right thing?")
}

// post sends a request from this machine, and gives the detail of the problem that is answered.
func post(a *API, path, body, key string) (problem string, status int) {
	r := httptest.NewRequest(http.MethodPost, Prefix+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	return ask(a, r)
}

func ask(a *API, r *http.Request) (problem string, status int) {
	r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	var said struct{ Detail string }
	_ = json.Unmarshal(w.Body.Bytes(), &said) // what is no problem has none
	return said.Detail, w.Code
}

// Given a parameter or a header twice, a query that is not encoded, or a body where none is asked for, then it is
// refused; what may be repeated may be.
func TestNoParameterOfARequestIsDropped(t *testing.T) {
	t.Parallel()
	a, _ := served(t)
	for query, want := range map[string]string{
		"tag=zzz&tag=qqq": "query.tag: it is there twice", "limit=1&limit=2": "query.limit: it is there twice",
		"Tag=zzz": "query.Tag: unknown", "tag=a;b": "query: it is not encoded", "tag=%zz": "query: it is not encoded",
		"key=a&key=b&reason=permanent&reason=exhausted": "",
	} {
		problem, status := ask(a, httptest.NewRequest(http.MethodGet, Prefix+"/letters?"+query, http.NoBody))
		if (status == http.StatusOK) != (want == "") || !strings.Contains(problem, want) {
			t.Errorf("%s gets HTTP %d: %s, want %q", query, status, problem, want)
		}
	}
	r := httptest.NewRequest(http.MethodPost, Prefix+"/reconcile", strings.NewReader(`{"of":"another"}`))
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Add("Idempotency-Key", "l")
	problem, status := ask(a, r)
	if status != 422 || !strings.Contains(problem, "body: nothing is asked for here") ||
		!strings.Contains(problem, "header.Idempotency-Key: it is there twice") {
		t.Errorf("HTTP %d: %s", status, problem)
	}
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
	guard := require.Get(server.NewGuard(server.GuardOptions{Logger: slog.New(slog.DiscardHandler)}))(t)
	made := require.Get(json.Marshal(New(view.New(view.Options{}), guard).huma.OpenAPI()))(t)
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
