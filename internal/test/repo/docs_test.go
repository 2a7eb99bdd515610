package repo

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// parse reads the files of a package, those of tests left out.
func parse(t *testing.T, set *token.FileSet, p pkg) (parsed []*ast.File) {
	t.Helper()
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	return parsed
}

// shownOf is what users of a package see of it, and its files.
func shownOf(t *testing.T, p pkg) (*doc.Package, []*ast.File) {
	t.Helper()
	set := token.NewFileSet()
	parsed := parse(t, set, p)
	d, err := doc.NewFromFiles(set, parsed, p.ImportPath)
	if err != nil {
		t.Fatal(err)
	}
	return d, parsed
}

func TestEachPackageHasOneDocComment(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // only tests, or only files for other systems
		}
		documented := 0
		for _, f := range parse(t, token.NewFileSet(), p) {
			want := map[bool]string{false: "Package " + p.Name + " ", true: "Command "}[p.Name == "main"]
			if f.Doc != nil {
				documented++
				if text := f.Doc.Text(); !strings.HasPrefix(text, want) {
					t.Errorf("the package comment of %s begins %.40q, want %q", p.path(), text, want)
				}
			}
		}
		if documented != 1 {
			t.Errorf("%s has %d package comments, want one", p.path(), documented)
		}
	}
}

// selfEvident are methods whose meaning is fixed by an interface of the standard library.
var selfEvident = []string{"Error", "String", "Unwrap", "LogValue", "ServeHTTP"}

func TestExportedThingsAreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if p.Name == "main" || len(p.GoFiles) == 0 {
			continue // nobody can import it
		}
		d, _ := shownOf(t, p)
		values, funcs := slices.Concat(d.Consts, d.Vars), d.Funcs
		told := func(text string, names ...string) {
			if text == "" {
				t.Errorf("%s: exported %v has no comment", p.path(), names)
			}
		}
		for _, typ := range d.Types {
			told(typ.Doc, typ.Name)
			values = slices.Concat(values, typ.Consts, typ.Vars)
			funcs = slices.Concat(funcs, typ.Funcs, typ.Methods)
		}
		for _, f := range funcs {
			if f.Recv == "" || f.Level == 0 && !slices.Contains(selfEvident, f.Name) {
				told(f.Doc, f.Recv, f.Name)
			}
		}
		for _, v := range values { // one comment may be about a whole group
			for _, spec := range v.Decl.Specs {
				s := spec.(*ast.ValueSpec)
				told(v.Doc+s.Doc.Text()+s.Comment.Text(), v.Names...)
			}
		}
	}
}

// What a program outside this module can import must not ask it for what it cannot name.
func TestNoInternalTypeStandsInAPublicSignature(t *testing.T) {
	looked := 0
	for _, p := range packages(t) {
		if p.Name == "main" || strings.Contains(p.path()+"/", "internal/") || len(p.GoFiles) == 0 {
			continue
		}
		d, parsed := shownOf(t, p)
		internal := map[string]bool{} // names of packages
		for _, f := range parsed {
			for _, spec := range f.Imports {
				if from := strings.Trim(spec.Path.Value, `"`); strings.Contains(from, "/internal/") {
					name := path.Base(from)
					if spec.Name != nil {
						name = spec.Name.Name
					}
					internal[name] = true
				}
			}
		}
		for _, decl := range publicly(d) {
			looked++
			ast.Inspect(decl, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					if of, ok := sel.X.(*ast.Ident); ok && internal[of.Name] {
						t.Errorf("%s: %s.%s stands in a public signature", p.path(), of.Name, sel.Sel.Name)
					}
				}
				return true
			})
		}
	}
	if looked < 100 {
		t.Errorf("only %d declarations were looked at", looked)
	}
}

// publicly are the declarations that are shown, without bodies, values and fields that are not.
func publicly(d *doc.Package) (decls []ast.Node) {
	values, funcs := slices.Concat(d.Consts, d.Vars), d.Funcs
	for _, typ := range d.Types {
		decls = append(decls, typ.Decl)
		values = slices.Concat(values, typ.Consts, typ.Vars)
		funcs = slices.Concat(funcs, typ.Funcs, typ.Methods)
	}
	for _, f := range funcs {
		decls = append(decls, f.Decl)
	}
	for _, v := range values {
		for _, spec := range v.Decl.Specs {
			if typ := spec.(*ast.ValueSpec).Type; typ != nil {
				decls = append(decls, typ)
			}
		}
	}
	return decls
}

// leastExamples is how many examples a user of the library can read and trust, because they run.
const leastExamples = 12

// Given the packages that a library user imports, then enough examples run on servers, and what pkg.go.dev shows of
// each is whole: it shows a file, imports included, when one example stands in it beside something else.
func TestExamplesOfTheLibraryRunAndAreWhole(t *testing.T) {
	run := 0
	for name, f := range testFiles(t) {
		examples := doc.Examples(f)
		if !slices.Contains([]string{"consumer", "deadletter", "dedup", "stock"}, path.Dir(name)) {
			continue
		}
		for _, example := range examples {
			if example.Output == "" && !example.EmptyOutput {
				continue
			}
			run++
			if len(examples) != 1 || example.Play == nil {
				t.Errorf("what is shown of Example%s in %s is not whole: nothing stands beside it", example.Name, name)
			}
		}
	}
	if run < leastExamples {
		t.Errorf("%d examples are run, want %d at least", run, leastExamples)
	}
}

// testFiles are the files of the tests, parsed, by their paths.
func testFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	all := map[string]*ast.File{}
	for _, name := range files(t, "_test.go") {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = f
	}
	return all
}
