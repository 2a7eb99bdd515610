package composetest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// at is what stands at a path of a document, by names of fields and numbers of elements: the zero value where nothing
// of that type stands.
func at[T any](doc any, path ...any) (value T) {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, _ := doc.(map[string]any)
			doc = fields[step]
		case int:
			elements, _ := doc.([]any)
			if step >= len(elements) {
				return value
			}
			doc = elements[step]
		}
	}
	value, _ = doc.(T)
	return value
}

func readYAML(t *testing.T, path string) (doc any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(content))
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("%s: holds more than one document, or a bad one: %v", path, err)
	}
	return doc
}

var duration = regexp.MustCompile(`^[0-9]+[smhd]$`)

func TestAlertsAreWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range at[[]any](readYAML(t, "../prometheus/alerts.yaml"), "groups") {
		for _, r := range at[[]any](g, "rules") {
			alert, lasts, expr := at[string](r, "alert"), at[string](r, "for"), at[string](r, "expr")
			if alert == "" || seen[alert] {
				t.Errorf("alert %q has no name, or one that is taken", alert)
			}
			seen[alert] = true
			if lasts != "" && !duration.MatchString(lasts) {
				t.Errorf("%s: for %q is no duration", alert, lasts)
			}
			if s := at[string](r, "labels", "severity"); s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", alert, s)
			}
			if at[string](r, "annotations", "summary") == "" || at[string](r, "annotations", "description") == "" {
				t.Errorf("%s does not say what it means and what to do", alert)
			}
			if !strings.ContainsAny(expr, "<>=") && !strings.Contains(expr, "unless") { // promtool reads the rest
				t.Errorf("%s: expression %q compares nothing", alert, expr)
			}
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %d alerts found", len(seen))
	}
}
