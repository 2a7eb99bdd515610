package sql

import (
	"errors"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

const good = "UPDATE t SET n = n + :n WHERE id = :id;"

// Each file that could end or escape the transaction, or that does not say what its writer believes, is refused where
// it goes wrong.
func TestParseRefusesWithLineAndColumn(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, want string }{
		{"empty", " \n-- a comment\n", "3:1: the file has no statement"},
		{"COMMIT", good + "\n  COMMIT;", "2:3: COMMIT is refused: the transaction is rollbackd's"},
		{"in small letters", "commit", "1:1: commit is refused: the transaction"},
		{"ROLLBACK", "ROLLBACK TO SAVEPOINT a;", "1:1: ROLLBACK is refused"},
		{"BEGIN", "BEGIN;", "1:1: BEGIN is refused"},
		{"START TRANSACTION", "START TRANSACTION", "1:1: START is refused"},
		{"SAVEPOINT", "SAVEPOINT a", "1:1: SAVEPOINT is refused"},
		{"XA", "XA START 'a'", "1:1: XA is refused"},
		{"CREATE", "CREATE TABLE a (b INT)", "1:1: CREATE is refused: the server commits the transaction before it"},
		{"DROP of a temporary table", "DROP TEMPORARY TABLE a", "1:1: DROP is refused"},
		{"TRUNCATE", "TRUNCATE t", "1:1: TRUNCATE is refused"},
		{"LOCK TABLES", "LOCK TABLES t WRITE", "1:1: LOCK is refused"},
		{"SET autocommit", "SET autocommit = 1", "1:1: SET is refused: settings of the session would outlive"},
		{"LOAD", "LOAD DATA INFILE 'a' INTO TABLE t", "1:1: LOAD is refused: it reads a file"},
		{"PREPARE", "PREPARE a FROM 'COMMIT'", "1:1: PREPARE is refused: it hides"},
		{"EXECUTE IMMEDIATE", "EXECUTE IMMEDIATE 'COMMIT'", "1:1: EXECUTE is refused"},
		{"HANDLER", "HANDLER t OPEN", "1:1: HANDLER is refused"},
		{"what nobody knows yet", "MERGE INTO t", "1:1: MERGE is refused: a statement begins with SELECT"},
		{"a parenthesis", "(SELECT 1)", "1:1: ( is refused: a statement begins with"},
		{"CALL", "CALL p()", `1:1: CALL is refused: a procedure can commit`},
		{"CALL that is allowed too late", good + "\n-- allow call\nCALL p();", `2:1: "-- allow call" must stand before`},
		{"CALL that is expected", "-- allow call\nCALL p(); -- expect 1, else done", "2:11: a CALL has no number of rows"},
		{"two in one", "UPDATE t SET a = 1; COMMIT", "1:21: COMMIT is refused"},
		{"a statement in a comment", "UPDATE t SET a = 1 /*! , b = 2 */", "1:20: the server executes what is in /*!"},
		{"a statement in a comment of MariaDB's", "/*M!100100 COMMIT */", "1:1: the server executes what is in /*M!"},
		{"SELECT INTO a file", "SELECT 1 INTO OUTFILE 'a'", "1:10: SELECT … INTO is refused"},
		{"RETURNING", "DELETE FROM t RETURNING id", "1:15: RETURNING is refused"},
		{"GET_LOCK", "SELECT GET_LOCK('a', 1)", "1:8: GET_LOCK is refused"},
		{"a user's variable", "UPDATE t SET a = @amount", `1:18: "@amount" is a variable of the server, which is NULL`},
		{"a server's variable", "SELECT @@autocommit", "1:8: "},
		{"an assignment", "SELECT a := 1 FROM t", "1:10: a colon must begin a parameter"},
		{"a question mark", "UPDATE t SET a = ?", "1:18: a parameter is written :name"},
		{"a string without an end", "UPDATE t SET a = 'x\n", "1:18: what begins with ' here has no end"},
		{"a backslash before the end", `UPDATE t SET a = 'x\'`, "1:18: what begins with ' here has no end"},
		{"a comment without an end", "UPDATE t /* SET", "1:10: the comment that begins here has no end"},
		{"a control character", "UPDATE t\x00 SET a = 1", "1:9: a control character (0x00)"},
		{"a byte that is no character", "UPDATE \xff SET a = 1", "1:1: the file is not UTF-8"},
		{"a misspelt section", "-- for each items\n" + good, `1:1: "-- for each items" is none of`},
		{"a section with more", "-- once more\n" + good, `1:1: "-- once more" is none of`},
		{"a section inside a statement", "UPDATE t\n-- once\nSET a = 1", "2:1: \"-- once\" stands inside a statement"},
		{"a section behind a statement", good + " -- once", `1:41: "-- once" must stand on a line of its own`},
		{"a directive in another comment", "# once\n" + good, `1:1: a comment that begins with "once" must be written with`},
		{"expect in a block", good + "/* expect 1, else done */", `1:40: a comment that begins with "expect" must`},
		{"expects", good + " -- expects 1", `1:41: "-- expects 1" is almost "-- expect" and would have no effect`},
		{"expected", good + "\n-- Expected 1, else done", `2:1: "-- Expected 1, else done" is almost "-- expect"`},
		{"two letters in the wrong order", good + " -- exepct 1, else done", `1:41: "-- exepct 1, else done" is almost`},
		{"a letter of another alphabet", good + " -- \u0435xpect 1, else done",
			"1:41: \"-- \u0435xpect 1, else done\" is almost"},
		{"expect behind words", good + " -- the guard: expect 1, else done",
			`1:41: "-- the guard: expect 1, else done" is almost "-- expect"`},
		{"expect behind a dash", good + " -- - expect 1, else done", `1:41: "-- - expect 1, else done" is almost`},
		{"else alone", good + "\n-- else done", `2:1: "-- else done" is almost "-- expect"`},
		{"foreach", "-- foreach /items\n" + good,
			`1:1: "-- foreach /items" is almost "-- for each" and would have no effect`},
		{"for-each", "-- for-each /items\n" + good, `1:1: "-- for-each /items" is almost "-- for each"`},
		{"for each, misspelt", "-- fore ach /items\n" + good, `1:1: "-- fore ach /items" is almost "-- for each"`},
		{"for all", "-- For all /items\n" + good, `1:1: "-- For all /items" is almost "-- for each"`},
		{"each", "# each /items\n" + good, `1:1: "# each /items" is almost "-- for each"`},
		{"one", "-- one\n" + good, `1:1: "-- one" is almost "-- once" and would have no effect`},
		{"once behind a star", "/*\n * once\n */\n" + good, `1:1: "/* * once */" is almost "-- once"`},
		{"allow, misspelt", "-- alow call\nCALL p()", `1:1: "-- alow call" is almost "-- allow"`},
		{"expect without else", good + " -- expect 1", `1:41: "-- expect 1" is not of the form`},
		{"expect with another word", good + " -- expect 1, else ignore", `1:41: "-- expect 1, else ignore" is not of`},
		{"expect behind nothing", "-- expect 1, else done\n" + good, `1:1: "-- expect" stands behind no statement`},
		{"expect behind a section", good + "\n-- once\n-- expect 1, else done\n" + good, `3:1: "-- expect" stands behind no`},
		{"expect twice", good + "-- expect 1, else retry\n-- expect 1, else retry", `2:1: "-- expect" stands behind this`},
		{"expect too many", good + " -- expect 99999999999, else done", "1:41: 99999999999 is too large a number"},
		{"done behind a write", good + good + " -- expect 1, else done",
			`1:80: "else done" must stand before any write, but the statement at 1:1 writes`},
		{"done in a list", "-- for each /items\n" + good + " -- expect 1, else done",
			`2:41: "else done" must stand in a section "-- once"`},
		{"done of nothing", good + " -- expect 0 or 1, else done", `1:41: "else done" of a write answers that no row`},
		{"an unknown reserved name", "UPDATE t SET a = :rollbackd_body", "1:18: :rollbackd_body is none of"},
		{"the item outside a list", "UPDATE t SET a = :{}", "1:18: :{} is the item of a list"},
		{"a pointer without an end", "UPDATE t SET a = :{/a", "1:18: the parameter that begins with :{ here has no }"},
		{"a bad pointer", "UPDATE t SET a = :{/a~2}", "1:18: in the pointer /a~2 a ~ must be followed by 0 or 1"},
		{"columns count characters", "UPDATE t SET é = '訂單', b = @x", "1:28: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("f.sql", test.text)
			bad, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("the error is %v, want one with a place", err)
			}
			if want := "f.sql:" + test.want; !strings.HasPrefix(bad.Error(), want) {
				t.Errorf("got  %s\nwant %s", bad, want)
			}
		})
	}
}

// A comment for people needs no care as long as it is far from every directive.
func TestCommentsForPeopleHaveNoEffect(t *testing.T) {
	t.Parallel()
	for _, comment := range []string{
		"-- One row per order.", "-- Only once a day.", "-- What everybody expects.", "-- Form and function.", "--", "-- 1.",
		"-- All or nothing.", "-- Forecasts are left alone.", "-- UPDATE t SET n = 1", "-- The stock, for each of the items",
		"/* Everything that an order took\nfor each of its items */", "-- 12 for each of them", "-- Calls nobody.",
	} {
		if _, err := Parse("f.sql", comment+"\n"+good+" "+comment+"\n"); err != nil {
			t.Error(err)
		}
	}
}

// What looks like a parameter, a comment or the end of a statement inside a string or a name is none.
func TestParseSplitsAsTheServerDoes(t *testing.T) {
	t.Parallel()
	f := require.Get(Parse("f.sql", `
-- Any comment.
SELECT 1 FROM a WHERE b = ':x; -- @y' AND c = "it""s ?"
  AND d = 'a\';' AND `+"`:e;`"+` = 5--3; -- expect 0 or 1, else done
/* another ; one */
-- for each /a~1b/c
INSERT INTO t /* inside */ VALUES (:a, :{b c}, :{/d/0}, :{}, :rollbackd_key) # at the end
; INSERT /*+ NO_MERGE(t) */ INTO u SELECT :a/2
-- expect 1 or more, else retry: some text
;
-- once
WITH x AS (SELECT 1) UPDATE t, x SET t.a = 1`))(t)
	var got []string
	for in, s := range f.all {
		line := s.verb + " | " + asWritten(s)
		if in.each {
			line = "each " + strings.Join(in.list, "→") + " " + line
		}
		if s.expect != nil {
			line += " | " + s.expect.String() + " " + string(s.expect.other) + " " + s.expect.text
		}
		got = append(got, line)
	}
	want := []string{
		`SELECT | SELECT 1 FROM a WHERE b = ':x; -- @y' AND c = "it""s ?" AND d = 'a\';' AND ` +
			"`:e;` = 5--3 | 0 or 1 done ",
		"each a/b→c INSERT | INSERT INTO t VALUES (:a, :{b c}, :{/d/0}, :{}, :rollbackd_key)",
		"each a/b→c INSERT | INSERT /*+ NO_MERGE(t) */ INTO u SELECT :a/2 | 1 or more retry some text",
		"UPDATE | WITH x AS (SELECT 1) UPDATE t, x SET t.a = 1",
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

func asWritten(s *Statement) (text string) {
	for _, p := range s.parts {
		text += p.text
	}
	return strings.Join(strings.Fields(text), " ")
}

// However a file is made, reading it ends, and what it gives can be written again.
func FuzzParse(f *testing.F) {
	f.Add("-- once\n" + good + " -- expect 1, else done\n-- for each /items\n" + good)
	f.Add("WITH x AS (SELECT ':a' \"b\" `c`) SELECT :{/a/~0}, :b /*+ h */ # c")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("f.sql", text)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("an error without a place: %v", err)
			}
			return
		}
		for _, s := range file.all {
			if asWritten(s) == "" {
				t.Error("an empty statement")
			}
		}
	})
}
