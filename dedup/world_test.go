package dedup

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// What only the tests call.

// Condemn is CondemnAll of one.
func (l *Log) Condemn(ctx context.Context, from Row, e Entry, reason Reason, cause, owner string) (Row, error) {
	return first(l.CondemnAll(ctx, []Condemnation{{from, e, reason, cause, owner}}))
}

// known are rows that know their messages, as ClaimAll takes them; fresh are messages without a row.
func known(rows []Row) []Claiming {
	return mapped(rows, func(row Row) Claiming { return Claiming{From: row} })
}

func fresh(entries []Entry) []Claiming {
	return mapped(entries, func(e Entry) Claiming { return Claiming{absent(e.Identity), &e} })
}

// Success is SuccessAll of one.
func (l *Log) Success(ctx context.Context, tx Execer, claim Claim) error {
	return l.SuccessAll(ctx, tx, []Claim{claim})
}

// The settings of the tests' log: so long that no case comes due by itself.
const (
	testLease = 3 * time.Hour
	testDelay = time.Hour
	testMax   = 3
)

var testOptions = LogOptions{
	Table: "consumer_log", Lease: testLease, Delays: []time.Duration{testDelay, 2 * testDelay}, MaxAttempts: testMax,
}

// world is a migrated database of the test's own with a log on it.
type world struct {
	t    testing.TB
	dsn  string
	db   *gorm.DB
	pool *sql.DB
	log  *Log

	memory *Memory // in place of the database
}

// newWorld has its test run beside others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldOn(t, stack.MySQL(t))
}

func newWorldOn(t testing.TB, dsn string) *world {
	t.Helper()
	w := worldOf(t, dsn, OpenOptions{})
	stack.Tables(t, dsn, "log", func() { w.migrate(MigrateOptions{}) })
	return w
}

func (w *world) migrate(o MigrateOptions) {
	w.t.Helper()
	require.OK(w.t, Migrate(w.t.Context(), w.db, o))
}

// worldOf has a pool of its own, and makes no tables.
func worldOf(t testing.TB, dsn string, o OpenOptions) *world {
	t.Helper()
	db := require.First(Open(t.Context(), dsn, o))(t)
	pool := require.Get(db.DB())(t)
	t.Cleanup(func() { pool.Close() })
	return &world{t: t, dsn: dsn, db: db, pool: pool, log: require.Get(NewLog(db, testOptions))(t)}
}

func (w *world) exec(text string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.pool, text, args...)
}

func (w *world) number(text string, args ...any) int {
	w.t.Helper()
	return stack.Number(w.t, w.pool, text, args...)
}

// older makes a row as if its last transition were longer ago.
func (w *world) older(k Identity, by time.Duration) {
	w.t.Helper()
	w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL ? MICROSECOND"+keyIs,
		append([]any{by.Microseconds()}, keyArgs(k)...)...)
}

func (w *world) read(k Identity) Row {
	w.t.Helper()
	return require.Get(w.log.Read(w.t.Context(), k))(w.t)
}

func (w *world) events(k Identity) []Event {
	w.t.Helper()
	return require.Get(w.log.Events(w.t.Context(), k))(w.t)
}

// story is an identity's events in short: "absent>processing 1/0", by whom and with which error.
func (w *world) story(k Identity) string {
	w.t.Helper()
	var steps []string
	for _, e := range w.events(k) {
		step := fmt.Sprintf("%v>%v %d/%d", e.From, e.To, e.Attempt, e.Replays)
		if e.By != "" {
			step += " by " + e.By
		}
		if e.Error != "" {
			step += ": " + e.Error
		}
		steps = append(steps, step)
	}
	return strings.Join(steps, ", ")
}

func (w *world) claim(from Row, owner string) Claim {
	w.t.Helper()
	return require.Get(w.log.Claim(w.t.Context(), from, entryOf(from.Identity), owner))(w.t)
}

func (w *world) fail(c Claim, cause string) Row {
	w.t.Helper()
	return require.Get(first(w.log.FailAll(w.t.Context(), []Failure{{Claim: c, Cause: cause}})))(w.t)
}

// inTx runs f as the engine does: any error rolls back.
func (w *world) inTx(f func(*sql.Tx) error) error {
	w.t.Helper()
	if w.memory != nil {
		w.memory.begin()
		err := f(&sql.Tx{})
		if err == nil {
			w.memory.Committed()
		}
		return err
	}
	return mysqldb.InTx(w.t.Context(), w.pool, f)
}

func (w *world) insertSuccess(entries ...Entry) error {
	w.t.Helper()
	return w.inTx(func(tx *sql.Tx) error { return w.log.InsertSuccess(w.t.Context(), tx, entries) })
}

func (w *world) success(c Claim) error {
	w.t.Helper()
	return w.inTx(func(tx *sql.Tx) error { return w.log.Success(w.t.Context(), tx, c) })
}

func (w *world) claimAt(k Identity) Claim { return w.claim(absent(k), "owner of "+k.Key) }

// dead files letters, each of an identity without a row, and returns the first one's.
func (w *world) dead(all ...Death) Row {
	w.t.Helper()
	assert.OK(w.t, errors.Join(w.log.DeadRows(w.t.Context(), all)...))
	return w.read(all[0].Entry.Identity)
}

// deathOf is that of a key.
func deathOf(name string) Death {
	return Death{Entry: entryOf(key(name)), Reason: "permanent", Cause: "no such order"}
}

// put writes rows as they are given, each with its Age or its At.
func (w *world) put(rows ...Row) {
	w.t.Helper()
	for some := range slices.Chunk(rows, 500) {
		s := sqlOf("INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_body, body_hash, consumer_status, " +
			"consumer_times, replays, owner, reason, remark, consumer_timestamp, created_at) VALUES ")
		for i, r := range some {
			s.item(i, "(?, ?, ?", keyArgs(r.Identity)...)
			s.add(", ?, ?, ?, ?, ?, ?, ?, ?", r.Body, r.BodyHash, int(r.Status), r.Attempts, r.Replays, orNull(r.Owner),
				orNull(string(r.Reason)), r.Remark)
			if r.At.IsZero() {
				s.add(", UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6))", r.Age.Microseconds())
			} else {
				s.add(", "+microTime+", UTC_TIMESTAMP(6))", r.At.UnixMicro())
			}
		}
		w.exec(s.String(), s.args...)
	}
}

// tell gives rows a line in the story.
func (w *world) tell(which string) {
	w.t.Helper()
	w.exec("INSERT INTO consumer_log_event (group_name, msg_tag, msg_key, `at`, `to`, attempt, replays, `by`) SELECT " +
		"group_name, msg_tag, msg_key, consumer_timestamp, consumer_status, 1, 0, 'them' FROM consumer_log WHERE " + which)
}

func key(name string) Identity { return Identity{Group: "g", Tag: "t", Key: name} }

func entryOf(k Identity) Entry {
	body := []byte(`{"order_sn":"` + k.Key + `"}`)
	return Entry{
		Identity: k, BodyHash: sha256.Sum256(body), MessageID: "id-" + k.Key, Body: body, Properties: []byte(`{"type":"t"}`),
	}
}

func wantVersion(t testing.TB, got Row, want Version) {
	t.Helper()
	assert.Is(t, got.Version, want, "%v", got.Identity)
}
