// Package stack runs real RabbitMQ, MySQL or MariaDB, and Redis servers for tests, the demo and the benchmark, and
// leaves nothing behind: every server listens on a free loopback port, keeps its data in a temporary folder, is stopped
// by its process id, and dies with the process that started it, even when that process is killed.
//
// Tests get a fresh world each: a database from [MySQL], a virtual host from [AMQP], a Redis from [Redis]. The servers
// below are shared by all tests of a process, or by a whole run of `make test`; a test that kills or freezes a server
// starts one of its own with [OwnRabbit], [OwnMySQL] or [OwnRedis], or puts a [TCPProxy] in between.
//
// The three variables ROLLBACKD_TEST_AMQP_URL, ROLLBACKD_TEST_MYSQL_DSN and ROLLBACKD_TEST_REDIS_URL name servers to
// use instead.
//
// Nothing of the product may live here, and the binary never links this package. It speaks AMQP with the client library
// itself, because the tests of internal/rabbit use it and must not be judged by the code they test.
package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Kind names a server.
type Kind string

// The servers there are.
const (
	KindRabbitMQ Kind = "rabbitmq"
	KindMySQL    Kind = "mysql" // MariaDB or MySQL, what is installed
	KindRedis    Kind = "redis"
	// KindZooKeeper is none of those that start by themselves: see [OwnZooKeeper].
	KindZooKeeper Kind = "zookeeper"
	// KindHAProxy stands before the nodes of a database cluster: see [Options].
	KindHAProxy Kind = "haproxy"
)

// common are the kinds that start by themselves, and that the environment may name.
var common = []Kind{KindRabbitMQ, KindMySQL, KindRedis}

// Options say what [Start] starts. The zero value starts all three servers as they come.
type Options struct {
	// Only, if not empty, lists the servers to start.
	Only []Kind
	// RabbitMQNodes is how many RabbitMQ nodes form one cluster; 0 is 1. Quorum queues have a member on each of the first
	// three.
	RabbitMQNodes int
	// RabbitMQConfig is added to rabbitmq.conf, one setting a line.
	RabbitMQConfig string
	// RabbitMQPlugins are enabled beside rabbitmq_consistent_hash_exchange. With rabbitmq_management, [Server.HTTP] tells
	// where.
	RabbitMQPlugins []string
	// RabbitMQErl is added to the command line of RabbitMQ's Erlang, for instance +S 1:1 for one scheduler.
	RabbitMQErl string
	// MySQLNodes is how many nodes form one database cluster, behind a HAProxy that sends all clients to one of them; 0
	// and 1: one server, and no HAProxy.
	MySQLNodes int
	// Replication is how they come to hold the same.
	Replication Replication
	// MySQLArgs are added to the server's command line, for instance --lower-case-table-names=1.
	MySQLArgs []string
	// MySQLDisk, if not 0, puts MySQL's data on a file system of its own of so many bytes, in memory, so that
	// [Server.FillDisk] can fill it. Where this process may not mount, [Start] returns [ErrNoDisk].
	MySQLDisk int64
	// MySQLClock gives MySQL a clock of its own, which [Server.SetClock] sets. Where libfaketime is missing, [Start]
	// returns [ErrNoFaketime].
	MySQLClock bool
	// RedisProgram is the server's program; empty: redis-server, or valkey-server where that alone is installed.
	RedisProgram string
	// RedisArgs are added to the server's command line.
	RedisArgs []string
	// Encryption, if set, makes each server speak TLS too; see [Server.TLSURL].
	Encryption *Encryption
	// Log receives one line for each server that was started; nil discards them.
	Log io.Writer
}

// Stack is a set of private servers. Those not asked for are nil.
type Stack struct {
	RabbitMQ *Server   // the first node
	Nodes    []*Server // all nodes of RabbitMQ
	MySQL    *Server   // of a cluster, the HAProxy before its nodes
	Redis    *Server

	Databases []*Server // the nodes of a database cluster; HAProxy prefers the first one

	ZooKeeper *Server

	replicated *replicated // nil but with MySQL's own replication
	dir        string
	lock       *os.File // held while the folder is in use
	stop       func() error

	mu   sync.Mutex
	ends []func() error // what ends what was started; guarded by mu
}

// newStack makes one in which nothing runs.
func newStack() *Stack {
	dir, lock, err := makeFolder()
	must.OK(err)
	s := &Stack{dir: dir, lock: lock}
	s.stop = sync.OnceValue(s.end)
	return s
}

// Start starts the servers side by side and returns when all of them answer. When one does not, none is left running.
func Start(ctx context.Context, o Options) (s *Stack, err error) {
	if err := must.Catch(func() { s = newStack() }); err != nil {
		return nil, err
	}
	kinds := o.Only
	if len(kinds) == 0 {
		kinds = common
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	err = must.Catch(func() { must.Side(len(kinds), func(i int) { s.startKind(ctx, kinds[i], o) }) })
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Stack) startKind(ctx context.Context, kind Kind, o Options) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it took over %v to answer", startTimeout))
	defer cancel()
	one := func(prepare func(dir string) *Server) *Server { return s.run(ctx, string(kind), o.Log, prepare) }
	switch {
	case kind == KindRabbitMQ: // each node joins the first, which must be up
		for len(s.Nodes) < max(1, o.RabbitMQNodes) {
			s.Nodes = append(s.Nodes, one(func(dir string) *Server { return prepareRabbit(dir, o, s.RabbitMQ) }))
			s.RabbitMQ = s.Nodes[0]
		}
	case kind == KindMySQL && o.MySQLNodes > 1 && o.Replication == Galera:
		s.MySQL = s.startGalera(ctx, o)
	case kind == KindMySQL && o.MySQLNodes > 1:
		s.MySQL = s.startReplicated(ctx, o)
	case kind == KindMySQL:
		s.MySQL = one(func(dir string) *Server { return s.prepareMySQL(ctx, dir, o) })
	case kind == KindRedis:
		s.Redis = one(func(dir string) *Server { return prepareRedis(dir, o) })
	case kind == KindZooKeeper:
		s.ZooKeeper = one(func(dir string) *Server { return prepareZooKeeper(dir) })
	default:
		must.OK(fmt.Errorf("there is no server %q", kind))
	}
}

// run makes a server in a folder of its own and starts it. It tries three times, because a port found free may be taken
// before the server gets to it.
func (s *Stack) run(ctx context.Context, name string, log io.Writer, prepare func(string) *Server) (server *Server) {
	s.thrice(ctx, "start "+name, func() {
		server = prepare(must.Get(os.MkdirTemp(s.dir, name+"-")))
		s.onEnd(server.end) // the folder goes with the stack's
		must.OK(server.start(ctx))
	})
	fmt.Fprintf(log, "%s listens on %s, process id %d\n", server.main.name, server.addr, server.Pid())
	return server
}

// thrice tries something up to three times, unless that is hopeless. What a try has started is ended with the stack.
func (s *Stack) thrice(ctx context.Context, what string, try func()) {
	var errs []error
	for range 3 {
		err := must.Catch(try)
		if err == nil {
			return
		}
		errs = append(errs, fmt.Errorf("%s: %w", what, err))
		hopeless := errors.Is(err, errNotInstalled) || errors.Is(err, ErrNoDisk) || errors.Is(err, ErrNoFaketime)
		if hopeless || ctx.Err() != nil {
			break
		}
	}
	must.OK(errors.Join(errs...))
}

func (s *Stack) onEnd(end func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, end)
}

// Stop kills the servers, waits for their ends and removes their data. Their data was for this run only, so none is
// asked to save it. It may be called again, to the same result.
func (s *Stack) Stop() error { return s.stop() }

func (s *Stack) end() error {
	var errs []error
	for _, end := range slices.Backward(s.ends) { // the first RabbitMQ's epmd serves all
		errs = append(errs, end())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir), s.lock.Close())...)
}

func (s *Stack) server(kind Kind) *Server {
	return map[Kind]*Server{KindRabbitMQ: s.RabbitMQ, KindMySQL: s.MySQL, KindRedis: s.Redis,
		KindZooKeeper: s.ZooKeeper}[kind]
}

const (
	folderPrefix = "rollbackd-stack-"
	lockFile     = "in-use"
)

// makeFolder makes a temporary folder and locks it for the life of this process. Folders whose process was killed, and
// therefore could not remove them, are removed on the way: their lock went with the process.
func makeFolder() (dir string, lock *os.File, err error) {
	removeStale()
	err = must.Catch(func() {
		dir = must.Get(os.MkdirTemp("", folderPrefix))
		// The file gets its name when it is locked: seen without its lock, the folder would be taken for a dead process's.
		unnamed := filepath.Join(dir, lockFile+".new")
		lock = must.Get(openLocked(unnamed, os.O_CREATE))
		must.OK(os.Rename(unnamed, filepath.Join(dir, lockFile)))
	})
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("make the folder of the servers: %w", err), os.RemoveAll(dir))
	}
	return dir, lock, nil
}

// openLocked fails when another process, or this one, holds the lock.
func openLocked(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeStale is a service to the machine and not to the caller, so what it cannot do it leaves. A folder without a
// lock file is being made right now, or not ours.
func removeStale() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*")) // the pattern is well-formed
	for _, dir := range dirs {
		if lock, err := openLocked(filepath.Join(dir, lockFile), 0); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}
