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
)

// Given the tests of the repository, then docs/tried.md lists those that use the rig, so that whoever asks what was
// tried finds what is tried now.
func TestTriedPageListsTheTestsThatUseTheRig(t *testing.T) {
	folders := map[string][]*ast.File{}
	for name, f := range testFiles(t) {
		folders[path.Dir(name)] = append(folders[path.Dir(name)], f)
	}
	var list strings.Builder
	listed := 0
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		tests := rigged(folder, folders[folder])
		if len(tests) > 0 {
			fmt.Fprintf(&list, "## %s\n\n| test | first sentence of its comment |\n|---|---|\n", folder)
		}
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			listed++
			fmt.Fprintf(&list, "| %s | %s |\n", name, tests[name])
		}
		if len(tests) > 0 {
			list.WriteString("\n")
		}
	}
	if listed < 100 {
		t.Fatalf("only %d tests use the rig: does this test still look at the right thing?", listed)
	}
	generated(t, "docs/tried.md", "<!-- tests: go test ./internal/test/repo -run Tried -update -->\n\n",
		"<!-- end of tests -->", list.String())
}

// rigged are the tests of a folder that stands below internal/test, or that name a package there, themselves or in the
// functions and variables of their folder's test files that they use; with the first sentence of their comments.
func rigged(folder string, files []*ast.File) map[string]string {
	uses, comments := map[string][]string{}, map[string]string{}
	for _, f := range files {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					continue // whoever has its receiver has come by what makes one
				}
				uses[d.Name.Name] = named(f, d)
				if strings.HasPrefix(d.Name.Name, "Test") && d.Name.Name != "TestMain" {
					sentence := new(doc.Package).Synopsis(d.Doc.Text())
					comments[d.Name.Name] = strings.NewReplacer("|", `\|`, "<", `\<`).Replace(sentence)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.ValueSpec:
						for _, id := range s.Names {
							uses[id.Name] = named(f, s)
						}
					}
				}
			}
		}
	}
	seen := map[string]bool{}
	var reaches func(name string) bool
	reaches = func(name string) bool {
		if seen[name] {
			return false
		}
		seen[name] = true
		return name == rig || slices.ContainsFunc(uses[name], reaches)
	}
	maps.DeleteFunc(comments, func(name, _ string) bool {
		clear(seen)
		return !strings.HasPrefix(folder, rig+"/") && !reaches(name)
	})
	return comments
}

// rig stands for all packages below internal/test: no declaration has such a name.
const rig = "internal/test"

// named are the names in a declaration, and rig if one of them is a package of it.
func named(f *ast.File, decl ast.Node) (names []string) {
	packages := map[string]bool{}
	for _, spec := range f.Imports {
		if p := strings.Trim(spec.Path.Value, `"`); strings.Contains(p, rig+"/") && path.Base(p) != "must" {
			packages[path.Base(p)] = true
		}
	}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && packages[of.Name] {
				names = append(names, rig)
			}
			return true
		case *ast.Ident:
			names = append(names, n.Name)
		}
		return true
	})
	return names
}
