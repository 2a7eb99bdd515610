package repo

import (
	"flag"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

var released = flag.Bool("released", false, "take the Go API as it is now for that of the last release")

// lastAPI has a line for each thing that the last release exported, as `make release DO=cut` left it.
const lastAPI = "internal/test/repo/testdata/api.txt"

// Given the Go API of the last release, then what this one breaks of it stands under Unreleased in CHANGELOG.md by its
// name, as `consumer.Open`. It asks no program outside this module for what that cannot name.
func TestTheGoAPIBreaksOnlyWhereTheChangelogSaysSo(t *testing.T) {
	var now []string // what this module exports to others, by the compiler's own files of it
	var paths []string
	for _, p := range packages(t) {
		top, _, _ := strings.Cut(p.path(), "/")
		if p.Name != "main" && len(p.GoFiles) > 0 && !strings.Contains(p.path()+"/", "internal/") &&
			top != "deploy" && top != "docs" {
			paths = append(paths, p.ImportPath)
		}
	}
	imports := compiled(t, token.NewFileSet(), paths...)
	for _, path := range paths {
		now = append(now, exported(require.Get(imports.Import(path))(t))...)
	}
	slices.Sort(now)
	assert.That(t, len(now) >= 500, "only %d things are exported: does this test still look at the right ones?", len(now))
	for _, line := range now {
		assert.That(t, !strings.Contains(line, "internal/"), "an internal type stands in a public signature: %s", line)
	}
	if *released {
		require.OK(t, os.WriteFile(filepath.Join(root(t), lastAPI), []byte(strings.Join(now, "\n")+"\n"), 0o600))
	}
	_, text, _ := strings.Cut(read(t, "CHANGELOG.md"), "\n## [Unreleased]\n")
	unreleased, _, _ := strings.Cut(text, "\n## [")
	for _, line := range strings.Split(strings.TrimSpace(read(t, lastAPI)), "\n") {
		name, _, _ := strings.Cut(line, " ")
		assert.That(t, slices.Contains(now, line) || strings.Contains(unreleased, "`"+name+"`"),
			"%s: keep it as it was, or name `%s` under Unreleased in CHANGELOG.md, with what to do", line, name)
	}
}

// compiled imports packages, and what they need, from the compiler's own files of them.
func compiled(t *testing.T, set *token.FileSet, paths ...string) types.Importer {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-export", "-f",
		"{{.ImportPath}} {{.Export}}"}, paths...)...)
	list.Dir, list.Stderr = root(t), os.Stderr
	made := map[string]string{}
	for line := range strings.Lines(string(require.Get(list.Output())(t))) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		made[path] = file
	}
	return importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(made[path]) })
}

// exported has a line for each thing of a package that a program of others can rely on, its name first.
func exported(p *types.Package) (lines []string) {
	of := strings.TrimPrefix(p.Path(), module)
	add := func(name string, words ...string) { lines = append(lines, of+"."+name+" "+strings.Join(words, " ")) }
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		switch o := object.(type) {
		case *types.Const:
			add(name, "const", typeText(o.Type()), "=", o.Val().ExactString())
		case *types.Var:
			add(name, "var", typeText(o.Type()))
		case *types.Func:
			add(name, typeText(o.Type()))
		case *types.TypeName:
			named, ok := o.Type().(*types.Named)
			if !ok { // an alias
				add(name, "=", typeText(o.Type()))
				continue
			}
			kind := typeText(named.Underlying())
			if s, ok := named.Underlying().(*types.Struct); ok {
				kind = "struct"
				for f := range s.Fields() {
					if f.Exported() {
						add(name+"."+f.Name(), typeText(f.Type()))
					}
				}
			}
			add(name, "type", paramsText(named.TypeParams())+kind)
			if types.IsInterface(named) {
				continue // its methods are its kind
			}
			for m := range types.NewMethodSet(types.NewPointer(named)).Methods() {
				if m.Obj().Exported() {
					add(name+"."+m.Obj().Name(), typeText(m.Obj().Type()))
				}
			}
			for m := range types.NewMethodSet(named).Methods() {
				if m.Obj().Exported() {
					add(name+"."+m.Obj().Name(), "also without a pointer")
				}
			}
		}
	}
	return lines
}

// typeText is a type without the names of parameters, which may change.
func typeText(t types.Type) string {
	switch t := t.(type) {
	case *types.Signature:
		params := tupleText(t.Params())
		if t.Variadic() {
			params += "..."
		}
		return "func" + paramsText(t.TypeParams()) + "(" + params + ") (" + tupleText(t.Results()) + ")"
	case *types.Pointer:
		return "*" + typeText(t.Elem())
	case *types.Slice:
		return "[]" + typeText(t.Elem())
	case *types.Map:
		return "map[" + typeText(t.Key()) + "]" + typeText(t.Elem())
	case *types.Interface:
		var parts []string
		for m := range t.Methods() {
			parts = append(parts, m.Name()+" "+typeText(m.Type()))
		}
		if !t.IsMethodSet() { // a constraint
			for e := range t.EmbeddedTypes() {
				parts = append(parts, typeText(e))
			}
		}
		return "interface{" + strings.Join(parts, "; ") + "}"
	}
	return types.TypeString(t, func(p *types.Package) string { return strings.TrimPrefix(p.Path(), module) })
}

func tupleText(t *types.Tuple) string {
	var parts []string
	for v := range t.Variables() {
		parts = append(parts, typeText(v.Type()))
	}
	return strings.Join(parts, ", ")
}

func paramsText(list *types.TypeParamList) string {
	var parts []string
	for p := range list.TypeParams() {
		parts = append(parts, typeText(p)+" "+typeText(p.Constraint()))
	}
	if parts == nil {
		return ""
	}
	return "[" + strings.Join(parts, ", ") + "] "
}
