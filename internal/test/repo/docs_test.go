package repo

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

// shownOf is what users of a package see of it, and its files.
func shownOf(t *testing.T, p pkg) (*doc.Package, []*ast.File) {
	t.Helper()
	set := token.NewFileSet()
	parsed := parse(t, set, p)
	d := require.Get(doc.NewFromFiles(set, parsed, p.ImportPath))(t)
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
		f := require.Get(parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), name), nil, parser.ParseComments))(t)
		all[name] = f
	}
	return all
}

// public are the packages whose verbs a library user calls.
var public = []string{"admin", "consumer", "consumer/consumertest", "outbox", "outbox/relay", "dedup", "deadletter",
	"lock", "stock"}

// shownBy are verbs without an example of their own, by the one that calls them.
var shownBy = map[string]string{
	"admin.ExampleOpen":         "admin.Site.Run",
	"consumer.ExampleMalformed": "consumer.IsPermanent",
	"consumer.ExampleJSONBatch": "consumer.Except",
	"consumer.ExampleWith":      "consumer.Logged consumer.Recover",
	"consumer.ExampleCallMeans": "consumer.Unavailable consumer.Unanswered consumer.Misconfigured",
	"consumer.ExampleOpen":      "consumer.Consumer.Run",
	"consumer.ExampleOpenAll":   "consumer.Consumers.Run",
	"outbox.ExampleMigrate":     "outbox.CheckSchema",
	"outbox.ExampleRows_List":   "outbox.Rows.Show outbox.Rows.Survey outbox.Rows.Retry outbox.Rows.Drop",
	"outbox/relay.ExampleNew":   "outbox/relay.Relay.Run consumer.Config.Relay",
	"dedup.ExampleMigrate":      "dedup.Open dedup.MigrationStatus",
	"consumer.ExampleConfig_LogOptions": "dedup.NewLog dedup.Log.CheckSchema dedup.Log.Read dedup.Log.LookUp " +
		"dedup.Log.List dedup.Log.Events",
	"deadletter.ExampleLetters_Compensate": "deadletter.New dedup.Log.Campaign",
	"deadletter.ExampleLetters_Export":     "deadletter.ParseLine",
	"deadletter.ExampleLetters_List":       "consumer.Config.Letters",
	"deadletter.ExampleNewWebhook":         "deadletter.VerifySignature deadletter.Webhook.Notify",
	"lock.ExampleNewRedis":                 "lock.OpenRedis lock.Redis.Lock lock.Redis.Release lock.NameOf",
	"stock.ExampleRollback":                "stock.ReservationsOf",
}

// unshown are verbs that no user calls, by who does; a star stands for all that begin so.
var unshown = map[string]string{
	"the engine calls its Handler and its Locker": "consumer.HandlerFunc.* consumer.Mux.* lock.None.* lock.NamesOf",
	"package consumertest is their door":          "consumer.NewRehearsal consumer.Rehearsal.* dedup.NewMemory",
	"package admin and the daemon are its door":   "consumer.Consumer.Rehearse",
	"outbox.Put calls it":                         "consumer/consumertest.Outbox.ExecContext",
	"the engine and the tools of this module move rows, as the comment of package dedup says": "dedup.Log.* " +
		"dedup.Campaign dedup.CheckSchema dedup.CheckSets dedup.Tables dedup.Cooling.* dedup.Field.In " +
		"dedup.Identity.Compare dedup.Row.ReplayToken",
	"commands, pages and API look at sets, rows and the queue": "deadletter.Fingerprint deadletter.Signature " +
		"deadletter.Letters.CountSet deadletter.Letters.AsSent deadletter.Letters.Original deadletter.SentAnew " +
		"deadletter.WasSentAnew deadletter.Letters.JudgeSet deadletter.Letters.Look deadletter.Letters.Missing " +
		"deadletter.Letters.Queued deadletter.Letters.Reasons deadletter.Letters.Remembers deadletter.Letters.Survey " +
		"deadletter.Letters.Sweep deadletter.Letters.UnknownQueue stock.Negative stock.LockReservationsOf stock.Reservations",
	"whoever writes a lock reads package locktest": "lock.Over lock.ReadHeld lock.ReadState",
	"it is NewRedis for several clients":           "lock.NewRedlock",
}

// Given the packages that a library user imports, then pkg.go.dev shows an example beside each function and method that
// takes an argument, or another example calls it, or nobody but this module does. Those without one are accessors.
func TestEveryVerbHasAnExample(t *testing.T) {
	named, calls := map[string]bool{}, map[string]string{} // by package and name
	for name, f := range testFiles(t) {
		if !slices.Contains(public, path.Dir(name)) {
			continue
		}
		for _, e := range doc.Examples(f) {
			name := path.Dir(name) + ".Example" + e.Name
			if _, suffix, ok := cutLast(name, "_"); ok && suffix != "" && !ast.IsExported(suffix) {
				name = strings.TrimSuffix(name, "_"+suffix)
			}
			named[name] = true
			ast.Inspect(f, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					calls[name] += " " + sel.Sel.Name + " "
				}
				return true
			})
		}
	}
	shown := map[string]bool{}
	for example, verbs := range shownBy {
		for verb := range strings.FieldsSeq(verbs) {
			shown[verb] = true
			if _, name, _ := cutLast(verb, "."); !strings.Contains(calls[example], " "+name+" ") {
				t.Errorf("%s does not call %s", example, verb)
			}
		}
	}
	verbs, excused := 0, map[string]bool{} // by what stands in unshown
	excuses := strings.Fields(strings.Join(slices.Collect(maps.Values(unshown)), " "))
	for _, p := range packages(t) {
		if !slices.Contains(public, p.path()) {
			continue
		}
		d, _ := shownOf(t, p)
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
			if named[example] || shown[verb] {
				continue
			}
			i := slices.IndexFunc(excuses, func(of string) bool {
				begin, all := strings.CutSuffix(of, "*")
				return verb == of || all && strings.HasPrefix(verb, begin)
			})
			if i < 0 {
				t.Errorf("%s has no example: write %s, or say in shownBy or unshown why not", verb, example)
				continue
			}
			excused[excuses[i]] = true
		}
	}
	for _, of := range excuses {
		if !excused[of] {
			t.Errorf("unshown has %s, which is shown, or is no verb", of)
		}
	}
	if verbs < 100 {
		t.Errorf("only %d verbs were looked at", verbs)
	}
}

// cutLast is strings.Cut at the last sep.
func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
