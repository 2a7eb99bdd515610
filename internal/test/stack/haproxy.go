package stack

import (
	"context"
	"database/sql"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// startHAProxy starts one before the nodes, and what tells it which of them may be written to. Its URL is the way to
// whichever node that is.
func (s *Stack) startHAProxy(ctx context.Context, writable func(context.Context, *sql.DB)) *Server {
	config := must.Get(mysql.ParseDSN(s.Databases[0].url))
	config.Addr = loopback(must.Get(freePorts(1))[0])
	var checks []int
	for _, node := range s.Databases {
		checks = append(checks, s.startNodeCheck(node.url, writable))
	}
	dir := must.Get(os.MkdirTemp(s.dir, "haproxy-"))
	way := newServer(KindHAProxy, dir, config.Addr, findOnMachine("haproxy"), nil, "-db", "-f", writeConfig(dir,
		"haproxy.cfg", map[string]any{"Addr": config.Addr, "Nodes": s.Databases, "Checks": checks}))
	way.url = config.FormatDSN()
	way.ask = pings(way.url)
	s.onEnd(way.end)
	must.OK(way.start(ctx))
	return way
}

// startNodeCheck serves a page that is there while a node may be written to, until the stack ends.
func (s *Stack) startNodeCheck(dsn string, writable func(context.Context, *sql.DB)) (port int) {
	const patience = 1800 * time.Millisecond // less than HAProxy waits for an answer
	config := must.Get(mysql.ParseDSN(dsn))
	config.Timeout, config.ReadTimeout, config.WriteTimeout = patience, patience, patience
	db := OpenMySQL(config)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		if err := must.Catch(func() { writable(ctx, db) }); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}))
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	s.onEnd(func() error {
		server.Close() // which waits for answers that are on their way
		return db.Close()
	})
	return server.Listener.Addr().(*net.TCPAddr).Port
}
