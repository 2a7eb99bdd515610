package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// dialer connects with the login and the certificates of the moment. The driver keeps both for ever, and configurations
// of TLS in a registry of the whole program's; so each connection gets a connector of its own.
type dialer struct {
	cfg        *mysql.Config
	peer       certs.Peer
	encrypted  bool
	store      *certs.Store
	currentDSN func() string
}

// newDialer takes out of cfg what it says of certificates. Files are read here for the first time.
func newDialer(cfg *mysql.Config, o Options) (*dialer, error) {
	files := TLSOf(cfg)
	for _, name := range tlsParameters {
		delete(cfg.Params, name)
	}
	d := &dialer{cfg: cfg, currentDSN: o.CurrentDSN, store: o.Certs, encrypted: cfg.TLS != nil || files != (certs.TLS{}),
		peer: certs.Peer{TLS: files, Host: HostOf(cfg), Setting: TLSSetting}}
	if d.store == nil {
		d.store = &certs.Store{Warn: o.Warn}
	}
	switch {
	case o.TLS != nil && (d.encrypted || cfg.TLSConfig != ""):
		return nil, errors.New("a TLS configuration is given, and the DSN speaks of tls or of certificates too: keep one")
	case o.TLS != nil:
		d.peer.Base, d.encrypted = o.TLS, true
	case cfg.TLSConfig != "" && cfg.TLSConfig != "true":
		d.peer.Base = cfg.TLS // tls=skip-verify, preferred, or a name of the program's
	}
	cfg.TLS = nil
	if d.encrypted && d.peer.Base == nil {
		if _, err := d.store.Config(files); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Connect makes one connection.
func (d *dialer) Connect(ctx context.Context) (driver.Conn, error) {
	cfg := d.cfg.Clone()
	var logged atomic.Pointer[error]
	cfg.Logger = saying(func(err error) { logged.Store(&err) }) // what goes wrong is returned, and logged once
	if d.currentDSN != nil {
		if now, err := ParseDSN(d.currentDSN()); err == nil {
			cfg.User, cfg.Passwd = now.User, now.Passwd
		}
	}
	var handshake *certs.Handshake
	if d.encrypted {
		var err error
		if handshake, err = d.store.Begin(d.peer); err != nil {
			return nil, d.at(err)
		}
		cfg.TLS = handshake.Config
	}
	var raw *patient
	if handshake != nil && (cfg.Net == "tcp" || cfg.Net == "unix") && cfg.DialFunc == nil {
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			raw = &patient{Conn: conn, system: conn.(syscall.Conn)}
			return raw, nil
		}
	}
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, errors.New("the driver refuses the DSN") // its error may hold any part of it
	}
	if handshake == nil {
		return inner.Connect(ctx)
	}
	// The driver bounds the dial and each read and write, but not a handshake of TLS.
	bound := cfg.Timeout + cfg.ReadTimeout
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := inner.Connect(bounded)
	switch {
	case err == nil:
		if raw != nil {
			raw.connected.Store(true)
		}
		return conn, nil
	case ctx.Err() != nil:
		return nil, err
	case bounded.Err() != nil:
		return nil, d.at(&certs.Error{What: fmt.Sprintf("the handshake was not over within %v", bound)})
	}
	var last error
	if said := logged.Load(); said != nil {
		last = *said
	}
	return nil, d.explain(handshake, err, last)
}

// Driver is the driver's.
func (d *dialer) Driver() driver.Driver { return mysql.MySQLDriver{} }

// explain says what a failed connection has to do with certificates, if it has. The driver keeps what ended it to its
// log.
func (d *dialer) explain(h *certs.Handshake, err, logged error) error {
	if errors.Is(err, mysql.ErrNoTLS) {
		return d.at(&certs.Error{What: "the server does not speak TLS", Err: err,
			Do: "switch it on at the server, or take tls and certificates out of ROLLBACKD_MYSQL_DSN and " + TLSSetting + "_…"})
	}
	const accessDenied = 1045 // or an encryption that the account requires is missing
	if server, ok := said(err); ok {
		if server.Number == accessDenied && h.AskedInVain() {
			return d.at(fmt.Errorf("%w (the server asked for a client certificate, and we have none: if the account has "+
				"REQUIRE X509, name one in %s_CERT_FILE and _KEY_FILE)", err, TLSSetting))
		}
		return err
	}
	explained := h.Explain(err, logged)
	if e, ok := errors.AsType[*certs.Error](explained); ok {
		return d.at(e)
	}
	return err
}

func (d *dialer) at(err error) error { return fmt.Errorf("MySQL at %s: %w", d.cfg.Addr, err) }

// patient lets the driver read why the server hung up, when it did so before the driver wrote. Under TLS 1.3 a server
// refuses a client certificate in that moment, and the driver reads nothing any more once a write has failed.
type patient struct {
	net.Conn
	system    syscall.Conn // by which the driver looks whether an idle connection was cut
	connected atomic.Bool
}

// Write takes what the server does not want to hear any more, while the connection is made.
func (p *patient) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	if err != nil && !p.connected.Load() && certs.HungUp(err) {
		return len(b), nil // the next read says it
	}
	return n, err
}

// SyscallConn is that of the connection.
func (p *patient) SyscallConn() (syscall.RawConn, error) { return p.system.SyscallConn() }

// saying is a log of the driver, which writes there, mostly, the error that it does not return.
type saying func(error)

// Print is called by the driver.
func (s saying) Print(v ...any) {
	for _, said := range v {
		if err, ok := said.(error); ok {
			s(err)
		}
	}
}

// sessionConnector gives every new connection its session settings. The driver could set variables itself, but not the
// isolation level under one name: MariaDB 10.11 knows no transaction_isolation, MySQL 8 no tx_isolation.
type sessionConnector struct {
	driver.Connector
	statements []string
	lockWait   time.Duration
	opened     func() // nil: nobody counts
}

// sessionStatements set what a server's operator may have as the default of all sessions and what would make ours do
// something else than they are written for. What only one of the servers knows stands in a comment that only that one
// reads, so that one round trip does for all. A test says of each variable what becomes of it.
func sessionStatements(o Options) []string {
	// Strict: a value that does not fit is an error, never cut. All the rest is what MySQL 8 has by default, less what
	// forbids a user's GROUP BY.
	const mode = "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
	// English: which index a duplicate met stands only in the text of the error.
	//
	// Two timeouts, because waits for rows follow the one, and waits for tables and their definitions (LOCK TABLES,
	// ALTER TABLE, FLUSH TABLES WITH READ LOCK) the other, which is a day or a year by default.
	//
	// Three more, because a server does not notice that a client stands still or is cut off: while it waits for the next
	// statement (eight hours by default, and the locks of its transaction stay), for the rest of one, or for the client
	// to take a result. MariaDB's own bounds on transactions might be shorter than what a handler may take.
	//
	// A COMMIT must end the transaction and begin none (completion_type), a result must be whole (sql_select_limit,
	// max_join_size, which is set before sql_big_selects because it changes that), and a statement that takes long is
	// ended by nobody else.
	//
	// Read-write: the server's own default for new transactions may be read-only.
	wait, silent := int64(o.LockWait/time.Second), int64(o.silence()/time.Second)
	return []string{
		fmt.Sprintf("SET SESSION autocommit = 1, completion_type = 'NO_CHAIN', sql_mode = '%s', time_zone = '+00:00'"+
			", lc_messages = 'en_US', innodb_lock_wait_timeout = %d, lock_wait_timeout = %d"+
			", wait_timeout = %d, net_read_timeout = %[4]d, net_write_timeout = %[4]d"+
			", sql_select_limit = %[5]d, max_join_size = %[5]d, sql_big_selects = 1, sql_safe_updates = 0"+
			", sql_auto_is_null = 0, foreign_key_checks = 1, unique_checks = 1, max_sort_length = 1024"+
			", sql_quote_show_create = 1"+
			" /*M! , check_constraint_checks = 1, max_statement_time = %.3[6]f, idle_transaction_timeout = 0"+
			", idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0 */"+
			" /*!80000 , max_execution_time = %[7]d */",
			mode, wait, wait, silent, uint64(math.MaxUint64), o.Statement.Seconds(), o.Statement.Milliseconds()),
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
	}
}

// readCausally makes a node of a cluster wait, before it begins a transaction or reads outside of one, until it has
// what the cluster had committed by then. Without, a node that lags behind (each does for a moment after a failover)
// shows a row as it was, and a message whose row says dead although it was reopened would be acked. Servers that are
// none of such a cluster have no such variables, or ones that change nothing.
//
// The second one is of MySQL's group replication. A primary that has lost its group goes on answering who only asks
// that a new primary has what the old one committed (BEFORE_ON_PRIMARY_FAILOVER, the default since 8.4), and for a
// moment even takes itself for the primary again when it comes back.
//
// A node of Galera that has lost its cluster would answer from what it has, if wsrep_dirty_reads were on.
const readCausally = "SET SESSION " +
	"/*M! wsrep_sync_wait = @@SESSION.wsrep_sync_wait | 1, wsrep_dirty_reads = 0 */" +
	"/*!80000 group_replication_consistency = IF(@@SESSION.group_replication_consistency IN " +
	"('AFTER', 'BEFORE_AND_AFTER'), 'BEFORE_AND_AFTER', 'BEFORE') */"

// Connect opens a connection and sets it up.
func (c *sessionConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	watched, err := c.setUp(ctx, conn)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up the session: %w", err), conn.Close())
	}
	if c.opened != nil {
		c.opened()
	}
	return watched, nil
}

// setUp asks besides what the driver does not tell: the server's number of the connection, and which server it is.
func (c *sessionConnector) setUp(ctx context.Context, raw driver.Conn) (driver.Conn, error) {
	conn := raw.(wholeConn) // of any other driver, no test passes
	for _, text := range c.statements {
		if _, err := conn.ExecContext(ctx, text, nil); err != nil {
			return nil, err
		}
	}
	if _, err := conn.ExecContext(ctx, readCausally, nil); err != nil && !Answered(err) {
		return nil, err
	}
	rows, err := conn.QueryContext(ctx, "SELECT CONNECTION_ID(), VERSION() LIKE '%MariaDB%'", nil)
	if err != nil {
		return nil, err
	}
	row := make([]driver.Value, 2)
	var id, isMariaDB sql.NullInt64
	if err := errors.Join(rows.Next(row), rows.Close(), id.Scan(row[0]), isMariaDB.Scan(row[1])); err != nil {
		return nil, err
	}
	from := mySQL
	if isMariaDB.Int64 != 0 {
		from = mariaDB
	}
	return &watchedConn{wholeConn: conn, id: id.Int64, from: from, usual: c.lockWait, lockWait: c.lockWait,
		repeated: repeated{wholeConn: conn}}, nil
}
