package repo

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

var (
	// runBy stands right above the commands of a page: which test runs them, or shows that a file which is run has them,
	// or why nobody does.
	runBy = regexp.MustCompile(`^<!-- (in the test|example|not run): (\S.*\S) -->$`)
	// noCommands are languages of blocks that nobody types.
	noCommands = regexp.MustCompile(`^(text|go|sql|json|yaml|mermaid|goat)$`)
)

// Given the pages that users follow, then above each block of commands stands which test runs it, or why none does.
// Everything counts that has no other language; what is indented is none.
func TestCommandsOfThePagesAreRunOrSayWhyNot(t *testing.T) {
	run := 0
	for _, page := range pages(t) {
		if strings.HasPrefix(page, "docs/decisions/") || strings.HasPrefix(page, "bench/") {
			continue // for readers alone
		}
		lines, fenced := strings.Split(read(t, page), "\n"), false
		for i, line := range lines {
			language, fence := strings.CutPrefix(line, "```")
			assert.That(t, !strings.HasPrefix(line, "    ") || fenced || i <= 0 || lines[i-1] != "",
				"%s:%d is indented: put it between ``` lines", page, i+1)
			if !fence {
				continue
			}
			if fenced = !fenced; !fenced || noCommands.MatchString(language) {
				continue
			}
			said := runBy.FindStringSubmatch(lines[max(i-1, 0)])
			switch {
			case said == nil:
				t.Errorf("%s:%d shows commands: say above them <!-- in the test: FILE -->, or <!-- not run: WHY -->", page, i+1)
			case said[1] == "in the test":
				run++
				assert.That(t, strings.Contains(read(t, said[2]), path.Base(page)),
					"%s:%d shows commands, and %s does not name the page", page, i+1, said[2])
			}
		}
	}
	assert.That(t, run >= 10, "only %d blocks of commands are run by tests", run)
}
