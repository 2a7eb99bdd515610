package dedup

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/stack"
)

func TestMigrateTwiceIsOnce(t *testing.T) {
	w := newWorld(t)
	o := MigrateOptions{Table: "consumer_log", Stock: true}
	pending, err := MigrationStatus(t.Context(), w.db, o)
	wantError(t, "status", err, nil)
	for _, m := range pending {
		if m.Applied != (m.Set == "log") || m.Applied == m.At.IsZero() {
			t.Errorf("before: %+v", m)
		}
	}
	wantError(t, "migrate", Migrate(t.Context(), w.db, o), nil)
	wantError(t, "insert", w.insertSuccess(entryOf(key("k"))), nil)
	versions := w.number("SELECT COUNT(*) FROM rollbackd_schema")
	wantError(t, "migrate again", Migrate(t.Context(), w.db, o), nil)

	if n := w.number("SELECT COUNT(*) FROM rollbackd_schema"); n != versions {
		t.Errorf("%d versions, before %d", n, versions)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log"); n != 1 {
		t.Errorf("%d rows after the second migrate", n)
	}
	all, err := MigrationStatus(t.Context(), w.db, o)
	if err != nil || len(all) != len(pending) {
		t.Errorf("%d migrations, %v", len(all), err)
	}
	for _, m := range all {
		if !m.Applied || m.At.IsZero() {
			t.Errorf("after: %+v", m)
		}
	}
}

func TestStatusOfAnEmptyDatabaseChangesNothing(t *testing.T) {
	w := worldOf(t, "", open(t, stack.MySQL(t)))
	all, err := MigrationStatus(t.Context(), w.db, MigrateOptions{Table: "consumer_log"})
	if err != nil || len(all) != 3 || all[0].Applied {
		t.Errorf("status %+v, %v", all, err)
	}
	if n := w.number("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()"); n != 0 {
		t.Errorf("%d tables", n)
	}
	wantError(t, "check", CheckSchema(t.Context(), w.db, "consumer_log"), ErrSchema)
}

func TestManyMigrateAtOnce(t *testing.T) {
	dsn := stack.MySQL(t)
	var wg sync.WaitGroup
	for range 6 {
		db := openWith(t, dsn, OpenOptions{MaxOpen: 1})
		wg.Go(func() {
			if err := Migrate(t.Context(), db, MigrateOptions{Table: "consumer_log", Stock: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w := worldOf(t, dsn, open(t, dsn))
	if n := w.number("SELECT COUNT(*) FROM rollbackd_meta"); n != 1 {
		t.Errorf("%d ids, want one", n)
	}
}

// A process killed between a step and its note in the version table leaves the step to be done again.
func TestMigrateGoesOnWhereAKilledOneStopped(t *testing.T) {
	w := newWorld(t)
	id, err := w.log.SchemaID(t.Context())
	wantError(t, "id", err, nil)
	w.exec("DELETE FROM rollbackd_schema")
	wantError(t, "check", CheckSchema(t.Context(), w.db, "consumer_log"), ErrSchema)

	wantError(t, "migrate", Migrate(t.Context(), w.db, MigrateOptions{Table: "consumer_log"}), nil)

	if again, err := w.log.SchemaID(t.Context()); again != id || err != nil {
		t.Errorf("id %q, %v, it was %q", again, err, id)
	}
}

func TestTwoLogsInOneSchemaAreTwo(t *testing.T) {
	w := newWorld(t)
	const table = "a_second_log"
	wantError(t, "check", CheckSchema(t.Context(), w.db, table), ErrSchema)
	wantError(t, "migrate", Migrate(t.Context(), w.db, MigrateOptions{Table: table}), nil)
	second, err := NewLog(w.db, LogOptions{table, testLease, w.log.o.Delays, testMax})
	wantError(t, "new log", err, nil)
	k := key("k")
	w.claim(absent(k), "a")
	if _, err := second.Claim(t.Context(), absent(k), entryOf(k), "b"); err != nil {
		t.Errorf("claim in the second log: %v", err)
	}
	one, err1 := w.log.SchemaID(t.Context())
	two, err2 := second.SchemaID(t.Context())
	if one == two || err1 != nil || err2 != nil {
		t.Errorf("ids %q, %q, %v, %v: marks of one would suppress messages of the other", one, two, err1, err2)
	}
	if events, err := second.Events(t.Context(), k); len(events) != 1 || events[0].Owner != "b" || err != nil {
		t.Errorf("events of the second: %+v, %v", events, err)
	}
	for _, bad := range []string{"", "a-b", "1a", "a`b", "a b", strings.Repeat("t", 42)} {
		if err := Migrate(t.Context(), w.db, MigrateOptions{Table: bad}); err == nil {
			t.Errorf("table %q was taken", bad)
		}
	}
	longest := strings.Repeat("t", 41)
	wantError(t, "longest name", Migrate(t.Context(), w.db, MigrateOptions{Table: longest}), nil)
}

func TestCheckSchemaRefuses(t *testing.T) {
	for _, c := range []struct{ name, spoil, says string }{
		{"nothing", "DO 1", ""},
		{"a missing log", "DROP TABLE consumer_log", "missing"},
		{"missing events", "DROP TABLE consumer_log_event", "missing"},
		{"a key as text", "ALTER TABLE consumer_log MODIFY msg_key VARCHAR(255) NOT NULL", "VARBINARY"},
		{"a tag as text with a binary collation", "ALTER TABLE consumer_log MODIFY msg_tag VARCHAR(100) COLLATE utf8mb4_bin NOT NULL", "VARBINARY"},
		{"a short key", "ALTER TABLE consumer_log MODIFY msg_key VARBINARY(64) NOT NULL", "64 bytes"},
		{"a table without transactions", "ALTER TABLE consumer_log ENGINE=MyISAM", "InnoDB"},
		{"an old schema", "DELETE FROM rollbackd_schema WHERE version = 3", "0003"},
		{"no version table", "DROP TABLE rollbackd_schema", "0001"},
		{
			"a newer schema that is compatible",
			"INSERT INTO rollbackd_schema (set_name, version, oldest, applied_at) VALUES ('log:consumer_log', 4, 3, UTC_TIMESTAMP(6))", "",
		},
		{
			"a newer schema that is not",
			"INSERT INTO rollbackd_schema (set_name, version, oldest, applied_at) VALUES ('log:consumer_log', 4, 4, UTC_TIMESTAMP(6))", "newer rollbackd",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.exec(c.spoil)
			err := CheckSchema(t.Context(), w.db, "consumer_log")
			if c.says == "" {
				wantError(t, "check", err, nil)
				return
			}
			if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "run: consumer migrate") {
				t.Errorf("check = %v, want it to say %q and what to run", err, c.says)
			}
		})
	}
}

func TestMigrateLeavesANewerCompatibleSchemaAlone(t *testing.T) {
	w := newWorld(t)
	w.exec("INSERT INTO rollbackd_schema (set_name, version, oldest, applied_at) VALUES ('log:consumer_log', 4, 3, UTC_TIMESTAMP(6))")
	wantError(t, "migrate", Migrate(t.Context(), w.db, MigrateOptions{Table: "consumer_log"}), nil)
	w.exec("UPDATE rollbackd_schema SET oldest = 4 WHERE version = 4")
	wantError(t, "migrate", Migrate(t.Context(), w.db, MigrateOptions{Table: "consumer_log"}), ErrSchema)
}

func TestCheckSchemaDoesNotBlameTheSchemaForADeadServer(t *testing.T) {
	err := CheckSchema(t.Context(), open(t, "u:p@tcp(127.0.0.1:1)/d"), "consumer_log")
	if errors.Is(err, ErrSchema) || Classify(err) != FaultUnavailable {
		t.Errorf("check = %v", err)
	}
}

// The daemon needs no right that changes tables.
func TestDaemonsRightsSuffice(t *testing.T) {
	w := newWorld(t)
	dsn := stack.Restricted(t, w.dsn, "SELECT, INSERT, UPDATE, DELETE ON *")
	daemon := worldOf(t, dsn, open(t, dsn))
	wantError(t, "check", CheckSchema(t.Context(), daemon.db, "consumer_log"), nil)
	wantError(t, "success", daemon.success(daemon.claimAt(key("k"))), nil)
	if _, err := daemon.log.SchemaID(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestReadableViewShowsText(t *testing.T) {
	w := newWorld(t)
	k := Key{"g", "tag é", "key 😀"}
	wantError(t, "dead", w.log.Dead(t.Context(), absent(k), entryOf(k), "malformed", "bad"), nil)
	var tag, name, status, body string
	err := w.pool.QueryRow("SELECT msg_tag, msg_key, status, msg_body FROM consumer_log_readable WHERE msg_key = 'key 😀'").Scan(&tag, &name, &status, &body)
	if err != nil || tag != k.Tag || name != k.Name || status != Dead.String() || body != string(entryOf(k).Body) {
		t.Errorf("%q %q %q %q, %v", tag, name, status, body, err)
	}
	for i, s := range Statuses() {
		w.exec("UPDATE consumer_log SET consumer_status = ?", i)
		if n := w.number("SELECT COUNT(*) FROM consumer_log_readable WHERE status = ?", s.String()); n != 1 {
			t.Errorf("status %d is not called %v", i, s)
		}
	}
}

func TestStockTablesKeepTheirPromises(t *testing.T) {
	w := newWorld(t)
	if n := w.number("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'stock%'"); n != 0 {
		t.Errorf("%d stock tables that nobody asked for", n)
	}
	wantError(t, "migrate", Migrate(t.Context(), w.db, MigrateOptions{Table: "consumer_log", Stock: true}), nil)
	w.exec("INSERT INTO stock (sku_id, amount) VALUES (9223372036854775807, 1)")
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('a', 1, 1000000000, 1), ('A', 1, 1, 2), ('a ', 1, 1, 3), ('á', 1, 0, 4)")
	for _, text := range []string{
		"UPDATE stock SET amount = amount - 2",
		"UPDATE stock_reservation SET quantity = -1",
		"UPDATE stock_reservation SET status = 5",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('a', 1, 1, 1)",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES (REPEAT('o', 65), 1, 1, 1)",
	} {
		if _, err := w.pool.Exec(text); Classify(err) != FaultData {
			t.Errorf("%s = %v, want it refused", text, err)
		}
	}
}

func TestEveryMigrationSaysWhoCanStillWorkWithIt(t *testing.T) {
	sets, err := setsOf(MigrateOptions{Table: "consumer_log", Stock: true})
	wantError(t, "sets", err, nil)
	for _, set := range sets {
		steps, err := set.steps()
		wantError(t, set.name, err, nil)
		for i, s := range steps {
			if s.version != int64(i+1) || s.oldest < 1 || s.oldest > s.version {
				t.Errorf("%s: step %d is %+v", set.name, i+1, s)
			}
		}
	}
}
