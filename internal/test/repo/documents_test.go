package repo

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

var update = flag.Bool("update", false, "write what is made from the code into the documents")

func TestSettingsPageHoldsTheTable(t *testing.T) {
	generated(t, "docs/settings.md", "<!-- settings: rollbackd config -o markdown -->\n", "<!-- end of settings -->",
		config.Markdown())
}

// shows stands above a block that is a file's text, which is tested where it is.
var shows = regexp.MustCompile("(?m)^<!-- (?:program|example|diagram): (\\S+) -->\n```\\w+\n")

func TestThePagesShowTheFilesThatAreTested(t *testing.T) {
	want := between(t, "consumer/example_test.go", "func ExampleRun() {\n", "\n}\n")
	generated(t, "README.md", "```go\n", "```", strings.ReplaceAll(strings.TrimPrefix(want, "\t"), "\n\t", "\n")+"\n")
	shown := 0
	for _, page := range pages(t) {
		for _, m := range shows.FindAllStringSubmatch(read(t, page), -1) {
			shown++
			generated(t, page, m[0], "```", read(t, m[1]))
		}
	}
	assert.AtLeast(t, shown, 7, "only files are shown")
}

func TestPagesNameEveryOutcomeReasonAndPackage(t *testing.T) {
	const name = "docs/messages.md"
	page := read(t, name)
	for _, o := range consumer.Outcomes() {
		assert.That(t, strings.Contains(page, "| `"+o.String()+"` |"), "%s has no row for the outcome %s", name, o)
	}
	for _, r := range dedup.Reasons() {
		assert.That(t, strings.Contains(page, "| `"+string(r)+"` |"), "%s has no row for the reason %s", name, r)
	}
	page = read(t, "ARCHITECTURE.md")
	for _, a := range arrows {
		assert.That(t, strings.Contains(page, "\n| `"+a.from+"` |"), "ARCHITECTURE.md has no row for the package %s", a.from)
	}
}

// Every metric has a row on the page, and rules and dashboard ask for no other.
func TestOperationsPageHasEveryMetric(t *testing.T) {
	const name = "docs/operations.md"
	page, known := read(t, name), map[string]bool{}
	const made = `\b(?:Name:\s+|(?:counter|gauge|histogram|shared)s?\((?:\w+, )?)"(rollbackd_[a-z_]+)"`
	eachMatch(t, made, func(file, metric string) {
		known[metric] = true
		assert.That(t, strings.Contains(page, "`"+metric+"`") || strings.Contains(page, "`"+metric+"{"),
			"%s has no row for the metric %s of %s", name, metric, file)
	})
	recorded := regexp.MustCompile(`[a-z_]+:rollbackd_[a-z_]+:[a-z0-9_]+`)
	for _, name := range recorded.FindAllString(read(t, "deploy/prometheus/rules.yaml"), -1) {
		known[name] = true
	}
	used := regexp.MustCompile(recorded.String() + `|\brollbackd_[a-z_]+`)
	for _, file := range []string{"prometheus/alerts.yaml", "prometheus/rules.yaml", "prometheus/alerts_test.yaml",
		"grafana/rollbackd.json"} {
		names := used.FindAllString(read(t, "deploy/"+file), -1)
		assert.AtLeast(t, len(names), 10, "only metrics found in %s", file)
		for _, name := range names {
			assert.That(t, known[name] || known[histogram.ReplaceAllString(name, "")],
				"%s uses %s, which nobody exports or records", file, name)
		}
	}
}

var histogram = regexp.MustCompile(`_(bucket|sum|count)$`)

// generated holds what stands between begin and end on a page against what it must be; with -update it is put there.
func generated(t *testing.T, page, begin, end, want string) {
	t.Helper()
	got := between(t, page, begin, end)
	if *update {
		text := strings.Replace(read(t, page), begin+got+end, begin+want+end, 1)
		require.OK(t, os.WriteFile(filepath.Join(root(t), page), []byte(text), 0o600))
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is not true any more behind %q: go test ./internal/test/repo -update\n%s", page, begin, diff)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := require.Get(os.ReadFile(filepath.Join(root(t), name)))(t)
	return string(text)
}

// between is the text of a file from behind begin to the next end, or to that of the file.
func between(t *testing.T, name, begin, end string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, name), begin)
	require.That(t, ok, "%s has no %q", name, begin)
	text, _, ok := strings.Cut(rest, end)
	if end == "" {
		return rest
	}
	require.That(t, ok, "%s has no %q behind %q", name, end, begin)
	return text
}

// What the script of the model runs was run: what each run came to stands in results.txt.
func TestEachRunOfTheModelHasItsResult(t *testing.T) {
	script := strings.ReplaceAll(read(t, "docs/model/run.sh"), "\\\n", " ")
	var run []string
	for _, m := range regexp.MustCompile(`(?m)^(?:\w+=\w+ )?(?:holds|fails) ([\w-]+)|for m in ([^;]+);`).
		FindAllStringSubmatch(script, -1) {
		run = slices.Concat(run, strings.Fields(m[1]+" "+m[2]))
	}
	assert.AtLeast(t, len(run), 100, "checks found in run.sh")
	results := "\n" + read(t, "docs/model/results.txt")
	for _, name := range run {
		assert.That(t, strings.Contains(results, "\n"+name+" | "), "docs/model/results.txt has no line of %s of run.sh", name)
	}
}
