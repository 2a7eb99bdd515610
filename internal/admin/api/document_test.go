package api

import (
	"flag"
	"log/slog"
	"os"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/admin"
)

var update = flag.Bool("update", false, "write docs/openapi.json")

// described is an API that asks nobody: its description is made of types alone.
func described(t *testing.T, base string) *API {
	t.Helper()
	guard, err := admin.NewGuard(admin.GuardOptions{BasePath: base, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{Guard: guard})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTheDescriptionInDocsIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	const path = "../../../docs/openapi.json"
	got := described(t, "").document
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/openapi.json is not true any more: go test ./internal/admin/api -update\n%s", diff)
	}
}

func TestTheDescriptionExplainsEveryPropertyParameterAndOperation(t *testing.T) {
	t.Parallel()
	document := described(t, "").huma.OpenAPI()
	for name, s := range document.Components.Schemas.Map() {
		for property, p := range s.Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no words", name, property)
			}
		}
		for property := range words[name] {
			if s.Properties[property] == nil {
				t.Errorf("words explain %s.%s, which is none", name, property)
			}
		}
	}
	for name := range words {
		if document.Components.Schemas.Map()[name] == nil {
			t.Errorf("words explain %s, which is none", name)
		}
	}
	operations := 0
	for path, item := range document.Paths {
		for _, op := range operationsOf(item) {
			operations++
			if op.Summary == "" || op.Description == "" || len(op.Tags) != 1 {
				t.Errorf("%s %s lacks words: %+v", op.Method, path, op)
			}
			for _, p := range op.Parameters {
				if p.Description == "" {
					t.Errorf("%s %s: the parameter %s has no words", op.Method, path, p.Name)
				}
			}
		}
	}
	if operations < 10 {
		t.Errorf("only %d operations: does this test still look at the right thing?", operations)
	}
}

func operationsOf(item *huma.PathItem) (all []*huma.Operation) {
	for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
		if op != nil {
			all = append(all, op)
		}
	}
	return all
}

func TestTheDescriptionNamesTheBasePath(t *testing.T) {
	t.Parallel()
	if got := described(t, "/x/y").huma.OpenAPI().Servers[0].URL; got != "/x/y/api/v1" {
		t.Errorf("the server is %q", got)
	}
}
