package dedup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// withSeats has a set of a handler's beside the log's.
func withSeats() MigrateOptions {
	const text = "-- oldest: 1\n-- +goose NO TRANSACTION\n-- +goose Up\n" +
		"CREATE TABLE IF NOT EXISTS seat (id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(20) DEFAULT 'consumer_log') " +
		"ENGINE=InnoDB;\n"
	return MigrateOptions{Table: "consumer_log", Extra: []MigrationSet{
		{Name: "seats", Files: fstest.MapFS{"0001_seat.sql": {Data: []byte(text)}}},
	}}
}

// Given an empty database, or one that lacks a handler's set, then the status tells so and changes nothing; migrating
// twice is once. What a set of somebody else's says is applied as it is.
func TestMigrateTwiceIsOnce(t *testing.T) {
	t.Parallel()
	w := worldOf(t, stack.MySQL(t), OpenOptions{})
	status := func(o MigrateOptions, applied ...string) {
		t.Helper()
		all, err := MigrationStatus(t.Context(), w.db, o)
		assert.That(t, err == nil && len(all) == 6+len(o.Extra), "%d migrations, %v", len(all), err)
		for _, m := range all {
			want := slices.Contains(applied, m.Set)
			assert.That(t, m.Applied == want && m.At.IsZero() != want, "%+v, want applied are %v", m, applied)
		}
	}
	status(MigrateOptions{})
	assert.Is(t, w.number("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()"), 0, "tables")
	assert.Error(t, CheckSchema(t.Context(), w.db, "consumer_log"), ErrSchema, "check")
	_, err := w.log.SchemaID(t.Context())
	assert.Error(t, err, ErrSchema, "the schema's id")
	w.migrate(MigrateOptions{})
	id := require.Get(w.log.SchemaID(t.Context()))(t)
	assert.Is(t, len(id), 36, "the length of %s", id)
	status(withSeats(), "log")
	assert.OK(t, w.insertSuccess(entryOf(key("k"))))
	for range 2 {
		w.migrate(withSeats())
		status(withSeats(), "log", "seats")
		assert.Is(t, require.Get(w.log.SchemaID(t.Context()))(t), id, "the schema's id")
	}
	w.exec("INSERT INTO seat (id) VALUES (1)")
	for query, want := range map[string]int{
		"rollbackd_schema": 9, "consumer_log": 1, "seat WHERE note = 'consumer_log'": 1, // no name is replaced in it
		"rollbackd_schema WHERE set_name = 'seats' AND version = 1 AND oldest = 1": 1,
	} {
		assert.Is(t, w.number("SELECT COUNT(*) FROM "+query), want, "rows of %s", query)
	}
}

// A migration by the former program, which let the server compute the lock's name, is waited for.
func TestMigrateWaitsForOneThatNamedTheLockByTheServersSHA1(t *testing.T) {
	t.Parallel()
	dsn := stack.MySQL(t)
	w := worldOf(t, dsn, OpenOptions{})
	conn := require.Get(w.pool.Conn(t.Context()))(t)
	defer conn.Close()
	var name string
	err := conn.QueryRowContext(t.Context(), "SELECT CONCAT('rollbackd.migrate.', SHA1(DATABASE()))").Scan(&name)
	if server, ok := errors.AsType[*mysql.MySQLError](err); ok && server.Number == 1305 {
		t.Skip("this server has no SHA1(): no former program ever migrated here")
	}
	assert.OK(t, err)
	w.migrate(MigrateOptions{Extra: withSeats().Extra, NoLog: true}) // which lets go of the lock
	require.Is(t, stack.Number(t, conn, "SELECT GET_LOCK(?, 0)", name), 1, "the lock is ours")
	ctx, cancel := context.WithCancel(t.Context())
	migrated := make(chan error, 1)
	go func() { migrated <- Migrate(ctx, w.db, MigrateOptions{Table: "consumer_log"}) }()
	poll.Until(t, "it waits for the lock", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'SELECT "+
			"GET_LOCK(%'") == 1
	})
	cancel()
	assert.Error(t, <-migrated, context.Canceled, "the migration ends with")
}

// Somebody else has a table in use (a dump, another ALTER): the wait for it is bounded, said, and begun anew.
func TestMigrateWaitsForWhoeverHasATableInUse(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"consumer_log", "rollbackd_schema"} {
		t.Run(table, func(t *testing.T) {
			w := newWorld(t)
			id := require.Get(w.log.SchemaID(t.Context()))(t)
			// as after a process that was killed between its steps and their notes in the version table
			w.exec("DELETE FROM rollbackd_schema")
			w.exec("DROP VIEW consumer_log_readable")
			conn := require.Get(w.pool.Conn(t.Context()))(t)
			defer conn.Close()
			require.Get(conn.ExecContext(t.Context(), "LOCK TABLES "+table+" WRITE"))(t)
			waited := 0
			err := Migrate(t.Context(), worldOf(t, w.dsn, OpenOptions{LockWait: time.Second}).db,
				MigrateOptions{Table: "consumer_log", Waiting: func(err error) {
					if waited++; waited == 2 {
						require.Get(conn.ExecContext(t.Context(), "UNLOCK TABLES"))(t)
					}
				}})
			assert.OK(t, err)
			assert.Is(t, waited, 2, "it said times that it waits")
			assert.OK(t, CheckSchema(t.Context(), w.db, "consumer_log"))
			assert.Is(t, require.Get(w.log.SchemaID(t.Context()))(t), id, "id")
		})
	}
}

func TestTwoLogsInOneSchemaAreTwo(t *testing.T) {
	w := newWorld(t)
	const table = "a_second_log"
	assert.Error(t, CheckSchema(t.Context(), w.db, table), ErrSchema, "check")
	assert.OK(t, Migrate(t.Context(), w.db, MigrateOptions{Table: table}))
	second := require.Get(NewLog(w.db, LogOptions{table, testLease, w.log.o.Delays, testMax}))(t)
	k := key("k")
	w.claim(absent(k), "a")
	require.Get(second.Claim(t.Context(), absent(k), entryOf(k), "b"))(t)
	one, err1 := w.log.SchemaID(t.Context())
	two, err2 := second.SchemaID(t.Context())
	assert.That(t, one != two && err1 == nil && err2 == nil, "ids %q, %q, %v, %v: marks of one would suppress messages "+
		"of the other", one, two, err1, err2)
	events, err := second.Events(t.Context(), k)
	assert.That(t, len(events) == 1 && events[0].Owner == "b" && err == nil, "events of the second: %+v, %v", events, err)
	for _, bad := range []string{"a-b", "1a", "a`b", "a b", strings.Repeat("t", 42)} {
		err := Migrate(t.Context(), w.db, MigrateOptions{Table: bad})
		assert.That(t, err != nil, "table %q was taken", bad)
	}
	longest := strings.Repeat("t", 41)
	assert.OK(t, Migrate(t.Context(), w.db, MigrateOptions{Table: longest}))
}

// Given a log that somebody alters under an exclusive lock, then a daemon that starts must wait: `rollbackd migrate` is
// no cure for a lock.
func TestALockedTableIsNoFaultOfTheSchema(t *testing.T) {
	w := newWorld(t)
	w.put(aged("t", 2000, Success, 0)...)
	conn := require.Get(w.pool.Conn(t.Context()))(t)
	defer conn.Close()
	id := stack.Number(t, conn, "SELECT CONNECTION_ID()")
	altered := make(chan error, 1)
	go func() { // each row costs a while, so that the copy lasts until it is killed
		_, err := conn.ExecContext(t.Context(), "ALTER TABLE consumer_log ADD n BIGINT DEFAULT "+
			"(CRC32(SHA2(REPEAT(msg_key, 1000000), 512))), ALGORITHM=COPY, LOCK=EXCLUSIVE")
		altered <- err
	}()
	poll.Until(t, "it copies", func() bool {
		var state sql.NullString
		err := w.pool.QueryRowContext(t.Context(), "SELECT state FROM "+stack.Processes+" WHERE id = ?", id).
			Scan(&state)
		return err == nil && strings.Contains(state.String, "copy")
	})
	// MariaDB opens the table to tell of it, and so waits; MySQL asks its dictionary, and has nothing to wait for.
	version := stack.One[string](t, w.pool, "SELECT VERSION()")
	err := CheckSchema(t.Context(), w.db, "consumer_log")
	assert.That(t, !errors.Is(err, ErrSchema) && (err != nil || !strings.Contains(version, "MariaDB")),
		"while it is locked: %v; want an error that is not of the schema, or on MySQL none", err)
	w.exec(fmt.Sprintf("KILL QUERY %d", id))
	err = <-altered
	assert.That(t, err != nil, "the copy came to its end before it was killed")
	assert.OK(t, CheckSchema(t.Context(), w.db, "consumer_log"))
}

// Given a key column that is not binary or too short, a table that is missing or has no transactions, or another
// version's schema, then the check refuses it and names the reason; what is newer and compatible is left alone. A
// server that is away is no fault of the schema.
func TestCheckSchemaRefuses(t *testing.T) {
	t.Parallel()
	newer := func(oldest int) string {
		return fmt.Sprintf("INSERT INTO rollbackd_schema (set_name, version, oldest, applied_at) VALUES "+
			"('log:consumer_log', 7, %d, UTC_TIMESTAMP(6))", oldest)
	}
	for _, c := range []struct{ spoil, says string }{
		{"DO 1", ""},
		{"DROP TABLE consumer_log", "missing"},
		{"DROP TABLE consumer_log_event", "missing"},
		{"ALTER TABLE consumer_log MODIFY msg_key VARCHAR(255) NOT NULL", "VARBINARY"},
		{"ALTER TABLE consumer_log MODIFY msg_tag VARCHAR(100) COLLATE utf8mb4_bin NOT NULL", "VARBINARY"},
		{"ALTER TABLE consumer_log MODIFY msg_key VARBINARY(64) NOT NULL", "64 bytes"},
		{"ALTER TABLE consumer_log ENGINE=MyISAM", "InnoDB"},
		{"DELETE FROM rollbackd_schema WHERE version = 4", "0004"},
		{"DROP TABLE rollbackd_schema", "0001"},
		{"DELETE FROM rollbackd_schema WHERE version = 5", "0005"},
		{newer(6), ""},
		{newer(7), "newer rollbackd"},
	} {
		t.Run(c.spoil, func(t *testing.T) {
			w := newWorld(t)
			w.exec(c.spoil)
			err := CheckSchema(t.Context(), w.db, "consumer_log")
			if c.says == "" {
				assert.OK(t, err)
				w.migrate(MigrateOptions{})
			} else if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "run: rollbackd migrate") {
				t.Errorf("check = %v, want it to say %q and what to run", err, c.says)
			}
			if c.says == "newer rollbackd" {
				assert.Error(t, Migrate(t.Context(), w.db, MigrateOptions{}), ErrSchema, "migrate")
			}
		})
	}
	err := CheckSchema(t.Context(), worldOf(t, "u:p@tcp(127.0.0.1:1)/d", OpenOptions{}).db, "consumer_log")
	assert.That(t, !errors.Is(err, ErrSchema) && mysqldb.Classify(err) == mysqldb.FaultUnavailable,
		"check without a server = %v", err)
}

// The daemon needs no right that changes tables.
func TestDaemonsRightsSuffice(t *testing.T) {
	w := newWorld(t)
	dsn := stack.Restricted(t, w.dsn, "SELECT, INSERT, UPDATE, DELETE ON *")
	daemon := worldOf(t, dsn, OpenOptions{})
	assert.OK(t, CheckSchema(t.Context(), daemon.db, "consumer_log"))
	assert.OK(t, daemon.success(daemon.claimAt(key("k"))))
	require.Get(daemon.log.SchemaID(t.Context()))(t)
}

func TestReadableViewShowsText(t *testing.T) {
	w := newWorld(t)
	k := Identity{"g", "tag é", "key 😀"}
	w.dead(Death{Entry: entryOf(k), Reason: "malformed", Cause: "bad"})
	var tag, name, status, body string
	err := w.pool.QueryRow("SELECT msg_tag, msg_key, status, msg_body FROM consumer_log_readable WHERE msg_key = "+
		"'key 😀'").Scan(&tag, &name, &status, &body)
	assert.That(t, err == nil && tag == k.Tag && name == k.Key && status == Dead.String() &&
		body == string(entryOf(k).Body), "%q %q %q %q, %v", tag, name, status, body, err)
	for i, s := range Statuses() {
		w.exec("UPDATE consumer_log SET consumer_status = ?", i)
		assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log_readable WHERE status = ?", s.String()), 1,
			"status %d is not called %v", i, s)
	}
	w.exec("UPDATE consumer_log SET due_at = '2026-11-27 04:00:00'")
	n := w.number("SELECT COUNT(*) FROM consumer_log_readable WHERE due_at = '2026-11-27 04:00:00'")
	assert.That(t, n == 1, "the view does not say when a failed row is due")
}

func TestASetWithoutANameOrStepsThatSayWhoUsesThemIsRefused(t *testing.T) {
	db := worldOf(t, "u:p@tcp(127.0.0.1:1)/d", OpenOptions{}).db
	files := fstest.MapFS{"0001_a.sql": {Data: []byte("-- oldest: 1\n-- +goose Up\nDO 1;\n")}}
	for what, extra := range map[string][]MigrationSet{
		"no name":         {{Files: files}},
		"the log's word":  {{Name: "log", Files: files}},
		"a log's name":    {{Name: "log:consumer_log", Files: files}},
		"another log's":   {{Name: "log:other", Files: files}},
		"a name too long": {{Name: strings.Repeat("n", 101), Files: files}},
		"a name twice":    {{Name: "a", Files: files}, {Name: "a", Files: files}},
		"no files at all": {{Name: "a"}},
		"no oldest":       {{Name: "a", Files: fstest.MapFS{"0001_a.sql": {Data: []byte("-- +goose Up\nDO 1;\n")}}}},
	} {
		err := Migrate(t.Context(), db, MigrateOptions{Extra: extra, NoLog: true})
		assert.That(t, err != nil && mysqldb.Classify(err) != mysqldb.FaultUnavailable, "%s was taken: %v", what, err)
	}
}

// A row that the server finds too large could never be written: its message would come back for ever.
func TestEveryStatementFitsIntoOneMiB(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	dsn := server.Database(t)
	newWorldOn(t, dsn).exec("SET GLOBAL max_allowed_packet = 1048576")
	w := worldOf(t, dsn, OpenOptions{})
	require.Is(t, w.number("SELECT @@max_allowed_packet"), 1<<20, "max_allowed_packet")
	// given values that take as many bytes as they can: each a quote, which is escaped, or a character of four bytes
	quotes := func(n, unique int) string { return fmt.Sprintf("%s%05d", strings.Repeat("'", n-5), unique) }
	worst := func(i int) Entry {
		k := Identity{Group: quotes(MaxGroup, 0), Tag: quotes(MaxTag, 0), Key: quotes(MaxKey, i)}
		return Entry{Identity: k, BodyHash: sha256.Sum256([]byte{byte(i)}), MessageID: quotes(MaxMessageID, i)}
	}
	cause := strings.Repeat("\U0001F600", 2*MaxRemark)

	huge := worst(0)
	huge.Body, huge.Properties = bytes.Repeat([]byte{0}, 16<<20), bytes.Repeat([]byte("\""), MaxProperties)
	assert.OK(t, w.log.Dead(t.Context(), absent(huge.Identity), huge, "malformed", cause))
	huge.Identity.Key = quotes(MaxKey, 1)
	w.dead(Death{Entry: huge, Reason: "malformed", Cause: cause})
	huge.Identity.Key = quotes(MaxKey, 2)
	c := require.Get(w.log.Claim(t.Context(), absent(huge.Identity), huge, "owner"))(t)
	w.fail(c, cause)

	var letters []Death
	var entries []Entry
	var keys []Identity
	for i := range 3000 {
		letter := Death{Entry: worst(10_000 + i), Reason: "permanent", Cause: cause}
		if letter.Entry.Body = bytes.Repeat([]byte{0}, i%100); i%100 == 0 {
			letter.Entry.Body = huge.Body[:MaxBody]
		}
		letters, entries = append(letters, letter), append(entries, worst(20_000+i))
		keys = append(keys, letter.Entry.Identity)
	}
	w.dead(letters...)
	assert.OK(t, w.insertSuccess(entries...))
	rows := require.Get(w.log.LookUp(t.Context(), keys))(t)
	for _, k := range keys {
		require.Is(t, rows[k].Status, Dead, "%v", k)
	}
}
