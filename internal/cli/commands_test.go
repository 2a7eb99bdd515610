package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// blocksOf are the blocks in a language of a page that a file of tests here does, as the page says.
func blocksOf(t *testing.T, page, language, file string) (blocks []string) {
	t.Helper()
	text := require.Get(os.ReadFile(filepath.Join("..", "..", page)))(t)
	mark := "<!-- in the test: internal/cli/" + file + " -->\n```" + language + "\n"
	for _, block := range strings.Split(string(text), mark)[1:] {
		block, _, _ = strings.Cut(block, "\n```")
		blocks = append(blocks, block)
	}
	require.That(t, len(blocks) > 0, "%s shows nothing of %s any more", page, file)
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
	pages := stack.FreeAddr(t)
	require.OK(t, os.Symlink(require.Get(filepath.Abs("../../deploy"))(t), filepath.Join(home, "deploy")))
	env := []string{"ROLLBACKD_QUEUE=" + s.queue, "ROLLBACKD_EXCHANGE=" + s.broker.Name("stock"),
		"ROLLBACKD_HTTP_ADDR=" + pages}
	here := strings.NewReplacer("make build && export PATH=$PWD/bin:$PATH", ":",
		"amqp://rollbackd:rollbackd@127.0.0.1:5672/", s.broker.URL, "rollbackd:rollbackd@tcp(127.0.0.1:3306)/shop", s.dsn,
		"redis://127.0.0.1:6379/0", stack.Redis(t), "127.0.0.1:8080", pages,
		"mysql -h127.0.0.1 -urollbackd -prollbackd shop", "mysql "+c.DBName)
	types := func(script string) string {
		t.Helper()
		out, code := s.types(home, env, script)
		require.Is(t, code, exitDone, "%s\n%s exits with", script, out)
		return out
	}
	block := func(page string) string { return blocksOf(t, page, "", "commands_test.go")[0] }
	shows := func(page, got, want string) {
		t.Helper()
		suffix := strings.TrimPrefix(s.broker.Name("x"), "x")
		plain := func(text string) string {
			return blanks.ReplaceAllString(swept.ReplaceAllString(ids.ReplaceAllString(text, "ID"), "SWEPT"), " ")
		}
		assert.Has(t, plain(strings.ReplaceAll(got, suffix, "")), plain(want), "%s shows something else", page)
	}

	readme := here.Replace(block("README.md"))
	settings, first, _ := strings.Cut(readme, "\n\n")
	settings += settled
	shows("README.md", types(settings+"messages=1\n"+first+"\nwait"), "sku_id amount version 1001 7 1")

	commands, shown := typed(block("docs/messages.md"))
	shows("docs/messages.md", types(settings+commands), shown)
	commands, _ = typed(block("docs/settings.md"))
	shows("docs/settings.md", types(settings+commands), "ROLLBACKD_MYSQL_DSN")
	shows("docs/operations.md", types(settings+"rollbackd run &\nmessages=2\n"+block("docs/operations.md")+`
settled 2; kill %1; wait; shop -Ne "SELECT CONCAT('stock ', amount) FROM stock"`), "stock 9")

	api := settings + "messages=3\n"
	want := ""
	for i, block := range blocksOf(t, "docs/api.md", "", "commands_test.go") {
		if i > 0 {
			block, shown = typed(block)
			want += shown
		}
		api += here.Replace(block) + "\nsettled 3\n"
	}
	shows("docs/api.md", types(api+"kill %1; wait"), want)

	commands, shown = typed(block("docs/handlers.md"))
	shows("docs/handlers.md", types(settings+commands), shown)
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

// types has bash run commands in a home, with these settings.
func (s *shell) types(home string, env []string, commands string) (stdout string, code int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "bash", "-c", commands)
	cmd.Env, cmd.Dir, cmd.Stderr = append(env, "HOME="+home, "PATH="+home+":"+os.Getenv("PATH")), home, s.t.Output()
	out, _ := cmd.Output()
	return string(out), cmd.ProcessState.ExitCode()
}

// finds holds what reconcile finds against kinds.
func (s *shell) finds(when string, want ...operator.FindingKind) {
	s.t.Helper()
	var got []operator.FindingKind
	r, _ := s.reconcileJSON()
	for _, f := range r.Findings {
		got = append(got, f.Kind)
	}
	assert.Equal(s.t, got, want, "%s reconcile finds", when)
}

// Given a shop that is put back to its backup by the commands of docs/operations.md, then what was acked since is lost
// to reconcile and comes back with the producers' events, what became a letter is found and filed, and nothing has its
// effect twice. Given the log or the stock put back alone, then reconcile finds what is missing.
func TestABackupComesBackAsThePageSays(t *testing.T) {
	s := migrated(t)
	blocks := blocksOf(t, "docs/operations.md", "sh", "commands_test.go")
	backup, restore, resend := blocks[0], blocks[1], blocks[2]
	client, err := exec.CommandContext(t.Context(), "mysqldump", "--version").CombinedOutput()
	server := stack.One[string](t, s.db(), "SELECT VERSION()")
	if err != nil || strings.Contains(server, "MariaDB") != strings.Contains(string(client), "MariaDB") {
		t.Skipf("this machine has no mysqldump of the server's own (%s): %s, %v", server, client, err)
	}
	home, c := s.home()
	does := func(commands string, want int) {
		t.Helper()
		out, code := s.types(home, append(slices.Clip(s.environ), "SCHEMA="+c.DBName), "set -e\n"+commands)
		require.Is(t, code, want, "%s\n%s exits with", commands, out)
	}
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
	does(backup, 0)
	// two more take effect, and one, whose order is unknown, is dead
	s.run(since+`{"order_sn":"X-1"}`, "publish", "--key-field", "order_sn")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	amount(108)
	stop()
	does(`mysqldump "$SCHEMA" stock stock_reservation >stock.sql
mysqldump "$SCHEMA" $(mysql -N "$SCHEMA" -e 'SHOW TABLES' | grep -v '^stock') >log.sql`, 0)

	does(restore, exitFailed)
	amount(104)
	s.finds("after the restore", operator.LetterWithoutRow)
	events := filepath.Join(home, "events-since-the-backup.ndjson")
	require.OK(t, os.WriteFile(events, []byte(before+since), 0o600))
	does(resend, 0)
	stop = s.daemon()
	amount(108)
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (0, 2)")
	stop()
	s.finds("in the end")

	// the log alone, older than the stock
	does(`mysql "$SCHEMA" <backup.sql; mysql "$SCHEMA" <stock.sql`, 0)
	s.finds("with an older log", operator.LetterWithoutRow, operator.ReleasedWithoutSuccess,
		operator.ReleasedWithoutSuccess)
	does(resend, 0)
	s.works(4, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1")
	amount(108)
	// the stock alone, older than the log
	does(`mysql "$SCHEMA" <backup.sql; mysql "$SCHEMA" <log.sql`, 0)
	amount(104)
	s.finds("with an older stock", operator.SuccessNotReleased, operator.SuccessNotReleased)
}

// Given a RabbitMQ whose queues, exchange and policy are gone, when its definitions are put back by the commands of the
// page, then migrate finds all that it makes, and the policy is there.
func theDefinitionsComeBack(t *testing.T, own *stack.Server) {
	s := shellOf(t)
	s.broker = own.Broker(t)
	s.set("AMQP_URL=" + own.URL())
	s.quietly("", "migrate")
	blocks := blocksOf(t, "docs/operations.md", "sh", "commands_test.go")
	file := filepath.Join(t.TempDir(), "definitions.json")
	ctl := func(command string) string {
		t.Helper()
		args := words(t, strings.ReplaceAll(command, "definitions.json", file))
		out, err := own.Ctl(args[1:]...)
		require.That(t, err == nil && args[0] == "rabbitmqctl", "%s: %v\n%s", command, err, out)
		return out
	}
	s.broker.Policy("kept", s.queue, map[string]any{"delivery-limit": 7})
	ctl(blocks[3])
	ctl("rabbitmqctl clear_policy kept")
	s.broker.Delete(s.queue, rabbit.DeadQueue(s.queue))
	assert.Is(t, s.run("", "migrate", "--status"), exitFailed, "without its queues: exit")
	ctl(blocks[4])
	assert.Is(t, s.run("", "migrate", "--status"), exitDone, "after the import: exit %s", s.script.String())
	assert.Has(t, ctl("rabbitmqctl list_policies"), "kept", "the policy did not come back")
}
