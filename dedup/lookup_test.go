package dedup

import (
	"database/sql"
	"strconv"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestLookUpSaysOfEveryKeyWhatIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := entries(1500)
	wantError(t, "insert", w.insertSuccess(all[:1200]...), nil)
	claim := w.claim(absent(key("claimed")), "a")
	w.older(claim.Identity, time.Hour)
	keys := []Identity{claim.Identity, key("unknown"), claim.Identity, {"g", "another tag", "order-000000"},
		{"another group", "t", "order-000000"}}
	for _, e := range all {
		keys = append(keys, e.Identity)
	}

	rows := w.lookUp(keys...)

	if len(rows) != len(keys)-1 {
		t.Errorf("%d rows for %d keys", len(rows), len(keys)-1)
	}
	for _, k := range []Identity{keys[1], keys[3], keys[4]} {
		if rows[k].Status != Absent || rows[k].Identity != k {
			t.Errorf("%v: %+v", k, rows[k])
		}
	}
	for i, e := range all {
		want := Success
		if i >= 1200 {
			want = Absent
		}
		if rows[e.Identity].Status != want {
			t.Fatalf("%v is %v, want %v", e.Identity, rows[e.Identity].Status, want)
		}
	}
	row := rows[claim.Identity]
	if off := (row.Age - time.Hour).Abs(); off > time.Minute {
		t.Errorf("age %v, want an hour", row.Age)
	}
	if row.Wait > testLease-time.Hour || !row.LeaseLive {
		t.Errorf("live %v, wait %v", row.LeaseLive, row.Wait)
	}
	if got := w.lookUp(); len(got) != 0 {
		t.Errorf("no key: %v", got)
	}
}

// The log's times do not depend on how the caller's pool reads times, nor on this machine's clock or time zone.
func TestTimesAreTheDatabasesInUTC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plain, err := sql.Open("mysql", w.dsn) // without parseTime, with the server's time zone
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	plain.SetMaxOpenConns(1)
	for _, text := range []string{"SET time_zone = '+05:00'", "SET timestamp = UNIX_TIMESTAMP('2031-02-03 04:05:06.5')"} {
		if _, err := plain.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	other := *w.log
	other.db = plain
	k := key("k")
	if _, err := other.Claim(t.Context(), absent(k), entryOf(k), "a"); err != nil {
		t.Fatal(err)
	}
	want := time.Date(2031, 2, 2, 23, 5, 6, 500_000_000, time.UTC)
	for _, l := range []*Log{w.log, &other} {
		row, err := l.Read(t.Context(), k)
		if err != nil || !row.At.Equal(want) || !row.CreatedAt.Equal(want) || row.At.Location() != time.UTC {
			t.Errorf("read %v at %v, created %v, want %v", err, row.At, row.CreatedAt, want)
		}
	}
}

func TestLookUpIsNoFullScan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := entries(10_000)
	wantError(t, "insert", w.insertSuccess(all...), nil)
	w.exec("ANALYZE TABLE consumer_log")
	keys := make([]Identity, 500)
	for i := range keys {
		keys[i] = all[i*20].Identity
	}
	if n := lookUpSome(keys); n != len(keys) {
		t.Errorf("%d keys of %d in one query", n, len(keys))
	}
	s := w.log.ofKeys(keys, rowColumns)
	w.wantIndexed("one tag", 600, s.String(), s.args...)
	keys[1].Tag = "another"
	s = w.log.ofKeys(keys[:lookUpSome(keys)], rowColumns)
	w.wantIndexed("several tags", 600, s.String(), s.args...)
}

// wantIndexed fails when the plan reads a table from end to end, or more rows than it may.
func (w *world) wantIndexed(what string, most int, text string, args ...any) {
	w.t.Helper()
	for _, plan := range w.explain(text, args...) {
		n, _ := strconv.Atoi(plan["rows"])
		if plan["type"] == "ALL" || plan["type"] == "index" || plan["key"] == "" || n > most {
			w.t.Errorf("%s: plan %v reads more than %d rows of an index", what, plan, most)
		}
	}
}

// A caller's own pool is REPEATABLE READ, where workers that insert neighbouring keys deadlock.
func TestTransitionsReadCommittedOnAnyPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plain, err := sql.Open("mysql", w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	l := *w.log
	l.db = plain
	count := func(tx Execer) (n int) {
		rows, err := tx.QueryContext(t.Context(), "SELECT msg_key FROM consumer_log")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			n++
		}
		return n
	}
	err = l.inTx(t.Context(), func(tx Execer) error {
		before := count(tx)
		w.claimAt(key("k"))
		if after := count(tx); before != 0 || after != 1 {
			t.Errorf("the transaction sees %d rows, then %d", before, after)
		}
		return nil
	})
	wantError(t, "transaction", err, nil)
}

func TestSchemaIDIsKeptAndUnique(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, err := w.log.SchemaID(t.Context())
	if err != nil || len(id) != 36 {
		t.Fatalf("id %q, %v", id, err)
	}
	wantError(t, "migrate", Migrate(t.Context(), w.db, MigrateOptions{Table: "consumer_log"}), nil)
	if again, err := w.log.SchemaID(t.Context()); again != id || err != nil {
		t.Errorf("after another migrate %q, %v; it was %q", again, err, id)
	}
	if other, err := newWorld(t).log.SchemaID(t.Context()); other == id || err != nil {
		t.Errorf("another schema: %q, %v", other, err)
	}
	empty := worldOf(t, "", open(t, stack.MySQL(t)))
	_, err = empty.log.SchemaID(t.Context())
	wantError(t, "without a schema", err, ErrSchema)
}

func TestNewLogRefusesWhatCannotWork(t *testing.T) {
	db := open(t, "u:p@tcp(127.0.0.1:1)/d")
	good := LogOptions{Table: "consumer_log", Lease: time.Second, Delays: []time.Duration{time.Second}, MaxAttempts: 1}
	if _, err := NewLog(db, good); err != nil {
		t.Errorf("good options: %v", err)
	}
	for name, spoil := range map[string]func(*LogOptions){
		"table":       func(o *LogOptions) { o.Table = "a`b" },
		"long table":  func(o *LogOptions) { o.Table = "t23456789012345678901234567890123456789012" },
		"lease":       func(o *LogOptions) { o.Lease = 0 },
		"no delays":   func(o *LogOptions) { o.Delays = nil },
		"zero delay":  func(o *LogOptions) { o.Delays = []time.Duration{0} },
		"no attempts": func(o *LogOptions) { o.MaxAttempts = 0 },
	} {
		o := good
		spoil(&o)
		if _, err := NewLog(db, o); err == nil {
			t.Errorf("%s: %+v was taken", name, o)
		}
	}
}
