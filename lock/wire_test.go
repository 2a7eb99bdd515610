package lock_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// replyLoser is a hook of a client: told so, it drops the next reply to a lock, and its connection.
type replyLoser struct {
	armed atomic.Bool
	lost  atomic.Int64
}

var _ redis.Hook = (*replyLoser)(nil)

// DialHook watches each connection.
func (l *replyLoser) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &watchedConn{Conn: conn, by: l}, nil
	}
}

// ProcessHook changes nothing.
func (*replyLoser) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook changes nothing.
func (*replyLoser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type watchedConn struct {
	net.Conn
	by    *replyLoser
	asked atomic.Bool // for a lock
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("\r\nnx\r\n")) {
		c.asked.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.asked.Swap(false) && c.by.armed.CompareAndSwap(true, false) {
		c.by.lost.Add(1)
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}
