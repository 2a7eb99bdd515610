package cli

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// classicTable is the table as the literature has it.
const classicTable = "CREATE TABLE trade_mq_consumer_log (" +
	" msg_id VARCHAR(50) DEFAULT NULL, group_name VARCHAR(100) NOT NULL, msg_tag VARCHAR(100) NOT NULL," +
	" msg_key VARCHAR(100) NOT NULL, msg_body VARCHAR(500) DEFAULT NULL, consumer_status INT(1) DEFAULT NULL," +
	" consumer_times INT(1) DEFAULT NULL, consumer_timestamp TIMESTAMP NULL DEFAULT NULL," +
	" remark VARCHAR(500) DEFAULT NULL, PRIMARY KEY (group_name, msg_tag, msg_key))" +
	" ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci"

// classicRow writes a row of the old consumer's, or changes it.
func (s *shell) classicRow(db *sql.DB, key string, status int) {
	s.t.Helper()
	require.Get(db.ExecContext(s.t.Context(), "INSERT INTO trade_mq_consumer_log VALUES ('0A1B', 'cancel_group', "+
		"'cancel', ?, ?, ?, 1, '2026-11-01 10:00:00', IF(? = 2, 'stock is locked', NULL)) ON DUPLICATE KEY UPDATE "+
		"consumer_status = ?",
		key, `{"order_sn":"`+key+`"}`, status, status, status))(s.t)
}

// Given a classic table, when it is taken over beside its consumer, with a last pass, then a copy of what was done has
// no effect, and what was left open is decided by a person: one had its effect and is discarded, the other is replayed.
func TestTheClassicTableIsTakenOverAndWhatItLeftOpenIsDecided(t *testing.T) {
	s := migrated(t, "ROLLBACKD_LOG_RETENTION=0")
	db := s.db()
	s.exec(classicTable)
	for key, status := range map[string]int{"A-1": 1, "A-2": 2, "A-3": 0, "A-4": 0} {
		s.classicRow(db, key, status)
	}
	s.exec("INSERT INTO trade_mq_consumer_log VALUES (NULL, 'points', 'cancel', 'A-1', NULL, 1, 1, NULL, NULL)",
		"INSERT INTO trade_mq_consumer_log VALUES (NULL, 'cancel_group', 'cancel', 'two\nlines', NULL, 1, 9, NULL, NULL)",
		"INSERT INTO stock (sku_id, amount, version) VALUES (1001, 0, 0)",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES "+
			"('A-1', 1001, 1, 1, UTC_TIMESTAMP(6)), ('A-2', 1001, 10, 1, UTC_TIMESTAMP(6)), "+
			"('A-3', 1001, 100, 1, UTC_TIMESTAMP(6)), ('A-4', 1001, 1000, 1, UTC_TIMESTAMP(6))")
	from := []string{"migrate", "--from", "trade_mq_consumer_log", "--no-wait"}
	if s.run("", from...) != exitFailed {
		t.Error("no row is of the group, and the exit code is 0")
	}
	from = append(from, "--map-group", "cancel_group=stock-rollback", "--map-tag", "cancel=stock.rollback")
	s.run("", append(from, "--dry-run")...)
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log")
	s.run("", from...)
	s.classicRow(db, "A-4", 1) // the old consumer has finished it
	s.run("", append(from, "--last-pass")...)
	s.run("", "dlq", "list", "--by", "reason", "-o", "json")
	s.run("", "log", "explain", "A-1")
	s.run("", "log", "explain", "A-2")
	s.run("", "reconcile", "--no-stock")
	s.run("", "dlq", "replay", "--reason", "effect_unknown")

	work := t.TempDir()
	open := filepath.Join(work, "open.ndjson")
	s.replace = append(s.replace, work, "WORK")
	s.run("", "dlq", "export", "--reason", "effect_unknown", "-o", open)
	text := require.Get(os.ReadFile(open))(t)
	var done, again string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"key":"A-2"`) {
			done += line
		} else {
			again += line
		}
	}
	s.run(done, "dlq", "discard", "--from", "-", "--why", "the stock was back already", "--dry-run")
	s.run(done, "dlq", "discard", "--from", "-", "--why", "the stock was back already")
	s.run(again, "dlq", "replay", "--from", "-", "--no-wait")
	// and copies of all come again, under the key that the row has
	publisher := rabbit.NewPublisher(rabbit.Config{URLs: []string{s.broker.URL}, Name: "test"})
	t.Cleanup(func() { _ = publisher.Close(context.WithoutCancel(t.Context())) })
	var copies []rabbit.Publishing
	for _, key := range []string{"A-1", "A-2", "A-3", "A-4"} {
		copies = append(copies, rabbit.Publishing{Key: s.queue, Message: rabbit.Message{
			Type: "stock.rollback", MessageID: key, Body: []byte(`{"order_sn":"` + key + `"}`),
		}})
	}
	require.OK(t, publisher.Publish(t.Context(), copies)...)
	stop := s.daemon()
	s.eventually(100, "SELECT amount FROM stock")
	poll.Until(t, "the queue is empty", func() bool { return s.broker.Depth(s.queue) == 0 })
	stop()
	s.eventually(100, "SELECT amount FROM stock")
	s.run("", "log", "list", "-o", "json")
	s.run("", append(from, "--last-pass", "-o", "json")...)
	s.run("", "reconcile", "--no-stock")
	s.golden("migrate-from")

	// and on the way back the old consumer knows all of it
	s.exec(statementOfThePage(t))
	s.eventually(4, "SELECT COUNT(*) FROM trade_mq_consumer_log WHERE consumer_status = 1 AND msg_key LIKE 'A-_' AND "+
		"group_name = 'cancel_group'")
	s.eventually(2, "SELECT COUNT(*) FROM trade_mq_consumer_log WHERE remark LIKE 'rollbackd %'")
}

// statementOfThePage is the one that docs/adopting.md shows for the way back.
func statementOfThePage(t *testing.T) string {
	page := require.Get(os.ReadFile(filepath.Join("..", "..", "docs", "adopting.md")))(t)
	_, rest, ok := strings.Cut(string(page), "<!-- in the test: internal/cli/migrate_from_test.go -->\n```sql\n")
	statement, _, closed := strings.Cut(rest, ";\n```")
	if !ok || !closed {
		t.Fatal("the page has no such statement any more")
	}
	return statement
}

// Given an old consumer that is still at work, a last pass is refused, and the daemon does not begin: before a last
// pass, and when something is newer than it; doctor names that log. When the old consumer has ended, or a person says
// so, the daemon begins, and doctor is content.
func TestNothingBeginsBesideTheOldConsumer(t *testing.T) {
	s := migrated(t)
	db := s.db()
	s.exec(classicTable)
	s.classicRow(db, "A-1", 0)
	args := []string{
		"migrate", "--from", "trade_mq_consumer_log", "--map-group", "cancel_group=stock-rollback", "--last-pass",
	}
	s.says("no classic log") // of which nothing was taken over
	working, stopConsumer := context.WithCancel(t.Context())
	defer stopConsumer()
	var consumer sync.WaitGroup
	consumer.Go(func() {
		tick := time.NewTicker(3 * time.Second)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-working.Done():
				return
			case <-tick.C:
				s.classicRow(db, fmt.Sprint("A-0", i), 1)
			}
		}
	})
	s.answers(exitFailed, "somebody wrote to the old table", "", args...)
	s.answers(exitFailed, "no last pass has come to its end", "", "run")
	s.says("warn classic log = trade_mq_consumer_log was taken over")
	stopConsumer()
	consumer.Wait()
	s.run("", args...)
	s.says("no classic log")
	s.daemon()()

	s.classicRow(db, "A-1", 1) // it was not the end
	s.answers(exitFailed, "was written to after its last pass", "", "run")
	s.says("warn classic log = was written to after its last pass")
	s.daemon("--ignore-old-log")()
	s.run("", args[:len(args)-1]...) // somebody goes back to passes beside the old consumer
	s.says("warn classic log")
	s.run("", args...)
	s.daemon()()
	s.exec("DROP TABLE trade_mq_consumer_log")
	s.daemon()()
	s.says("note classic log = gone")
}

// Given an account with exactly the rights of the list, a table is taken over; without the one on the old table, the
// command says what is missing.
func TestTakingOverWorksWithExactlyItsRights(t *testing.T) {
	s := migrated(t)
	db := s.db()
	s.exec(classicTable)
	s.classicRow(db, "A-1", 0)
	a := s.account(newAdmin(t))
	a.names.Classic = "trade_mq_consumer_log"
	list := rights.MySQL(a.names, rights.TakeOver)
	args := []string{"migrate", "--from", "trade_mq_consumer_log", "--map-group", "cancel_group=stock-rollback"}
	a.mayMySQL(without(list, len(list)-1))
	as := &shell{t: t, environ: a.environ}
	as.answers(exitFailed, "GRANT SELECT ON trade_mq_consumer_log", "", args...)
	a.mayMySQL(list)
	a.do("", args...)
	s.classicRow(db, "A-1", 1)
	a.do("", args...)
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1")
}
