package lock_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// replyCutter passes commands on to Redis; told to cut, it drops the next reply and its connection.
type replyCutter struct {
	addr string

	mu       sync.Mutex
	armed    bool
	replies  int
	watching sync.WaitGroup
}

func newReplyCutter(t *testing.T, target string) *replyCutter {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &replyCutter{}
	c.watching.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			c.watching.Go(func() { c.serve(client, target) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); c.watching.Wait() }) // after the client was closed: it was made later
	c.addr = ln.Addr().String()
	return c
}

func (c *replyCutter) serve(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	c.watching.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	for buf := make([]byte, 64<<10); ; {
		n, err := server.Read(buf)
		if err != nil || c.loses() {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *replyCutter) loses() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.armed {
		return false
	}
	c.armed = false
	c.replies++
	return true
}

func (c *replyCutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
}

func (c *replyCutter) lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replies
}

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
