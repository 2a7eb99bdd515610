package stack

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
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

// startHAProxy starts one before the nodes, and what tells it which of them may be written to.
func (s *Stack) startHAProxy(ctx context.Context, dir string) (*Server, error) {
	for _, node := range s.Databases {
		check, err := startNodeCheck(node.url, node.askWritable())
		if err != nil {
			return nil, err
		}
		s.checks = append(s.checks, check)
	}
	way, err := prepareHAProxy(s.spawner, filepath.Join(dir, "haproxy"), s.Databases, s.checks)
	if err != nil {
		return nil, err
	}
	if err := way.start(ctx); err != nil {
		return nil, errors.Join(err, way.end())
	}
	return way, nil
}

// askWritable is what asks a node of a cluster whether it may be written to.
func (s *Server) askWritable() func(context.Context, *sql.DB) error {
	switch {
	case s.galera != nil:
		return askGalera
	case s.replicated.options.Replication == Group:
		return askGroup
	}
	return askWritable
}

// prepareHAProxy makes a HAProxy before the nodes. Its URL is the way to whichever node may be written to.
func prepareHAProxy(sp *spawner, dir string, nodes []*Server, checks []*nodeCheck) (*Server, error) {
	program, err := findOnMachine("haproxy")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of haproxy: %w", err)
	}
	config, err := mysql.ParseDSN(nodes[0].url)
	if err != nil {
		return nil, fmt.Errorf("parse the DSN of the first node: %w", err)
	}
	config.Addr = loopback(ports[0])
	var text strings.Builder
	fmt.Fprintf(&text, haproxyConfig, config.Addr)
	for i, node := range nodes {
		backup := ""
		if i > 0 {
			backup = " backup"
		}
		fmt.Fprintf(&text, "    server %s %s check addr 127.0.0.1 port %d%s\n", node.NodeName(), node.addr, checks[i].port,
			backup)
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of haproxy: %w", err)
	}
	dsn := config.FormatDSN()
	return &Server{
		kind: KindHAProxy, dir: dir, addr: config.Addr, url: dsn,
		main: &process{
			name: "haproxy", spawner: sp, logPath: filepath.Join(dir, "haproxy.log"),
			command: func() *exec.Cmd { return program.server(dir, environment(dir), "-db", "-f", file) },
		},
		ask: func(ctx context.Context) error {
			db, err := openMySQL(dsn)
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
		},
	}, nil
}

// nodeCheck is a page that is there while a node may be written to.
type nodeCheck struct {
	port   int
	db     *sql.DB
	ask    func(context.Context, *sql.DB) error
	server *http.Server
	done   chan struct{} // closed when the server has ended
}

// checkTimeout is less than HAProxy waits for an answer.
const checkTimeout = 1800 * time.Millisecond

func startNodeCheck(dsn string, ask func(context.Context, *sql.DB) error) (*nodeCheck, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse the DSN of a node: %w", err)
	}
	config.Timeout, config.ReadTimeout, config.WriteTimeout = checkTimeout, checkTimeout, checkTimeout
	db, err := openMySQL(config.FormatDSN())
	if err != nil {
		return nil, err
	}
	l, err := listen()
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	c := &nodeCheck{port: l.Addr().(*net.TCPAddr).Port, db: db, ask: ask, done: make(chan struct{})}
	c.server = &http.Server{Handler: c, ReadHeaderTimeout: checkTimeout}
	c.server.SetKeepAlivesEnabled(false)
	go func() { // joined by close
		defer close(c.done)
		_ = c.server.Serve(l) // it ends when it is closed
	}()
	return c, nil
}

// ServeHTTP answers HAProxy.
func (c *nodeCheck) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	if err := c.ask(ctx, c.db); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func (c *nodeCheck) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := c.server.Shutdown(ctx) // which waits for answers that are on their way
	<-c.done
	return errors.Join(err, c.db.Close())
}
