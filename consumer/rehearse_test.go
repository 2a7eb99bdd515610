package consumer_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// rehearsing is an engine that does not run, for a handler.
func (w *world) rehearsing(h consumer.Handler) *consumer.Consumer {
	w.t.Helper()
	cfg := w.cfg
	cfg.AMQPURLs = []string{w.amqpURL}
	c := require.Get(consumer.New(cfg, h, consumer.Options{DB: w.open(w.dsn)}))(w.t)
	w.t.Cleanup(func() {
		assert.OK(w.t, c.Close())
	})
	return c
}

// checksums are those of all tables.
func (w *world) checksums() map[string]string {
	w.t.Helper()
	var tables []string
	require.OK(w.t, w.gorm.Raw("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "+
		"AND table_type = 'BASE TABLE'").Scan(&tables).Error)
	sums := map[string]string{}
	for _, table := range tables {
		var name, sum string
		require.OK(w.t, w.db.QueryRowContext(w.t.Context(), "CHECKSUM TABLE "+table+" EXTENDED").Scan(&name, &sum))
		sums[table] = sum
	}
	return sums
}

func letter(key, body string) deadletter.Message {
	return deadletter.Message{Identity: id(key), Body: []byte(body)}
}

// Given handlers that write and then end in each way, when a message is rehearsed, then it is said what would become of
// it and which rows would change, and no table has changed.
func TestARehearsalSaysWhatWouldBecomeOfAMessageAndWritesNothing(t *testing.T) {
	type end struct {
		do      func(ctx context.Context, tx *gorm.DB) error
		want    deadletter.Prospect
		says    string
		changed map[string]int64
	}
	exec := func(tx *gorm.DB, query string, args ...any) error { return tx.Exec(query, args...).Error }
	each(t, map[string]end{
		"rows are counted by table": {do: func(_ context.Context, tx *gorm.DB) error {
			return errors.Join(exec(tx, "INSERT INTO `effect` (k, body) VALUES ('a', '1'), ('b', '2')"),
				exec(tx, "UPDATE LOW_PRIORITY effect e SET body = '3' WHERE k IN ('a', 'stays')"),
				exec(tx, "DELETE FROM effect WHERE k = 'nobody'"))
		}, want: deadletter.WouldApply, changed: map[string]int64{"effect": 4}},
		"the handler refuses it": {do: func(_ context.Context, tx *gorm.DB) error {
			return errors.Join(exec(tx, "DELETE FROM effect"), consumer.Permanent(errors.New("no such order")))
		}, want: deadletter.WouldFail, says: "no such order"},
		"the server refuses a statement": {do: func(_ context.Context, tx *gorm.DB) error {
			return exec(tx, "INSERT INTO effect (k, body) VALUES ('a', NULL)")
		}, want: deadletter.WouldFail, says: "1048"},
		"an error is swallowed": {do: func(_ context.Context, tx *gorm.DB) error {
			_ = exec(tx, "INSERT INTO effect (k, body) VALUES ('a', NULL)")
			return nil
		}, want: deadletter.WouldFail, says: "1048"},
		"it panics": {do: func(context.Context, *gorm.DB) error { panic("no shelf") },
			want: deadletter.WouldFail, says: "no shelf"},
		"a table is missing": {do: func(_ context.Context, tx *gorm.DB) error {
			return exec(tx, "DELETE FROM nowhere")
		}, want: deadletter.WouldWait, says: "1146"},
		"it is too early": {do: func(context.Context, *gorm.DB) error {
			return consumer.Later(errors.New("the shelf opens at nine"), 0)
		}, want: deadletter.WouldWait, says: "at nine"},
		"it ends the transaction": {do: func(_ context.Context, tx *gorm.DB) error {
			return errors.Join(exec(tx, "DELETE FROM effect"), exec(tx, "COMMIT"))
		}, want: deadletter.WouldFail, says: "COMMIT"},
		"it may end the transaction": {do: func(_ context.Context, tx *gorm.DB) error {
			return errors.Join(exec(tx, "DELETE FROM effect"), exec(tx, "CALL commits()"))
		}, want: deadletter.NotRehearsed, says: "CALL"},
		"others hold the row": {do: func(_ context.Context, tx *gorm.DB) error {
			return exec(tx, "UPDATE effect SET body = '3' WHERE k = 'held'")
		}, want: deadletter.WouldWait, says: "1205"},
		"its time is over": {do: func(ctx context.Context, tx *gorm.DB) error {
			err := exec(tx, "DELETE FROM effect WHERE k = 'stays'")
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		}, want: deadletter.WouldFail, says: "handler timeout"},
	}, func(t *testing.T, w *world, one end) {
		w.hasty()
		w.exec("ALTER TABLE effect ADD PRIMARY KEY (k)")
		w.exec("INSERT INTO effect (k, body) VALUES ('stays', '0'), ('held', '0')")
		w.exec("CREATE PROCEDURE commits() COMMIT")
		w.rows(0, 1, "host/1/1/0/1", "k")
		before := w.checksums()
		holder := require.Get(w.db.BeginTx(t.Context(), nil))(t)
		defer func() { _ = holder.Rollback() }()
		require.Get(holder.ExecContext(t.Context(), "SELECT * FROM effect WHERE k = 'held' FOR UPDATE"))(t)
		if !strings.Contains(one.says, "1205") {
			_ = holder.Rollback()
		}
		c := w.rehearsing(consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, _ []consumer.Message) error {
			return one.do(ctx, tx)
		}))

		got, err := c.Rehearse(t.Context(), w.db, letter("k", "{}"))

		require.OK(t, err)
		if got.Prospect != one.want || (got.Err == nil) != (one.says == "") ||
			got.Err != nil && !strings.Contains(got.Err.Error(), one.says) {
			t.Errorf("it would be %s, %v; want %s, %q", got.Prospect, got.Err, one.want, one.says)
		}
		if !maps.Equal(got.Changed, one.changed) {
			t.Errorf("it would change %v, want %v", got.Changed, one.changed)
		}
		if after := w.checksums(); !maps.Equal(before, after) {
			t.Errorf("tables have changed: %v, were %v", after, before)
		}
	})
}

// Given a handler that acts outside MySQL, or never returns, when a message is rehearsed, then no further one may be.
func TestWhatNoRollbackTakesBackIsNotRehearsed(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	called := 0
	calls := w.rehearsing(consumer.Calls(func(context.Context, consumer.Message) error { called++; return nil },
		consumer.CallOptions{}))
	if _, err := calls.Rehearse(t.Context(), w.db, letter("k", "{}")); !errors.Is(err, deadletter.ErrNoRehearsal) ||
		called > 0 {
		t.Errorf("of a handler that calls a service: %v, after %d calls", err, called)
	}
	release := make(chan struct{})
	stuck := w.rehearsing(consumer.HandlerFunc(func(context.Context, *gorm.DB, []consumer.Message) error {
		<-release
		return nil
	}))
	_, err := stuck.Rehearse(t.Context(), w.db, letter("the one", "{}"))
	close(release)
	if !errors.Is(err, deadletter.ErrNoRehearsal) || !errors.Is(err, consumer.ErrStuck) ||
		!strings.Contains(err.Error(), "the one") {
		t.Errorf("of a handler that never returns: %v", err)
	}
}

// Given a handler that writes to a table without transactions in another schema, when a message is rehearsed, then no
// further one may be, and it is said why.
func TestARehearsalEndsAtTheFirstWriteThatStays(t *testing.T) {
	w := newWorld(t)
	elsewhere := w.open(stack.MySQL(t))
	require.OK(t, elsewhere.Exec("CREATE TABLE audit (k INT) ENGINE=MyISAM").Error)
	var schema string
	require.OK(t, elsewhere.Raw("SELECT DATABASE()").Scan(&schema).Error)
	for name, end := range map[string]error{"it succeeds": nil, "it fails": errors.New("no such order")} {
		c := w.rehearsing(consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, _ []consumer.Message) error {
			return errors.Join(tx.Exec("INSERT INTO "+schema+".audit VALUES (1)").Error, end)
		}))
		if got, err := c.Rehearse(t.Context(), w.db, letter("k", "{}")); !errors.Is(err, deadletter.ErrNoRehearsal) ||
			!strings.Contains(err.Error(), "no rollback takes back") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
