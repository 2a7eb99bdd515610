package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const exampleSQL = "../../deploy/examples/sql/order-state/"

// sqlShell is a shell whose handler is the example with the order's state.
func sqlShell(t *testing.T) *shell {
	t.Helper()
	s := newShell(t, "ROLLBACKD_HANDLER=sql", "ROLLBACKD_SQL_FILE="+exampleSQL+"handler.sql", "ROLLBACKD_LOG_FORMAT=text")
	tables := require.Get(os.ReadFile(exampleSQL + "tables.sql"))(t)
	for statement := range strings.SplitSeq(string(tables), ";") {
		if strings.TrimSpace(statement) != "" {
			s.exec(statement)
		}
	}
	return s
}

// Given an order that is being cancelled, when messages are tried, then each run of a statement is shown and nothing
// changes; when one is tried with --commit, then its effect stays.
func TestHandlerTryShowsWhatAMessageWouldDo(t *testing.T) {
	t.Parallel()
	s := sqlShell(t)
	s.vars = append(s.vars, "$EXAMPLE/", exampleSQL)
	s.play("handler-try", nil)
}

// Given a column that cannot hold every text, when doctor is asked, then it names the column; when a message with an
// emoji for it is tried, then that is said of the message, and nothing of MySQL.
func TestTextThatAColumnCannotHoldIsNamed(t *testing.T) {
	t.Parallel()
	s := sqlShell(t)
	s.quietly("", "migrate")
	s.exec("ALTER TABLE tb_order CONVERT TO CHARACTER SET latin1")
	s.says("note characters = tb_order.order_sn is latin1")
	_, stderr, code := runCLI(t, s.environ, `{"order_sn":"😀","items":[]}`, "handler", "try", "-")
	if code != exitFailed || !strings.Contains(stderr, "retry: line 4: Error ") || strings.Contains(stderr, "be used") {
		t.Errorf("exit %d, %q; want %d, and the statement's error", code, stderr, exitFailed)
	}
}

// Given a file with a mistake, when a daemon is started, then it ends with the exit code of wrong configuration, and
// doctor says the same; a file that the database refuses likewise.
func TestRunAndDoctorRefuseAFileWithAMistake(t *testing.T) {
	t.Parallel()
	s := sqlShell(t)
	s.quietly("", "migrate")
	s.says("exit 0\nok statements = the database takes all of " + exampleSQL)
	name := filepath.Join(t.TempDir(), "mistake.sql")
	s.environ = append(s.environ, "ROLLBACKD_SQL_FILE="+name)
	for _, test := range []struct{ text, check, want string }{
		{"UPDATE tb_stock SET amount = 1;\n  COMMIT", "ROLLBACKD_SQL_FILE", ":2:3: COMMIT is refused"},
		{"UPDATE tb_stock SET amount = 1;\n\n UPDATE tb_stock SET amont = 2", "statements", ":3:2: Error 1054"},
		{"UPDATE consumer_log SET remark = :a", "statements", ":1:1: the table consumer_log is rollbackd's own"},
	} {
		require.OK(t, os.WriteFile(name, []byte(test.text), 0o600))
		_, stderr, code := runCLI(t, s.environ, "", "run")
		if want := "ROLLBACKD_SQL_FILE: " + name + test.want; code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("run ended with %d and\n%s\nwant %d and %q", code, stderr, exitUsage, want)
		}
		s.says("fail " + test.check + " = " + name + test.want)
	}
	assert.Is(t, s.broker.Consumers(s.queue), 0, "consumers were there")
}

// Given the tables that migrate makes, with a lock in MySQL and the outbox, then each is among those that an SQL file
// must not write.
func TestAllThatMigrateMakesIsOurOwn(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	name := filepath.Join(t.TempDir(), "attempt.sql")
	file := `SELECT k FROM seen WHERE k = :k; -- expect 1, else permanent: unknown
UPDATE seen SET attempt = :rollbackd_attempt WHERE k = :k AND ready = 1; -- expect 1, else retry: not ready`
	require.OK(t, os.WriteFile(name, []byte(file), 0o600))
	const delay = 5 * time.Second
	s := newShell(t, "ROLLBACKD_HANDLER=sql", "ROLLBACKD_SQL_FILE="+name, "ROLLBACKD_RETRY_DELAYS="+delay.String())
	s.broker.Track(rabbit.TopologyConfig{Queue: s.queue, Delays: []time.Duration{delay}}.Queues()...)
	publish := func(keys ...string) {
		t.Helper()
		body := `{"k":"` + strings.Join(keys, "\"}\n{\"k\":\"") + `"}`
		if code := s.run(body, "publish", "--key-field", "k"); code != exitDone {
			t.Fatal(s.script.String())
		}
	}
	s.exec("CREATE TABLE seen (k VARCHAR(20) PRIMARY KEY, ready INT, attempt INT) ENGINE=InnoDB")
	s.exec("INSERT INTO seen VALUES ('fresh', 1, 0), ('another', 1, 0), ('again', 0, 0), ('taken', 1, 0)")
	s.quietly("", "migrate")
	s.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, owner, " +
		"consumer_timestamp, created_at) VALUES ('stock-rollback', 'stock.rollback', 'taken', 0, 1, 'who died', " +
		"UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR)")
	s.daemon()
	publish("fresh", "another", "again", "dead", "taken")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'again' AND consumer_status = 2")
	s.exec("UPDATE seen SET ready = 1")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'dead' AND consumer_status = 3")
	s.exec("INSERT INTO seen VALUES ('dead', 1, 0)")
	if code := s.run("", "dlq", "replay", "--key", "dead"); code != exitDone {
		t.Error(s.script.String())
	}
	s.eventually(5, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1")
	s.eventually(5, "SELECT COUNT(*) FROM seen JOIN consumer_log ON msg_key = k WHERE attempt = consumer_times")
	s.eventually(5, "SELECT SUM(CASE k WHEN 'again' THEN attempt > 1 WHEN 'taken' THEN attempt = 2 ELSE attempt = 1 "+
		"END) FROM seen")
}
