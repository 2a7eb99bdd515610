package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

func TestAMessageIsThereWhenItsTransactionIsCommittedAndNotOtherwise(t *testing.T) {
	w := newWorld(t)
	rolledBack := errors.New("the order could not be cancelled")
	err := w.tx(func(tx *sql.Tx) error {
		require.OK(w, outbox.Put(t.Context(), tx, message("lost", "x")))
		return rolledBack
	})
	if !errors.Is(err, rolledBack) {
		t.Fatal(err)
	}
	require.OK(w, w.put(outbox.Message{Tag: "t", Key: "kept", Value: map[string]int{"n": 1}}))
	assert.Equal(t, w.rows(), []string{`t/kept={"n":1}`}, "the outbox holds")
}

func TestTheSameMessageWaitsOnceAndAnotherBodyIsRefused(t *testing.T) {
	for name, o := range map[string]mysqldb.Options{"changed rows": {}, "found rows": {}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if name == "found rows" { // a producer's pool may count what was found
				connector := require.First(mysqldb.FoundRowsConnector(w.dsn, o))(w)
				w.db = sql.OpenDB(connector)
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
	msgs := make([]outbox.Message, 1201)
	for i := range msgs {
		msgs[i] = outbox.Message{Tag: "t", Key: strings.Repeat("k", i%200+1) + string(rune('a'+i/200)), Body: []byte("x")}
	}
	require.OK(w, w.put(msgs...))
	assert.Is(t, len(w.rows()), len(msgs), "messages are there")
	big := outbox.Message{Tag: "t", Body: []byte(strings.Repeat("x", outbox.MaxBody))}
	var bigs []outbox.Message
	for i := range 100 { // more than a server takes in one statement
		big.Key = "big" + string(rune('0'+i%10)) + string(rune('0'+i/10))
		bigs = append(bigs, big)
	}
	require.OK(w, w.put(bigs...))
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
	tx := w.g.Begin()
	require.OK(w, outbox.Put(t.Context(), tx.Statement.ConnPool, outbox.Message{Tag: "t", Key: "k"}))
	require.OK(w, tx.Commit().Error)
	assert.Is(t, len(w.rows()), 1, "the outbox holds")
}

func TestCancelSaysWhetherItWasInTime(t *testing.T) {
	w := newWorld(t)
	require.OK(w, w.put(outbox.Message{Tag: "t", Key: "waits", Delay: time.Hour}, message("claimed", "")))
	stack.Exec(t, w.db, "UPDATE rollbackd_outbox SET owner = 'somebody' WHERE msg_key = 'claimed'")
	for key, want := range map[string]bool{"waits": true, "claimed": false, "absent": false} {
		assert.Is(t, w.cancel("t", key), want, "cancel of %s was in time", key)
	}
	assert.Equal(t, w.rows(), []string{"t/claimed="}, "the outbox holds")
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
}
