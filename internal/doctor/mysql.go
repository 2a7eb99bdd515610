package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// mysqlTimeout bounds all questions to MySQL together.
const mysqlTimeout = 20 * time.Second

// classicTime is how long the table of a classic consumer is looked at; as much is left for the other questions.
const classicTime = mysqlTimeout / 2

// NoDatabase is what to do about a database that does not exist, or not for this user.
const NoDatabase = "`migrate` makes tables only: make the database with CREATE DATABASE and give the user its " +
	"rights, see " +
	rightsPage

func checkMySQL(ctx context.Context, cfg config.Config, o Options, l *list) {
	ctx, cancel := context.WithTimeoutCause(ctx, mysqlTimeout, fmt.Errorf("MySQL took over %v", mysqlTimeout))
	defer cancel()
	var encryption shown
	db, warnings, err := mysqldb.Open(ctx, cfg.MySQLDSN, mysqldb.Options{
		Program: o.Name, MaxOpen: 2, Certs: encryption.store(),
	})
	if err != nil {
		l.fail("reachable", err.Error(), "mend ROLLBACKD_MYSQL_DSN")
		return
	}
	pool, err := db.DB()
	if err != nil {
		l.fail("reachable", err.Error(), "report this")
		return
	}
	defer func() { _ = pool.Close() }() // nothing is left in it
	if err := pool.PingContext(ctx); mysqldb.NoDatabase(err) {
		l.fail("reachable", err.Error(), NoDatabase+". ROLLBACKD_MYSQL_DSN is "+o.MySQL)
		return
	} else if err != nil {
		l.fail("reachable", err.Error(), orCertificates(err, "is it running there, and are user and password right? "+
			"ROLLBACKD_MYSQL_DSN is "+o.MySQL))
		return
	}
	l.ok("reachable", o.MySQL)
	for _, w := range warnings {
		l.warn("DSN", w, "take it out of ROLLBACKD_MYSQL_DSN")
	}
	checkEncryption(ctx, pool, cfg, &encryption, l)
	isMariaDB := checkServer(ctx, pool, l)
	checkSession(ctx, pool, isMariaDB, l)
	checkDefaults(ctx, pool, l)
	checkDurability(ctx, pool, l)
	checkLimits(ctx, pool, cfg, l)
	if !checkTables(ctx, db, cfg, o, l) {
		return
	}
	checkRights(ctx, pool, cfg, l)
	checkHolders(ctx, pool, cfg, l)
	checkAges(ctx, db, cfg, o, l)
	checkPause(ctx, db, cfg, o, l)
	checkClassic(ctx, db, pool, cfg, o, l)
}

// checkPause looks whether a person has paused the fleet: nothing else is amiss then, and nothing is consumed.
func checkPause(ctx context.Context, db *gorm.DB, cfg config.Config, o Options, l *list) {
	const name = "consuming"
	records, err := dedup.NewLog(db, dedup.LogOptions{
		Table: cfg.LogTable, Lease: cfg.Lease, Delays: cfg.RetryDelays, MaxAttempts: cfg.MaxAttempts,
	})
	if err != nil {
		l.fail(name, err.Error(), "report this")
		return
	}
	switch p, err := records.Paused(ctx, cfg.Group, cfg.Queue); {
	case err != nil:
		l.fail(name, err.Error(), "run again; see the server's log")
	case p.Left > 0:
		l.warn(name, p.String(), "the daemons go on by themselves then; `"+o.Program+" resume` ends it now")
	}
}

// checkEncryption looks at both ends: the server may know nothing of an encryption that a proxy before it ends.
func checkEncryption(ctx context.Context, pool *sql.DB, cfg config.Config, encryption *shown, l *list) {
	dsn, err := mysqldb.ParseDSN(cfg.MySQLDSN)
	if err != nil {
		return // it was opened
	}
	encrypted := encryption.check(l, []string{mysqldb.HostOf(dsn)}, mysqldb.TLSSetting, "ROLLBACKD_MYSQL_DSN",
		"write tls=true")
	if dsn.AllowFallbackToPlaintext {
		l.warn("encryption", "tls=preferred goes on in plain text when the server offers no TLS, or somebody on the way "+
			"says so", "write tls=true in ROLLBACKD_MYSQL_DSN, see "+tlsPage)
	}
	var name, cipher string
	err = pool.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher)
	if err == nil && cipher == "" && encrypted {
		l.note("encryption", "the server itself sees plain text: something before it ends the encryption")
	}
}

// checkClassic looks whether the log of a classic consumer was taken over to its end.
func checkClassic(ctx context.Context, db *gorm.DB, pool *sql.DB, cfg config.Config, o Options, l *list) {
	const name = "classic log"
	records, err := dedup.NewLog(db, dedup.LogOptions{
		Table: cfg.LogTable, Lease: cfg.Lease, Delays: cfg.RetryDelays, MaxAttempts: cfg.MaxAttempts,
	})
	if err != nil {
		l.fail(name, err.Error(), "report this")
		return
	}
	doubts, err := legacyimport.Doubts(ctx, records, pool, cfg.Group, classicTime)
	if err != nil {
		l.fail(name, err.Error(), "run again; see the server's log")
		return
	}
	for _, d := range doubts {
		if !d.Sure {
			l.note(name, d.String())
			continue
		}
		l.warn(name, d.String(), "stop the old consumer, then `"+o.Program+" migrate --from "+d.Table+" … --last-pass`: "+
			"what it has done since is new to rollbackd and would be done again; `"+o.Program+" run` does not begin before")
	}
}

// checkServer looks at version and clock.
func checkServer(ctx context.Context, pool *sql.DB, l *list) (isMariaDB bool) {
	var version string
	var micros int64
	before := time.Now()
	err := pool.QueryRowContext(ctx, "SELECT VERSION(), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").Scan(
		&version, &micros)
	if err != nil {
		l.fail("version", err.Error(), "run again; see the server's log")
		return false
	}
	isMariaDB = strings.Contains(strings.ToLower(version), "mariadb")
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor) // what it cannot read is 0, hence too old
	switch {
	case isMariaDB && (major < 10 || major == 10 && minor < 6):
		l.warn("version", version, "use MariaDB 10.11 or later: this one was never tried")
	case !isMariaDB && major < 8:
		l.fail("version", version, "use MySQL 8.0 or later: this one ignores CHECK constraints")
	default:
		l.ok("version", version)
	}
	here := before.Add(time.Since(before) / 2)
	off := time.UnixMicro(micros).Sub(here).Round(time.Millisecond)
	switch {
	case off.Abs() > time.Minute:
		l.fail("clock", fmt.Sprintf("%v off this host's", off), "set both clocks by NTP: a daemon whose clock is so far "+
			"from the database's deletes no old rows and replays no dead letters by itself")
	case off.Abs() > 2*time.Second:
		l.warn("clock", fmt.Sprintf("%v off this host's", off), "set both clocks by NTP: leases follow the database's "+
			"alone, but --since, --until and lag mix the two")
	default:
		l.ok("clock", fmt.Sprintf("%v off this host's", off))
	}
	return isMariaDB
}

// checkSession looks whether the settings that are forced on every connection are in force: a proxy may share
// connections.
func checkSession(ctx context.Context, pool *sql.DB, isMariaDB bool, l *list) {
	isolation := "@@transaction_isolation"
	if isMariaDB {
		isolation = "@@tx_isolation"
	}
	var auto int
	var mode, zone, level string
	err := pool.QueryRowContext(ctx, "SELECT @@autocommit, @@sql_mode, @@time_zone, "+isolation).Scan(&auto, &mode, &zone,
		&level)
	const name = "session settings"
	switch {
	case err != nil:
		l.fail(name, err.Error(), "run again; see the server's log")
	case auto != 1 || !strings.Contains(mode, "STRICT_ALL_TABLES") || zone != "+00:00" || level != "READ-COMMITTED":
		l.fail(name, fmt.Sprintf("autocommit %d, sql_mode %s, time_zone %s, isolation %s", auto, mode, zone, level),
			"something between here and the server changes them: a proxy that shares connections between clients")
	default:
		l.ok(name, "strict, UTC, READ COMMITTED")
	}
}

func checkDurability(ctx context.Context, pool *sql.DB, l *list) {
	var flush, logBin, syncBin, readOnly int
	err := pool.QueryRowContext(ctx, "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@read_only").
		Scan(&flush, &logBin, &syncBin, &readOnly)
	if err != nil {
		l.note("durability", "not shown: "+err.Error())
		return
	}
	switch {
	case flush != 1:
		l.warn("durability", fmt.Sprintf("innodb_flush_log_at_trx_commit is %d", flush), "set it to 1: after a power cut "+
			"MySQL must know what it committed, else a message whose ack was sent is lost")
	case logBin == 1 && syncBin != 1:
		l.warn("durability", fmt.Sprintf("sync_binlog is %d", syncBin), "set it to 1 where replicas take over: they must "+
			"know what was committed")
	default:
		l.ok("durability", "every commit is on disk")
	}
	if readOnly == 1 {
		l.fail("read_only", "the server is read-only", "is this a replica? ROLLBACKD_MYSQL_DSN must name the primary")
	}
}

func checkLimits(ctx context.Context, pool *sql.DB, cfg config.Config, l *list) {
	var packet, connections int64
	err := pool.QueryRowContext(ctx, "SELECT @@max_allowed_packet, @@max_connections").Scan(&packet, &connections)
	if err != nil {
		l.note("limits", "not shown: "+err.Error())
		return
	}
	// No statement of rollbackd's is longer than 1 MiB.
	if found := fmt.Sprintf("%d bytes", packet); packet < 1<<20 {
		l.fail("max_allowed_packet", found, "set it to 16777216: statements have up to 1 MiB")
	} else {
		l.ok("max_allowed_packet", found)
	}
	need := int64(mysqlConnections(cfg))
	found := fmt.Sprintf("%d allowed, a daemon with these settings may take %d", connections, need)
	switch {
	case need > connections:
		l.fail("connections", found, "raise max_connections, or use fewer ROLLBACKD_LANES")
	case 2*need > connections:
		l.warn("connections", found, "raise max_connections")
	default:
		l.ok("connections", found)
	}
}

// checkTables looks at schema and engines; false when nothing more can be asked.
func checkTables(ctx context.Context, db *gorm.DB, cfg config.Config, o Options, l *list) bool {
	if err := dedup.CheckSchema(ctx, db, cfg.LogTable); err != nil {
		l.fail("schema", err.Error(), o.Program+" migrate")
		return false
	}
	steps, err := dedup.MigrationStatus(ctx, db, cfg.Migrations())
	if err != nil {
		l.fail("schema", err.Error(), "run again; see the server's log")
		return false
	}
	for _, s := range steps {
		if !s.Applied {
			l.fail("schema", s.Set+"/"+s.Name+" is not applied", o.Program+" migrate")
			return false
		}
	}
	l.ok("schema", fmt.Sprintf("%d migrations applied, keys are binary, %s is InnoDB", len(steps), cfg.LogTable))
	if cfg.Handler == config.HandlerSQL {
		checkStatements(ctx, db, cfg, l)
	}
	if cfg.Handler != config.HandlerStock {
		return true
	}
	var bad []string
	err = db.WithContext(ctx).Raw("SELECT CONCAT(table_name, ' is ', COALESCE(engine, 'a view')) FROM " +
		"information_schema.tables" +
		" WHERE table_schema = DATABASE() AND table_name IN ('stock', 'stock_reservation') AND (engine IS NULL OR engine " +
		"<> 'InnoDB')").Scan(&bad).Error
	switch {
	case err != nil:
		l.fail("stock tables", err.Error(), "run again; see the server's log")
	case len(bad) > 0:
		l.fail("stock tables", strings.Join(bad, ", ")+", which cannot roll back", "ALTER TABLE … ENGINE=InnoDB")
	default:
		l.ok("stock tables", "they are InnoDB, like the log: one transaction holds both")
	}
	return true
}

// checkStatements has the database prepare handler sql's statements. What is wrong with the file itself is said among
// the settings.
func checkStatements(ctx context.Context, db *gorm.DB, cfg config.Config, l *list) {
	file, err := sqlhandler.Load(cfg.SQLFile, cfg.OwnTables())
	if err != nil {
		return
	}
	pool, err := db.DB()
	if err == nil {
		err = file.Check(ctx, pool)
	}
	refused, ok := errors.AsType[*sqlhandler.Refusal](err)
	switch {
	case ok:
		for _, e := range refused.Errors {
			l.fail("statements", e.Error(), "mend the file, or the tables: run refuses to start")
		}
	case err != nil:
		l.fail("statements", err.Error(), "run again; see the server's log")
	default:
		many := "they run message by message: where messages share rows, ROLLBACKD_LANES=1 avoids deadlocks"
		if file.Joined() {
			many = "those of many messages become one"
		}
		l.ok("statements", "the database takes all of "+cfg.SQLFile+", and can roll back what they write; "+many)
		for _, not := range file.Unjoined() {
			found := not.Why
			if not.At.Line > 0 {
				found = fmt.Sprintf("%s:%v: %s", cfg.SQLFile, not.At, not.Why)
			}
			l.add(Note, "one by one", found, "faster, because joined for many messages: "+not.Faster)
		}
		if narrow, err := file.Narrow(ctx, pool); err != nil {
			l.note("characters", "not shown: "+err.Error())
		} else if len(narrow) > 0 {
			l.note("characters", strings.Join(narrow, ", ")+": a message fails whose text has a character that such a column "+
				"lacks (errors 1267, 1270, 1366, 3854); where that may be, ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4")
		}
	}
}

// checkHolders looks whether somebody holds rows that a daemon waits for at this moment, for longer than a lease.
func checkHolders(ctx context.Context, pool *sql.DB, cfg config.Config, l *list) {
	const name = "row locks"
	found, err := mysqldb.Holders(ctx, pool, cfg.Lease)
	for _, h := range found {
		l.warn(name, h.String(), "find out what it is; if nobody needs it, "+h.End()+": see "+locksPage)
	}
	switch {
	case err != nil:
		l.note(name, "who holds them is not shown: "+err.Error())
	case len(found) == 0:
		l.ok(name, "no daemon waits for a transaction that is older than a lease, "+cfg.Lease.String())
	}
}

// locksPage says what to do about locks of others.
const locksPage = "docs/operations.md#somebody-holds-rows"

// checkAges says how old the oldest rows are that wait for somebody.
func checkAges(ctx context.Context, db *gorm.DB, cfg config.Config, o Options, l *list) {
	records, err := dedup.NewLog(db, dedup.LogOptions{
		Table: cfg.LogTable, Lease: cfg.Lease, Delays: cfg.RetryDelays, MaxAttempts: cfg.MaxAttempts,
	})
	if err != nil {
		l.fail("oldest rows", err.Error(), "report this")
		return
	}
	ages, err := records.OldestOpen(ctx)
	if err != nil {
		l.fail("oldest rows", err.Error(), "run again; see the server's log")
		return
	}
	before := len(l.checks)
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed} {
		if age := ages[status]; age > time.Hour {
			l.warn("oldest "+status.String(), age.Round(time.Minute).String(), "is a daemon running? '"+o.Program+
				" reconcile' says which copies are gone")
		}
	}
	if age := ages[dedup.Dead]; cfg.LogRetention > 0 && age > cfg.LogRetention-24*time.Hour {
		l.warn("oldest dead letter", age.Round(time.Minute).String(), "replay or discard it, or make "+
			"ROLLBACKD_LOG_RETENTION ("+cfg.LogRetention.String()+") longer: success rows must outlive letters")
	}
	if len(l.checks) == before {
		l.ok("oldest rows", "nothing waits for too long")
	}
}
