package stack

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// haproxyConfig sends all clients to one node, the first one that may be written to. When another one takes its place,
// in either direction, the clients of the former one are cut off: two nodes that are written to at once would be right
// too, and slow.
//
// HAProxy's own check of MySQL only logs in, which a node does that has lost its cluster; so each node has a page that
// says what it says of itself.
const haproxyConfig = `global
    nbthread 1
    maxconn 2000
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout check 2s
    retries 2
    option redispatch
listen database
    bind %s
    option httpchk GET /
    http-check expect status 200
    default-server inter 500ms fastinter 250ms downinter 500ms fall 2 rise 2
    default-server on-marked-down shutdown-sessions on-marked-up shutdown-backup-sessions
`

// startHAProxy starts one before the nodes, and what tells it which of them may be written to. Its URL is the way to
// whichever node that is.
func (s *Stack) startHAProxy(ctx context.Context, writable func(context.Context, *sql.DB)) *Server {
	config := must.Get(mysql.ParseDSN(s.Databases[0].url))
	config.Addr = loopback(must.Get(freePorts(1))[0])
	var text strings.Builder
	fmt.Fprintf(&text, haproxyConfig, config.Addr)
	backup := ""
	for _, node := range s.Databases {
		fmt.Fprintf(&text, "    server %s %s check addr 127.0.0.1 port %d%s\n", node.name, node.addr,
			s.startNodeCheck(node.url, writable), backup)
		backup = " backup"
	}
	dir := must.Get(os.MkdirTemp(s.dir, "haproxy-"))
	way := newServer(s.spawner, KindHAProxy, dir, config.Addr, must.Get(findOnMachine("haproxy")), nil, "-db", "-f",
		writeFile(dir, "haproxy.cfg", text.String()))
	way.url = config.FormatDSN()
	way.ask = pings(way.url)
	s.onEnd(way.end)
	must.OK(way.start(ctx))
	return way
}

// checkTimeout is less than HAProxy waits for an answer.
const checkTimeout = 1800 * time.Millisecond

// startNodeCheck serves a page that is there while a node may be written to, until the stack ends.
func (s *Stack) startNodeCheck(dsn string, writable func(context.Context, *sql.DB)) (port int) {
	config := must.Get(mysql.ParseDSN(dsn))
	config.Timeout, config.ReadTimeout, config.WriteTimeout = checkTimeout, checkTimeout, checkTimeout
	db := OpenMySQL(config)
	l, done := must.Get(listen()), make(chan struct{})
	server := &http.Server{ReadHeaderTimeout: checkTimeout, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
			defer cancel()
			if err := must.Catch(func() { writable(ctx, db) }); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		})}
	server.SetKeepAlivesEnabled(false)
	go func() {
		defer close(done)
		_ = server.Serve(l) // it ends when it is closed
	}()
	s.onEnd(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		err := server.Shutdown(ctx) // which waits for answers that are on their way
		<-done
		return errors.Join(err, db.Close())
	})
	return l.Addr().(*net.TCPAddr).Port
}
