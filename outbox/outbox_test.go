package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is a fresh schema with the outbox in it.
type world struct {
	*testing.T
	dsn string
	g   *gorm.DB
	db  *sql.DB
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{T: t, dsn: stack.MySQL(t)}
	w.g = require.First(mysqldb.Open(t.Context(), w.dsn, mysqldb.Options{}))(w)
	w.db = require.Get(w.g.DB())(w)
	pool := w.db // a test may take another
	t.Cleanup(func() { _ = pool.Close() })
	stack.Tables(t, w.dsn, "outbox", func() { require.OK(w, outbox.Migrate(t.Context(), w.g)) })
	return w
}

func (w *world) put(msgs ...outbox.Message) error {
	return mysqldb.InTx(w.Context(), w.db, func(tx *sql.Tx) error { return outbox.Put(w.Context(), tx, msgs...) })
}

func message(key, body string) outbox.Message {
	return outbox.Message{Tag: "t", Key: key, Body: []byte(body)}
}

// rows are all waiting messages, as tag/key=body.
func (w *world) rows() (all []string) {
	w.Helper()
	for _, r := range stack.RowsOf(w, w.db, "SELECT msg_tag, msg_key, body FROM rollbackd_outbox ORDER BY 1, 2") {
		all = append(all, r["msg_tag"]+"/"+r["msg_key"]+"="+r["body"])
	}
	return all
}

func TestTheSameMessageWaitsOnceAndAnotherBodyIsRefused(t *testing.T) {
	for _, name := range []string{"changed rows", "found rows"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if name == "found rows" { // a producer's pool may count what was found
				w.db = sql.OpenDB(require.First(mysqldb.FoundRowsConnector(w.dsn, mysqldb.Options{}))(w))
				t.Cleanup(func() { _ = w.db.Close() })
			}
			one := outbox.Message{Tag: "t", Key: "1", Body: []byte("one"), NotBefore: time.Now().Add(time.Hour)}
			require.OK(w, w.put(one, one))
			again := one
			again.NotBefore = time.Time{}
			require.OK(w, w.put(again, message("2", "two")))

			other := message("1", "other")
			err := w.put(message("3", "three"), other)
			assert.That(t, errors.Is(err, outbox.ErrConflict) && strings.Contains(err.Error(), `t/"1"`),
				"another body was answered with %v", err)
			assert.Error(t, w.put(one, other), outbox.ErrConflict, "two bodies at once were answered with")
			assert.Equal(t, w.rows(), []string{"t/1=one", "t/2=two"}, "the outbox holds")
			assert.That(t, stack.One[bool](t, w.db, "SELECT next_at > UTC_TIMESTAMP(6) + INTERVAL 50 MINUTE AND next_at = "+
				"due_at FROM rollbackd_outbox WHERE msg_key = '1'"), "the message that was put again does not keep its time")
		})
	}
}

func TestManyMessagesGoInFewStatements(t *testing.T) {
	w := newWorld(t)
	var all []outbox.Message
	for i := range 100 { // more than a server takes in one statement
		all = append(all, message(fmt.Sprint(i), strings.Repeat("x", outbox.MaxBody)))
	}
	for i := range 950 {
		all = append(all, message(fmt.Sprint("small ", i), "{}"))
	}
	require.OK(w, w.put(all...))
	assert.Is(t, stack.Number(t, w.db, "SELECT COUNT(*) FROM rollbackd_outbox"), len(all), "messages are there")
	done := require.Get(outbox.Rows{DB: w.db}.Drop(t.Context(), outbox.Filter{Tag: "t"}, outbox.Change{Force: true}))(w)
	w.same("dropped in pieces, named, left", []int{done.Changed, len(done.Rows), len(w.rows())}, []int{1050, 100, 0})
}

func TestWhatTheDaemonWouldRefuseIsRefused(t *testing.T) {
	w := newWorld(t)
	good := message("k", "{}")
	type message = outbox.Message
	for name, c := range map[string]struct {
		spoil func(m *message)
		words string
		as    error // besides ErrInvalid
	}{
		"no tag":           {func(m *message) { m.Tag = "" }, "the tag is empty", dedup.ErrIdentity},
		"long key":         {func(m *message) { m.Key = strings.Repeat("k", 256) }, "key has 256 bytes", dedup.ErrIdentity},
		"control in key":   {func(m *message) { m.Key = "a\x00" }, "holds a control character", dedup.ErrIdentity},
		"reserved tag":     {func(m *message) { m.Tag = "rollbackd.x" }, "which is reserved", nil},
		"large body":       {func(m *message) { m.Body = make([]byte, outbox.MaxBody+1) }, "262145 bytes", nil},
		"body and value":   {func(m *message) { m.Value = 1 }, "a Body and a Value", nil},
		"bad value":        {func(m *message) { m.Body, m.Value = nil, make(chan int) }, "unsupported type", nil},
		"long routing key": {func(m *message) { m.RoutingKey = strings.Repeat("k", 256) }, "routing key has 256", nil},
		"bad header":       {func(m *message) { m.Headers = map[string]any{"h": []int{1}} }, "a []int", nil},
		"two times":        {func(m *message) { m.Delay, m.NotBefore = 1, time.Now() }, "a Delay and a NotBefore", nil},
		"negative delay":   {func(m *message) { m.Delay = -1 }, "negative", nil},
		"absurd time":      {func(m *message) { m.NotBefore = time.Unix(1<<40, 0) }, "in the year", nil},
	} {
		bad := good
		c.spoil(&bad)
		err := w.put(good, bad)
		assert.That(t, errors.Is(err, outbox.ErrInvalid) && (c.as == nil || errors.Is(err, c.as)) &&
			strings.Contains(err.Error(), c.words), "%s: %v", name, err)
	}
	assert.Is(t, len(w.rows()), 0, "the outbox holds")
}

func TestAPoolOrAConnectionIsRefused(t *testing.T) {
	w := newWorld(t)
	conn := require.Get(w.db.Conn(t.Context()))(w)
	defer conn.Close()
	for name, pool := range map[string]outbox.Tx{
		"pool": w.db, "connection": conn, "gorm": w.g.Statement.ConnPool, "nil": nil,
	} {
		err := outbox.Put(t.Context(), pool, outbox.Message{Tag: "t", Key: "k"})
		assert.Error(t, err, outbox.ErrNoTransaction, "put, %s", name)
		_, err = outbox.Cancel(t.Context(), pool, "t", "k")
		assert.That(t, errors.Is(err, outbox.ErrNoTransaction), "cancel, %s: %v", name, err)
	}
}

// Two that delete what is absent and then insert beside it deadlock under REPEATABLE READ, with a plain DELETE.
func TestCancelsOfAbsentKeysDoNotLockTheirNeighbours(t *testing.T) {
	w := newWorld(t)
	require.OK(w, w.put(outbox.Message{Tag: "t", Key: "a"}, outbox.Message{Tag: "t", Key: "z"}))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var txs [2]*sql.Tx
	for i := range txs {
		tx := require.Get(w.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}))(w)
		defer tx.Rollback()
		require.Get(outbox.Cancel(ctx, tx, "t", []string{"m1", "m2"}[i]))(w)
		txs[i] = tx
	}
	for i, tx := range txs { // if they wait for each other, that ends with an error
		require.OK(w, outbox.Put(ctx, tx, outbox.Message{Tag: "t", Key: []string{"m11", "m22"}[i]}))
	}
	for _, tx := range txs {
		require.OK(w, tx.Commit())
	}
	assert.Equal(t, w.rows(), []string{"t/a=", "t/m11=", "t/m22=", "t/z="}, "the outbox holds")
}

// standing puts one row of each kind, as relays leave them, and returns the rows.
func (w *world) standing() outbox.Rows {
	w.Helper()
	for _, key := range []string{"parked", "refused", "due", "in hand", "in hand again", "stale"} {
		require.OK(w, w.put(message(key, "{}")))
	}
	require.OK(w, w.put(outbox.Message{Tag: "t", Key: "waiting", Body: []byte("{}"), Delay: time.Hour},
		outbox.Message{Tag: "u", Key: "parked", Body: []byte("other"), ContentType: "text/plain",
			Headers: map[string]any{"a": 1}}))
	for key, set := range map[string]string{
		"parked": "owner = 'x', tries = 9, failed_at = '2020-01-01', parked_at = '2020-01-02', reason = 'nobody', " +
			"next_at = '9999-12-31'",
		"refused": "owner = 'x', tries = 2, failed_at = UTC_TIMESTAMP(6), reason = 'no', next_at = next_at + " +
			"INTERVAL 1 MINUTE",
		"in hand":       "owner = 'x', next_at = next_at + INTERVAL 30 SECOND",
		"in hand again": "owner = 'x', tries = 1, failed_at = UTC_TIMESTAMP(6), next_at = next_at + INTERVAL 30 SECOND",
		"stale":         "owner = 'x', due_at = due_at - INTERVAL 1 HOUR, next_at = due_at",
	} {
		stack.Exec(w, w.db, "UPDATE rollbackd_outbox SET "+set+" WHERE msg_key = ?", key)
	}
	return outbox.Rows{DB: w.db}
}

// keys are those of all rows that a filter chooses, read in pages of two.
func (w *world) keys(r outbox.Rows, f outbox.Filter) (keys []string) {
	w.Helper()
	for after := ""; ; {
		page, next, err := r.List(w.Context(), f, after, 2)
		require.OK(w, err)
		for _, one := range page {
			keys = append(keys, one.Tag+"/"+one.Key)
		}
		if after = next; after == "" {
			slices.Sort(keys)
			return keys
		}
	}
}

func (w *world) same(what string, got, want any) {
	w.Helper()
	assert.That(w, fmt.Sprint(got) == fmt.Sprint(want), "%s: %v, want %v", what, got, want)
}

func TestAPersonSeesEveryRowByItsState(t *testing.T) {
	w := newWorld(t)
	r := w.standing()
	parked := []string{"t/parked", "u/parked"}
	for _, c := range []struct {
		f    outbox.Filter
		want []string
	}{
		{outbox.Filter{}, []string{"t/due", "t/in hand", "t/in hand again", "t/parked", "t/refused", "t/stale", "t/waiting",
			"u/parked"}},
		{outbox.Filter{State: outbox.Parked}, parked},
		{outbox.Filter{State: outbox.Waiting}, []string{"t/waiting"}},
		{outbox.Filter{State: outbox.Due}, []string{"t/due", "t/in hand", "t/stale"}},
		{outbox.Filter{State: outbox.Refused}, []string{"t/in hand again", "t/refused"}},
		{outbox.Filter{Tag: "u"}, []string{"u/parked"}},
		{outbox.Filter{Keys: []string{"parked", "none"}}, parked},
		{outbox.Filter{Until: time.Date(2020, 1, 3, 0, 0, 0, 0, time.UTC)}, parked},
		{outbox.Filter{Since: time.Date(2020, 1, 3, 0, 0, 0, 0, time.UTC), State: outbox.Parked}, nil},
	} {
		w.same(fmt.Sprintf("%+v", c.f), w.keys(r, c.f), c.want)
	}
	one := require.Get(r.Show(t.Context(), "", "parked"))(w)[1]
	assert.That(t, string(one.Body) == "other" && one.Size == 5 && one.ContentType == "text/plain" &&
		string(one.Headers) == `{"a":1}` && one.Reason == "nobody" && one.Tries == 9 && one.Owner == "x" &&
		one.NextAt.IsZero() && !one.PutAt.IsZero(), "it is shown as %+v", one)
	s := require.Get(r.Survey(t.Context()))(w)
	assert.That(t, s.Waiting == 1 && s.Due == 3 && s.Refused == 2 && s.Parked == 2 && !s.More &&
		s.Lag.Round(time.Minute) == time.Hour && s.OldestParked.Year() == 2020, "the survey says %+v", s)
	_, _, err := r.List(t.Context(), outbox.Filter{}, "nonsense", 2)
	assert.That(t, errors.Is(err, outbox.ErrCursor), "a cursor that is none: %v", err)
}

func TestRetrySendsWhatIsParkedOrRefusedAndKeepsWhatMayHaveBeenSent(t *testing.T) {
	w := newWorld(t)
	r := w.standing()
	dry := require.Get(r.Retry(t.Context(), outbox.Filter{}, outbox.Change{DryRun: true}))(w)
	done := require.Get(r.Retry(t.Context(), outbox.Filter{}, outbox.Change{}))(w)
	assert.That(t, done.Changed == 3 && done.Left == 1 && dry.Changed == 3 && dry.Left == 1, "retried %+v, announced %+v",
		done, dry)
	w.same("still parked", w.keys(r, outbox.Filter{State: outbox.Parked}), []string{})
	one := require.Get(r.Show(t.Context(), "t", "parked"))(w)[0]
	assert.That(t, one.Owner == "x" && one.Tries == 0 && one.State == outbox.Due && one.Reason == "" &&
		!one.NextAt.After(time.Now().Add(time.Minute)), "retried, the row is %+v", one)
	require.OK(w, mysqldb.InTx(t.Context(), w.db, func(tx *sql.Tx) error {
		inTime, err := outbox.Cancel(t.Context(), tx, "t", "parked")
		assert.That(t, !inTime, "what was sent, perhaps, can be cancelled in time after a retry")
		return err
	}))
	w.same("there is", w.keys(r, outbox.Filter{Tag: "t", Keys: []string{"parked"}}), []string{"t/parked"})
}

func TestDropDeletesNothingThatARelayHasInHandAndWaitsForNobody(t *testing.T) {
	w := newWorld(t)
	r := w.standing()
	tx := require.Get(w.db.BeginTx(t.Context(), nil))(w)
	defer func() { _ = tx.Rollback() }()
	require.OK(w, outbox.Put(t.Context(), tx, outbox.Message{Tag: "u", Key: "parked", Body: []byte("other")}))
	done := require.Get(r.Drop(t.Context(), outbox.Filter{}, outbox.Change{}))(w)
	assert.That(t, done.Changed == 1 && done.Left == 1 && len(done.Rows) == 1 && done.Rows[0].Reason == "nobody",
		"dropped %+v", done)
	require.OK(w, tx.Rollback())
	seen := 0
	forced := outbox.Change{Force: true, Progress: func(n int) { seen = n }}
	done = require.Get(r.Drop(t.Context(), outbox.Filter{}, forced))(w)
	w.same("by force", []int{done.Changed, done.Left, seen}, []int{5, 2, 7})
	w.same("left", w.keys(r, outbox.Filter{}), []string{"t/in hand", "t/in hand again"})
}

func TestASchemaWithoutAnOutboxSaysSo(t *testing.T) {
	t.Parallel()
	g := require.First(mysqldb.Open(t.Context(), stack.MySQL(t), mysqldb.Options{}))(t)
	db := require.Get(g.DB())(t)
	defer db.Close()
	_, err := (outbox.Rows{DB: db}).Survey(t.Context())
	assert.That(t, errors.Is(err, outbox.ErrNoTable), "a survey of no outbox: %v", err)
	tx := require.Get(db.BeginTx(t.Context(), nil))(t)
	defer func() { _ = tx.Rollback() }()
	err = outbox.Put(t.Context(), tx, outbox.Message{Tag: "t", Key: "k", Value: 1})
	assert.That(t, err != nil && strings.Contains(err.Error(), "migrate --outbox"), "a put into no outbox: %v", err)
}
