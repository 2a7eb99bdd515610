package dedup

import (
	"net"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestNeitherOpenNorNewLogDials(t *testing.T) {
	listener := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	db := open(t, "u:p@tcp("+listener.Addr().String()+")/stock")
	require.Get(NewLog(db, LogOptions{"consumer_log", time.Second, []time.Duration{1}, 1}))(t)
	require.OK(t, listener.(*net.TCPListener).SetDeadline(time.Now().Add(50*time.Millisecond)))
	if conn, err := listener.Accept(); err == nil {
		conn.Close()
		t.Error("Open or NewLog dialled")
	}
}

func TestOpenHandsItsOptionsOn(t *testing.T) {
	t.Parallel()
	dsn := stack.MySQL(t)
	w := worldOf(t, dsn, openWith(t, dsn, OpenOptions{MaxOpen: 7, LockWait: 3 * time.Second}))
	assert.Is(t, w.pool.Stats().MaxOpenConnections, 7, "connections at most")
	assert.Is(t, w.number("SELECT @@innodb_lock_wait_timeout"), 3, "a lock is waited for s")
}
