package mysqldb

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// Options are the settings of a pool. A zero value means the default.
type Options struct {
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
	// Statement bounds each reading statement on the server, which ends it (on MariaDB, writing ones too); 0: no bound.
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
	// Certs, if set, makes what the DSN's certificates are used for, and Warn is not called.
	Certs *certs.Store

	foundRows bool // see FoundRowsConnector
}

const (
	defaultMaxOpen     = 20
	defaultLockWait    = 5 * time.Second
	defaultIdle        = 10 * time.Second
	idleMargin         = 3 * time.Second
	defaultDialTimeout = 5 * time.Second
	defaultIOTimeout   = 30 * time.Second
	connMaxLifetime    = 3 * time.Minute // servers and proxies drop idle connections without a word
)

func (o Options) withDefaults() Options {
	o.MaxOpen = cmp.Or(o.MaxOpen, defaultMaxOpen)
	o.LockWait = cmp.Or(o.LockWait, defaultLockWait)
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	o.DialTimeout = cmp.Or(o.DialTimeout, defaultDialTimeout)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, defaultIOTimeout)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, defaultIOTimeout)
	o.Program = cmp.Or(o.Program, "rollbackd")
	return o
}

func (o Options) validate() error {
	if o.MaxOpen < 0 || min(o.Idle, o.DialTimeout, o.ReadTimeout, o.WriteTimeout) < 0 {
		return errors.New("MaxOpen, the Idle time or a timeout is negative")
	}
	if o.LockWait != 0 && o.LockWait < time.Second {
		return fmt.Errorf("LockWait %v must be at least 1s", o.LockWait)
	}
	return nil
}

// longestSilence is what the servers take as wait_timeout: a year.
const longestSilence = 365 * 24 * time.Hour

// silence is how long the server keeps a session that sends nothing, in whole seconds.
func (o Options) silence() time.Duration {
	return min(o.Idle+idleMargin+time.Second-1, longestSilence).Truncate(time.Second)
}

// Open makes a gorm handle on a pool whose every connection has the settings without which the log is not safe: rows
// affected count changed rows, statements are strict, times are UTC, isolation is READ COMMITTED, a server that became
// read-only is left, and a node of Galera that lost its cluster; such a node answers with what the cluster has
// committed, nothing waits for ever, and nobody waits long for a process that is gone. Settings of the DSN that
// contradict are overruled, each with a warning.
//
// Open never dials: a server that is away is found out by the first statement. No error or warning holds the password.
func Open(_ context.Context, dsn string, o Options) (*gorm.DB, []string, error) {
	connector, warnings, err := Connector(dsn, o)
	if err != nil {
		return nil, nil, fmt.Errorf("open mysql: %w", err)
	}
	o = o.withDefaults()
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(o.MaxOpen)
	pool.SetMaxIdleConns(o.MaxOpen)
	pool.SetConnMaxLifetime(connMaxLifetime)
	pool.SetConnMaxIdleTime(o.silence() / 2) // before the server ends it
	db, err := gorm.Open(
		gormmysql.New(gormmysql.Config{Conn: pool, SkipInitializeWithVersion: true, DisableWithReturning: true}),
		&gorm.Config{
			SkipDefaultTransaction: true,
			DisableAutomaticPing:   true,
			Logger:                 logger.Discard, // errors are returned, not printed
			NowFunc:                func() time.Time { return time.Now().UTC() },
		})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open mysql: %w", err), pool.Close())
	}
	return db, warnings, nil
}

// FoundRowsConnector is Connector, but the rows affected by an UPDATE are those that it found, not those that it
// changed. It is for people who look: a compare-and-set that counts found rows is none.
func FoundRowsConnector(dsn string, o Options) (driver.Connector, []string, error) {
	o.foundRows = true
	return Connector(dsn, o)
}

// Connector makes connections with the settings of [Open], for a pool that somebody else keeps.
func Connector(dsn string, o Options) (driver.Connector, []string, error) {
	if err := o.validate(); err != nil {
		return nil, nil, err
	}
	o = o.withDefaults()
	cfg, err := ParseDSN(dsn)
	if err != nil {
		return nil, nil, fmt.Errorf("the DSN %w", err)
	}
	warnings := force(cfg, o)
	cfg.ClientFoundRows = o.foundRows
	inner, err := newDialer(cfg, o)
	if err != nil {
		return nil, nil, err
	}
	return &sessionConnector{
		Connector: inner, statements: sessionStatements(o), lockWait: o.LockWait, opened: o.Opened,
	}, warnings, nil
}

// overruled are session variables that a DSN must not set: the session statements do.
var overruled = []string{
	"autocommit", "completion_type", "sql_mode", "time_zone", "lc_messages", "tx_isolation", "transaction_isolation",
	"innodb_lock_wait_timeout", "lock_wait_timeout", "wait_timeout", "net_read_timeout", "net_write_timeout",
	"idle_transaction_timeout", "idle_readonly_transaction_timeout", "idle_write_transaction_timeout",
	"max_statement_time", "max_execution_time", "sql_select_limit", "max_join_size", "sql_big_selects",
	"sql_safe_updates", "sql_auto_is_null", "max_sort_length", "sql_quote_show_create", "wsrep_dirty_reads",
	"tx_read_only", "transaction_read_only", "read_only", "foreign_key_checks", "unique_checks", "check_constraint_checks",
}

// force sets what must not be otherwise and says what it overruled.
func force(cfg *mysql.Config, o Options) (warnings []string) {
	warn := func(contrary bool, format string, args ...any) {
		if contrary {
			warnings = append(warnings, fmt.Sprintf("mysql DSN: "+format, args...))
		}
	}
	warn(cfg.ClientFoundRows, "clientFoundRows=true is ignored: a compare-and-set must count changed rows")
	cfg.ClientFoundRows = false
	warn(cfg.MultiStatements, "multiStatements=true is ignored: an injected statement must not run")
	cfg.MultiStatements = false
	warn(cfg.Loc != nil && cfg.Loc != time.UTC, "loc=%v is ignored: all times are UTC", cfg.Loc)
	cfg.Loc = time.UTC
	warn(!cfg.CheckConnLiveness, "checkConnLiveness=false is ignored: a dead connection must not be used")
	cfg.CheckConnLiveness = true
	warn(cfg.Collation != "" && !strings.HasPrefix(cfg.Collation, "utf8mb4_"), "collation=%s is ignored: the charset is "+
		"utf8mb4", cfg.Collation)
	if !strings.HasPrefix(cfg.Collation, "utf8mb4_") {
		cfg.Collation = ""
	}
	_ = cfg.Apply(mysql.Charset("utf8mb4", cfg.Collation)) // this option cannot fail
	cfg.ParseTime, cfg.InterpolateParams = true, true
	cfg.RejectReadOnly = false // it would hide what the server said: see watchedConn.leave

	if cfg.MaxAllowedPacket == mysql.NewConfig().MaxAllowedPacket {
		// Ask the server. It hangs up on a statement that it finds too large, which looks as if it were away.
		cfg.MaxAllowedPacket = 0
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Params)) {
		if slices.Contains(overruled, strings.ToLower(name)) {
			warn(true, "%s is ignored: rollbackd sets its own", name)
			delete(cfg.Params, name)
		}
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, o.DialTimeout)
	cfg.ReadTimeout = cmp.Or(cfg.ReadTimeout, o.ReadTimeout)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, o.WriteTimeout)
	if cfg.ReadTimeout <= o.LockWait {
		warn(true, "readTimeout=%v is not longer than a wait for a lock may take (%v): such a wait breaks the connection",
			cfg.ReadTimeout, o.LockWait)
	}
	program := "program_name:" + strings.NewReplacer(",", "_", ":", "_").Replace(o.Program)
	cfg.ConnectionAttributes = strings.TrimPrefix(cfg.ConnectionAttributes+","+program, ",")
	return warnings
}

// DSNForm is what a DSN looks like.
const DSNForm = "user:password@tcp(host:3306)/database"

// TLSSetting begins the names of the settings for certificates.
const TLSSetting = "ROLLBACKD_MYSQL_TLS"

// tlsParameters name the parts of a [certs.TLS] in a DSN as MySQL's own clients name them. The driver knows none of
// them.
var tlsParameters = certs.Names{"ssl-ca", "ssl-cert", "ssl-key", "tls-sni-servername"}

// ParseDSN reads a DSN and refuses one that cannot be what was meant. The driver quotes parts of a DSN that it cannot
// read, and in one that is malformed the password may be any part; so no error here holds any. They complete a sentence
// whose subject is the DSN. Certificates stand in Params, under the names that they have in the DSN.
func ParseDSN(raw string) (*mysql.Config, error) {
	whole := raw
	if base, query, ok := cutQuery(raw); ok {
		// The driver looks for the last slash, which in a file's name is not the one before the database.
		whole = base + "?" + strings.ReplaceAll(query, "/", "%2F")
	}
	dsn, err := mysql.ParseDSN(whole)
	switch {
	case strings.Contains(whole, "://"):
		return nil, errors.New("is a URL; wanted is the form " + DSNForm)
	case err != nil:
		before, _, has := strings.Cut(whole, "?")
		if _, err := mysql.ParseDSN(before); has && err == nil {
			return nil, errors.New("has a parameter after the ? that the driver refuses (a duration needs its unit; tls is " +
				"true, skip-verify, preferred or false)")
		}
		return nil, errors.New("is not of the form " + DSNForm)
	case dsn.DBName == "":
		return nil, errors.New("names no database after the last /")
	case dsn.User == "":
		return nil, errors.New("names no user")
	case strings.ContainsAny(dsn.User, "/;=()?& "):
		return nil, errors.New("has a user that looks like something else; wanted is the form " + DSNForm)
	case strings.ContainsAny(dsn.DBName, "@()?&;="): // a slash in the password, and no database after it
		return nil, errors.New("has a last / that is not before the database; wanted is the form " + DSNForm)
	}
	for _, name := range tlsParameters {
		if value, has := dsn.Params[name]; has && value == "" {
			return nil, fmt.Errorf("has %s without a value", name)
		}
	}
	return dsn, checkTLS(dsn)
}

// cutQuery cuts a DSN at the ? before its parameters, which is not one in a password.
func cutQuery(raw string) (base, query string, ok bool) {
	i := strings.LastIndexByte(raw, '?')
	if i < 0 {
		return raw, "", false
	}
	if _, err := mysql.ParseDSN(raw[:i]); err != nil {
		return raw, "", false
	}
	return raw[:i], raw[i+1:], true
}

// TLSOf is what a DSN that was parsed says of certificates.
func TLSOf(dsn *mysql.Config) certs.TLS {
	return tlsParameters.Of(func(name string) string { return dsn.Params[name] })
}

// contradicts says what is wrong with a tls of the DSN beside certificates; what is not listed is a name.
var contradicts = map[string]string{
	"": "", "true": "",
	"false":       "says tls=false, and certificates are named: take tls=false out",
	"preferred":   "says tls=preferred, which goes on without encryption, and certificates are named: write tls=true",
	"skip-verify": "says tls=skip-verify, which looks at no certificate, and a CA is named: write tls=true",
}

// checkTLS refuses what a DSN says of encryption when it contradicts itself.
func checkTLS(dsn *mysql.Config) error {
	t := TLSOf(dsn)
	named := t != (certs.TLS{})
	why, known := contradicts[dsn.TLSConfig]
	if !known {
		why = "says tls=NAME, a configuration of the program's, and certificates are named: keep one"
	}
	if why != "" && named && (dsn.TLSConfig != "skip-verify" || t.CA != "") {
		return errors.New(why)
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("names only one of ssl-cert and ssl-key: %w", err)
	}
	verified := named && dsn.TLSConfig != "skip-verify" || dsn.TLSConfig == "true"
	if verified && dsn.Net == "unix" && t.ServerName == "" {
		return errors.New("asks for TLS on a Unix socket, whose server has no name that could be verified: say which, with " +
			"tls-sni-servername")
	}
	return nil
}

// WithTLS writes certificates into a DSN, where everybody who connects finds them. What the DSN says already must be
// the same. The error completes a sentence about the settings, and quotes no secret.
func WithTLS(raw string, t certs.TLS) (string, error) {
	dsn, err := ParseDSN(raw)
	if err != nil || t == (certs.TLS{}) {
		return raw, err
	}
	sep := "?"
	if _, ok := QueryOf(raw); ok { // a ? may stand in a password too
		sep = "&"
	}
	whole, err := tlsParameters.Join(raw, sep, TLSOf(dsn), t, TLSSetting, "ROLLBACKD_MYSQL_DSN")
	if err != nil {
		return raw, err
	}
	if _, err := ParseDSN(whole); err != nil {
		return raw, fmt.Errorf("cannot be used with ROLLBACKD_MYSQL_DSN, which %w", err)
	}
	return whole, nil
}

// QueryOf is what stands behind the ? of a DSN, if it has one.
func QueryOf(raw string) (query string, ok bool) {
	_, query, ok = cutQuery(raw)
	return query, ok
}

// HostOf is the host of a DSN that was parsed, and empty for a Unix socket.
func HostOf(dsn *mysql.Config) string {
	if dsn.Net == "unix" {
		return ""
	}
	host, _, err := net.SplitHostPort(dsn.Addr)
	if err != nil {
		return dsn.Addr
	}
	return host
}
