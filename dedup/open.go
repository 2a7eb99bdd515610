package dedup

import (
	"context"
	"crypto/tls"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// OpenOptions are the settings of a pool. A zero value means the default.
type OpenOptions struct {
	// Program is this process's name in the server's list of connections.
	Program string
	// MaxOpen bounds the connections, default 20; as many may be idle.
	MaxOpen int
	// LockWait bounds a wait for a lock of somebody else's on a row, and one on a table or its definition
	// (innodb_lock_wait_timeout and lock_wait_timeout). At least 1s; the servers know whole seconds only, so the rest is
	// cut off. Default 5s. It must be at most half of what a handler may take.
	LockWait time.Duration
	// Idle is how long a transaction may send nothing while its process is at work: what a handler may take, or more.
	// Default 10s. After 3s more the server takes the client for gone, ends the session and frees its locks.
	Idle time.Duration
	// DialTimeout (default 5s), ReadTimeout and WriteTimeout (default 30s) hold where the DSN does not set its own.
	DialTimeout, ReadTimeout, WriteTimeout time.Duration
	// Statement bounds each reading statement on the server, which ends it; 0: the server's own bound.
	Statement time.Duration
	// CurrentDSN, if set, is asked before each connection for the DSN as it is now. Only user and password are taken from
	// it: they may have changed. What cannot be parsed changes nothing.
	CurrentDSN func() string
	// Opened, if set, is called for each connection that stands.
	Opened func()
	// TLS encrypts, for a DSN that says nothing of it. Nil: what the DSN says.
	TLS *tls.Config
	// Warn, if set, is told why certificates that the DSN names cannot be read again; the former ones stay in use.
	Warn func(error)
}

// ErrNotCommitted is what the Commit of a transaction says, on a pool of [Open], that was not sent because an error had
// come with the rows of one of its queries.
var ErrNotCommitted = mysqldb.ErrNotCommitted

// Open makes a gorm handle on a pool whose every connection has the settings without which the log is not safe: rows
// affected count changed rows, statements are strict, times are UTC, isolation is READ COMMITTED, a server that became
// read-only is left, and a node of Galera that lost its cluster; such a node answers with what the cluster has
// committed, nothing waits for ever, and nobody waits long for a process that is gone. Settings of the DSN that
// contradict are overruled, each with a warning.
//
// Beside the driver's own parameters a DSN may name PEM files: ssl-ca, ssl-cert and ssl-key, which are read again
// before each connection, and tls-sni-servername, the name that is expected instead of the host's. With any of them the
// connection is encrypted and verified.
//
// Open never dials: a server that is away is found out by the first statement. No error or warning holds the password.
func Open(ctx context.Context, dsn string, o OpenOptions) (*gorm.DB, []string, error) {
	return mysqldb.Open(ctx, dsn, mysqldb.Options{
		Program: o.Program, MaxOpen: o.MaxOpen, LockWait: o.LockWait, Idle: o.Idle, DialTimeout: o.DialTimeout,
		ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, CurrentDSN: o.CurrentDSN,
		Statement: o.Statement, Opened: o.Opened, TLS: o.TLS, Warn: o.Warn,
	})
}
