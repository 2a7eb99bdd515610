package dedup

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// The settings of the tests' log: so long that no case comes due by itself.
const (
	testLease = 3 * time.Hour
	testDelay = time.Hour
	testMax   = 3
)

// world is a migrated database of the test's own with a log on it.
type world struct {
	t    testing.TB
	dsn  string
	db   *gorm.DB
	pool *sql.DB
	log  *Log
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, stack.MySQL(t))
}

func newWorldOn(t testing.TB, dsn string) *world {
	t.Helper()
	db := open(t, dsn)
	if err := Migrate(t.Context(), db, MigrateOptions{Table: "consumer_log"}); err != nil {
		t.Fatal(err)
	}
	return worldOf(t, dsn, db)
}

func worldOf(t testing.TB, dsn string, db *gorm.DB) *world {
	t.Helper()
	log, err := NewLog(db, LogOptions{
		Table: "consumer_log", Lease: testLease, Delays: []time.Duration{testDelay, 2 * testDelay}, MaxAttempts: testMax,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, dsn: dsn, db: db, pool: poolOf(t, db), log: log}
}

func open(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return openWith(t, dsn, OpenOptions{})
}

func openWith(t testing.TB, dsn string, o OpenOptions) *gorm.DB {
	t.Helper()
	db, _, err := Open(t.Context(), dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	pool := poolOf(t, db)
	t.Cleanup(func() { pool.Close() })
	return db
}

func poolOf(t testing.TB, db *gorm.DB) *sql.DB {
	t.Helper()
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func (w *world) exec(text string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.ExecContext(w.t.Context(), text, args...); err != nil {
		w.t.Fatalf("%s: %v", text, err)
	}
}

func (w *world) number(text string, args ...any) (n int) {
	w.t.Helper()
	if err := w.pool.QueryRowContext(w.t.Context(), text, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", text, err)
	}
	return n
}

// older makes a row as if its last transition were longer ago.
func (w *world) older(k Identity, by time.Duration) {
	w.t.Helper()
	w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL ? MICROSECOND"+keyIs,
		append([]any{by.Microseconds()}, keyArgs(k)...)...)
}

func (w *world) read(k Identity) Row {
	w.t.Helper()
	row, err := w.log.Read(w.t.Context(), k)
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

func (w *world) events(k Identity) []Event {
	w.t.Helper()
	events, err := w.log.Events(w.t.Context(), k)
	if err != nil {
		w.t.Fatal(err)
	}
	return events
}

// story is an identity's events in short: "absent>processing 1/0".
func (w *world) story(k Identity) string {
	w.t.Helper()
	var steps []string
	for _, e := range w.events(k) {
		steps = append(steps, fmt.Sprintf("%v>%v %d/%d", e.From, e.To, e.Attempt, e.Replays))
	}
	return strings.Join(steps, ", ")
}

func (w *world) claim(from Row, owner string) Claim {
	w.t.Helper()
	c, err := w.log.Claim(w.t.Context(), from, entryOf(from.Identity), owner)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) fail(c Claim, cause string) Row {
	w.t.Helper()
	row, err := w.log.Fail(w.t.Context(), c, cause)
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

// inTx runs f as the engine does: any error rolls back.
func (w *world) inTx(f func(*sql.Tx) error) error {
	w.t.Helper()
	tx, err := w.pool.BeginTx(w.t.Context(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := f(tx); err != nil {
		tx.Rollback()
		return err
	}
	return tx.Commit()
}

func (w *world) insertSuccess(entries ...Entry) error {
	w.t.Helper()
	return w.inTx(func(tx *sql.Tx) error { return w.log.InsertSuccess(w.t.Context(), tx, entries) })
}

func (w *world) success(c Claim) error {
	w.t.Helper()
	return w.inTx(func(tx *sql.Tx) error { return w.log.Success(w.t.Context(), tx, c) })
}

func key(name string) Identity { return Identity{Group: "g", Tag: "t", Key: name} }

func entryOf(k Identity) Entry {
	body := []byte(`{"order_sn":"` + k.Key + `"}`)
	return Entry{
		Identity: k, BodyHash: sha256.Sum256(body), MessageID: "id-" + k.Key, Body: body, Properties: []byte(`{"type":"t"}`),
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || (want == nil && err != nil) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func wantVersion(t testing.TB, got Row, want Version) {
	t.Helper()
	if got.Version != want {
		t.Errorf("%v is %+v, want %+v", got.Identity, got.Version, want)
	}
}
