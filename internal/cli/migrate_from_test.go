package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// Given a classic table, when it is taken over beside its consumer, with a last pass, then a copy of what was done has
// no effect, and what was left open is decided by a person: one had its effect and is discarded, the other is replayed.
func TestTheClassicTableIsTakenOverAndWhatItLeftOpenIsDecided(t *testing.T) {
	s := migrated(t, "ROLLBACKD_LOG_RETENTION=0")
	work := t.TempDir()
	open := filepath.Join(work, "open.ndjson")
	s.replace = append(s.replace, work, "WORK")
	s.vars = append(s.vars, "$TABLE", classicTable, "$OPEN", open, "$BACK",
		blocksOf(t, "docs/adopting.md", "sql", "migrate_from_test.go")[0])
	s.play("migrate-from", map[string]func(){
		"a person decides": func() {
			text := require.Get(os.ReadFile(open))(t)
			var done, again string
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, `"key":"A-2"`) {
					done += line
				} else {
					again += line
				}
			}
			s.vars = append(s.vars, "$DONE", done, "$AGAIN", again)
		},
		"the queue is empty": func() {
			poll.Until(t, "the queue is empty", func() bool { return s.broker.Depth(s.queue) == 0 })
		},
	})
}

// Given an old consumer of which nobody knows that it has ended, a last pass is refused, and the daemon does not begin:
// before a last pass, and when something is newer than it; doctor names that log. When the old consumer has ended, or a
// person says so, the daemon begins, and doctor is content.
func TestNothingBeginsBesideTheOldConsumer(t *testing.T) {
	s := migrated(t)
	s.vars = append(s.vars, "$TABLE", classicTable)
	s.play("old-consumer", nil)
}
