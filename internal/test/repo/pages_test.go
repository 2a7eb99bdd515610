package repo

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// pages are the Markdown files of the repository.
func pages(t *testing.T) []string { t.Helper(); return files(t, ".md") }

// files are those of the repository whose names end so, by their paths from its root, examples of tests left out.
func files(t *testing.T, ext string) []string {
	t.Helper()
	return slices.DeleteFunc(allFiles(t), func(name string) bool {
		return !strings.HasSuffix(name, ext) || strings.Contains(name, "testdata/")
	})
}

// allFiles are those of the repository.
func allFiles(t *testing.T) (found []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root(t)), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git", d.IsDir() && slices.Contains([]string{"bin", "bench/out"}, name):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			found = append(found, name)
		}
		return nil
	})
	require.That(t, err == nil, "walk the repository: %v", err)
	return found
}

// What is no first step belongs into docs/.
func TestReadmeIsShortAndLinksEveryPageOfDocs(t *testing.T) {
	const decisions = "docs/decisions/"
	readme, list := read(t, "README.md"), read(t, decisions+"README.md")
	assert.AtMost(t, strings.Count(readme, "\n"), 150, "lines of README.md")
	for _, page := range pages(t) {
		if name, ok := strings.CutPrefix(page, decisions); ok && name != "README.md" {
			assert.That(t, strings.Contains(list, "]("+name+")"), "%sREADME.md does not link %s", decisions, name)
		} else if strings.HasPrefix(page, "docs/") && !strings.Contains(readme, "]("+page+")") {
			t.Errorf("README.md does not link %s", page)
		}
	}
}

// Fenced blocks, which hold code, or output as it was, may have longer lines. A tab counts as one column.
func TestLinesAreShort(t *testing.T) {
	const most = 120
	long := func(name string, i int, text string) {
		if n := utf8.RuneCountInString(text); n > most {
			t.Errorf("%s:%d has %d columns, want at most %d: %.60s…", name, i+1, n, most, strings.TrimSpace(text))
		}
	}
	for _, name := range files(t, ".go") {
		for i, text := range strings.Split(read(t, name), "\n") {
			long(name, i, text)
		}
	}
	// What stands between these is made from something else.
	begin, end := regexp.MustCompile(`^<!-- (settings|rights|figures|summary): `), regexp.MustCompile(`^<!-- end of `)
	for _, name := range pages(t) {
		page := read(t, name)
		fenced, generated := false, strings.HasPrefix(page, "<!-- written by make bench")
		for i, text := range strings.Split(page, "\n") {
			line := strings.TrimSpace(text)
			fenced = fenced != strings.HasPrefix(line, "```")
			generated = (generated || !fenced && begin.MatchString(text)) && !end.MatchString(text)
			if !fenced && !generated && !strings.HasPrefix(line, "|") && !strings.Contains(text, "://") {
				long(name, i, text)
			}
		}
	}
}

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
