package repo

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/token"
	"go/types"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const module = "github.com/rollbackd/rollbackd/"

// arrow says which packages of ours a package may import, besides those below itself, and why no others.
type arrow struct{ from, to, why string }

var arrows = []arrow{
	{"stock", "", "a shop that only reserves stock must not link a broker's or Redis's client, and the domain must " +
		"stand without the engine"},
	{"internal/limits", "", "numbers that everybody shares: what they are numbers of is told where they are used"},
	{"internal/certs", "", "what is wrong with a certificate is the same whatever protocol is spoken above it"},
	{"internal/mysqldb", "internal/certs", "what is true of the servers and their driver holds whatever tables they have"},
	{"dedup", "internal/limits internal/mysqldb",
		"an identity and its row mean the same whatever brings the message; the log is tested without a broker"},
	{"outbox/relay", "outbox internal/certs internal/mysqldb internal/rabbit internal/wait",
		"it sends rows; what becomes of a message at its consumer is the engine's"},
	{"outbox", "dedup internal/mysqldb", "a service that puts messages must not link a client of the broker or of Redis"},
	{"internal/redisdb", "internal/certs", "how Redis is reached knows nothing of what is kept there"},
	{"lock/locktest", "internal/redisdb internal/test/assert internal/test/poll internal/test/require lock",
		"it is a test, whoever runs it"},
	{"lock", "internal/redisdb",
		"a lock knows names and tokens: a backend over another server must be possible without engine, log or broker"},
	{"internal/lockers", "internal/mysqldb internal/redisdb lock",
		"a lock on other servers is what it sends to them; what its answers mean for a message is the engine's"},
	{"internal/fold", "", "a log is written whatever else works, so its handler must need nothing of it"},
	{"internal/wait", "", "everybody may import it, so it can know nobody"},
	{"internal/rabbit", "internal/certs",
		"delivering and confirming know no identity, so no rule about duplicates can hide there"},
	{"internal/strictjson", "", "a key and a message are read by the same rules, which know neither"},
	{"internal/wire", "dedup internal/rabbit internal/strictjson",
		"what a message says of itself depends on no configuration and no engine"},
	{"consumer/internal/decide", "dedup", "what becomes of a message must be tried without a server"},
	{"consumer/internal/admission", "consumer/internal/decide dedup internal/mysqldb",
		"what the workers know together of trouble must be tried without a server"},
	{"consumer/internal/runner", "", "what runs the code of a handler outlives whatever that does"},
	{"consumer/internal/check", "", "what is told to a developer must not weigh on what is done"},
	{"consumer/consumertest", "consumer deadletter dedup internal/mysqldb internal/rabbit lock outbox",
		"what a test sees must be the engine's own: it gives it a database, a clock and queues, and decides nothing"},
	{"consumer", "deadletter dedup internal/certs internal/operator internal/wait internal/limits internal/lockers " +
		"internal/mysqldb lock internal/rabbit internal/strictjson internal/wire outbox", "it serves any handler: it must " +
		"not know stock, nor read the environment; letters, keeper and relay it only sets up"},
	{"deadletter", "dedup internal/certs internal/mysqldb internal/rabbit internal/wire",
		"letters are replayed while no engine runs, by the command line too, so they must not need one"},
	{"internal/operator", "deadletter dedup internal/mysqldb internal/rabbit internal/screen internal/wire lock outbox " +
		"stock", "a person's act must be the same from a page, a program and a command, so it knows none of them; nor the " +
		"engine, which it could change, and whatever a delivery needs to end may not be here"},
	{"docs", "", "it holds a document, and knows nobody"},
	{"internal/admin", "deadletter dedup docs internal/operator internal/screen internal/strictjson outbox",
		"a page shows and moves letters and rows; reaching into the engine, it could change what is being processed"},
	{"internal/config", "consumer dedup internal/certs internal/limits internal/lockers internal/mysqldb " +
		"internal/rabbit internal/redisdb internal/wire lock outbox stock",
		"it makes one plain Config for each package, whatever page or command asks for it; packages that imported it " +
			"would force environment variables on library users"},
	{"internal/handler/stock", "consumer internal/strictjson outbox stock",
		"it is the only package between the domain and the engine, so that neither comes to know the other"},
	{"internal/handler/sql", "consumer internal/mysqldb internal/strictjson",
		"it knows the transaction that it is given and the message; what a setting or a queue is called it must not know"},
	{"internal/handler/http", "consumer deadletter dedup internal/certs internal/wire",
		"it knows one request and its answer, signed as the webhook's are; what becomes of the message is the engine's"},
	{"internal/handler", "consumer internal/config internal/mysqldb internal/rabbit stock",
		"it makes a handler of settings, and no more: whatever needs rows or letters is what the handlers are called by"},
	{"internal/store", "consumer deadletter dedup internal/lockers internal/operator internal/rabbit lock outbox/relay",
		"commands and pages read the same log in the same way, so it knows neither; of the engine, whose pool is its own, " +
			"it knows the Config, and where that comes from it does not"},
	{"internal/site", "consumer internal/admin internal/operator internal/store",
		"a daemon and a program with pages of its own answer alike, so it knows no settings"},
	{"admin", "consumer internal/site internal/store",
		"it is what a library user mounts, in the place of a daemon, so it knows no settings"},
	{"internal/daemon", "consumer deadletter internal/config internal/handler internal/legacyimport internal/mysqldb " +
		"internal/operator internal/site internal/store internal/telemetry",
		"it joins what a library user joins by hand: settings, handler, engine and pages"},
	{"internal/telemetry", "", "it makes what takes spans; whoever makes spans must not need it"},
	{"internal/rights", "internal/rabbit",
		"the list is made of names alone: whoever wants to know must not need a server or a setting"},
	{"internal/doctor", "consumer internal/admin internal/legacyimport internal/config internal/operator " +
		"internal/handler/sql internal/handler/http internal/lockers internal/mysqldb internal/rights internal/store " +
		"outbox dedup lock internal/certs internal/rabbit internal/redisdb", "it looks at servers from outside, and asks " +
		"a daemon over HTTP; a check that went through the engine would fail with what it is to find"},
	{"internal/shovel", "internal/rabbit internal/wire", "it carries messages from queue to queue: whatever a row says " +
		"must not matter to it, so that it runs beside anybody"},
	{"internal/screen", "", "it writes for a screen whatever it is given"},
	{"internal/legacyimport", "dedup internal/mysqldb", "it reads a table of somebody else's and writes through the " +
		"log's guarded steps; broker and messages are not its business"},
	{"cmd", "internal/cli", "the design's name and the program's own name are the same program"},
	{"internal/cli", "consumer deadletter dedup internal/admin internal/config internal/daemon internal/doctor " +
		"internal/fold internal/handler internal/legacyimport internal/mysqldb internal/operator internal/rabbit " +
		"internal/screen internal/shovel internal/store internal/strictjson internal/wire outbox",
		"it parses, prints and exits; what a page could want too may not be there"},
	{"internal/test/stack", "internal/test/assert internal/test/must internal/test/poll internal/test/program " +
		"internal/test/require",
		"it is used by the tests of all others and must not be judged by the code it tests; the binary never links it"},
	{"internal/test/oracle", "dedup internal/rabbit internal/wire internal/test/must",
		"it judges runs with statements of its own and borrows no more of the product than how a message is named"},
	{"internal/test/shop", "internal/test/oracle internal/test/must internal/rabbit outbox stock",
		"it makes what a shop's services would make: orders, reservations and messages"},
	{"internal/test/letters", "internal/test consumer deadletter dedup internal/rabbit internal/wire stock",
		"it makes logs, queues and letters as services and daemons do, and leaves the verdict to the tests that use it"},
	{"internal/test/example/producer", "internal/test/example internal/test/must internal/test/poll consumer dedup " +
		"internal/rabbit",
		"it stands behind the examples that consume, so that they show nothing but what a user would write"},
	{"internal/test/example", "internal/test/stack internal/test/must",
		"it stands behind the examples: those of a package that consumes nothing must not link, and compile, who does"},
	{"internal/test/poll", "", "everybody's tests may use it, those of the rig too"},
	{"internal/test/golden", "internal/test/require", "everybody's tests may use it"},
	{"internal/test/grants", "internal/rights", "everybody's tests may use it"},
	{"internal/test/assert", "", "everybody's tests may use it"},
	{"internal/test/require", "", "everybody's tests may use it, those of the rig too"},
	{"internal/test/must", "", "everybody of the rig may stop at what cannot be done, and nobody else"},
	{"internal/test/program", "internal/test/poll", "it runs the real binary from outside, as a user does"},
	{"internal/test/chaos", "internal/test/stack internal/test/oracle internal/test/program internal/test/must " +
		"internal/test/poll internal/test/shop dedup internal/rabbit internal/wire", "it treats the binary and its " +
		"servers badly, from outside, and leaves the verdict to the oracle; of the log it knows the reasons by name"},
	{"internal/cmd/size", "", "it counts lines, and knows none of them"},
	{"internal/cmd/chaos", "internal/test", "it parses the command line of a run and prints its verdict"},
	{"internal/cmd/with-servers", "internal/test/program internal/test/stack",
		"it shares one set of servers among a run's test binaries"},
	{"internal/cmd/demo", "internal/test/chaos internal/test/stack internal/test/oracle internal/test/program " +
		"internal/test/must internal/test/poll internal/test/shop internal/daemon internal/config consumer deadletter " +
		"dedup internal/rabbit internal/wire outbox stock", "it shows what a user does, with servers of its own"},
	{"internal/test/prometheus", "", "its tests look at the real binary through a real Prometheus"},
	{"internal/test/repo", "", "it looks at the repository from outside"},
	{"deploy", "consumer outbox stock",
		"files to deploy, tests that they are true, and examples, which import what a shop would"},
}

// bans are modules which a package must not link, not even through others.
var bans = []struct{ from, modules, why string }{
	{"stock", "github.com/rabbitmq/amqp091-go github.com/redis/go-redis/v9", "the domain has no broker and no lock"},
	{"dedup", "github.com/rabbitmq/amqp091-go github.com/redis/go-redis/v9", "the log knows no AMQP and no lock"},
	{"internal/mysqldb", "github.com/rabbitmq/amqp091-go github.com/redis/go-redis/v9", "a database knows neither"},
	{"internal/redisdb", "gorm.io/gorm github.com/rabbitmq/amqp091-go", "Redis is no database of tables, and no broker"},
	{"lock", "gorm.io/gorm github.com/rabbitmq/amqp091-go", "the lock knows no log and no broker"},
	{"internal/rabbit", "gorm.io/gorm github.com/redis/go-redis/v9", "the broker's side has no database and no lock"},
	{"cmd/rollbackd", module + "lock/locktest " + module + "internal/test/stack " + module + "consumer/consumertest " +
		"testing go.uber.org/goleak pgregory.net/rapid", "tests and their servers are no part of the product"},
}

// pkg is what go list says of a package.
type pkg struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	Imports    []string // direct ones of the files that are no tests
	Deps       []string // all, through others too
}

func (p pkg) path() string { return strings.TrimPrefix(p.ImportPath, module) }

// listed is what go list says of the packages of this module. One that does not build is listed too: the build says
// what is wrong with it.
var listed = sync.OnceValues(func() (all []pkg, err error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Dir = top()
	out, err := cmd.Output()
	for d := json.NewDecoder(bytes.NewReader(out)); err == nil && d.More(); {
		var p pkg
		err = d.Decode(&p)
		all = append(all, p)
	}
	return all, err
})

func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listed()
	require.That(t, err == nil && len(all) > 0, "go list found %d packages: %v", len(all), err)
	return all
}

// within reports whether path is the package or one below it.
func within(path, parent string) bool { return path == parent || strings.HasPrefix(path, parent+"/") }

// What joins packages stays a list that is read at once: who needs an eleventh of ours lets one of them join some.
func TestImportsFollowTheArrowsAndNobodyLinksWhatIsBanned(t *testing.T) {
	ofAMQP := []string{"internal/rabbit", "internal/test/stack"} // whose tests must not be judged by what they test
	for _, p := range packages(t) {
		i := slices.IndexFunc(arrows, func(a arrow) bool { return within(p.path(), a.from) })
		require.That(t, i >= 0, "%s has no arrow: add to arrows what it may import and why no more", p.path())
		var all []string
		for _, dep := range p.Imports {
			to, ours := strings.CutPrefix(dep, module)
			if ours {
				all = append(all, to)
			}
			may := !ours || within(to, arrows[i].from) || to == "internal/wait" || slices.ContainsFunc(
				strings.Fields(arrows[i].to), func(allowed string) bool { return within(to, allowed) })
			assert.That(t, may, "%s must not import %s: %s", p.path(), to, arrows[i].why)
		}
		joins := within(p.path(), "internal/daemon") || within(p.path(), "internal/cli")
		assert.That(t, !joins || len(all) <= 10, "%s imports %d packages of ours: %v", p.path(), len(all), all)
		for _, ban := range bans {
			for of := range strings.FieldsSeq(ban.modules) {
				links := slices.ContainsFunc(p.Deps, func(dep string) bool { return within(dep, of) })
				assert.That(t, !links || !within(p.path(), ban.from),
					"%s must not depend on %s, not even through others: %s", p.path(), of, ban.why)
			}
		}
		assert.That(t, !slices.Contains(p.Imports, "github.com/rabbitmq/amqp091-go") || slices.Contains(ofAMQP, p.path()),
			"%s must not import the AMQP client: its pitfalls are handled once, in internal/rabbit", p.path())
	}
}

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
