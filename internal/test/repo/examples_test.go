package repo

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// leastExamples is how many examples a user of the library can read and trust, because they run.
const leastExamples = 12

// Given the packages that a library user imports, then enough examples run on servers and are listed, and what
// pkg.go.dev shows of each is whole: it shows a file, imports included, when one example stands in it beside something
// else.
func TestExamplesOfTheLibraryRunAndAreListed(t *testing.T) {
	page := read(t, "docs/library.md")
	run := 0
	for _, dir := range []string{"consumer", "deadletter", "dedup", "stock"} {
		names, err := filepath.Glob(filepath.Join(root(t), dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, example := range doc.Examples(file) {
				if example.Output == "" && !example.EmptyOutput {
					continue
				}
				run++
				path := dir + "/" + filepath.Base(name)
				if !strings.Contains(page, "(../"+path+")") {
					t.Errorf("docs/library.md does not list the example in %s", path)
				}
				if whole(file) == nil {
					t.Errorf("what is shown of Example%s in %s is not whole: nothing stands beside it", example.Name, path)
				}
			}
		}
	}
	if run < leastExamples {
		t.Errorf("%d examples are run, want %d at least", run, leastExamples)
	}
}

// whole is the program that is shown for the one example of a file; nil when only the example's body would be.
func whole(file *ast.File) *ast.File {
	examples := doc.Examples(file)
	if len(examples) != 1 {
		return nil
	}
	return examples[0].Play
}
