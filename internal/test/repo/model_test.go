package repo

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

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
		assert.That(t, strings.Contains(results, "\n"+name+" | "),
			"run.sh runs %s, and docs/model/results.txt has no line of it", name)
	}
}
