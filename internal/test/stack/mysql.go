package stack

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/go-sql-driver/mysql"
)

// mysqlArgs hold what a promise of durability needs and what tests can do without. A commit is in the log file before
// it is answered (flush 1); no test pulls the power plug, so nothing else is forced. There is no binlog: nobody
// replicates.
var mysqlArgs = []string{
	"--bind-address=127.0.0.1", "--skip-name-resolve", "--skip-log-bin",
	"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=256M", "--max-connections=500",
}

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
func prepareMySQL(ctx context.Context, sp *spawner, dir string, o Options) (*Server, error) {
	program, err := findProgram("mariadbd", "mysqld")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	account, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("ask who runs the tests: %w", err)
	}
	password := rand.Text()
	initFile := filepath.Join(dir, "accounts.sql")
	if err := os.WriteFile(initFile, []byte(accountsSQL(password)), 0o600); err != nil {
		return nil, fmt.Errorf("write the accounts of mysql: %w", err)
	}
	// Option files of the machine must not change a test's server. The user must be named: as root the server refuses to
	// run otherwise.
	data := filepath.Join(dir, "data")
	base := []string{"--no-defaults", "--user=" + account.Username, "--datadir=" + data}
	var own *disk
	if o.MySQLDisk != 0 {
		if own, err = makeDisk(sp, filepath.Join(program.tree, data), o.MySQLDisk); err != nil {
			return nil, err
		}
	}
	var clock *fakeClock
	var see []string
	if o.MySQLClock {
		if clock, see, err = makeClock(program, dir); err != nil {
			return nil, err
		}
	}
	if err := installMySQL(ctx, sp, program, dir, base); err != nil {
		return nil, err
	}
	args := append(append(base, "--port="+strconv.Itoa(ports[0]), "--init-file="+initFile,
		"--socket="+filepath.Join(dir, "s"), "--pid-file="+filepath.Join(dir, "pid"), "--tmpdir="+dir), mysqlArgs...)
	args = append(args, o.MySQLArgs...)
	if o.Encryption != nil {
		args = append(args, o.Encryption.mysql()...)
	}

	config := mysql.NewConfig()
	config.User, config.Passwd, config.Net, config.Addr = "root", password, "tcp", loopback(ports[0])
	return &Server{
		kind: KindMySQL, dir: dir, addr: config.Addr, url: config.FormatDSN(), disk: own, clock: clock,
		encryption: o.Encryption,
		main: &process{
			name: "mysql", spawner: sp, logPath: filepath.Join(dir, "mysql.log"),
			command: func() *exec.Cmd { return program.server(dir, environment(dir, see...), args...) },
		},
		ask: func(ctx context.Context) error {
			db, err := openMySQL(config.FormatDSN())
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
		},
	}, nil
}

// accountsSQL runs at each start. Names are not resolved, so a client on the loopback address is root@127.0.0.1 and no
// other.
func accountsSQL(password string) string {
	return "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n" +
		"ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY '" + password + "';\n" +
		"GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
}

// installMySQL makes the system tables: MariaDB has a program of its own for it, MySQL's server does it itself.
func installMySQL(ctx context.Context, sp *spawner, server program, dir string, base []string) error {
	cmd := server.command(ctx, dir, environment(dir), append(base, "--initialize-insecure")...)
	if installer, err := findProgram("mariadb-install-db"); err == nil && server.name() == "mariadbd" {
		cmd = installer.command(ctx, dir, environment(dir), append(base, "--auth-root-authentication-method=normal",
			"--skip-test-db")...)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := sp.start(cmd) // where the data may be on a disk that no other thread sees
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("make the system tables of mysql: %w\n%s", err, &out)
	}
	return nil
}

// openMySQL opens a pool whose driver does not write to standard error when a connection breaks: the caller gets the
// error.
func openMySQL(dsn string) (*sql.DB, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse the DSN of the test's mysql: %w", err)
	}
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("open the test's mysql: %w", err)
	}
	return sql.OpenDB(connector), nil
}
