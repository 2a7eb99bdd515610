package stack

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// The environment through which tests are given servers.
const (
	EnvAMQP  = "ROLLBACKD_TEST_AMQP_URL"
	EnvMySQL = "ROLLBACKD_TEST_MYSQL_DSN"
	EnvRedis = "ROLLBACKD_TEST_REDIS_URL"

	// EnvPrivate marks servers which we started ourselves for several test processes, as cmd/with-servers does. Tests may
	// then command the RabbitMQ, and start servers of their own to kill. It names a file which says which servers it is
	// about.
	EnvPrivate = "ROLLBACKD_TEST_PRIVATE"
)

// env is the variable which names a server of this kind.
func (k Kind) env() string {
	return map[Kind]string{KindRabbitMQ: EnvAMQP, KindMySQL: EnvMySQL, KindRedis: EnvRedis}[k]
}

// private is the content of the file EnvPrivate names.
type private struct {
	Kinds  []Kind      // the servers that are ours
	Node   *rabbitNode // how to command the RabbitMQ; nil when it is not ours
	Tables string      // of MySQL: a folder with its system tables alone, to be copied; empty when it is not ours
}

// Environ writes down what other processes must know of the servers and returns the variables to give them, as
// NAME=value.
func (s *Stack) Environ(ctx context.Context) (vars []string, err error) {
	var p private
	for _, kind := range common {
		if server := s.server(kind); server != nil {
			vars = append(vars, kind.env()+"="+server.url)
			p.Kinds = append(p.Kinds, kind)
			if kind == KindRabbitMQ {
				p.Node = server.node
			}
		}
	}
	path := filepath.Join(s.dir, "private.json")
	err = must.Catch(func() {
		if s.MySQL != nil {
			p.Tables = must.Get(os.MkdirTemp(s.dir, "tables-"))
			installMySQL(ctx, findMySQL(), p.Tables)
		}
		must.OK(os.WriteFile(path, must.Get(json.Marshal(p)), 0o600))
	})
	if err != nil {
		return nil, fmt.Errorf("describe the servers: %w", err)
	}
	return append(vars, EnvPrivate+"="+path), nil
}

// readPrivate is empty when the environment does not mark any server as ours.
func readPrivate() (p private) {
	if path := os.Getenv(EnvPrivate); path != "" {
		must.OK(json.Unmarshal(must.Get(os.ReadFile(path)), &p), "read the file that "+EnvPrivate+" names")
	}
	return p
}

// Missing lists the servers which the environment does not name.
func Missing() []Kind {
	return slices.DeleteFunc(slices.Clone(common), func(k Kind) bool { return os.Getenv(k.env()) != "" })
}

// What asks for tests whose servers take long to start, or are not installed with the others.
const (
	EnvClusters  = "ROLLBACKD_TEST_CLUSTERS"
	EnvZooKeeper = "ROLLBACKD_TEST_ZOOKEEPER"
	EnvGalera    = "ROLLBACKD_TEST_GALERA"
	EnvMySQLHA   = "ROLLBACKD_TEST_MYSQL_HA"
)

// needs skips the test if the environment does not ask for such tests.
func needs(t testing.TB, env, kind string) {
	t.Helper()
	if os.Getenv(env) == "" {
		t.Skipf("make test-clusters KIND=%s runs this", kind)
	}
}

// OwnRabbit starts a RabbitMQ for this test alone, to be killed and frozen at will. With a server given from outside
// the test is skipped: that run asked for tests on its own servers.
func OwnRabbit(t testing.TB) *Server { t.Helper(); return Own(t, Options{Only: []Kind{KindRabbitMQ}}) }

// OwnMySQL starts a MySQL or MariaDB for this test alone, as [OwnRabbit] does.
func OwnMySQL(t testing.TB) *Server { t.Helper(); return Own(t, Options{Only: []Kind{KindMySQL}}) }

// OwnRedis starts a Redis for this test alone, as [OwnRabbit] does.
func OwnRedis(t testing.TB) *Server { t.Helper(); return Own(t, Options{Only: []Kind{KindRedis}}) }

// OwnZooKeeper starts a ZooKeeper for this test alone, as [OwnRabbit] does, if the environment asks for such tests.
func OwnZooKeeper(t testing.TB) *Server {
	t.Helper()
	needs(t, EnvZooKeeper, "zookeeper")
	return Own(t, Options{Only: []Kind{KindZooKeeper}})
}

// OwnCluster starts three nodes of MariaDB or MySQL behind a HAProxy for this test alone, if the environment asks for
// such tests.
func OwnCluster(t testing.TB, replication Replication) *Stack {
	t.Helper()
	if replication == Galera {
		needs(t, EnvGalera, "galera")
	} else {
		needs(t, EnvMySQLHA, "mysql-ha")
	}
	return ownStack(t, Options{Only: []Kind{KindMySQL}, MySQLNodes: 3, Replication: replication})
}

// OwnEncrypted starts the three servers for this test alone, side by side, with encryption. With a server given from
// outside the test is skipped.
func OwnEncrypted(t testing.TB, e Encryption, kinds ...Kind) *Stack {
	t.Helper()
	return ownStack(t, Options{Only: kinds, Encryption: &e})
}

// Own starts one server for this test alone with further options; o.Only must name exactly one kind. Where there is no
// program, clock or disk as they say, the test is skipped.
func Own(t testing.TB, o Options) *Server {
	t.Helper()
	require.Is(t, len(o.Only), 1, "stack.Own: Options.Only names kinds")
	return ownStack(t, o).server(o.Only[0])
}

// ownStack starts servers for this test alone.
func ownStack(t testing.TB, o Options) *Stack {
	t.Helper()
	for _, kind := range o.Only {
		mayKill(t, kind)
	}
	s, err := Start(t.Context(), o)
	if errors.Is(err, ErrNoDisk) || errors.Is(err, ErrNoFaketime) ||
		o.RedisProgram != "" && errors.Is(err, errNotInstalled) {
		t.Skip(err)
	}
	require.OK(t, err)
	stopWith(t, s)
	for _, server := range slices.Concat(s.Nodes, s.Databases, []*Server{s.MySQL, s.Redis, s.ZooKeeper}) {
		if server != nil {
			server.t = t
		}
	}
	return s
}

func stopWith(t testing.TB, s *Stack) {
	t.Cleanup(func() { assert.OK(t, s.Stop(), "stop the test's own servers:") })
}

// mayKill skips the test where a server was given from outside.
func mayKill(t testing.TB, kind Kind) {
	t.Helper()
	var ours []Kind
	require.OK(t, must.Catch(func() { ours = readPrivate().Kinds }))
	if os.Getenv(kind.env()) != "" && !slices.Contains(ours, kind) {
		t.Skipf("needs a %s it may kill, and %s names one that is not ours to kill", kind, kind.env())
	}
}

// Addr is the host and port in a URL or DSN of this package, to put a [TCPProxy] in front of it.
func Addr(t testing.TB, target string) string {
	t.Helper()
	if u, err := url.Parse(target); err == nil && u.Scheme != "" && u.Host != "" {
		return u.Host
	}
	return parseDSN(t, target).Addr
}

func parseDSN(t testing.TB, dsn string) *mysql.Config {
	t.Helper()
	return require.Get(mysql.ParseDSN(dsn))(t)
}

// shared are the servers of this test process. They are package state because tests share nothing else: the first test
// that needs a server starts it, or finds it in the environment, and [Main] stops what was started.
var shared = map[Kind]*sharedServer{KindRabbitMQ: {}, KindMySQL: {}, KindRedis: {}}

type sharedServer struct {
	once   sync.Once
	server *Server // of one that was given only kind, URL and node are known; nil: it could not be started
	stack  *Stack  // nil when the server was given
}

func (s *sharedServer) get(t testing.TB, kind Kind) *Server {
	t.Helper()
	s.once.Do(func() {
		if given := os.Getenv(kind.env()); given != "" {
			s.server = &Server{kind: kind, url: given}
			if ours := readPrivate(); slices.Contains(ours.Kinds, kind) {
				s.server.node = ours.Node
			}
			return
		}
		var err error
		s.stack, err = Start(context.Background(), Options{Only: []Kind{kind}})
		require.OK(t, err)
		s.server = s.stack.server(kind)
	})
	if s.server == nil {
		t.Fatalf("the shared %s could not be started: the first test that needed it says why", kind)
	}
	return s.server
}

// AtOnce lets so many tests of a package run at once, if there are fewer processors: they wait most of the time, for
// leases, delays and servers. Who names a number gets that. TestMain calls it before [Main], where four are not enough.
func AtOnce(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue && runtime.GOMAXPROCS(0) < n {
		_ = f.Value.Set(strconv.Itoa(n))
	}
}

// Main is TestMain of a package whose tests use servers: it runs the tests, then after, stops the servers they started,
// fails when a goroutine is left, and exits.
func Main(m *testing.M, after ...func() error) {
	AtOnce(4)
	code := m.Run()
	for _, s := range shared {
		if s.stack != nil {
			after = append(after, s.stack.Stop)
		}
	}
	for _, f := range after {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, "stack: clean up after the tests:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		if err := leaked(); err != nil {
			fmt.Fprintln(os.Stderr, "goleak: a goroutine outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaked looks several times, for some two seconds in all: a pool of go-redis whose server has gone looks once a second
// whether it was closed.
func leaked() (err error) {
	for range 5 {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}

// Redis returns the URL of a Redis. It is not emptied between tests and shared by them: keys of two tests cannot meet,
// because they hold a hash with the UUID of each test's own schema.
func Redis(t testing.TB) string {
	t.Helper()
	return shared[KindRedis].get(t, KindRedis).url
}
