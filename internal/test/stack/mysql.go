package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Explain begins a statement that asks for another one's plan, as rows with the columns type, key, rows and Extra.
// MySQL has to be told since 8.0.32, where its default may be a tree; MariaDB knows no word for it, and skips comments
// that are meant for MySQL 8 (mariadb.com, "Comment Syntax").
const Explain = "EXPLAIN /*!80018 FORMAT=TRADITIONAL */ "

// Tables of what the server is at. On MySQL 9 those of information_schema fail as a whole while any statement at work
// has bytes in it that are no text (error 3854); MariaDB has no others. What begins with M is for MariaDB alone.
const (
	// Processes has a row for each connection: id, user, host, db, command, time in whole seconds, state, info. On MySQL
	// info ends before the first byte that is no text, and after 1,024.
	Processes = "/*M! information_schema.*//*!80022 performance_schema.*/processlist"

	// Transactions has a row for each open transaction: conn, which is the number of its connection, id, which tells it
	// from others of this connection, and waits: for a row that another transaction has locked. MariaDB makes its view
	// anew only for who has not looked for 0.1 s.
	Transactions = "(/*M! SELECT trx_mysql_thread_id AS conn, trx_id AS id, trx_state = 'LOCK WAIT' AS waits " +
		"FROM information_schema.innodb_trx *//*!80022 SELECT t.processlist_id AS conn, e.event_id AS id, EXISTS (" +
		"SELECT 1 FROM performance_schema.data_lock_waits w WHERE w.requesting_thread_id = t.thread_id) AS waits " +
		"FROM performance_schema.events_transactions_current e JOIN performance_schema.threads t USING (thread_id) " +
		"WHERE e.state = 'ACTIVE' */) AS transactions"
)

// prepareMySQL makes a MariaDB, or a MySQL where that is installed, with empty data and a root account that has a
// random password.
func (s *Stack) prepareMySQL(ctx context.Context, dir string, o Options) *Server {
	program, port := findMySQL(), must.Get(freePorts(1))[0]
	config := rootOf(loopback(port), rand.Text())
	// Names are not resolved, so a client on the loopback address is root@127.0.0.1 and no other.
	accounts := writeFile(dir, "accounts.sql", "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n"+
		"ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY '"+config.Passwd+"';\n"+
		"GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n")
	var own *disk
	if o.MySQLDisk != 0 {
		own = s.makeDisk(ctx, dir, filepath.Join(program.tree, dir, "data"), o.MySQLDisk)
		program.room = own.room
	}
	var clock *fakeClock
	var see []string
	if o.MySQLClock {
		clock, see = makeClock(program, dir)
	}
	if made := readPrivate().Tables; made == "" {
		installMySQL(ctx, program, dir)
	} else { // it takes a tenth of the time
		copies := findProgram("cp")
		copies.room = program.room
		output(copies.command(ctx, dir, nil, "-aT", filepath.Join(made, "data"), filepath.Join(dir, "data")),
			"copy the system tables of mysql")
	}
	args := append([]string{mysqlOptions(dir, port, map[string]any{"TLS": o.Encryption}), "--init-file=" + accounts},
		o.MySQLArgs...)
	server := newServer(KindMySQL, dir, config.Addr, program, see, args...)
	server.url, server.disk, server.clock, server.encryption = config.FormatDSN(), own, clock, o.Encryption
	server.ask = pings(server.url)
	return server
}

func findMySQL() executable { return findProgram("mariadbd", "mysqld") }

// rootOf is how root reaches the server at an address.
func rootOf(addr, password string) *mysql.Config {
	config := mysql.NewConfig()
	config.User, config.Passwd, config.Net, config.Addr = "root", password, "tcp", addr
	return config
}

// mysqlOptions writes the options of a server, and is its first argument: option files of the machine must not change
// it.
func mysqlOptions(dir string, port any, more map[string]any) string {
	more["Dir"], more["Port"], more["User"] = dir, port, must.Get(osuser.Current()).Username
	return "--defaults-file=" + writeConfig(dir, "mysql.cnf", more)
}

// installMySQL makes the system tables: MariaDB has a program of its own for it, MySQL's server does it itself.
func installMySQL(ctx context.Context, server executable, dir string) {
	installer, args := server, []string{"--initialize-insecure"}
	if server.name() == "mariadbd" {
		installer = findProgram("mariadb-install-db")
		installer.room, args = server.room, []string{"--auth-root-authentication-method=normal", "--skip-test-db"}
	}
	args = append([]string{"--no-defaults", "--user=" + must.Get(osuser.Current()).Username,
		"--datadir=" + filepath.Join(dir, "data")}, args...)
	output(installer.command(ctx, dir, nil, args...), "make the system tables of mysql")
}

// pings is nil when a server answers.
func pings(dsn string) func(context.Context) error {
	return func(ctx context.Context) error {
		return onMySQL(ctx, dsn, func(ctx context.Context, db *sql.DB) { must.OK(db.PingContext(ctx)) })
	}
}

// onMySQL does something on a server, over connections of its own.
func onMySQL(ctx context.Context, dsn string, do func(context.Context, *sql.DB)) error {
	return must.Catch(func() {
		db := OpenMySQL(must.Get(mysql.ParseDSN(dsn)))
		defer db.Close()
		do(ctx, db)
	})
}

// OpenMySQL opens a pool whose driver does not write to standard error when a connection breaks: the caller gets the
// error.
func OpenMySQL(config *mysql.Config) *sql.DB {
	config.Logger = &mysql.NopLogger{}
	return sql.OpenDB(must.Get(mysql.NewConnector(config)))
}

// ErrNoFaketime says that the library is missing through which a server sees another clock than the machine's.
var ErrNoFaketime = errors.New("no libfaketime: run scripts/install-servers.sh clock")

// fakeClock is the clock that a server of its own sees: the machine's, and an offset that can be changed at work.
type fakeClock struct{ file string }

// makeClock returns the environment by which a program sees the clock. What measures spans is left alone.
func makeClock(program executable, dir string) (*fakeClock, []string) {
	// the only error is a malformed pattern, and ours is constant
	found, _ := filepath.Glob(filepath.Join(program.tree, "/usr/lib/*/faketime/libfaketimeMT.so.1"))
	if len(found) == 0 {
		must.OK(ErrNoFaketime)
	}
	c := &fakeClock{filepath.Join(dir, "clock")}
	must.OK(c.set(0))
	return c, []string{
		"LD_PRELOAD=" + strings.TrimPrefix(found[0], program.tree), "FAKETIME_TIMESTAMP_FILE=" + c.file,
		"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
	}
}

// set is atomic: the server reads the file whenever it asks for the time.
func (c *fakeClock) set(offset time.Duration) error {
	text := fmt.Sprintf("%+d\n", int64(offset/time.Second))
	if err := os.WriteFile(c.file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(c.file+".new", c.file)
}

// SetClock puts the clock that [Options].MySQLClock gave the server so far ahead of the machine's, in whole seconds.
func (s *Server) SetClock(offset time.Duration) error {
	return s.report("set the clock of", s.clock.set(offset))
}
