package repo

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// parse reads the files of a package, those of tests left out.
func parse(t *testing.T, set *token.FileSet, p pkg) (parsed []*ast.File) {
	t.Helper()
	for _, name := range p.GoFiles {
		f := require.Get(parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.ParseComments))(t)
		parsed = append(parsed, f)
	}
	return parsed
}

// shownOf is what users of a package see of it.
func shownOf(t *testing.T, p pkg) *doc.Package {
	t.Helper()
	set := token.NewFileSet()
	return require.Get(doc.NewFromFiles(set, parse(t, set, p), p.ImportPath))(t)
}

// selfEvident are methods whose meaning is fixed by an interface of the standard library.
var selfEvident = []string{"Error", "String", "Unwrap", "LogValue", "ServeHTTP"}

// Each package has one comment, and what it exports has one too.
func TestExportedThingsAreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // only tests, or only files for other systems
		}
		d := shownOf(t, p)
		want := map[bool]string{false: "Package " + p.Name + " ", true: "Command "}[p.Name == "main"]
		assert.That(t, strings.Count("\n"+d.Doc, "\n"+want) == 1 && strings.HasPrefix(d.Doc, want),
			"the package comment of %s begins %.40q, want %q, once", p.path(), d.Doc, want)
		if p.Name == "main" {
			continue // nobody can import it
		}
		values, funcs := slices.Concat(d.Consts, d.Vars), d.Funcs
		told := func(text string, names ...string) {
			assert.That(t, text != "", "%s: exported %v has no comment", p.path(), names)
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

// leastExamples is how many examples a user of the library can read and trust, because they run.
const leastExamples = 30

// Given the packages that a library user imports, then enough examples run on servers, and what pkg.go.dev shows of
// each is whole: it shows a file, imports included, when one example stands in it beside something else.
func TestExamplesOfTheLibraryRunAndAreWhole(t *testing.T) {
	run := 0
	for name, f := range testFiles(t) {
		examples := doc.Examples(f)
		if !slices.Contains(public, path.Dir(name)) || path.Dir(name) == "consumer/consumertest" {
			continue
		}
		for _, example := range examples {
			if example.Output == "" && !example.EmptyOutput {
				continue
			}
			run++
			assert.That(t, len(examples) == 1 && example.Play != nil,
				"what is shown of Example%s in %s is not whole: nothing stands beside it", example.Name, name)
		}
	}
	assert.That(t, run >= leastExamples, "%d examples are run, want %d at least", run, leastExamples)
}

// testFiles are the files of the tests, parsed, by their paths.
func testFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	all := map[string]*ast.File{}
	for _, name := range files(t, "_test.go") {
		f := require.Get(parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), name), nil, parser.ParseComments))(t)
		all[name] = f
	}
	return all
}

// public are the packages whose verbs a library user calls.
var public = []string{"admin", "consumer", "consumer/consumertest", "outbox", "outbox/relay", "dedup", "deadletter",
	"lock", "stock"}

// unshown are verbs that no user calls, by who does; a star stands for all that begin so.
var unshown = map[string]string{
	"the engine calls its Handler and its Locker": "consumer.Mux.* lock.None.* lock.NamesOf",
	"package consumertest is their door":          "consumer.NewRehearsal dedup.NewMemory",
	"package admin and the daemon are its door":   "consumer.Consumer.Rehearse",
	"the engine and the tools of this module move rows, as the comment of package dedup says": "dedup.Log.* " +
		"dedup.CheckSets dedup.Tables dedup.Cooling.* dedup.Field.In " +
		"dedup.Identity.Compare dedup.Row.ReplayToken",
	"commands, pages and API look at sets, rows and the queue": "deadletter.Fingerprint deadletter.Signature " +
		"deadletter.Letters.CountSet deadletter.Letters.AsSent deadletter.Letters.Original deadletter.SentAnew " +
		"deadletter.WasSentAnew deadletter.Letters.JudgeSet deadletter.Letters.Look deadletter.Letters.Missing " +
		"deadletter.Letters.Queued deadletter.Letters.Reasons deadletter.Letters.Remembers deadletter.Letters.Survey " +
		"deadletter.Letters.Sweep deadletter.Letters.UnknownQueue stock.Negative stock.LockReservationsOf stock.Reservations",
	"whoever writes a lock reads package locktest": "lock.Over lock.ReadHeld lock.ReadState",
	"it is NewRedis for several clients":           "lock.NewRedlock",
	"package json calls it":                        "outbox.Headers.*",
}

// Given the packages that a library user imports, then pkg.go.dev shows an example beside each function and method that
// takes an argument, or another example calls it, or nobody but this module does. Those without one are accessors.
func TestEveryVerbHasAnExample(t *testing.T) {
	named, calls := map[string]bool{}, []map[string]bool{} // by package and name; of each file with examples
	for name, f := range testFiles(t) {
		folder := path.Dir(name)
		examples := doc.Examples(f)
		if !slices.Contains(public, folder) || len(examples) == 0 {
			continue
		}
		for _, e := range examples {
			named[folder+".Example"+regexp.MustCompile(`_[a-z]\w*$`).ReplaceAllString(e.Name, "")] = true
		}
		of := map[string]bool{folder: true}
		for _, spec := range f.Imports {
			of[strings.TrimPrefix(strings.Trim(spec.Path.Value, `"`), module)] = true
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				of["."+sel.Sel.Name] = true
			}
			return true
		})
		calls = append(calls, of)
	}
	verbs, excused := 0, map[string]bool{} // by what stands in unshown
	excuses := strings.Fields(strings.Join(slices.Collect(maps.Values(unshown)), " "))
	for _, p := range packages(t) {
		if !slices.Contains(public, p.path()) {
			continue
		}
		d := shownOf(t, p)
		funcs := d.Funcs
		for _, typ := range d.Types {
			funcs = slices.Concat(funcs, typ.Funcs, typ.Methods)
		}
		for _, f := range funcs {
			if f.Level > 0 || f.Decl.Type.Params.NumFields() == 0 || slices.Contains(selfEvident, f.Name) {
				continue
			}
			verbs++
			verb, example := p.path()+"."+f.Name, p.path()+".Example"+f.Name
			if f.Recv != "" {
				of := strings.Trim(f.Recv, "*")
				verb, example = p.path()+"."+of+"."+f.Name, p.path()+".Example"+of+"_"+f.Name
			}
			if named[example] || slices.ContainsFunc(calls, func(of map[string]bool) bool {
				return of[p.path()] && of["."+f.Name]
			}) {
				continue
			}
			i := slices.IndexFunc(excuses, func(of string) bool {
				begin, all := strings.CutSuffix(of, "*")
				return verb == of || all && strings.HasPrefix(verb, begin)
			})
			if i < 0 {
				t.Errorf("%s has no example: write %s, or say in unshown why not", verb, example)
				continue
			}
			excused[excuses[i]] = true
		}
	}
	for _, of := range excuses {
		assert.That(t, excused[of], "unshown has %s, which is shown, or is no verb", of)
	}
	assert.That(t, verbs >= 100, "only %d verbs were looked at", verbs)
}

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
