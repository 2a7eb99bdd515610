package sql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

// Given tables of every kind, when a file is checked, then what cannot run or cannot be rolled back is refused at its
// statement, and what can is not.
func TestCheckAsksTheDatabaseAboutEveryStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE goods (id INT PRIMARY KEY, amount INT, old_goods INT) ENGINE=InnoDB;
CREATE TABLE old_goods (id INT PRIMARY KEY, amount INT) ENGINE=MyISAM;
CREATE TABLE plain (id INT) ENGINE=InnoDB;
CREATE VIEW good_view AS SELECT id, amount FROM goods;
CREATE VIEW old_view AS SELECT id AS key_of_it, amount FROM old_goods;
CREATE VIEW deep_view AS SELECT * FROM old_view;
CREATE TABLE watched (id INT PRIMARY KEY) ENGINE=InnoDB;
CREATE TRIGGER watch AFTER INSERT ON watched FOR EACH ROW INSERT INTO old_goods VALUES (NEW.id, @x);
CREATE TABLE fine (id INT PRIMARY KEY) ENGINE=InnoDB;
CREATE TRIGGER fine_watch AFTER INSERT ON fine FOR EACH ROW INSERT INTO plain VALUES (NEW.id)`)
	const cannotRollBack = "the table old_goods has the engine MyISAM, which cannot roll back"
	tests := []struct {
		name, text string
		want       []string // of each refusal, in order
	}{
		{"good ones", "UPDATE goods SET amount = amount + :n WHERE id = :id; DELETE FROM good_view WHERE id = :id;" +
			"INSERT INTO fine VALUES (:id); SELECT g.amount FROM goods g JOIN plain USING (id) FOR UPDATE", nil},
		{"a misspelt column", "UPDATE goods SET amont = 1 WHERE id = :id",
			[]string{"f.sql:1:1: Error 1054 (42S22): Unknown column 'amont' in "}},
		{"all of them", "UPDATE goods SET a = 1;\n  UPDATE godos SET amount = 1;\nUPDATE goods SET amount 1",
			[]string{"f.sql:1:1: Error 1054", "f.sql:2:3: Error 1146", "f.sql:3:1: Error 1064"}},
		{"a wrong number of values", "INSERT INTO goods VALUES (:a, :b)", []string{"f.sql:1:1: Error 1136"}},
		{"a table that is not transactional", "SELECT 1;\nUPDATE old_goods SET amount = :n",
			[]string{"f.sql:2:1: " + cannotRollBack}},
		{"in another spelling", "UPDATE `old_goods` SET amount = :n", []string{"f.sql:1:1: " + cannotRollBack}},
		{"in a subquery", "UPDATE goods SET amount = (SELECT MAX(amount) FROM old_goods)",
			[]string{"f.sql:1:1: " + cannotRollBack}},
		{"behind a view", "UPDATE old_view SET amount = 1", []string{"f.sql:1:1: the view old_view: " + cannotRollBack}},
		{"behind two views", "DELETE FROM goods WHERE id IN (SELECT key_of_it FROM deep_view)",
			[]string{"f.sql:1:1: the view deep_view: the view old_view: " + cannotRollBack}},
		{"behind a trigger", "INSERT INTO watched VALUES (1)",
			[]string{"f.sql:1:1: a trigger of watched: " + cannotRollBack}},
		{"a column with the name of such a table", "UPDATE goods SET old_goods = 1",
			[]string{"f.sql:1:1: " + cannotRollBack + ": ALTER TABLE … ENGINE=InnoDB (if a column is meant"}},
		{"in another schema", "INSERT INTO goods (id) SELECT 1 FROM mysql.general_log",
			[]string{"f.sql:1:1: the table general_log"}},
		{"a table of the server's own", "INSERT INTO goods (id) SELECT 1 FROM information_schema.tables", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := require.Get(Parse("f.sql", test.text))(t).Check(t.Context(), w.pool)
			if test.want == nil {
				assert.OK(t, err, "it is refused:")
				return
			}
			r, ok := errors.AsType[*Refusal](err)
			require.That(t, ok && len(r.Errors) == len(test.want), "got %v, want %d refusals", err, len(test.want))
			for i, want := range test.want {
				assert.That(t, strings.HasPrefix(r.Errors[i].Error(), want), "got  %v\nwant %s", r.Errors[i], want)
			}
		})
	}
}

// Given columns that the server computes, when a statement would give them a value, then it is refused at the start, on
// every server; reading them is not writing, nor is a column of this name in another table.
func TestCheckRefusesToWriteGeneratedColumns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE line (id INT PRIMARY KEY, n INT, price INT, total INT AS (n * price) STORED, next INT AS (n + 1) VIRTUAL,
	at TIMESTAMP DEFAULT CURRENT_TIMESTAMP) ENGINE=InnoDB;
CREATE TABLE sums (id INT PRIMARY KEY, total INT, at DATETIME DEFAULT (UTC_TIMESTAMP())) ENGINE=InnoDB`)
	// MySQL says it in its own words, at the statement.
	ofTheServer := regexp.MustCompile(`^f\.sql:1:1: Error 3105 .* generated column '(total|next)'`)
	for _, text := range []string{
		"UPDATE line SET ~total = 1 WHERE id = :id",
		"UPDATE line SET n = 1, ~`Next` = :n",
		"UPDATE line SET n = IF(id = 3, n, price), line.~total = n * price ORDER BY id LIMIT 3",
		"UPDATE sums AS s JOIN line l USING (id) SET s.total = 1, l.~total = 1",
		"UPDATE sums s, line SET ~next = 1 WHERE s.id = line.id",
		"INSERT INTO line (id, ~total) VALUES (:id, 3)",
		"INSERT IGNORE line (id, n, ~total) SELECT 1, 2, 3",
		"REPLACE INTO line SET id = :id, ~total = 1",
		"INSERT INTO line (id) VALUES (:id) ON DUPLICATE KEY UPDATE n = VALUES(n), ~total = 3",
		"INSERT INTO line ~VALUES (:id, 1, 1, 1, 2, NOW())",
		"INSERT INTO line ~SELECT 1, 1, 1, 1, 2, NOW()",
	} {
		before, _, _ := strings.Cut(text, "~")
		f := require.Get(Parse("f.sql", strings.Replace(text, "~", "", 1)))(t)
		got := errorText(f.Check(t.Context(), w.pool))
		want := fmt.Sprintf("f.sql:1:%d: line.", len(before)+1)
		ours := strings.HasPrefix(got, want) && strings.Contains(got, "is a generated column")
		assert.That(t, ours || ofTheServer.MatchString(got), "%s: %s; want %s", text, got, want)
	}
	w.parse("UPDATE line SET n = :n, at = '2026-11-21' WHERE total = 3 AND next = 2;" +
		"UPDATE sums AS s JOIN line l ON l.id = s.id AND l.total = 3 SET s.total = l.total, l.n = 3;" +
		"INSERT INTO sums (id, total) SELECT id, total FROM line WHERE total = :id;" +
		"INSERT INTO sums VALUES (1, 2, NOW()) ON DUPLICATE KEY UPDATE total = VALUES(total), at = NOW();" +
		"INSERT INTO line (id, n) VALUES (1, (SELECT MAX(total) FROM sums)); DELETE FROM line WHERE total = 1")
}

// Given a file that writes what rollbackd keeps of messages, also behind a view, a trigger or another spelling, when it
// is checked, then it is refused; reading that is allowed. The outbox is the one table of ours that a file may write:
// messages may be put in, and nothing else is done to it.
func TestCheckRefusesToWriteOurOwnTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE log (id INT PRIMARY KEY, n INT) ENGINE=InnoDB;
CREATE TABLE goods (id INT PRIMARY KEY, n INT) ENGINE=InnoDB;
CREATE TABLE watched (id INT PRIMARY KEY) ENGINE=InnoDB;
CREATE TABLE guarded (id INT PRIMARY KEY) ENGINE=InnoDB;
CREATE VIEW seen AS SELECT id, n FROM log;
CREATE TRIGGER watch AFTER INSERT ON watched FOR EACH ROW DELETE FROM log WHERE id = NEW.id`)
	require.OK(t, outbox.Migrate(t.Context(), w.db))
	w.exec("CREATE TRIGGER guard AFTER INSERT ON guarded FOR EACH ROW DELETE FROM rollbackd_outbox")
	schema := w.show("SELECT DATABASE()")
	const own, only = "the table log is rollbackd's own", "no more than INSERT INTO rollbackd_outbox (…)"
	const put = "INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) VALUES ('t', :k, '{}')"
	for text, want := range map[string]string{
		"UPDATE log SET n = 1":                                                    own,
		"SELECT n FROM log; DELETE FROM `log` WHERE id = :id":                     own,
		"INSERT INTO " + schema + ".log (id) VALUES (:id)":                        own,
		"UPDATE goods JOIN log USING (id) SET log.n = 1":                          own,
		"UPDATE seen SET n = 1":                                                   "the view seen: " + own,
		"SELECT id FROM watched; INSERT INTO watched VALUES (:id)":                "a trigger of watched: " + own,
		"SELECT l.n FROM log l JOIN goods USING (id); UPDATE goods SET n = n + 1": "",

		put: "",
		"INSERT INTO `rollbackd_outbox` (msg_tag, `msg_key`, body) SELECT 't', id, n FROM goods WHERE n = :n": "",
		"INSERT INTO " + schema + ".rollbackd_outbox (msg_tag, msg_key, body, content_type, headers, " +
			"exchange, routing_key, due_at) VALUES ('t', :k, '{}', 'text/plain', '{}', '', 'q', NOW() + INTERVAL 1 DAY)": "",
		"SELECT reason FROM rollbackd_outbox WHERE msg_key = :k":                                           "",
		"INSERT IGNORE INTO rollbackd_outbox (msg_tag, msg_key, body) VALUES ('t', :k, '{}')":              only,
		put + "; UPDATE rollbackd_outbox SET owner = NULL WHERE msg_key = :k":                              only,
		put + "; DELETE FROM rollbackd_outbox WHERE msg_key = :k":                                          only,
		put + "; INSERT INTO guarded VALUES (:k)":                                                          only,
		put + " ON DUPLICATE KEY UPDATE body = VALUES(body)":                                               only,
		"REPLACE INTO rollbackd_outbox (msg_tag, msg_key, body) VALUES ('t', :k, '{}')":                    only,
		"INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner) VALUES ('t', :k, '{}', 'x')":         only,
		"INSERT INTO rollbackd_outbox SET msg_tag = 't', msg_key = :k, body = '{}'":                        only,
		"INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) SELECT 't', :k, body FROM rollbackd_outbox": only,
		"INSERT INTO goods (id) SELECT 1 FROM rollbackd_outbox WHERE msg_key = :k":                         only,
	} {
		f := require.Get(Parse("f.sql", text))(t)
		f.ours = []string{"log", "log_event", outboxTable}
		got := errorText(f.Check(t.Context(), w.pool))
		assert.That(t, strings.Contains(got, want) && (want != "" || got == ""), "%s: %q, want %q", text, got, want)
	}
}

// Given a session in which the server reads a backslash as a letter, when a statement with one is checked, then the
// disagreement about its parameters is found.
func TestCheckFindsWhatTheServerReadsDifferently(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	f := require.Get(Parse("f.sql", `SELECT 'a\', ?, "'" -- "`))(t)
	w.pool.SetMaxOpenConns(1)
	w.exec("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'")
	assert.Has(t, errorText(f.Check(t.Context(), w.pool)), "another number of parameters", "what the server sees")
}

// Given a database that does not answer, when a file is awaited, then nothing is refused until it answers.
func TestAwaitWaitsForADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	dsn := stack.MySQL(t)
	proxy := stack.Proxy(t, stack.Addr(t, dsn))
	good := require.Get(Parse("f.sql", "SELECT :a"))(t)
	bad := require.Get(Parse("f.sql", "SELECT :a FROM nowhere"))(t)
	proxy.Hold(true)
	told := make(chan struct{}, 100)
	o := Server{
		DSN: proxy.Through(dsn), Logger: slog.New(slog.DiscardHandler), Waiting: func(error) { told <- struct{}{} },
		Options: mysqldb.Options{DialTimeout: time.Second, ReadTimeout: time.Second},
	}
	ended := make(chan error, 2)
	go func() { ended <- good.Await(t.Context(), o); ended <- bad.Await(t.Context(), o) }()
	<-told
	select {
	case err := <-ended:
		t.Fatalf("it ended while the database did not answer: %v", err)
	default:
	}
	proxy.Hold(false)
	assert.OK(t, <-ended, "the good one:")
	assert.Has(t, errorText(<-ended), "Error 1146", "the bad one")

	stopped, stop := context.WithCancel(t.Context())
	stop()
	o.Waiting = func(err error) { t.Errorf("who is stopped is said to wait: %v", err) }
	assert.Error(t, good.Await(stopped, o), context.Canceled, "when stopped")
}

func TestColumnsThatCannotHoldEveryTextAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE orders (sn VARCHAR(64) CHARACTER SET ascii PRIMARY KEY, note TEXT CHARACTER SET utf8mb3,
	whole TEXT CHARACTER SET utf8mb4, raw VARBINARY(9), n INT, unnamed TEXT CHARACTER SET latin1);
CREATE TABLE others (whole TEXT CHARACTER SET latin1)`)
	f := w.parse("UPDATE orders o SET note = :a, whole = :b, raw = :c WHERE o.sn = :sn; DELETE FROM orders WHERE sn = :sn")
	narrow, err := f.Narrow(t.Context(), w.pool)
	want := []string{"orders.note is utf8mb3", "orders.sn is ascii"}
	assert.That(t, err == nil && slices.Equal(narrow, want), "%q, %v; want %q", narrow, err, want)
}
