package cli

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given an export whose letter's body was mended, when it is replayed, then the message is applied, once, and the
// letter with the former body is gone.
func TestAMendedLetterIsReplayedFromAnExport(t *testing.T) {
	s := migrated(t)
	s.play("mended-letter", map[string]func(){
		"its body is mended": func() {
			text := require.Get(os.ReadFile(s.file))(t)
			ln := require.Get(deadletter.ParseLine(text))(t)
			ln.Body = []byte(`{"order_sn":"A-1","items":[{"sku_id":1001,"quantity":2}]}`)
			text = require.Get(json.Marshal(ln))(t)
			s.vars = append(s.vars, "$MENDED", string(text))
		},
		"the other one is left": func() {
			assert.Is(t, s.broker.Depth(s.queue+".dead"), 1, "letters in the queue")
			of := require.Get(s.recorded()[0].Request())(t)
			assert.Is(t, of.From, "-", "the last replay is on record with its file, which is")
		},
	})
}

func TestAnExportIsPublishedAsLettersMovedByHand(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"A-1"}`)
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1001, 8, 0)")
	s.reserve("A-1", 1001, 2)
	text, stderr, code := runCLI(t, s.environ, "", "dlq", "export")
	require.That(t, code == exitDone && stderr == "consumer: exported 1 letter\n" && strings.Count(text, "\n") == 1,
		"export: exit %d, %q, %q", code, text, stderr)
	stdout, stderr, code := runCLI(t, s.environ, "not json\n\n{}\n"+text, "publish", "--letters")
	require.That(t, code == exitFailed && strings.HasPrefix(stdout, "published 1 message to queue ") &&
		strings.Count(stderr, "consumer: line ") == 2, "publish: exit %d, %q, %q", code, stdout, stderr)
	defer s.daemon()()
	s.eventually(10, "SELECT amount FROM stock WHERE sku_id = 1001")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log_event WHERE `by` = 'by hand'")
}

func TestAllLetterCommandsKnowTheSameFilters(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"A-1","items":[]}`, `{"order_sn":"A-2","items":[{"sku_id":1001,"quantity":1}]}`)
	said := map[string]*regexp.Regexp{ // what list and export name, and what replay and discard would do
		"1": regexp.MustCompile(`"key": ?"A-1"|"malformed": [1-9]`),
		"2": regexp.MustCompile(`"key": ?"A-2"|"exhausted": [1-9]`),
	}
	for _, tc := range []struct{ args, want string }{
		{"--key A-1", "1"}, {"--key A-1 --key A-2", "12"}, {"--reason exhausted", "2"},
		{"--reason exhausted --reason malformed", "12"}, {"--tag stock.rollback", "12"}, {"--tag another", ""},
		{"--since 1h", "12"}, {"--until 1h", ""}, {"--key A-2 --reason malformed", ""}, {"--order A-1", "1"},
		{"--order A-", ""}, {"--sku 1001", "2"}, {"--sku 100", ""}, {`--body "items":[]`, "1"}, {"--body order_sn", "12"},
		{"--body order_sn --sku 1001 --order A-2", "2"}, {"--since 1h --limit 1", "one"},
	} {
		for _, command := range []string{
			"list -o json", "export", "replay --dry-run -o json", "discard --why w --dry-run -o json",
		} {
			stdout, _, _ := runCLI(t, s.environ, "", strings.Fields("dlq "+command+" "+tc.args)...)
			got := ""
			for _, letter := range []string{"1", "2"} {
				if said[letter].MatchString(stdout) {
					got += letter
				}
			}
			assert.That(t, got == tc.want || tc.want == "one" && len(got) == 1,
				"%s %s chose %q, want %q", command, tc.args, got, tc.want)
		}
	}
}

// Given a letter whose cause is not cured, when it is replayed by its key, then the exit code says that it is dead
// again; one that was chosen otherwise is only counted. When it was replayed as often as it may, it is parked: it is
// shown as that, and stays until it is forced.
func TestALetterThatDiesAgainIsToldAndParkedInTheEnd(t *testing.T) {
	s := migrated(t)
	s.play("parked", map[string]func(){"its letter is back": func() {
		poll.Until(t, "its letter is back", func() bool { return s.broker.Depth(s.queue+".dead") == 1 })
	}})
}

// Given a long remark with control characters, when a list goes to a file or another program, then it is whole; a
// letter that is shown is short, and neither acts on a terminal.
func TestAListIsWholeAndAShownLetterIsShortAndSafe(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"A-1","items":[]}`)
	remark := strings.Repeat("why ", 50) + "end"
	s.exec(`UPDATE consumer_log SET msg_body = CONCAT('{"x":"', CHAR(27), '[31m', CHAR(7), REPEAT('y', 200000)), ` +
		`remark = CONCAT(CHAR(27), ']0;title', '` + remark + `')`)
	for args, want := range map[string]string{
		"dlq list": remark, "log list": remark, "dlq show A-1": `{"x":"\x1b[31m\x07yyy`,
	} {
		stdout, stderr, code := runCLI(t, s.environ, "", strings.Fields(args)...)
		assert.That(t, code == exitDone && len(stdout) <= 12_000 && !strings.ContainsAny(stdout, "\x1b\x07") &&
			strings.Contains(stdout, want), "%s: exit %d, %d bytes, %q, %s", args, code, len(stdout),
			stdout[:min(len(stdout), 1500)], stderr)
	}
}

// Given a group that no row has, when its letters or rows are asked for, then that is said beside the empty answer,
// with the groups that there are; of the right group it is not.
func TestAGroupThatNobodyKnowsIsSaid(t *testing.T) { played(t, "unknown-group") }

// Given a MySQL that is frozen, when letters are listed, then the command gives up after eight seconds, once.
func TestAFrozenMySQLIsSaidSoon(t *testing.T) {
	s := migrated(t)
	proxy := stack.Proxy(t, stack.Addr(t, s.dsn))
	s.set("MYSQL_DSN=" + proxy.Through(s.dsn))
	proxy.Hold(true)
	began := time.Now()
	s.answers(exitFailed, "MySQL cannot be used: no answer within 8s", "", "dlq", "list")
	assert.AtMost(t, time.Since(began), 15*time.Second, "it took")
}

func TestAnInterruptedReplayReportsWhatIsLeft(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"1","items":[]}`, `{"order_sn":"2","items":[]}`, `{"order_sn":"3","items":[]}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	// given no daemon, so that the second letter waits for room until the person gives up
	go func() { defer cancel(); s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2") }()
	var stderr strings.Builder
	code := run(ctx, []string{"consumer", "dlq", "replay", "--all", "--window", "1", "-o", "json"}, s.environ,
		strings.NewReader(""), &out, &stderr)
	var res deadletter.Result
	if err := json.Unmarshal([]byte(out.String()), &res); err != nil || code != exitFailed || res.Replayed != 1 ||
		res.Unseen != 2 || !strings.Contains(stderr.String(), "interrupted before it was done") {
		t.Errorf("exit %d, %v, %s %s; want one replayed, two left, and that it was interrupted", code, err, out.String(),
			stderr.String())
	}
}

const exampleSQL = "../../deploy/examples/sql/order-state/"

// sqlShell is a shell whose handler is the example with the order's state.
func sqlShell(t *testing.T) *shell {
	t.Helper()
	s := newShell(t, "ROLLBACKD_HANDLER=sql", "ROLLBACKD_SQL_FILE="+exampleSQL+"handler.sql", "ROLLBACKD_LOG_FORMAT=text")
	stack.Script(t, s.db(), exampleSQL+"tables.sql")
	return s
}

// Given an order that is being cancelled, when messages are tried, then each run of a statement is shown and nothing
// changes; when one is tried with --commit, then its effect stays.
func TestHandlerTryShowsWhatAMessageWouldDo(t *testing.T) {
	s := sqlShell(t)
	s.vars = append(s.vars, "$EXAMPLE/", exampleSQL)
	s.play("handler-try", nil)
}

// Given a column that cannot hold every text, when doctor is asked, then it names the column; when a message with an
// emoji for it is tried, then that is said of the message, and nothing of MySQL.
func TestTextThatAColumnCannotHoldIsNamed(t *testing.T) {
	s := sqlShell(t)
	s.quietly("", "migrate")
	s.exec("ALTER TABLE tb_order CONVERT TO CHARACTER SET latin1")
	s.says("note characters = tb_order.order_sn is latin1")
	said := s.answers(exitFailed, "retry: line 4: Error ", `{"order_sn":"😀","items":[]}`, "handler", "try", "-")
	assert.Is(t, strings.Contains(said, "be used"), false, "it says of MySQL that it cannot: %s", said)
}

// Given a file with a mistake, when a daemon is started, then it ends with the exit code of wrong configuration, and
// doctor says the same; a file that the database refuses likewise.
func TestRunAndDoctorRefuseAFileWithAMistake(t *testing.T) {
	s := sqlShell(t)
	s.vars = append(s.vars, "$EXAMPLE", exampleSQL)
	s.play("mistakes", nil)
	assert.Is(t, s.broker.Consumers(s.queue), 0, "consumers were there")
}

// Given the tables that migrate makes, with a lock in MySQL and the outbox, then each is among those that an SQL file
// must not write.
func TestAllThatMigrateMakesIsOurOwn(t *testing.T) {
	s := newShell(t, "ROLLBACKD_HANDLER=http", "ROLLBACKD_HTTP_TARGET=http://127.0.0.1:1", "ROLLBACKD_LOCK=mysql",
		"ROLLBACKD_LOG_TABLE=letters", "ROLLBACKD_OUTBOX=on")
	s.quietly("", "migrate")
	cfg := require.First(config.Load(s.environ))(t)
	own := cfg.OwnTables()
	const made = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND " +
		"table_type = 'BASE TABLE'"
	s.eventually(len(own), made)
	s.eventually(len(own), made+" AND table_name IN ('"+strings.Join(own, "', '")+"')")
}

// Given messages that are run fresh, tried again, taken over from a worker that died, and replayed, then the statement
// is told which attempt it is since the message was published or replayed, as the row in the log counts them.
func TestAStatementIsToldWhichAttemptItIs(t *testing.T) {
	s := newShell(t, "ROLLBACKD_HANDLER=sql", "ROLLBACKD_SQL_FILE=testdata/servers/attempt.sql",
		"ROLLBACKD_RETRY_DELAYS=5s")
	s.track(s.queue, 5*time.Second)
	s.play("attempt", nil)
}
