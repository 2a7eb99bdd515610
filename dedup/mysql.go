package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// OpenOptions are the settings of a pool. A zero value means the default.
type OpenOptions struct {
	// Program is this process's name in the server's list of connections.
	Program string
	// MaxOpen bounds the connections, default 20; as many may be idle.
	MaxOpen int
	// LockWait is innodb_lock_wait_timeout, in whole seconds, default 5s. It must be shorter than a handler may take.
	LockWait time.Duration
	// DialTimeout (default 5s), ReadTimeout and WriteTimeout (default 30s) hold where the DSN does not set its own.
	DialTimeout, ReadTimeout, WriteTimeout time.Duration
}

const (
	defaultMaxOpen     = 20
	defaultLockWait    = 5 * time.Second
	defaultDialTimeout = 5 * time.Second
	defaultIOTimeout   = 30 * time.Second
	connMaxLifetime    = 3 * time.Minute // servers and proxies drop idle connections without a word
)

func (o OpenOptions) withDefaults() OpenOptions {
	o.MaxOpen = orDefault(o.MaxOpen, defaultMaxOpen)
	o.LockWait = orDefault(o.LockWait, defaultLockWait)
	o.DialTimeout = orDefault(o.DialTimeout, defaultDialTimeout)
	o.ReadTimeout = orDefault(o.ReadTimeout, defaultIOTimeout)
	o.WriteTimeout = orDefault(o.WriteTimeout, defaultIOTimeout)
	if o.Program == "" {
		o.Program = "rollbackd"
	}
	return o
}

func (o OpenOptions) validate() error {
	switch {
	case o.MaxOpen < 0:
		return fmt.Errorf("MaxOpen %d is negative", o.MaxOpen)
	case o.LockWait != 0 && o.LockWait < time.Second:
		return fmt.Errorf("LockWait %v must be at least 1s", o.LockWait)
	case o.DialTimeout < 0 || o.ReadTimeout < 0 || o.WriteTimeout < 0:
		return errors.New("a timeout is negative")
	}
	return nil
}

// Open makes a gorm handle on a pool whose every connection has the settings without which the log is not safe: rows
// affected count changed rows, statements are strict, times are UTC, isolation is READ COMMITTED, a server that became
// read-only is left, and nothing waits for ever. Settings of the DSN that contradict are overruled, each with a warning.
//
// Open never dials: a server that is away is found out by the first statement. No error or warning holds the password.
func Open(_ context.Context, dsn string, o OpenOptions) (*gorm.DB, []string, error) {
	if err := o.validate(); err != nil {
		return nil, nil, fmt.Errorf("open mysql: %w", err)
	}
	o = o.withDefaults()
	cfg, err := parseDSN(dsn)
	if err != nil {
		return nil, nil, fmt.Errorf("open mysql: %w", err)
	}
	warnings := force(cfg, o)
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("open mysql: %w", maskedError(cfg.Passwd, err))
	}
	pool := sql.OpenDB(&sessionConnector{Connector: inner, statements: sessionStatements(o)})
	pool.SetMaxOpenConns(o.MaxOpen)
	pool.SetMaxIdleConns(o.MaxOpen)
	pool.SetConnMaxLifetime(connMaxLifetime)
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

// parseDSN reads a DSN. The driver quotes parts of a DSN that it cannot read, and a password with a slash or an @ moves
// the parts; so its error is that of the DSN without the password.
func parseDSN(dsn string) (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(dsn)
	const want = "want user:password@tcp(host:3306)/database"
	if err != nil {
		masked, ok := maskDSN(dsn)
		if !ok {
			return nil, errors.New("the DSN does not parse: " + want)
		}
		if _, err = mysql.ParseDSN(masked); err == nil {
			return nil, errors.New("the DSN does not parse, because of a character in its password: " + want)
		}
		return nil, fmt.Errorf("the DSN %q does not parse: %w; %s", masked, err, want)
	}
	if cfg.DBName == "" {
		return nil, errors.New("the DSN names no database: " + want)
	}
	if strings.ContainsAny(cfg.DBName, "@()") { // a slash in the password, and no database after it
		return nil, errors.New("the DSN's last slash is not before the database: " + want)
	}
	return cfg, nil
}

// maskDSN replaces what stands between the first colon and the last @.
func maskDSN(dsn string) (masked string, ok bool) {
	at := strings.LastIndex(dsn, "@")
	if at < 0 {
		return "", false
	}
	user, _, _ := strings.Cut(dsn[:at], ":")
	return user + ":***" + dsn[at:], true
}

func maskedError(password string, err error) error {
	if password == "" || !strings.Contains(err.Error(), password) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), password, "***"))
}

// overruled are session variables that a DSN must not set: the session statements do.
var overruled = []string{
	"autocommit", "sql_mode", "time_zone", "lc_messages", "tx_isolation", "transaction_isolation", "innodb_lock_wait_timeout",
	"tx_read_only", "transaction_read_only", "read_only", "foreign_key_checks", "unique_checks", "check_constraint_checks",
}

// force sets what must not be otherwise and says what it overruled.
func force(cfg *mysql.Config, o OpenOptions) (warnings []string) {
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
	warn(cfg.Collation != "" && !strings.HasPrefix(cfg.Collation, "utf8mb4_"), "collation=%s is ignored: the charset is utf8mb4", cfg.Collation)
	collation := ""
	if strings.HasPrefix(cfg.Collation, "utf8mb4_") {
		collation = cfg.Collation
	}
	_ = cfg.Apply(mysql.Charset("utf8mb4", collation)) // this option cannot fail
	cfg.Logger = &mysql.NopLogger{}                    // what goes wrong is returned as an error, and logged once
	cfg.ParseTime, cfg.InterpolateParams, cfg.RejectReadOnly = true, true, true

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
	cfg.Timeout = orDefault(cfg.Timeout, o.DialTimeout)
	cfg.ReadTimeout = orDefault(cfg.ReadTimeout, o.ReadTimeout)
	cfg.WriteTimeout = orDefault(cfg.WriteTimeout, o.WriteTimeout)
	if cfg.ReadTimeout <= o.LockWait {
		warn(true, "readTimeout=%v is not longer than innodb_lock_wait_timeout (%v): a wait for a lock breaks the connection", cfg.ReadTimeout, o.LockWait)
	}
	program := "program_name:" + strings.NewReplacer(",", "_", ":", "_").Replace(o.Program)
	cfg.ConnectionAttributes = strings.TrimPrefix(cfg.ConnectionAttributes+","+program, ",")
	return warnings
}
