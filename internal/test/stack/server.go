package stack

import (
	"bufio"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const (
	startTimeout = 5 * time.Minute       // for a machine busy with other tests; a start takes one to eight seconds
	stopTimeout  = time.Minute           // a RabbitMQ with many queues takes a while to write them down
	pollInterval = 50 * time.Millisecond // how often a starting server is asked whether it is ready
	askTimeout   = 2 * time.Second       // how long one such question may take
)

// Server is one private server that may be killed, frozen and started again on the same port with the same data.
//
// Its methods return what went wrong, and when the server belongs to a test they also fail that test, so that a fault
// which did not happen is never overlooked. They may be called from any goroutine, one at a time.
type Server struct {
	kind    Kind
	dir     string
	name    string // by which other nodes know it; empty but for a node of a cluster, and RabbitMQ
	addr    string
	url     string
	tlsAddr string // host and port of TLS, where that is another
	http    string // base URL of RabbitMQ's management API, or empty
	main    *process
	helper  *process                        // RabbitMQ's own epmd, which outlives kills of the node; nil for the others
	before  func(ctx context.Context) error // does what must be done before each start; nil: nothing
	ask     func(ctx context.Context) error // is nil when it is ready
	t       testing.TB                      // nil outside tests
	frozen  atomic.Bool

	encryption *Encryption // nil: none
	node       *rabbitNode // nil but for RabbitMQ
	bus        int         // port on which a Redis speaks to the other nodes, if it is one of a cluster
	disk       *disk       // nil but for a MySQL that asked for one
	clock      *fakeClock  // likewise
}

// newServer makes a server that runs a program with these arguments in a folder. It does not run yet.
func newServer(kind Kind, dir, addr string, p executable, env []string, args ...string) *Server {
	return &Server{kind: kind, dir: dir, addr: addr, main: newProcess(string(kind), dir, p, env, args...)}
}

// conf has the servers' files as templates.
//
//go:embed conf
var conf embed.FS

// writeConfig writes one of them.
func writeConfig(dir, name string, data any) (path string) {
	var text strings.Builder
	must.OK(template.Must(template.ParseFS(conf, "conf/"+name)).Execute(&text, data))
	return writeFile(dir, name, text.String())
}

// writeFile writes a file of a server.
func writeFile(dir, name, text string) (path string) {
	path = filepath.Join(dir, name)
	must.OK(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// URL is how a client reaches the server: an amqp URL, a DSN in go-sql-driver's form for MySQL, a redis URL.
func (s *Server) URL() string { return s.url }

// Addr is the host and port the server listens on.
func (s *Server) Addr() string { return s.addr }

// NodeName is the Erlang name of a RabbitMQ node, or the name of a node of a database cluster (Galera's
// wsrep_node_name); empty for other servers.
func (s *Server) NodeName() string { return s.name }

// HTTP is the base URL of RabbitMQ's management API, with the name and password of [Server.URL] in it, or empty without
// that plugin.
func (s *Server) HTTP() string { return s.http }

// Pid is the process id of the server, 0 while it does not run.
func (s *Server) Pid() int { return s.main.pid() }

// Kill ends the server with SIGKILL, as a crash or the kernel's out-of-memory killer would, and returns when it is
// gone.
//
// A RabbitMQ first writes down which quorum queues it has. By itself it does so only a second or two after a queue was
// declared; killed before that, it comes back with a queue that never elects a leader. That is RabbitMQ's weakness and
// would fail tests at random. Messages are not helped: those it confirmed are safe without.
func (s *Server) Kill() error {
	if s.node != nil && s.Pid() != 0 && !s.frozen.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		// a node that cannot answer, being half down already, is killed as it is
		_, _ = s.node.eval(ctx, "[dets:sync(T) || T <- dets:all()]")
	}
	s.frozen.Store(false)
	return s.report("kill", s.main.kill())
}

// Stop ends the server in good order and returns when it is gone.
func (s *Server) Stop() error {
	s.frozen.Store(false) // stop thaws it
	return s.report("stop", s.main.stop(stopTimeout))
}

// Start starts the server again and returns when it answers.
func (s *Server) Start() error { return s.inTime("start", s.start) }

// Await returns when the server answers, which a node of a database cluster does when it may be written to: it has
// found its peers again, and has what it missed.
func (s *Server) Await() error { return s.inTime("await", s.waitReady) }

// Freeze stops the server's processes with SIGSTOP: its port still takes connections, and nobody answers.
func (s *Server) Freeze() error {
	s.frozen.Store(true)
	return s.report("freeze", s.main.signal(syscall.SIGSTOP))
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() error {
	s.frozen.Store(false)
	return s.report("thaw", s.main.signal(syscall.SIGCONT))
}

// Ctl runs RabbitMQ's own control command, rabbitmqctl, and returns what it printed, for instance of Ctl("stop_app").
// Other servers have none and give an error.
func (s *Server) Ctl(args ...string) (out string, err error) {
	err = s.inTime("control", func(ctx context.Context) error {
		if s.node == nil {
			return errors.New("it has no control command")
		}
		// which costs the start of an Erlang machine: about half a second
		out, err = s.node.say(ctx, findRabbitScript("rabbitmqctl"), "", append([]string{"-q"}, args...)...)
		return err
	})
	return out, err
}

// Eval runs an Erlang expression inside a RabbitMQ and returns its value as text. Other servers give an error.
func (s *Server) Eval(ctx context.Context, expression string) (string, error) {
	if s.node == nil {
		return "", fmt.Errorf("run %q inside %s: it is no RabbitMQ", expression, s.kind)
	}
	return s.node.eval(ctx, expression)
}

func (s *Server) inTime(what string, do func(ctx context.Context) error) error {
	late := fmt.Errorf("it took over %v", startTimeout)
	ctx, cancel := context.WithTimeoutCause(context.Background(), startTimeout, late)
	defer cancel()
	return s.report(what, do(ctx))
}

func (s *Server) report(what string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s %s: %w", what, s.kind, err)
	if s.t != nil {
		s.t.Helper()
		s.t.Error(err)
	}
	return err
}

// start runs the processes that do not run yet and waits until the server answers. When it does not, the end of its log
// is in the error.
func (s *Server) start(ctx context.Context) error {
	return must.Catch(func() {
		if s.helper != nil && s.helper.pid() == 0 {
			must.OK(s.helper.start())
		}
		if s.before != nil && s.Pid() == 0 {
			must.OK(s.before(ctx))
		}
		must.OK(s.main.start())
		if err := s.waitReady(ctx); err != nil {
			must.OK(errors.Join(fmt.Errorf("%w\n%s", err, s.main.logTail()), s.main.kill()))
		}
	})
}

// waitReady asks the server itself, again and again, until it answers, ends, or ctx is over.
func (s *Server) waitReady(ctx context.Context) error {
	return again(ctx, s.main.ended(), s.ask)
}

// again asks until the answer is nil, or it is over.
func again(ctx context.Context, ended <-chan struct{}, ask func(ctx context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, askTimeout)
		err := ask(once)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return errors.New("it ended before it answered")
		case <-ctx.Done():
			return fmt.Errorf("%w; its last answer: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// talk says something to a server that speaks in lines, and is nil when a line of its answer has what it should.
func talk(ctx context.Context, addr, question, want string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	late, _ := ctx.Deadline()  // none: it waits as long as it takes
	_ = conn.SetDeadline(late) // cannot fail on an open TCP connection
	if _, err := io.WriteString(conn, question); err != nil {
		return err
	}
	var answer []string
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if strings.Contains(lines.Text(), want) {
			return nil
		}
		answer = append(answer, lines.Text())
	}
	return fmt.Errorf("%s answered %q: %w", addr, answer, cmp.Or(lines.Err(), io.EOF))
}

// end kills what runs and removes the data: what a server wrote for a test is of no use afterwards.
func (s *Server) end() error {
	errs := []error{s.main.kill()}
	if s.helper != nil {
		errs = append(errs, s.helper.kill())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// Ports are taken from below the range the kernel gives to outgoing connections (32768 and up on Linux), so that no
// client takes the port of a server while a test has it down.
const (
	lowestPort  = 20000
	highestPort = 32000
)

// freePorts finds n different ports of the loopback address nobody listens on. Somebody else may take one before the
// server does; starting then fails and is tried again with others.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := listen()
		if err != nil {
			return nil, err
		}
		defer l.Close() // held until all are found, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// given are the ports that this process has got. None is given twice: whoever has it may not listen on it yet, or have
// its server down just now, and two daemons with one address are scraped, asked and killed for each other.
var given sync.Map

// listen takes a port of the loopback address nobody listens on. Whoever can listen by itself uses it and not
// freePorts, which leaves a moment in which the port may be taken.
func listen() (*net.TCPListener, error) {
	for range 1000 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		if _, before := given.LoadOrStore(port, true); !before {
			return l.(*net.TCPListener), nil
		}
		_ = l.Close() // nobody has used it
	}
	return nil, errors.New("find a free loopback port: 1000 tries were in vain")
}

// FreeAddr is an address of the loopback at which nobody listens now, for what a test starts by itself. A port that the
// kernel chooses for ":0" would not do: it is one of those that outgoing connections get, and is soon taken by one.
func FreeAddr(t testing.TB) string {
	t.Helper()
	return loopback(require.Get(freePorts(1))(t)[0])
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
