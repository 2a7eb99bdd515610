package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/outbox"
)

const (
	// mysqlTimeout bounds all questions to MySQL together.
	mysqlTimeout = 20 * time.Second
	// classicTime is how long the table of a classic consumer is looked at; as much is left for the other questions.
	classicTime = mysqlTimeout / 2
	// locksPage says what to do about locks of others.
	locksPage = "docs/operations.md#somebody-holds-rows"
)

func lookAtMySQL(ctx context.Context, a *area) {
	ctx, cancel := context.WithTimeoutCause(ctx, mysqlTimeout, fmt.Errorf("MySQL took over %v", mysqlTimeout))
	defer cancel()
	var encryption shown
	db, warnings, err := mysqldb.Open(ctx, a.MySQLDSN, mysqldb.Options{
		Program: connections(), MaxOpen: 2, Certs: encryption.store(),
	})
	if a.failed("reachable", err, "mend ROLLBACKD_MYSQL_DSN") {
		return
	}
	pool, err := db.DB()
	if err == nil {
		defer func() { _ = pool.Close() }() // nothing is left in it
		err = pool.PingContext(ctx)
	}
	advice := orCertificates(err, "is it running there, and are user and password right? ROLLBACKD_MYSQL_DSN is "+
		a.Shown("MYSQL_DSN"))
	if mysqldb.NoDatabase(err) {
		advice = config.NoDatabase + ". ROLLBACKD_MYSQL_DSN is " + a.Shown("MYSQL_DSN")
	}
	if a.failed("reachable", err, advice) {
		return
	}
	a.ok("reachable", a.Shown("MYSQL_DSN"))
	for _, w := range warnings {
		a.warn("DSN", w, "take it out of ROLLBACKD_MYSQL_DSN")
	}
	a.mysqlEncryption(ctx, pool, &encryption)
	a.server(ctx, pool)
	a.variables(ctx, pool)
	if a.ofRelay {
		a.outbox(ctx, pool)
		a.tryRights(ctx, pool, rights.Names{}, []rights.Role{rights.Relay}, rights.MySQL(rights.Names{}, rights.Relay))
		return
	}
	records, err := dedup.NewLog(db, a.LogOptions())
	if !a.tables(ctx, db, pool) || a.failed("schema", err, "report this") {
		return
	}
	if a.Outbox {
		a.outbox(ctx, pool)
	}
	a.rights(ctx, pool)
	a.holders(ctx, pool)
	a.ages(ctx, records)
	if p, err := records.Paused(ctx, a.Group, a.Queue); !a.failed("consuming", err, again) && p.Left > 0 {
		a.warn("consuming", p.String(), "the daemons go on by themselves then; `"+a.program+" resume` ends it now")
	}
	unknown, err := operator.Lookup{Records: records, Group: a.Group}.UnknownGroup(ctx)
	if !a.failed("group", err, again) {
		a.tell("group", noteIf(unknown != "", unknown+" (ROLLBACKD_GROUP)"))
	}
	a.classicLog(ctx, records, pool)
}

// mysqlEncryption looks at both ends: the server may know nothing of an encryption that a proxy before it ends.
func (a *area) mysqlEncryption(ctx context.Context, pool *sql.DB, encryption *shown) {
	dsn, _ := mysqldb.ParseDSN(a.MySQLDSN) // it was opened
	encrypted := encryption.tell(a, []string{mysqldb.HostOf(dsn)}, mysqldb.TLSSetting, "ROLLBACKD_MYSQL_DSN",
		"write tls=true")
	var name, cipher string
	err := pool.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher)
	a.tell("encryption", warnIf(dsn.AllowFallbackToPlaintext, "tls=preferred goes on in plain text when the server "+
		"offers no TLS, or somebody on the way says so", "write tls=true in ROLLBACKD_MYSQL_DSN, see "+tlsPage))
	a.tell("encryption", noteIf(err == nil && cipher == "" && encrypted, "the server itself sees plain text: something "+
		"before it ends the encryption"))
}

// classicLog looks whether the log of a classic consumer was taken over to its end.
func (a *area) classicLog(ctx context.Context, records *dedup.Log, pool *sql.DB) {
	const name = "classic log"
	doubts, err := legacyimport.Doubts(ctx, records, pool, a.Group, classicTime)
	a.failed(name, err, again)
	for _, d := range doubts {
		a.tell(name, noteIf(!d.Sure, d.String()), warnIf(true, d.String(), "stop the old consumer, then `"+
			a.program+" migrate --from "+d.Table+" … --last-pass`: what it has done since is new to rollbackd and would be "+
			"done again; `"+a.program+" run` does not begin before"))
	}
}

// server looks at version and clock.
func (a *area) server(ctx context.Context, pool *sql.DB) {
	var version string
	var micros int64
	before := time.Now()
	err := pool.QueryRowContext(ctx, "SELECT VERSION(), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").Scan(
		&version, &micros)
	if a.failed("version", err, again) {
		return
	}
	here := before.Add(time.Since(before) / 2)
	off := time.UnixMicro(micros).Sub(here).Round(time.Millisecond)
	isMariaDB := strings.Contains(strings.ToLower(version), "mariadb")
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor) // what it cannot read is 0, hence too old
	a.tell("version",
		warnIf(isMariaDB && (major < 10 || major == 10 && minor < 6), version,
			"use MariaDB 10.11 or later: this one was never tried"),
		failIf(!isMariaDB && major < 8, version, "use MySQL 8.0 or later: this one ignores CHECK constraints"),
		fine(version))
	found := fmt.Sprintf("%v off this host's", off)
	a.tell("clock",
		failIf(off.Abs() > time.Minute, found, "set both clocks by NTP: a daemon whose clock is so far from the database's "+
			"deletes no old rows and replays no dead letters by itself"),
		warnIf(off.Abs() > 2*time.Second, found, "set both clocks by NTP: leases follow the database's alone, but --since, "+
			"--until and lag mix the two"),
		fine(found))
}

// variables looks at the settings of the server and of our session. What is forced on every connection may be changed
// by a proxy that shares them; the defaults of sessions that say nothing else, only an administrator can change.
func (a *area) variables(ctx context.Context, pool *sql.DB) {
	server, err := variables(ctx, pool, "GLOBAL")
	session, sessionErr := variables(ctx, pool, "SESSION")
	if a.failed("session settings", errors.Join(err, sessionErr), again) {
		return
	}
	on := func(name string) bool { return server[name] == "ON" || server[name] == "1" }
	isolation := cmp.Or(session["transaction_isolation"], session["tx_isolation"])
	flush, syncBinlog := server["innodb_flush_log_at_trx_commit"], server["sync_binlog"]
	asOf, provider := server["system_versioning_asof"], server["wsrep_provider"]
	packet, _ := strconv.Atoi(session["max_allowed_packet"])
	allowed, _ := strconv.Atoi(server["max_connections"])
	need := a.mysqlConnections()
	connections := fmt.Sprintf("%d allowed, a daemon with these settings may take %d", allowed, need)
	a.tell("session settings",
		failIf(session["autocommit"] != "ON" || !strings.Contains(session["sql_mode"], "STRICT_ALL_TABLES") ||
			session["time_zone"] != "+00:00" || isolation != "READ-COMMITTED", fmt.Sprintf("autocommit %s, sql_mode %s, "+
			"time_zone %s, isolation %s", session["autocommit"], session["sql_mode"], session["time_zone"], isolation),
			"something between here and the server changes them: a proxy that shares connections between clients"),
		fine("strict, UTC, READ COMMITTED"))
	a.tell("binlog_format", failIf(on("log_bin") && server["binlog_format"] == "STATEMENT",
		"STATEMENT: the server refuses every write at READ COMMITTED (error 1665)",
		"SET GLOBAL binlog_format = 'ROW', and in the server's configuration; the daemon lacks the right to do it"))
	a.tell("system_versioning_asof", failIf(asOf != "" && asOf != "DEFAULT",
		asOf+": tables with system versioning are read as they were then",
		"SET GLOBAL system_versioning_asof = DEFAULT, and in the server's configuration"))
	a.tell("wsrep_on", failIf(provider != "" && provider != "NONE" && !on("wsrep_on"),
		"OFF: what is written on this node does not reach the cluster", "SET GLOBAL wsrep_on = ON"))
	a.tell("transaction_read_only", noteIf(on("transaction_read_only") || on("tx_read_only"),
		"ON by default: rollbackd's sessions are read-write all the same; the primary?"))
	a.tell("durability",
		warnIf(flush != "1", "innodb_flush_log_at_trx_commit is "+flush, "set it to 1: after a power cut MySQL must know "+
			"what it committed, else a message whose ack was sent is lost"),
		warnIf(on("log_bin") && syncBinlog != "1", "sync_binlog is "+syncBinlog, "set it to 1 where replicas take over: "+
			"they must know what was committed"),
		fine("every commit is on disk"))
	a.tell("read_only", failIf(on("read_only"), "the server is read-only",
		"is this a replica? ROLLBACKD_MYSQL_DSN must name the primary"))
	a.tell("max_allowed_packet",
		failIf(packet < 1<<20, fmt.Sprintf("%d bytes", packet), "set it to 16777216: statements have up to 1 MiB"),
		fine(fmt.Sprintf("%d bytes", packet)))
	a.tell("connections",
		failIf(need > allowed, connections, "raise max_connections, or use fewer ROLLBACKD_LANES"),
		warnIf(2*need > allowed, connections, "raise max_connections"),
		fine(connections))
}

// variables are the server's or the session's own values, in capitals; those that it does not know are absent.
func variables(ctx context.Context, pool *sql.DB, scope string) (values map[string]string, err error) {
	values = map[string]string{}
	_, err = mysqldb.List(ctx, pool, func(rows *sql.Rows) (name string, err error) {
		var value string
		err = rows.Scan(&name, mysqldb.OrZero(&value))
		values[strings.ToLower(name)] = strings.ToUpper(value)
		return name, err
	}, "SHOW "+scope+" VARIABLES")
	return values, err
}

// tables looks at schema and engines; false when nothing more can be asked.
func (a *area) tables(ctx context.Context, db *gorm.DB, pool *sql.DB) bool {
	migrate := a.program + " migrate"
	if a.failed("schema", dedup.CheckSchema(ctx, db, a.LogTable), migrate) {
		return false
	}
	steps, err := dedup.MigrationStatus(ctx, db, a.Migrations())
	if a.failed("schema", err, again) {
		return false
	}
	for _, s := range steps {
		if a.tell("schema", failIf(!s.Applied, s.Set+"/"+s.Name+" is not applied", migrate)) == Fail {
			return false
		}
	}
	a.ok("schema", fmt.Sprintf("%d migrations applied, keys are binary, %s is InnoDB", len(steps), a.LogTable))
	if a.Handler == config.HandlerSQL {
		a.statements(ctx, pool)
	}
	if a.Handler != config.HandlerStock {
		return true
	}
	var bad []string
	err = db.WithContext(ctx).Raw("SELECT CONCAT(table_name, ' is ', COALESCE(engine, 'a view')) FROM " +
		"information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ('stock', 'stock_reservation') AND " +
		"(engine IS NULL OR engine <> 'InnoDB')").Scan(&bad).Error
	if !a.failed("stock tables", err, again) {
		a.tell("stock tables", failIf(len(bad) > 0, strings.Join(bad, ", ")+", which cannot roll back",
			"ALTER TABLE … ENGINE=InnoDB"),
			fine("they are InnoDB, like the log: one transaction holds both"))
	}
	return true
}

// statements has the database prepare handler sql's. What is wrong with the file itself is said among the settings.
func (a *area) statements(ctx context.Context, pool *sql.DB) {
	file, err := sqlhandler.Load(a.SQLFile, a.OwnTables())
	if err != nil {
		return
	}
	err = file.Check(ctx, pool)
	if refused, ok := errors.AsType[*sqlhandler.Refusal](err); ok {
		for _, e := range refused.Errors {
			a.fail("statements", e.Error(), "mend the file, or the tables: run refuses to start")
		}
		return
	}
	if a.failed("statements", err, again) {
		return
	}
	many := "they run message by message: where messages share rows, ROLLBACKD_LANES=1 avoids deadlocks"
	if file.Joined() {
		many = "those of many messages become one"
	}
	a.ok("statements", "the database takes all of "+a.SQLFile+", and can roll back what they write; "+many)
	for _, not := range file.Unjoined() {
		found := not.Why
		if not.At.Line > 0 {
			found = fmt.Sprintf("%s:%v: %s", a.SQLFile, not.At, not.Why)
		}
		a.tell("one by one", verdict{true, Note, found, "faster, because joined for many messages: " + not.Faster})
	}
	narrow, err := file.Narrow(ctx, pool)
	a.tell("characters", notShown(err), noteIf(len(narrow) > 0, strings.Join(narrow, ", ")+": a message fails whose text "+
		"has a character that such a column lacks (errors 1267, 1270, 1366, 3854); where that may be, ALTER TABLE … CONVERT "+
		"TO CHARACTER SET utf8mb4"))
}

// notShown is a question without an answer that may be without one.
func notShown(err error) verdict {
	return noteIf(err != nil, fmt.Sprintf("not shown: %v", err))
}

// holders looks whether somebody holds rows that a daemon waits for at this moment, for longer than a lease.
func (a *area) holders(ctx context.Context, pool *sql.DB) {
	const name = "row locks"
	found, err := mysqldb.Holders(ctx, pool, a.Lease)
	for _, h := range found {
		a.warn(name, h.String(), "find out what it is; if nobody needs it, "+h.End()+": see "+locksPage)
	}
	a.tell(name, noteIf(err != nil, fmt.Sprintf("who holds them is not shown: %v", err)),
		okIf(len(found) == 0, "no daemon waits for a transaction that is older than a lease, "+a.Lease.String()))
}

// ages says how old the oldest rows are that wait for somebody.
func (a *area) ages(ctx context.Context, records *dedup.Log) {
	ages, err := records.OldestOpen(ctx)
	if a.failed("oldest rows", err, again) {
		return
	}
	age := func(status dedup.Status) string { return ages[status].Round(time.Minute).String() }
	before := len(a.checks)
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed} {
		a.tell("oldest "+status.String(), warnIf(ages[status] > time.Hour, age(status), "is a daemon running? '"+
			a.program+" reconcile' says which copies are gone"))
	}
	a.tell("oldest dead letter", warnIf(a.LogRetention > 0 && ages[dedup.Dead] > a.LogRetention-24*time.Hour,
		age(dedup.Dead), "replay or discard it, or make ROLLBACKD_LOG_RETENTION ("+a.LogRetention.String()+") longer: "+
			"success rows must outlive letters"))
	a.tell("oldest rows", okIf(len(a.checks) == before, "nothing waits for too long"))
}

// lateMessage is since when the oldest message may be due before somebody should look.
const lateMessage = 5 * time.Minute

// outbox looks at the table of messages that a relay sends.
func (a *area) outbox(ctx context.Context, pool *sql.DB) {
	if a.failed("outbox", outbox.CheckSchema(ctx, pool), "`"+a.program+" migrate --outbox` by an account that may make "+
		"tables, then the rights of this one: see "+rightsPage) {
		return
	}
	s, err := outbox.Rows{DB: pool}.Survey(ctx)
	if a.failed("outbox", err, again) {
		return
	}
	oldest := s.Lag.Round(time.Second).String()
	a.tell("outbox", warnIf(s.Lag > lateMessage, "the oldest message has been due for "+oldest, "is a relay running, `"+
		a.program+" relay` or `run` with ROLLBACKD_OUTBOX=on? `"+a.program+" outbox list` says why a message waits"),
		fine(fmt.Sprintf("%d messages are due, %d wait for their time; the oldest has been due for %s", s.Due+s.Refused,
			s.Waiting, oldest)))
	a.tell("parked", warnIf(s.Parked > 0, fmt.Sprintf("%d messages of the outbox could not be sent, and wait for a person",
		s.Parked), "`"+a.program+" outbox list` says why; then `outbox retry` or `outbox drop`"))
	a.tell("routing key", warnIf(a.RoutingKey() == "", "the first of ROLLBACKD_ROUTING_KEYS is a pattern: a message that "+
		"names no routing key is parked", "put the key first that producers publish with, or name one in each message"))
}

// publishes looks whether a relay may publish to the exchange, and whether there is one.
func (a *area) publishes(ctx context.Context, conn *rabbit.Conn) {
	err := conn.MayPublish(ctx, a.Exchange)
	gone, ok := errors.AsType[*rabbit.BrokerError](err)
	a.tell("exchange",
		failIf(ok && gone.Code == 404, fmt.Sprintf("%q does not exist", a.Exchange), "the consumer's `"+a.program+
			" migrate` makes it; or name another one in ROLLBACKD_EXCHANGE"),
		failIf(err != nil, fmt.Sprint(err), "give the user the write permission on "+a.Exchange+": see "+rightsPage),
		fine(a.Exchange+" may be published to"))
}
