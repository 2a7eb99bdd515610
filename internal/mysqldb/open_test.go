package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestOpenForcesWhatTheLogNeeds(t *testing.T) {
	dsn := stack.MySQL(t)
	contrary := "clientFoundRows=true&multiStatements=true&parseTime=false&loc=Local&checkConnLiveness=false" +
		"&interpolateParams=false" +
		"&time_zone=%27%2B09%3A00%27&sql_mode=%27%27&autocommit=0" +
		"&innodb_lock_wait_timeout=77&lock_wait_timeout=78&tx_read_only=1&wait_timeout=79&net_read_timeout=80" +
		"&charset=latin1&collation=latin1_swedish_ci"
	db, warnings, err := Open(t.Context(), dsn+separator(dsn)+contrary, Options{
		Program: "rollbackd run host/1", LockWait: 3 * time.Second, Idle: 5500 * time.Millisecond, MaxOpen: 7,
	})
	require.OK(t, err)
	pool := poolOf(t, db)
	defer pool.Close()

	for _, word := range []string{"clientFoundRows", "multiStatements", "loc", "checkConnLiveness", "time_zone",
		"sql_mode", "autocommit",
		"mysql DSN: innodb_lock_wait_timeout", "mysql DSN: lock_wait_timeout", "tx_read_only",
		"mysql DSN: wait_timeout", "net_read_timeout", "collation"} {
		assert.Has(t, strings.Join(warnings, "\n"), word, "no warning in %q", warnings)
	}
	var zone, program string
	var wait, tableWait, silent, reading, writing int // the other variables are looked at beside a contrary server
	require.OK(t, pool.QueryRow("SELECT @@time_zone, @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@wait_timeout, "+
		"@@net_read_timeout, @@net_write_timeout").
		Scan(&zone, &wait, &tableWait, &silent, &reading, &writing))
	assert.That(t, silent == 9 && reading == 9 && writing == 9, "the server waits for the client for %d, %d and %d s, "+
		"want Idle and 3 s more, in whole seconds: 9", silent, reading, writing)
	assert.That(t, zone == "+00:00" && wait == 3 && tableWait == 3, "zone %q, lock waits %d and %d", zone, wait, tableWait)
	assert.Is(t, pool.Stats().MaxOpenConnections, 7, "connections at most")
	err = pool.QueryRow("SELECT attr_value FROM performance_schema.session_connect_attrs WHERE processlist_id = " +
		"CONNECTION_ID() AND attr_name = 'program_name'").Scan(&program)
	if err == nil && program != "rollbackd run host/1" { // the table is empty where the performance schema is off
		t.Errorf("program %q", program)
	}
	_, err = pool.Exec("DO 1; DO 2")
	assert.That(t, err != nil, "two statements in one text were run")
	assert.Is(t, prepared(t, pool), 0, "statements were prepared: each costs a round trip")
	var at time.Time
	err = pool.QueryRow("SELECT CAST('2026-11-21 12:00:00' AS DATETIME)").Scan(&at)
	assert.That(t, err == nil && at.Location() == time.UTC, "time %v, %v", at, err)
}

func TestRowsAffectedAreChangedRowsWhateverTheDSNSays(t *testing.T) {
	dsn := stack.MySQL(t)
	pool := poolOf(t, open(t, dsn+separator(dsn)+"clientFoundRows=true"))
	for _, text := range []string{"CREATE TABLE x (a INT)", "INSERT INTO x VALUES (1)"} {
		require.Get(pool.Exec(text))(t)
	}
	res := require.Get(pool.Exec("UPDATE x SET a = 1 WHERE a = 1"))(t)
	n, err := res.RowsAffected()
	assert.That(t, n == 0 && err == nil, "%d rows, %v, want none", n, err)
	if _, err := pool.Exec("INSERT INTO x VALUES ('nine')"); Classify(err) != FaultData {
		t.Errorf("a value that does not fit = %v (%v), want it refused", err, Classify(err))
	}
}

func TestOpenWarnsOfNothingThatIsFine(t *testing.T) {
	for _, dsn := range []string{
		"u:p@tcp(db:3306)/stock",
		"u:p@tcp(db:3306)/stock?parseTime=true&timeout=1s&readTimeout=9s&tls=skip-verify&collation=utf8mb4_bin",
	} {
		db, warnings, err := Open(t.Context(), dsn, Options{})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, %q", dsn, err, warnings)
			continue
		}
		poolOf(t, db).Close()
	}
	db, warnings, err := Open(t.Context(), "u:p@tcp(db)/stock?readTimeout=2s", Options{LockWait: 2 * time.Second})
	assert.That(t, err == nil && len(warnings) == 1 && strings.Contains(warnings[0], "readTimeout"),
		"a read timeout below the lock wait: %v, %q", err, warnings)
	poolOf(t, db).Close()
}

func TestOpenDoesNotDial(t *testing.T) {
	listener := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	db := open(t, "u:p@tcp("+listener.Addr().String()+")/stock")
	require.Get(db.DB())(t)
	require.OK(t, listener.(*net.TCPListener).SetDeadline(time.Now().Add(50*time.Millisecond)))
	if conn, err := listener.Accept(); err == nil {
		conn.Close()
		t.Error("Open dialled")
	}
}

func TestARefusedLoginDoesNotShowThePassword(t *testing.T) {
	const password = "s3cr"
	dsn := stack.MySQL(t)
	user, rest, _ := strings.Cut(dsn, ":")
	_, rest, _ = strings.Cut(rest, "@")
	err := poolOf(t, open(t, user+":s3cr3t@"+rest)).Ping()
	assert.That(t, err != nil && !strings.Contains(err.Error(), password) && Classify(err) == FaultUnavailable,
		"ping with a wrong password = %v", err)
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
	pool := poolOf(t, openWith(t, proxy.Through(dsn), Options{
		LockWait: time.Second, ReadTimeout: 1100 * time.Millisecond, DialTimeout: time.Second,
	}))
	require.OK(t, pool.Ping())
	proxy.Hold(true)
	defer proxy.Hold(false)
	started := time.Now()
	_, err := pool.Exec("DO 1")
	if Classify(err) != FaultUnavailable || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("statement on a frozen server = %v (%v)", err, Classify(err))
	}
	assert.AtMost(t, time.Since(started), 10*time.Second, "it took")
}

// Given a client that stands still inside a transaction, when somebody else waits for its row, then the server ends its
// session after Idle and 3 s; and it finds that out as a database that is away, not as the fault of its statement.
func TestASilentTransactionIsEndedByTheServer(t *testing.T) {
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	other := poolOf(t, openWith(t, w.dsn, Options{LockWait: time.Minute}))
	for _, what := range []string{"UPDATE goods SET n = 2", "COMMIT"} {
		pool := poolOf(t, openWith(t, proxy.Through(w.dsn), Options{Idle: time.Second}))
		tx := require.Get(pool.BeginTx(t.Context(), nil))(t)
		require.Get(tx.ExecContext(t.Context(), "UPDATE goods SET n = 1"))(t)
		proxy.Hold(true)
		began := time.Now()
		require.Get(other.ExecContext(t.Context(), "UPDATE goods SET n = 3"))(t)
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
		require.Get(pool.ExecContext(t.Context(), "UPDATE goods SET n = 4"))(t)
	}
}

// Given a connection that was reset while it lay in its pool, when the pool is closed, then that is no error.
func TestAPoolClosesWhatIsNotConnectedAnyMore(t *testing.T) {
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	pool := poolOf(t, open(t, proxy.Through(w.dsn)))
	assert.OK(t, pool.PingContext(t.Context()))
	require.Is(t, proxy.Cut(), 1, "connections cut")
	assert.OK(t, pool.Close())
}

func separator(dsn string) string {
	if strings.Contains(dsn, "?") {
		return "&"
	}
	return "?"
}

// prepared counts the prepared statements of a session that has run one with an argument.
func prepared(t *testing.T, pool *sql.DB) (n int) {
	conn := require.Get(pool.Conn(t.Context()))(t)
	defer conn.Close()
	require.Get(conn.ExecContext(t.Context(), "DO ?", 1))(t)
	var name string
	require.OK(t, conn.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Com_stmt_prepare'").Scan(&name,
		&n))
	return n
}
