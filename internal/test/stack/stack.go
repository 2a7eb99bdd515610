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

// Options say what [Start] starts. The zero value starts all three servers as they come.
type Options struct {
	// Only, if not empty, lists the servers to start.
	Only []Kind
	// RabbitMQNodes is how many RabbitMQ nodes form one cluster; 0 is 1. Quorum queues have a member on each of the first
	// three.
	RabbitMQNodes int
	// RabbitMQConfig is added to rabbitmq.conf, one setting a line.
	RabbitMQConfig string
	// RabbitMQPlugins are enabled, for instance rabbitmq_shovel. None is by default. With rabbitmq_management,
	// [Server.HTTP] tells where.
	RabbitMQPlugins []string
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

	inRedisSet bool // the Redis is one of a [RedisSet]
}

// Stack is a set of private servers. Those not asked for are nil.
type Stack struct {
	RabbitMQ *Server   // the first node
	Nodes    []*Server // all nodes of RabbitMQ
	MySQL    *Server   // of a cluster, the HAProxy before its nodes
	Redis    *Server

	Databases []*Server // the nodes of a database cluster; HAProxy prefers the first one

	ZooKeeper *Server

	checks     []*nodeCheck // of Databases, for HAProxy
	replicated *replicated  // nil but with MySQL's own replication
	network    *network     // of Databases; likewise
	dir        string
	lock       *os.File // held while the folder is in use
	spawner    *spawner
	stop       func() error
}

// prepare makes a server of the kind in a folder of its own; it does not run yet.
func prepare(ctx context.Context, kind Kind, sp *spawner, dir string, o Options) (*Server, error) {
	switch kind {
	case KindRabbitMQ:
		return prepareRabbit(sp, dir, o, nil)
	case KindMySQL:
		return prepareMySQL(ctx, sp, dir, o)
	case KindRedis:
		return prepareRedis(sp, dir, o)
	case KindZooKeeper:
		return prepareZooKeeper(sp, dir)
	}
	return nil, fmt.Errorf("there is no server %q", kind)
}

// Start starts the servers side by side and returns when all of them answer. When one does not, none is left running.
func Start(ctx context.Context, o Options) (*Stack, error) {
	kinds := o.Only
	if len(kinds) == 0 {
		kinds = []Kind{KindRabbitMQ, KindMySQL, KindRedis}
	}
	dir, lock, err := makeFolder()
	if err != nil {
		return nil, err
	}
	s := &Stack{dir: dir, lock: lock, spawner: newSpawner()}
	s.stop = sync.OnceValue(s.end)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, kind := range kinds {
		wg.Go(func() {
			var server *Server
			var err error
			if kind == KindMySQL && o.MySQLNodes > 1 {
				server, err = s.startCluster(ctx, o)
			} else {
				server, err = startOne(ctx, kind, s.spawner, filepath.Join(dir, string(kind)), o)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			s.put(server, o.Log)
		})
	}
	wg.Wait()
	if len(errs) == 0 && s.RabbitMQ != nil {
		if err := s.startPeers(ctx, o); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(append(errs, s.Stop())...)
	}
	return s, nil
}

func (s *Stack) startCluster(ctx context.Context, o Options) (*Server, error) {
	if o.Replication == Galera {
		return s.startGalera(ctx, o)
	}
	return s.startReplicated(ctx, o)
}

func startOne(ctx context.Context, kind Kind, sp *spawner, dir string, o Options) (*Server, error) {
	return startWith(ctx, kind, dir, func(ctx context.Context, dir string) (*Server, error) {
		return prepare(ctx, kind, sp, dir, o)
	})
}

// startWith tries three times, because a port found free may be taken before the server gets to it.
func startWith(
	ctx context.Context, kind Kind, dir string, prepare func(ctx context.Context, dir string) (*Server, error),
) (*Server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it took over %v to answer", startTimeout))
	defer cancel()
	var errs []error
	for try := range 3 {
		tryDir := fmt.Sprintf("%s-%d", dir, try)
		if err := os.Mkdir(tryDir, 0o700); err != nil {
			return nil, fmt.Errorf("make the folder of %s: %w", kind, err)
		}
		server, err := prepare(ctx, tryDir)
		if err == nil {
			if err = server.start(ctx); err == nil {
				return server, nil
			}
			_ = server.end() // the folder goes with the stack's
		}
		errs = append(errs, fmt.Errorf("start %s: %w", kind, err))
		if errors.Is(err, errNotInstalled) || errors.Is(err, ErrNoDisk) || errors.Is(err, ErrNoFaketime) || ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (s *Stack) put(server *Server, log io.Writer) {
	switch server.kind {
	case KindRabbitMQ:
		s.RabbitMQ, s.Nodes = server, []*Server{server}
	case KindMySQL, KindHAProxy:
		s.MySQL = server
	case KindRedis:
		s.Redis = server
	case KindZooKeeper:
		s.ZooKeeper = server
	}
	if log != nil {
		fmt.Fprintf(log, "%s listens on %s, process id %d\n", server.kind, server.addr, server.Pid())
	}
}

// Stop kills the servers, waits for their ends and removes their data. Their data was for this run only, so none is
// asked to save it. It may be called again, to the same result.
func (s *Stack) Stop() error { return s.stop() }

func (s *Stack) end() error {
	var errs []error
	for i := len(s.Nodes) - 1; i > 0; i-- { // the first one's epmd serves all
		errs = append(errs, s.Nodes[i].end())
	}
	for _, server := range s.servers() {
		errs = append(errs, server.end())
	}
	errs = append(errs, s.endCluster())
	s.spawner.close()
	return errors.Join(append(errs, os.RemoveAll(s.dir), s.lock.Close())...)
}

// servers are those that were started.
func (s *Stack) servers() []*Server {
	return slices.DeleteFunc([]*Server{s.RabbitMQ, s.MySQL, s.Redis, s.ZooKeeper},
		func(server *Server) bool { return server == nil })
}

func (s *Stack) server(kind Kind) *Server {
	return map[Kind]*Server{KindRabbitMQ: s.RabbitMQ, KindMySQL: s.MySQL, KindRedis: s.Redis,
		KindZooKeeper: s.ZooKeeper}[kind]
}
