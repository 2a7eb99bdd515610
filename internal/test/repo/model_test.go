package repo

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var mutant = regexp.MustCompile(`\bM_\w+`)

// A mutant that is only in the table was not run; one that is only in the script tells nobody anything. What it does
// stands at its switch in a model, what each run came to in results.txt.
func TestTheTablesOfTheModelNameWhatItsScriptRuns(t *testing.T) {
	script, readme := read(t, "docs/model/run.sh"), read(t, "docs/model/README.md")
	results, models := "\n"+read(t, "docs/model/results.txt"), ""
	for _, name := range files(t, ".pml") {
		models += read(t, name)
	}
	script = strings.ReplaceAll(script, "\\\n", " ")
	run := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(?:\w+=\w+ )?(?:holds|fails) ([\w-]+)`).FindAllStringSubmatch(script, -1) {
		run[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`for m in ([^;]+);`).FindAllStringSubmatch(script, -1) {
		for _, name := range strings.Fields(m[1]) {
			run[name] = true
		}
	}
	if len(run) < 10 {
		t.Fatalf("only %d checks are found in run.sh", len(run))
	}
	told := map[string]bool{}
	for _, line := range strings.Split(readme, "\n") {
		if strings.HasPrefix(line, "|") {
			for _, name := range mutant.FindAllString(line, -1) {
				told[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(run)) {
		if strings.HasPrefix(name, "M_") && !told[name] {
			t.Errorf("run.sh runs %s, and no table of docs/model/README.md names it", name)
		}
		says := regexp.MustCompile(`\b` + strings.TrimSuffix(name, "_CALLS") + `\b.*/\*`)
		if strings.HasPrefix(name, "M_") && !says.MatchString(models) {
			t.Errorf("run.sh runs %s, and no comment beside that switch in docs/model says what it does", name)
		}
		if !strings.Contains(results, "\n"+name+" | ") {
			t.Errorf("run.sh runs %s, and docs/model/results.txt has no line of it", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if !run[name] {
			t.Errorf("docs/model/README.md names %s in a table, and run.sh does not run it", name)
		}
	}
}
