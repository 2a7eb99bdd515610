package repo

import (
	"fmt"
	"go/ast"
	"go/doc"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given the tests of the repository, then docs/tried.md lists them, so that whoever asks what was tried finds what is
// tried now.
func TestTriedPageListsTheTests(t *testing.T) {
	tests, listed := map[string][]string{}, 0 // rows, by folder
	for name, f := range testFiles(t) {
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Recv != nil || !strings.HasPrefix(d.Name.Name, "Test") || d.Name.Name == "TestMain" {
				continue
			}
			sentence := strings.NewReplacer("|", `\|`, "<", `\<`).Replace(new(doc.Package).Synopsis(d.Doc.Text()))
			tests[path.Dir(name)] = append(tests[path.Dir(name)], fmt.Sprintf("| %s | %s |\n", d.Name.Name, sentence))
			listed++
		}
	}
	assert.AtLeast(t, listed, 100, "only tests are found")
	var list strings.Builder
	for _, folder := range slices.Sorted(maps.Keys(tests)) {
		fmt.Fprintf(&list, "## %s\n\n| test | first sentence of its comment |\n|---|---|\n", folder)
		fmt.Fprintf(&list, "%s\n", strings.Join(slices.Sorted(slices.Values(tests[folder])), ""))
	}
	generated(t, "docs/tried.md", "<!-- tests: go test ./internal/test/repo -run Tried -update -->\n\n",
		"<!-- end of tests -->", list.String())
}
