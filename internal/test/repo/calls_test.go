package repo

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given the files of package consumer, when a function of one uses a function of another, then no function of that one
// uses one of the first, directly or through others: who reads the engine from top to bottom is never sent back up.
func TestNoFileOfTheEngineCallsOneThatCallsIt(t *testing.T) {
	const path = "consumer"
	fset := token.NewFileSet()
	all := packages(t)
	files := parse(t, fset, all[slices.IndexFunc(all, func(p pkg) bool { return p.path() == path })])
	found := types.Info{Uses: map[*ast.Ident]types.Object{}}
	check := types.Config{Importer: compiled(t, fset, module+path)}
	pkg := require.Get(check.Check(module+path, fset, files, &found))(t)
	// The functions and methods that each file uses of each other one, one for each pair, with who uses it.
	calls := map[string]map[string]string{}
	for used, object := range found.Uses {
		f, ok := object.(*types.Func)
		if !ok || f.Pkg() != pkg {
			continue
		}
		at := fset.Position(used.Pos())
		from, to := filepath.Base(at.Filename), filepath.Base(fset.Position(f.Pos()).Filename)
		if from == to {
			continue
		}
		if calls[from] == nil {
			calls[from] = map[string]string{}
		}
		calls[from][to] = f.Name() + " in line " + strconv.Itoa(at.Line)
	}
	n := len(calls["life.go"])
	require.That(t, n >= 5, "life.go calls functions of %d other files, which cannot be", n)
	var goDown func(file string, way []string)
	done := map[string]bool{}
	goDown = func(file string, way []string) {
		require.That(t, !slices.Contains(way, file),
			"these calls go round; move a function to the file that uses it, or below all who do: %q", way)
		for to, call := range calls[file] {
			if !done[to] {
				goDown(to, append(slices.Clip(way), file, call))
			}
		}
		done[file] = true
	}
	for file := range calls {
		goDown(file, nil)
	}
}
