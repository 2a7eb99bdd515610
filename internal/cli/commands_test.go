package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

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
	t.Parallel()
	s := newShell(t)
	s.broker.Track(rabbit.TopologyConfig{Queue: s.queue, Delays: []time.Duration{300 * time.Millisecond,
		400 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute}}.Queues()...)
	c := require.Get(mysql.ParseDSN(s.dsn))(t)
	host, port, _ := strings.Cut(c.Addr, ":")
	home, redis, pages := t.TempDir(), "", stack.FreeAddr(t)
	require.OK(t, os.Symlink(program.Shared(t), filepath.Join(home, "rollbackd")))
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
		"mysql -h127.0.0.1 -urollbackd -prollbackd shop", "mysql -h"+host+" -P"+port+" --protocol=tcp "+c.DBName)
	env = append(env, "HOME="+home, "PATH="+home+":"+os.Getenv("PATH"), "ROLLBACKD_HTTP_ADDR="+pages)
	mine := "[client]\nuser=" + c.User + "\npassword=" + c.Passwd + "\n"
	require.OK(t, os.WriteFile(filepath.Join(home, ".my.cnf"), []byte(mine), 0o600))
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
