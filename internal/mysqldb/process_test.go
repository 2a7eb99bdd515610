package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a connection whose statement has bytes in it that are no text, when it and others are looked at, then each is
// told of. MySQL 9 refuses to say anything of any connection then, by way of information_schema.
func TestAConnectionIsSeenWhileStatementsHaveBytes(t *testing.T) {
	w := newWorld(t)
	busy := require.Get(w.pool.Conn(t.Context()))(t)
	defer busy.Close()
	idle := require.Get(w.pool.Conn(t.Context()))(t)
	defer idle.Close()
	number := func(c *sql.Conn) (id int64) {
		assert.OK(t, c.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
		return id
	}
	at, rests := number(busy), number(idle)
	ended := make(chan struct{})
	go func() { // joined below, after it was killed
		defer close(ended)
		_, _ = busy.ExecContext(context.WithoutCancel(t.Context()), "DO SLEEP(600), _binary'\xa3U\xb3'")
	}()
	poll.Until(t, "it is at work", func() bool {
		p := require.Get(ProcessOf(t.Context(), w.pool, at))(t)
		return strings.HasPrefix(p.Statement, "DO SLEEP(600)") && p.State != ""
	})
	if p, err := ProcessOf(t.Context(), w.pool, rests); err != nil || p.Statement != "" || p.Host == "" {
		t.Errorf("who rests is %+v, %v; want a host, and no statement", p, err)
	}
	require.Get(w.pool.ExecContext(t.Context(), "KILL ?", at))(t)
	<-ended
	poll.Until(t, "it is gone", func() bool {
		_, err := ProcessOf(t.Context(), w.pool, at)
		return errors.Is(err, sql.ErrNoRows)
	})
}
