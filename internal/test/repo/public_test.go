package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// What a program outside this module can import must not ask it for what it cannot name.
func TestNoInternalTypeStandsInAPublicSignature(t *testing.T) {
	for _, p := range packages(t) {
		if p.Name == "main" || strings.Contains(p.path()+"/", "internal/") {
			continue
		}
		files := token.NewFileSet()
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			internal := internalImports(f)
			for _, decl := range f.Decls {
				for _, sel := range publicSelectors(decl) {
					if pkg, ok := sel.X.(*ast.Ident); ok && internal[pkg.Name] {
						t.Errorf("%v: %s.%s stands in a public signature", files.Position(sel.Pos()), pkg.Name, sel.Sel.Name)
					}
				}
			}
		}
	}
}

// internalImports are the names under which a file imports packages that nobody outside can.
func internalImports(f *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.Contains(path, "/internal/") {
			continue
		}
		if spec.Name != nil {
			names[spec.Name.Name] = true
		} else {
			names[path[strings.LastIndexByte(path, '/')+1:]] = true
		}
	}
	return names
}

// publicSelectors are the qualified names in what a declaration shows: signatures of exported functions, and the
// exported parts of exported types.
func publicSelectors(decl ast.Decl) (found []*ast.SelectorExpr) {
	look := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && len(field.Names) > 0 && !anyExported(field.Names) && !isParameter(decl) {
				return false
			}
			if sel, ok := n.(*ast.SelectorExpr); ok {
				found = append(found, sel)
			}
			return true
		})
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || receiverIsExported(d.Recv)) {
			look(d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					look(s.Type)
				}
			case *ast.ValueSpec:
				if s.Type != nil && anyExported(s.Names) {
					look(s.Type)
				}
			}
		}
	}
	return found
}

func isParameter(decl ast.Decl) bool {
	_, function := decl.(*ast.FuncDecl)
	return function
}

func anyExported(names []*ast.Ident) bool {
	for _, n := range names {
		if n.IsExported() {
			return true
		}
	}
	return false
}

func receiverIsExported(recv *ast.FieldList) bool {
	typ := recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	name, ok := typ.(*ast.Ident)
	return ok && name.IsExported()
}
