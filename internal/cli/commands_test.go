package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// commandsOf are the blocks of commands of a page that are run here.
func commandsOf(t *testing.T, page string) (blocks []string) {
	t.Helper()
	text := require.Get(os.ReadFile(filepath.Join("..", "..", page)))(t)
	for _, block := range strings.Split(string(text), "<!-- in the test: internal/cli/commands_test.go -->\n```\n")[1:] {
		block, _, _ = strings.Cut(block, "\n```")
		blocks = append(blocks, block)
	}
	return blocks
}

// typed parts a block into what is typed behind "$ ", with the lines that go on with it, and what is then shown.
func typed(block string) (commands, shown string) {
	at := &shown
	for line := range strings.Lines(block + "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			at, line = &commands, command
		} else if !strings.HasPrefix(line, "    ") {
			at = &shown
		}
		*at += line
	}
	return commands, shown
}

var (
	blanks = regexp.MustCompile(`\s+`)
	ids    = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	// swept is 1 where a slow machine has ended a run before its letter was seen to be gone from the queue.
	swept = regexp.MustCompile(`"swept":[01]`)
)

// settled waits for as many messages as its argument says to be applied or dead, and for acts to end. Pages say sleep.
const settled = `
trap 'kill $(jobs -p) 2>/dev/null' EXIT
settled() {
	for i in {1..900}; do
		[[ $(shop -Ne "SELECT SUM(consumer_status IN (1, 3)) = $1 FROM consumer_log") != 1 ||
			$(shop -Ne "SELECT COUNT(*) FROM consumer_log_act WHERE ended_at IS NULL") != 0 ]] || return 0
		command sleep 0.1
	done
	echo "not settled: $1"
	shop -e "SELECT * FROM consumer_log_readable"
}
sleep() { settled "$messages"; }
`

// Given servers of one's own, when the commands of README.md, docs/messages.md, docs/operations.md, docs/api.md,
// docs/handlers.md and docs/settings.md are typed one after the other, then they show what the pages show.
func TestTheCommandsOfThePagesDoWhatTheySay(t *testing.T) {
	s := newShell(t)
	s.track(s.queue, 300*time.Millisecond, 400*time.Millisecond, time.Second, 5*time.Second, 30*time.Second, 2*time.Minute)
	home, c := s.home()
	redis, pages := "", stack.FreeAddr(t)
	require.OK(t, os.Symlink(require.Get(filepath.Abs("../../deploy"))(t), filepath.Join(home, "deploy")))
	var env []string
	for _, setting := range s.environ {
		name, value, _ := strings.Cut(setting, "=")
		switch name {
		case "ROLLBACKD_REDIS_URL":
			redis = value
		case "ROLLBACKD_QUEUE", "ROLLBACKD_EXCHANGE":
			env = append(env, setting)
		}
	}
	here := strings.NewReplacer("make build && export PATH=$PWD/bin:$PATH", ":",
		"amqp://rollbackd:rollbackd@127.0.0.1:5672/", s.broker.URL, "rollbackd:rollbackd@tcp(127.0.0.1:3306)/shop", s.dsn,
		"redis://127.0.0.1:6379/0", redis, "127.0.0.1:8080", pages,
		"mysql -h127.0.0.1 -urollbackd -prollbackd shop", "mysql "+c.DBName)
	env = append(env, "HOME="+home, "PATH="+home+":"+os.Getenv("PATH"), "ROLLBACKD_HTTP_ADDR="+pages)
	types := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
		cmd.Env, cmd.Dir, cmd.Stderr = env, home, t.Output()
		return string(require.Get(cmd.Output())(t))
	}
	shows := func(page, got, want string) {
		t.Helper()
		suffix := strings.TrimPrefix(s.broker.Name("x"), "x")
		plain := func(text string) string {
			return blanks.ReplaceAllString(swept.ReplaceAllString(ids.ReplaceAllString(text, "ID"), "SWEPT"), " ")
		}
		assert.Has(t, plain(strings.ReplaceAll(got, suffix, "")), plain(want), "%s shows something else", page)
	}

	readme := here.Replace(commandsOf(t, "README.md")[0])
	settings, first, _ := strings.Cut(readme, "\n\n")
	settings += settled
	shows("README.md", types(settings+"messages=1\n"+first+"\nwait"), "sku_id amount version 1001 7 1")

	commands, shown := typed(commandsOf(t, "docs/messages.md")[0])
	shows("docs/messages.md", types(settings+commands), shown)
	commands, _ = typed(commandsOf(t, "docs/settings.md")[0])
	shows("docs/settings.md", types(settings+commands), "ROLLBACKD_MYSQL_DSN")
	shows("docs/operations.md", types(settings+"rollbackd run &\nmessages=2\n"+commandsOf(t, "docs/operations.md")[0]+`
settled 2; kill %1; wait; shop -Ne "SELECT CONCAT('stock ', amount) FROM stock"`), "stock 9")

	api := settings + "messages=3\n"
	want := ""
	for i, block := range commandsOf(t, "docs/api.md") {
		if i > 0 {
			block, shown = typed(block)
			want += shown
		}
		api += here.Replace(block) + "\nsettled 3\n"
	}
	shows("docs/api.md", types(api+"kill %1; wait"), want)

	commands, shown = typed(commandsOf(t, "docs/handlers.md")[0])
	shows("docs/handlers.md", types(settings+`export ROLLBACKD_HANDLER=sql
export ROLLBACKD_SQL_FILE=deploy/examples/sql/order-state/handler.sql
shop <deploy/examples/sql/order-state/tables.sql
`+commands), shown)
}

// commandsOfBackup are the blocks that docs/operations.md shows for backup and restore.
func commandsOfBackup(t *testing.T) (backup, restore, resend, export, imported string) {
	page := require.Get(os.ReadFile(filepath.Join("..", "..", "docs", "operations.md")))(t)
	blocks := strings.Split(string(page), "<!-- in the test: internal/cli/commands_test.go -->\n```sh\n")[1:]
	require.Is(t, len(blocks), 5, "the page has blocks of commands for backup and restore")
	for i := range blocks {
		blocks[i], _, _ = strings.Cut(blocks[i], "```")
	}
	return blocks[0], blocks[1], blocks[2], blocks[3], blocks[4]
}

// restorer types commands in a shell, with mysql and rollbackd at hand.
type restorer struct {
	s       *shell
	environ []string
	home    string
}

// home is a folder with the program and the login of a client of MySQL, who is at c.
func (s *shell) home() (home string, c *mysql.Config) {
	home, c = s.t.TempDir(), require.Get(mysql.ParseDSN(s.dsn))(s.t)
	host, port, _ := strings.Cut(c.Addr, ":")
	mine := fmt.Sprintf("[client]\nhost=%s\nport=%s\nprotocol=tcp\nuser=%s\npassword=%s\n", host, port, c.User, c.Passwd)
	require.OK(s.t, os.Symlink(program.Shared(s.t), filepath.Join(home, "rollbackd")),
		os.WriteFile(filepath.Join(home, ".my.cnf"), []byte(mine), 0o600))
	return home, c
}

func newRestorer(t *testing.T, s *shell) *restorer {
	home, c := s.home()
	o := &restorer{s: s, home: home}
	o.environ = append([]string{"HOME=" + o.home, "PATH=" + o.home + ":" + os.Getenv("PATH"), "SCHEMA=" + c.DBName},
		s.environ...)
	var server string
	require.OK(t, s.db().QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&server))
	client, err := exec.CommandContext(t.Context(), "mysqldump", "--version").CombinedOutput()
	if err != nil || strings.Contains(server, "MariaDB") != strings.Contains(string(client), "MariaDB") {
		t.Skipf("this machine has no mysqldump of the server's own (%s): %s, %v", server, client, err)
	}
	return o
}

// does runs commands in a shell, which ends at the first that fails.
func (o *restorer) does(commands string, wantCode int) {
	o.s.t.Helper()
	cmd := exec.CommandContext(o.s.t.Context(), "bash", "-e", "-c", commands)
	cmd.Env, cmd.Dir = o.environ, o.home
	if out, err := cmd.CombinedOutput(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != wantCode {
		o.s.t.Fatalf("%s: %v, want exit %d\n%s", commands, err, wantCode, out)
	}
}

// finds holds what reconcile finds against kinds and how many there are of each.
func (s *shell) finds(when string, want map[operator.FindingKind]int) {
	s.t.Helper()
	r, _ := s.reconcileJSON()
	got := map[operator.FindingKind]int{}
	for _, f := range r.Findings {
		got[f.Kind]++
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("%s reconcile finds %v, want %v", when, got, want)
	}
}

// Given a shop that is put back to its backup by the commands of docs/operations.md, then what was acked since is lost
// to reconcile and comes back with the producers' events, what became a letter is found and filed, and nothing has its
// effect twice. Given the log or the stock put back alone, then reconcile finds what is missing.
func TestABackupComesBackAsThePageSays(t *testing.T) {
	s := migrated(t)
	backup, restore, resend, _, _ := commandsOfBackup(t)
	o := newRestorer(t, s)
	amount := func(want int) { t.Helper(); s.eventually(want, "SELECT amount FROM stock WHERE sku_id = 1") }
	reserve := func(orders ...string) (bodies string) {
		for _, order := range orders {
			s.reserve(order, 1, 2)
			bodies += `{"order_sn":"` + order + "\"}\n"
		}
		return bodies
	}
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1, 100, 0)")
	before := reserve("A-1", "A-2")
	since := reserve("A-3", "A-4")
	s.run(before, "publish", "--key-field", "order_sn")
	stop := s.daemon()
	amount(104)
	o.does(backup, 0)
	// two more take effect, and one, whose order is unknown, is dead
	s.run(since+`{"order_sn":"X-1"}`, "publish", "--key-field", "order_sn")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	amount(108)
	stop()
	o.does(`mysqldump "$SCHEMA" stock stock_reservation >stock.sql
mysqldump "$SCHEMA" $(mysql -N "$SCHEMA" -e 'SHOW TABLES' | grep -v '^stock') >log.sql`, 0)

	o.does(restore, exitFailed)
	amount(104)
	s.finds("after the restore", map[operator.FindingKind]int{operator.LetterWithoutRow: 1})
	events := filepath.Join(o.home, "events-since-the-backup.ndjson")
	require.OK(t, os.WriteFile(events, []byte(before+since), 0o600))
	o.does(resend, 0)
	stop = s.daemon()
	amount(108)
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (0, 2)")
	stop()
	s.finds("in the end", map[operator.FindingKind]int{})

	// the log alone, older than the stock
	o.does(`mysql "$SCHEMA" <backup.sql; mysql "$SCHEMA" <stock.sql`, 0)
	s.finds("with an older log", map[operator.FindingKind]int{
		operator.LetterWithoutRow: 1, operator.ReleasedWithoutSuccess: 2,
	})
	o.does(resend, 0)
	s.works(4, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1")
	amount(108)
	// the stock alone, older than the log
	o.does(`mysql "$SCHEMA" <backup.sql; mysql "$SCHEMA" <log.sql`, 0)
	amount(104)
	s.finds("with an older stock", map[operator.FindingKind]int{operator.SuccessNotReleased: 2})
}

// Given a RabbitMQ whose queues, exchange and policy are gone, when its definitions are put back by the commands of the
// page, then migrate finds all that it makes, and the policy is there.
func theDefinitionsComeBack(t *testing.T, own *stack.Server) {
	s := shellOf(t)
	s.broker = own.Broker(t)
	s.set("AMQP_URL=" + own.URL())
	s.quietly("", "migrate")
	_, _, _, export, imported := commandsOfBackup(t)
	file := filepath.Join(t.TempDir(), "definitions.json")
	ctl := func(command string) string {
		t.Helper()
		args := words(t, strings.ReplaceAll(command, "definitions.json", file))
		out, err := own.Ctl(args[1:]...)
		if err != nil || args[0] != "rabbitmqctl" {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return out
	}
	s.broker.Policy("kept", s.queue, map[string]any{"delivery-limit": 7})
	ctl(export)
	ctl("rabbitmqctl clear_policy kept")
	s.broker.Delete(s.queue, rabbit.DeadQueue(s.queue))
	assert.Is(t, s.run("", "migrate", "--status"), exitFailed, "without its queues: exit")
	ctl(imported)
	assert.Is(t, s.run("", "migrate", "--status"), exitDone, "after the import: exit %s", s.script.String())
	assert.Has(t, ctl("rabbitmqctl list_policies"), "kept", "the policy did not come back")
}
