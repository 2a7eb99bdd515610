package repo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func TestReadmeHoldsTheTableOfSettings(t *testing.T) {
	got := between(t, "README.md", "<!-- settings: consumer config -o markdown -->\n", "<!-- end of settings -->")
	if diff := cmp.Diff(config.Markdown(), got); diff != "" {
		t.Errorf("run `consumer config -o markdown` and put its table into README.md:\n%s", diff)
	}
}

func TestReadmeShowsTheHandlerOfTheExample(t *testing.T) {
	example := between(t, "consumer/example_test.go", "func ExampleEach() {\n", "\t_ = handler\n")
	want := strings.ReplaceAll(strings.TrimPrefix(example, "\t"), "\n\t", "\n")
	if diff := cmp.Diff(want, between(t, "README.md", "```go\n", "```")); diff != "" {
		t.Errorf("README.md shows another handler than ExampleEach in consumer/example_test.go:\n%s", diff)
	}
}

func TestReadmeExplainsEveryOutcomeAndReason(t *testing.T) {
	readme := read(t, "README.md")
	for _, o := range consumer.Outcomes() {
		if !strings.Contains(readme, "| `"+o.String()+"` |") {
			t.Errorf("README.md has no row for the outcome %s", o)
		}
	}
	for _, r := range wire.Reasons() {
		if !strings.Contains(readme, "| `"+string(r)+"` |") {
			t.Errorf("README.md has no row for the reason %s", r)
		}
	}
}

func TestArchitectureShowsTheTransitionsOfTheCode(t *testing.T) {
	got := between(t, "ARCHITECTURE.md", "<!-- diagram: dedup.Diagram() -->\n```mermaid\n", "```")
	if diff := cmp.Diff(dedup.Diagram(), got); diff != "" {
		t.Errorf("ARCHITECTURE.md shows other transitions than the code has:\n%s", diff)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// between is the text of a file from behind begin to the next end.
func between(t *testing.T, name, begin, end string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, name), begin)
	if !ok {
		t.Fatalf("%s has no %q", name, begin)
	}
	text, _, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no %q behind %q", name, end, begin)
	}
	return text
}
