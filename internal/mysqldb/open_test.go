package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is a database of the test's own with a table and a row in it.
type world struct {
	t    testing.TB
	dsn  string
	pool *sql.DB
}

// newWorld has its test run beside others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldOn(t, stack.MySQL(t))
}

func newWorldOn(t testing.TB, dsn string) *world {
	t.Helper()
	w := &world{t, dsn, openPool(t, dsn, Options{})}
	w.exec("CREATE TABLE goods (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	w.exec("INSERT INTO goods VALUES (1, 0)")
	return w
}

func (w *world) exec(text string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.pool, text, args...)
}

func openPool(t testing.TB, dsn string, o Options) *sql.DB {
	t.Helper()
	pool := require.Get(require.First(Open(t.Context(), dsn, o))(t).DB())(t)
	t.Cleanup(func() { pool.Close() })
	return pool
}

func TestOpenForcesWhatTheLogNeeds(t *testing.T) {
	dsn := stack.MySQL(t)
	contrary := "clientFoundRows=true&multiStatements=true&parseTime=false&loc=Local&checkConnLiveness=false" +
		"&interpolateParams=false&time_zone=%27%2B09%3A00%27&sql_mode=%27%27&autocommit=0" +
		"&innodb_lock_wait_timeout=77&lock_wait_timeout=78&tx_read_only=1&wait_timeout=79&net_read_timeout=80" +
		"&charset=latin1&collation=latin1_swedish_ci"
	db, warnings, err := Open(t.Context(), dsn+"?"+contrary, Options{
		Program: "rollbackd run host/1", LockWait: 3 * time.Second, Idle: 5500 * time.Millisecond, MaxOpen: 7,
	})
	require.OK(t, err)
	pool := require.Get(db.DB())(t)
	defer pool.Close()

	for _, word := range []string{"clientFoundRows", "multiStatements", "loc", "checkConnLiveness", "time_zone",
		"sql_mode", "autocommit", "mysql DSN: innodb_lock_wait_timeout", "mysql DSN: lock_wait_timeout", "tx_read_only",
		"mysql DSN: wait_timeout", "net_read_timeout", "collation"} {
		assert.Has(t, strings.Join(warnings, "\n"), word, "no warning in %q", warnings)
	}
	var zone, program string
	var wait, tableWait, silent, reading, writing int // the other variables are looked at beside a contrary server
	require.OK(t, pool.QueryRow("SELECT @@time_zone, @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@wait_timeout, "+
		"@@net_read_timeout, @@net_write_timeout").Scan(&zone, &wait, &tableWait, &silent, &reading, &writing))
	assert.That(t, silent == 9 && reading == 9 && writing == 9, "the server waits for the client for %d, %d and %d s, "+
		"want Idle and 3 s more, in whole seconds: 9", silent, reading, writing)
	assert.That(t, zone == "+00:00" && wait == 3 && tableWait == 3, "zone %q, lock waits %d and %d", zone, wait, tableWait)
	assert.Is(t, pool.Stats().MaxOpenConnections, 7, "connections at most")
	err = pool.QueryRow("SELECT attr_value FROM performance_schema.session_connect_attrs WHERE processlist_id = " +
		"CONNECTION_ID() AND attr_name = 'program_name'").Scan(&program)
	// the table is empty where the performance schema is off
	assert.That(t, err != nil || program == "rollbackd run host/1", "program %q", program)
	_, err = pool.Exec("DO 1; DO 2")
	assert.That(t, err != nil, "two statements in one text were run")
	s := (&world{t: t, pool: pool}).session()
	stack.Exec(t, s.conn, "DO ?", 1)
	assert.Is(t, s.counts(), "0 0 0", "prepared, executed, closed: each costs a round trip")
	var at time.Time
	err = pool.QueryRow("SELECT CAST('2026-11-21 12:00:00' AS DATETIME)").Scan(&at)
	assert.That(t, err == nil && at.Location() == time.UTC, "time %v, %v", at, err)
}

func TestRowsAffectedAreChangedRowsWhateverTheDSNSays(t *testing.T) {
	dsn := stack.MySQL(t)
	pool := openPool(t, dsn+"?clientFoundRows=true", Options{})
	for _, text := range []string{"CREATE TABLE x (a INT)", "INSERT INTO x VALUES (1)"} {
		stack.Exec(t, pool, text)
	}
	res := require.Get(pool.Exec("UPDATE x SET a = 1 WHERE a = 1"))(t)
	n, err := res.RowsAffected()
	assert.That(t, n == 0 && err == nil, "%d rows, %v, want none", n, err)
	_, err = pool.Exec("INSERT INTO x VALUES ('nine')")
	assert.That(t, Classify(err) == FaultData, "a value that does not fit = %v (%v), want it refused", err, Classify(err))
	// a statement that is too large for the server costs no connection
	before := stack.Number(t, pool, "SELECT CONNECTION_ID()")
	most := stack.Number(t, pool, "SELECT @@max_allowed_packet") // 16 MiB on MariaDB, 64 MiB on MySQL
	_, err = pool.Exec("DO LENGTH('" + strings.Repeat("x", most+1<<20) + "')")
	assert.Is(t, Classify(err), FaultTooLarge, "a statement of %d bytes and more", most)
	assert.Is(t, stack.Number(t, pool, "SELECT CONNECTION_ID()"), before, "the connection was lost: now, was")
}

func TestOpenWarnsOfNothingThatIsFine(t *testing.T) {
	for _, dsn := range []string{
		"u:p@tcp(db:3306)/stock",
		"u:p@tcp(db:3306)/stock?parseTime=true&timeout=1s&readTimeout=9s&tls=skip-verify&collation=utf8mb4_bin",
	} {
		db, warnings, err := Open(t.Context(), dsn, Options{})
		require.That(t, err == nil && len(warnings) == 0, "%s: %v, %q", dsn, err, warnings)
		require.Get(db.DB())(t).Close()
	}
	db, warnings, err := Open(t.Context(), "u:p@tcp(db)/stock?readTimeout=2s", Options{LockWait: 2 * time.Second})
	assert.That(t, err == nil && len(warnings) == 1 && strings.Contains(warnings[0], "readTimeout"),
		"a read timeout below the lock wait: %v, %q", err, warnings)
	require.Get(db.DB())(t).Close()
}

func TestOpenRefusesNonsense(t *testing.T) {
	for _, o := range []Options{{MaxOpen: -1}, {LockWait: time.Millisecond}, {ReadTimeout: -1}, {Idle: -1}} {
		_, _, err := Open(t.Context(), "u:p@tcp(db)/stock", o)
		assert.That(t, err != nil, "%+v was taken", o)
	}
}

func TestFrozenServerIsGivenUp(t *testing.T) {
	t.Parallel()
	dsn := stack.MySQL(t)
	proxy := stack.Proxy(t, stack.Addr(t, dsn))
	pool := openPool(t, proxy.Through(dsn), Options{
		LockWait: time.Second, ReadTimeout: 1100 * time.Millisecond, DialTimeout: time.Second,
	})

	require.OK(t, pool.Ping())
	proxy.Hold(true)
	defer proxy.Hold(false)
	started := time.Now()
	_, err := pool.Exec("DO 1")
	assert.That(t, Classify(err) == FaultUnavailable && !errors.Is(err, context.DeadlineExceeded),
		"statement on a frozen server = %v (%v)", err, Classify(err))
	assert.AtMost(t, time.Since(started), 10*time.Second, "it took")
}

// Given a client that stands still inside a transaction, when somebody else waits for its row, then the server ends its
// session after Idle and 3 s, or the 10 s that it is by default; and it finds that out as a database that is away, not
// as the fault of its statement.
func TestASilentTransactionIsEndedByTheServer(t *testing.T) {
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	other := openPool(t, w.dsn, Options{LockWait: time.Minute})
	for what, idle := range map[string]time.Duration{"UPDATE goods SET n = 2": time.Second, "COMMIT": 0} {
		pool := openPool(t, proxy.Through(w.dsn), Options{Idle: idle})
		tx := require.Get(pool.BeginTx(t.Context(), nil))(t)
		stack.Exec(t, tx, "UPDATE goods SET n = 1")
		proxy.Hold(true)
		began := time.Now()
		stack.Exec(t, other, "UPDATE goods SET n = 3")
		assert.AtMost(t, time.Since(began), 20*time.Second, "the row was free after")
		proxy.Hold(false)
		err := error(nil)
		if what == "COMMIT" {
			err = tx.Commit()
		} else {
			_, err = tx.ExecContext(t.Context(), what)
			_ = tx.Rollback() // on a connection that is gone
		}
		assert.Is(t, Classify(err), FaultUnavailable, "%s of a session that was ended = %v", what, err)
		t.Logf("%s: %v", what, err)
		stack.Exec(t, pool, "UPDATE goods SET n = 4")
		poll.Until(t, "one connection is left, and cut", func() bool { return proxy.Links() == 1 && proxy.Cut() == 1 })
		assert.OK(t, pool.Close(), "close a pool with a connection that was reset:")
	}
}

func TestADSNThatCannotBeMeantIsRefusedAndNotShown(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://u:hunter2@h/d":            "the DSN is a URL",
		"u:hunter2@tcp(h:1)":               "the DSN is not of the form",
		"u:hunter2@tcp(h:1/d":              "the DSN is not of the form",
		"u:hunter2@ftp/d":                  "the DSN ",
		"hunter2":                          "the DSN is not of the form",
		"":                                 "the DSN ",
		"u:hunter2/3t":                     "the DSN ",
		"u:hunter2@/3t@tcp(h:1)":           "the DSN ",
		"u:hunter2@tcp(h)/a@b":             "the DSN has a last / that is not before the database",
		"u:hunter2@tcp(h:1)/":              "the DSN names no database",
		"u:hunter2@tcp(h:1)/d?timeout=5":   "the DSN has a parameter",
		"tcp(hunter2:1)/d":                 "the DSN names no user",
		"u/hunter2@tcp(h:1)/d":             "the DSN has a user that looks like something else",
		"u:hunter2@tcp(h:1)/d?tls=hunter2": "the DSN has a parameter",
	} {
		_, _, err := Connector(dsn, Options{})
		assert.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hunter2"),
			"%s: %v, want an error that says %q and no password", dsn, err, want)
	}
}

// setting is a session variable that every connection sets: a default of the server's that is contrary, and what stands
// there all the same.
type setting struct{ name, contrary, want string }

func ours(t *testing.T) (all []setting) {
	t.Helper()
	for line := range strings.Lines(string(require.Get(os.ReadFile("testdata/ours.txt"))(t))) {
		if f := strings.Fields(line); f[0] != "#" {
			all = append(all, setting{f[0], f[1], f[2]})
		}
	}
	return all
}

// sessionVariables are the names of all that a session may have otherwise than the server.
func sessionVariables(t *testing.T, pool *sql.DB) []string {
	t.Helper()
	names, err := List(t.Context(), pool, func(rows *sql.Rows) (name string, err error) {
		err = rows.Scan(&name)
		return name, err
	}, "SELECT LOWER(variable_name) FROM /*M! information_schema.system_variables *//*!80000 "+
		"performance_schema.variables_metadata */ WHERE variable_scope LIKE 'SESSION%' ORDER BY 1")
	require.That(t, err == nil && len(names) >= 100, "%d session variables (%v)", len(names), err)
	return names
}

// Given a server of any kind, then of each session variable that it has it is known what becomes of it: it is set by
// us, or left for a reason, which stands in testdata/session.txt.
func TestOfEachSessionVariableItIsKnownWhatBecomesOfIt(t *testing.T) {
	pool := openPool(t, stack.MySQL(t), Options{})
	fate := map[string]string{}
	know := func(name, what string) {
		assert.Is(t, fate[name], "", "%s is in the table twice:, %s", name, what)
		fate[name] = what
	}
	for _, v := range ours(t) {
		know(v.name, "set")
	}
	why := ""
	for line := range strings.Lines(string(require.Get(os.ReadFile("testdata/session.txt"))(t))) {
		if !strings.HasPrefix(line, "\t") {
			why = line
			continue
		}
		for _, name := range strings.Fields(line) {
			know(name, why)
		}
	}
	unknown := slices.DeleteFunc(sessionVariables(t, pool), func(name string) bool { return fate[name] != "" })
	assert.Equal(t, unknown, nil, "what becomes of these session variables? Say it in testdata/session.txt")
}

// Given a server whose defaults for sessions are contrary to all that we set, when an account without rights on the
// server connects, then its session is ours, and took no more round trips than these few.
func TestContraryDefaultsOfTheServerReachNoSession(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	dsn := stack.Restricted(t, server.Database(t), "ALL PRIVILEGES ON *")
	root := openPool(t, server.Database(t), Options{})
	all := sessionVariables(t, root)
	ours := slices.DeleteFunc(ours(t), func(v setting) bool { return !slices.Contains(all, v.name) })
	for _, v := range ours {
		stack.Exec(t, root, fmt.Sprintf("SET GLOBAL %s = %s", v.name, v.contrary))
	}
	pool := openPool(t, dsn, Options{})
	for _, v := range ours {
		var got string
		err := pool.QueryRowContext(t.Context(), "SELECT @@SESSION."+v.name).Scan(&got)
		assert.That(t, err == nil && got == v.want, "%s is %q (%v), want %q", v.name, got, err, v.want)
	}
	for _, v := range ours { // so that the server can be cleaned up
		_, _ = root.ExecContext(t.Context(), fmt.Sprintf("SET GLOBAL %s = DEFAULT", v.name))
	}
}
