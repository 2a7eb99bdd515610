package sqltext

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// readings are texts of a handler, and what the guard makes of them.
var readings = map[Kind][]string{
	Plain: {
		"SELECT 1", "select 1;", "((SELECT 1) UNION (SELECT 2))", "WITH x AS (SELECT 1) SELECT * FROM x", "DO 1",
		"INSERT INTO own VALUES (1, 'COMMIT')", "REPLACE INTO own VALUES (1, '; COMMIT')", "UPDATE own SET v = \"; COMMIT\"",
		"DELETE FROM own WHERE v = 'it''s; COMMIT'", `UPDATE own SET v = '\'; COMMIT; \\'`, "SELECT 1 AS `a``; COMMIT`",
		"SELECT 1 -- ; COMMIT", "SELECT 1 # ; COMMIT", "SELECT /* ; COMMIT */ 1", "SELECT /*+ MAX_EXECUTION_TIME(99) */ 1",
		"SELECT /*! STRAIGHT_JOIN */ 1", "/* hello */ -- you\n# there\nSELECT 1", "SELECT 1--2", "EXPLAIN SELECT 1",
		"SHOW VARIABLES LIKE 'autocommit'", "SAVEPOINT mine", "ROLLBACK TO mine", "ROLLBACK WORK TO SAVEPOINT `mine`",
		"rollback to savepoint mine", "RELEASE SAVEPOINT mine", "SET @a = 1, @autocommit = (SELECT 1, 2 LIMIT 0)",
		"SET @`autocommit` = 0", "DESC own", "DESCRIBE own", "",
	},
	Lasting: {
		"SET SESSION lock_wait_timeout = 7", "SET @@lock_wait_timeout = 7", "SET @a = 1, lock_wait_timeout = 7",
		"SET NAMES utf8mb4", "SET NAMES 'UTF8MB4' COLLATE utf8mb4_bin", "SET time_zone = '+01:00'",
		"SET foreign_key_checks = 0", "SELECT GET_LOCK('a', 0)", "DO get_lock('a', 0)",
		"CREATE TEMPORARY TABLE t (a INT)", "CREATE TEMPORARY TABLE IF NOT EXISTS t (a INT)",
		"DROP TEMPORARY TABLE IF EXISTS t",
	},
	Opaque: {
		"CALL p()", "/* a */ call p()", "PREPARE s FROM 'COMMIT'", "EXECUTE s", "EXECUTE IMMEDIATE 'COMMIT'",
		"DEALLOCATE PREPARE s", "BEGIN NOT ATOMIC COMMIT", "IF 1 THEN SELECT 1", "HANDLER own OPEN",
		"ANALYZE SELECT 1", "ANALYZE FORMAT=JSON SELECT 1", "SET STATEMENT max_statement_time = 1 FOR SELECT 1, timestamp",
		"SET NAMES /*!99999 utf8mb4; */ gbk", "CALL p(GET_LOCK('a', 0))",
		"SET sql_mode = 'ANSI_QUOTES'", "SET ROLE all", "SELECT 1; SELECT 2", "'COMMIT'", "`COMMIT`", "?", "1 COMMIT",
		"SELECT 'no end; COMMIT", "SELECT 1 /* no end; COMMIT", "/*!99999 SELECT 1 */", "/*M!100100 SELECT */ 1",
		"/*! SELECT 1", "SELECT 1 /*!99999 ' */; SELECT ' 1 '", "FROBNICATE own",
		"\x00\xff", "FOR i IN 1..2 DO SELECT 1", "KILL 1",
		"CHECKSUM TABLE own", "CREATE /*!99999 TEMPORARY */ TABLE t (a INT)", "ROLLBACK /*!99999 TO mine */",
	},
	Ending: {
		"COMMIT", "commit", "Commit WORK", "COMMIT;", " \t\nCOMMIT", "-- a\nCOMMIT", "#a\nCOMMIT", "/* a */COMMIT",
		"/*! COMMIT */", "/*!50000COMMIT*/", "/*M! COMMIT */", "/*M!100100 COMMIT */", "/*+ a */ COMMIT", "(COMMIT)",
		";COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "ROLLBACK WORK", "ROLLBACK AND CHAIN", "ROLLBACK RELEASE",
		"ROLLBACK TO rollbackd_batch", "ROLLBACK TO SAVEPOINT `Rollbackd_Batch`", "SAVEPOINT rollbackd_batch",
		"RELEASE SAVEPOINT rollbackd_batch", "BEGIN", "BEGIN WORK", "START TRANSACTION", "START SLAVE", "STOP REPLICA",
		"CHANGE MASTER TO a = 1", "XA START 'a'", "XA COMMIT 'a'", "SET autocommit = 0", "SET AUTOCOMMIT=1",
		"SET @@autocommit = 0", "SET @@session.autocommit := 0", "SET LOCAL autocommit = 0", "SET `autocommit` = 0",
		"SET @@`autocommit` = 0", "SET @a = (SELECT 1, 2), autocommit = 0", "SET completion_type = 1",
		"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET SESSION TRANSACTION READ ONLY", "SET tx_isolation = 'a'",
		"SET NAMES latin1", "SET NAMES 'gbk'", "SET NAMES DEFAULT", "SET NAMES", "SET NAMES utf8mb3 COLLATE utf8mb4_bin",
		"SET @a = 1, NAMES gbk", "SET NAMES utf8mb4, character_set_client = gbk", "SET CHARACTER SET utf8mb4",
		"SET CHARSET gbk", "SET @@session.character_set_client = gbk", "SET `character_set_connection` = gbk",
		"SET collation_connection = gbk_bin", "SET timestamp = 1", "SET @@timestamp = DEFAULT", "SET insert_id = 7",
		"SET STATEMENT max_statement_time = 1 FOR SELECT 1; COMMIT", "USE other", "use `other`;",
		"SET transaction_isolation = 'a'", "SET PASSWORD = 'a'", "LOCK TABLES own WRITE", "UNLOCK TABLES",
		"CREATE TABLE t (a INT)", "CREATE OR REPLACE TABLE t (a INT)", "CREATE INDEX i ON own (v)", "CREATE DATABASE d",
		"CREATE USER u", "CREATE DEFINER = a VIEW v AS SELECT 1", "ALTER TABLE own ADD c INT", "ALTER USER u",
		"DROP TABLE own", "DROP PREPARE s", "DROP INDEX i ON own", "RENAME TABLE own TO t", "TRUNCATE own",
		"TRUNCATE TABLE own", "GRANT SELECT ON own TO u", "REVOKE SELECT ON own FROM u", "ANALYZE TABLE own",
		"ANALYZE LOCAL TABLE own", "ANALYZE NO_WRITE_TO_BINLOG TABLE own", "OPTIMIZE TABLE own", "REPAIR TABLE own",
		"CHECK TABLE own", "CACHE INDEX own IN c", "LOAD INDEX INTO CACHE own", "LOAD DATA INFILE 'f' INTO TABLE own",
		"LOAD DATA LOCAL INFILE 'f' INTO TABLE own", "LOAD XML INFILE 'f' INTO TABLE own", "FLUSH TABLES", "RESET MASTER",
		"INSTALL PLUGIN p SONAME 'p'", "UNINSTALL PLUGIN p", "IMPORT TABLE FROM 'f'", "SHUTDOWN",
		"SELECT 1; COMMIT", "SELECT '; '; COMMIT", "SELECT ';'';'; /* ; */ COMMIT; SELECT 1", "SELECT `;`; COMMIT",
		"SELECT 1 /*! ; COMMIT */", "BEGIN NOT ATOMIC SELECT 1; COMMIT; END", "SELECT 1;;COMMIT", "SET @a = ';'; COMMIT",
		"SELECT 1 -- '\n; COMMIT", "CALL p(); COMMIT", "SELECT 1 /*!80000 /* inner */ */; COMMIT",
	},
}

func TestTheGuardReadsWhatEndsATransaction(t *testing.T) {
	for want, texts := range readings {
		for _, text := range texts {
			got, what := Read(text)
			assert.Is(t, got, want, "%q is read (%q) as", text, what)
		}
	}
	for text, want := range map[string]string{
		"COMMIT": "COMMIT", "/* a */ create\n table  t (a INT)": "create table t", "SELECT 1; COMMIT; SELECT 2": "COMMIT",
		"CALL " + strings.Repeat("é", 200): "CALL " + strings.Repeat("é", 27),
	} {
		_, got := Read(text)
		assert.Is(t, got, want, "%q is named", text)
	}
}

// Given any of the texts that the guard lets through beside others, then the server's transaction is the same after
// it, whether it ran or failed.
func TestWhatTheGuardLetsThroughEndsNoTransaction(t *testing.T) {
	t.Parallel()
	db := require.First(mysqldb.Open(t.Context(), stack.MySQL(t), mysqldb.Options{}))(t)
	pool := require.Get(db.DB())(t)
	defer pool.Close()
	const own = "CREATE TABLE own (k INT PRIMARY KEY, v VARCHAR(99)) ENGINE=InnoDB"
	require.Get(pool.ExecContext(t.Context(), own))(t)
	for _, text := range append(readings[Plain], readings[Lasting]...) {
		tx := require.Get(pool.BeginTx(t.Context(), nil))(t)
		for _, text := range []string{"SAVEPOINT " + OurSavepoint, "INSERT INTO own VALUES (0, 'ours')"} {
			require.Get(tx.ExecContext(t.Context(), text))(t)
		}
		_, failed := tx.ExecContext(mysqldb.LastUse(t.Context()), text)
		if _, err := tx.ExecContext(t.Context(), "RELEASE SAVEPOINT "+OurSavepoint); err != nil {
			t.Errorf("%q (%v) has ended the transaction: %v", text, failed, err)
		}
		require.OK(t, tx.Rollback())
		rows := 0
		if err := pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM own").Scan(&rows); err != nil || rows != 0 {
			t.Fatalf("%q (%v): %d rows are committed, %v", text, failed, rows, err)
		}
	}
}

// Given texts, then those that change rows are told from those that read or do something else, with the table that one
// changes as the text names it, the table and condition of its rows however they are quoted, and how many values stand
// before the condition; and a table is found by its name where that is none of a string or a comment.
func TestWhatWritesIsToldAndWhichTableAndRows(t *testing.T) {
	t.Parallel()
	type told struct {
		writes, names bool // names own
		target, rows  string
		before        int
	}
	for text, want := range map[string]told{
		"UPDATE own SET v = v + ?, w = ? WHERE k = ?":                {true, true, "own", "own WHERE k = ?", 2},
		"update `own` set v = (SELECT 1 WHERE k = ?) where `k` = 5":  {true, true, "own", "own WHERE k = 5", 1},
		"DELETE FROM own WHERE k = ?":                                {true, true, "own", "own WHERE k = ?", 0},
		"DELETE FROM other WHERE v='own' #own":                       {true, false, "other", "other WHERE v='own' #own", 0},
		"UPDATE own JOIN (SELECT ? AS k) x SET v = 1 WHERE 1":        {true, true, "own", "", 0},
		"UPDATE own SET v = 1":                                       {true, true, "own", "", 0},
		"/* a */ UPDATE shop.own SET v = 1":                          {true, true, "shop.own", "", 0},
		"UPDATE LOW_PRIORITY own o SET v = 1":                        {true, true, "own", "", 0},
		"UPDATE own, other SET own.v = other.v":                      {true, true, "own", "", 0},
		"UPDATE (SELECT 1) x SET v = 1":                              {true, false, "", "", 0},
		"DELETE QUICK FROM shop . own WHERE k = 1":                   {true, true, "shop.own", "shop . own WHERE k = 1", 0},
		"INSERT INTO own SELECT * FROM own WHERE k = ?":              {true, true, "own", "", 0},
		"insert ignore own set k = 1":                                {true, true, "own", "", 0},
		"INSERT":                                                     {true, false, "", "", 0},
		"replace into `OWN` values (1)":                              {true, true, "OWN", "", 0},
		"REPLACE LOW_PRIORITY INTO `shop`.`own` SET k":               {true, true, "shop.own", "", 0},
		"WITH x AS (SELECT 1) UPDATE own, x SET v = 1":               {true, true, "own", "", 0},
		"WITH x AS (SELECT k FROM other) SELECT * FROM x FOR UPDATE": {},
		"SELECT * FROM own WHERE k = ? FOR UPDATE":                   {names: true},
		"(SELECT * FROM own)":                                        {names: true},
		"SAVEPOINT own_1":                                            {},
		"":                                                           {},
	} {
		rows, before := Rows(text)
		assert.Is(t, told{Writes(text), Names(text, "own"), Target(text), rows, before}, want, "%q", text)
	}
}

func TestMain(m *testing.M) { stack.Main(m) }
