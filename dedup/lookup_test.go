package dedup

import (
	"bytes"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestIdentityValidate(t *testing.T) {
	long := strings.Repeat
	for _, c := range []struct {
		key Identity
		ok  bool
	}{
		{key("k"), true}, {Identity{long("g", 100), long("t", 100), long("k", 255)}, true}, {key(long("é", 127)), true},
		{key(long("é", 128)), false}, {Identity{long("g", 101), "t", "k"}, false},
		{Identity{"g", long("t", 101), "k"}, false}, {Identity{"", "t", "k"}, false}, {Identity{"g", "", "k"}, false},
		{key(""), false}, {key(" "), true}, {key("😀"), true},
		{key("a\x00"), false}, {key("a\nb"), false}, {key("a\x7f"), false}, {key("a\u0085"), false}, {key("a\xff"), false},
		{key("\xed\xa0\x80"), false}, // half a surrogate
	} {
		if err := c.key.Validate(); (err == nil) != c.ok || !c.ok && !errors.Is(err, ErrIdentity) {
			t.Errorf("Validate(%v) = %v, want ok %v", c.key, err, c.ok)
		}
	}
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "msg_key", key("k 1"))
	assert.Has(t, out.String(), `msg_key.group=g msg_key.tag=t msg_key.key="k 1"`, "lacks")
}

// Every text collation of MySQL and MariaDB makes some of these equal.
func TestKeysThatDifferInAnyByteAreTwoKeys(t *testing.T) {
	w := newWorld(t)
	var keys []Identity
	for _, name := range []string{
		"abc", "ABC", "aBc", "äbc", "a\u0308bc", "àbc", "abc ", "abc  ", " abc", "ABC ", "ß", "ss", "😀", "😁", "œ", "oe", "ı",
		"i", "I", "İ", "a'b", `a\b`, `a\\b`, "a%b", "a_b", "a?b", "ﬁ", "fi", "１", "1", "\u200b1", "Å", "\u212b", "0", "00",
	} {
		keys = append(keys, key(name), Identity{"g", name, "k"}, Identity{name, "t", "k"})
	}
	var entries []Entry
	for i, k := range keys {
		if i%2 == 0 {
			entries = append(entries, entryOf(k))
		}
	}
	assert.OK(t, w.insertSuccess(entries...))
	for i, k := range keys {
		if i%2 == 1 {
			w.claimAt(k)
		}
	}
	rows := w.lookUp(keys...)
	for i, k := range keys {
		want := []Status{Success, Processing}[i%2]
		if rows[k].Status != want || rows[k].Identity != k || w.read(k).Status != want {
			t.Errorf("%v is %v, want %v", k, rows[k].Status, want)
		}
	}
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), len(keys), "rows for keys")
}

func TestLookUpSaysOfEveryKeyWhatIsThere(t *testing.T) {
	w := newWorld(t)
	all := entries(1500)
	assert.OK(t, w.insertSuccess(all[:1200]...))
	claim := w.claimAt(key("claimed"))
	w.older(claim.Identity, time.Hour)
	want := map[Identity]Status{claim.Identity: Processing, key("unknown"): Absent,
		{"g", "another tag", "order-000000"}: Absent, {"another group", "t", "order-000000"}: Absent}
	for i, e := range all {
		if want[e.Identity] = Success; i >= 1200 {
			want[e.Identity] = Absent
		}
	}
	keys := []Identity{claim.Identity}
	for k := range want {
		keys = append(keys, k)
	}
	rows := w.lookUp(keys...)
	for k, status := range want {
		if rows[k].Status != status || rows[k].Identity != k {
			t.Fatalf("%v: %+v, want %v", k, rows[k], status)
		}
	}
	row := rows[claim.Identity]
	off := (row.Age - time.Hour).Abs()
	assert.That(t, len(rows) == len(want) && off <= time.Minute && row.LeaseLive && row.Wait <= testLease-time.Hour,
		"%d rows for %d keys; age %v, live %v, wait %v", len(rows), len(want), row.Age, row.LeaseLive, row.Wait)
	assert.Is(t, len(w.lookUp()), 0, "no key")
}

// Given a pool of the caller's own, which reads times as it likes, stands on another clock and isolates by REPEATABLE
// READ, where workers that insert neighbouring keys deadlock, then the log's times are the database's in UTC, and its
// transactions read what is committed.
func TestTheLogIsTheSameOnAnyPool(t *testing.T) {
	w := newWorld(t)
	plain, err := sql.Open("mysql", w.dsn) // without parseTime, with the server's time zone
	assert.OK(t, err)
	defer plain.Close()
	plain.SetMaxOpenConns(1)
	for _, text := range []string{"SET time_zone = '+05:00'", "SET timestamp = UNIX_TIMESTAMP('2031-02-03 04:05:06.5')"} {
		require.Get(plain.Exec(text))(t)
	}
	other := *w.log
	other.db = plain
	k := key("k")
	require.Get(other.Claim(t.Context(), absent(k), entryOf(k), "a"))(t)
	want := time.Date(2031, 2, 2, 23, 5, 6, 500_000_000, time.UTC)
	for _, l := range []*Log{w.log, &other} {
		row, err := l.Read(t.Context(), k)
		assert.That(t, err == nil && row.At.Equal(want) && row.CreatedAt.Equal(want) && row.At.Location() == time.UTC,
			"read %v at %v, created %v, want %v", err, row.At, row.CreatedAt, want)
	}
	assert.OK(t, other.inTx(t.Context(), func(tx Execer) error {
		for want := 1; want <= 2; want++ {
			keys, err := list(t.Context(), tx, sqlOf("SELECT msg_key FROM consumer_log"), value[string])
			assert.That(t, err == nil && len(keys) == want, "the transaction sees %v, %v; want %d rows", keys, err, want)
			w.claimAt(key("another"))
		}
		return nil
	}))

}

func TestSchemaIDIsKeptAndUnique(t *testing.T) {
	w := newWorld(t)
	id, err := w.log.SchemaID(t.Context())
	require.That(t, err == nil && len(id) == 36, "id %q, %v", id, err)
	w.migrate(MigrateOptions{})
	assert.Is(t, require.Get(w.log.SchemaID(t.Context()))(t), id, "after another migrate")
	other, err := newWorldOn(t, stack.MySQL(t)).log.SchemaID(t.Context())
	assert.That(t, other != id && err == nil, "another schema: %q, %v", other, err)
	_, err = worldOf(t, "", open(t, stack.MySQL(t))).log.SchemaID(t.Context())
	assert.Error(t, err, ErrSchema, "without a schema")
}

func TestNewLogRefusesWhatCannotWork(t *testing.T) {
	db := open(t, "u:p@tcp(127.0.0.1:1)/d")
	good := LogOptions{Table: "consumer_log", Lease: time.Second, Delays: []time.Duration{time.Second}, MaxAttempts: 1}
	_, err := NewLog(db, good)
	assert.That(t, err == nil, "good options: %v", err)
	for name, spoil := range map[string]func(*LogOptions){
		"table":       func(o *LogOptions) { o.Table = "a`b" },
		"long table":  func(o *LogOptions) { o.Table = strings.Repeat("t", 42) },
		"lease":       func(o *LogOptions) { o.Lease = 0 },
		"no delays":   func(o *LogOptions) { o.Delays = nil },
		"zero delay":  func(o *LogOptions) { o.Delays = []time.Duration{0} },
		"no attempts": func(o *LogOptions) { o.MaxAttempts = 0 },
	} {
		o := good
		spoil(&o)
		_, err := NewLog(db, o)
		assert.That(t, err != nil, "%s: %+v was taken", name, o)
	}
}
