package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is one parsed file of a package, which is no test.
type file struct {
	path   string
	syntax *ast.File
}

func parse(t *testing.T, fset *token.FileSet, p pkg) []file {
	t.Helper()
	var files []file
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		syntax, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		files = append(files, file{p.path() + "/" + name, syntax})
	}
	return files
}

func TestEachPackageHasOneDocComment(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // only tests, or only files for other systems
		}
		var documented []string
		for _, f := range parse(t, token.NewFileSet(), p) {
			if f.syntax.Doc == nil {
				continue
			}
			documented = append(documented, f.path)
			want := "Package " + p.Name + " "
			if p.Name == "main" {
				want = "Command "
			}
			if text := f.syntax.Doc.Text(); !strings.HasPrefix(text, want) {
				t.Errorf("the package comment in %s begins %.40q, want %q", f.path, text, want)
			}
		}
		if len(documented) != 1 {
			t.Errorf("%s has %d package comments %v, want one", p.path(), len(documented), documented)
		}
	}
}

// selfEvident are methods whose meaning is fixed by an interface of the standard library.
var selfEvident = []string{"Error", "String", "Unwrap", "LogValue", "ServeHTTP"}

func TestExportedThingsAreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if p.Name == "main" {
			continue // nobody can import it
		}
		fset := token.NewFileSet()
		for _, f := range parse(t, fset, p) {
			for _, decl := range f.syntax.Decls {
				for _, id := range undocumented(decl) {
					t.Errorf("%s:%d: exported %s has no comment", f.path, fset.Position(id.Pos()).Line, id.Name)
				}
			}
		}
	}
}

// undocumented are the exported names of a declaration at package level which no comment is about.
func undocumented(decl ast.Decl) (ids []*ast.Ident) {
	missing := func(id *ast.Ident, docs ...*ast.CommentGroup) {
		if id.IsExported() && !slices.ContainsFunc(docs, func(doc *ast.CommentGroup) bool { return doc.Text() != "" }) {
			ids = append(ids, id)
		}
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil && (!receiver(d).IsExported() || slices.Contains(selfEvident, d.Name.Name)) {
			return nil
		}
		missing(d.Name, d.Doc)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				missing(s.Name, d.Doc, s.Doc, s.Comment)
			case *ast.ValueSpec: // one comment may be about a whole group of values
				for _, id := range s.Names {
					missing(id, d.Doc, s.Doc, s.Comment)
				}
			}
		}
	}
	return ids
}

// receiver is the name of the type a method belongs to.
func receiver(d *ast.FuncDecl) *ast.Ident {
	expr := d.Recv.List[0].Type
	for {
		switch x := expr.(type) {
		case *ast.StarExpr:
			expr = x.X
		case *ast.IndexExpr:
			expr = x.X
		case *ast.IndexListExpr:
			expr = x.X
		case *ast.Ident:
			return x
		default:
			return ast.NewIdent("_")
		}
	}
}

func TestUndocumentedThingsAreFound(t *testing.T) {
	const source = `package p

func Bare() {}

// Told is told.
func Told() {}

type Plain struct{}

func (*Plain) Method()        {}
func (Plain) String() string  { return "" }
func (hidden[T]) Method()     {}

const (
	A = 1 // A is told
	B = 2
)

// The group is told.
var (
	C = 1
	D = 2
)
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range f.Decls {
		for _, id := range undocumented(decl) {
			names = append(names, id.Name)
		}
	}
	if want := []string{"Bare", "Plain", "Method", "B"}; !slices.Equal(names, want) {
		t.Errorf("undocumented: %v, want %v", names, want)
	}
}
