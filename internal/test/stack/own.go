package stack

import (
	"errors"
	"net/url"
	"os"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// OwnRabbit starts a RabbitMQ for this test alone, to be killed and frozen at will. With a server given from outside
// the test is skipped: that run asked for tests on its own servers.
func OwnRabbit(t testing.TB) *Server { t.Helper(); return own(t, Options{Only: []Kind{KindRabbitMQ}}) }

// OwnMySQL starts a MySQL or MariaDB for this test alone, as [OwnRabbit] does.
func OwnMySQL(t testing.TB) *Server { t.Helper(); return own(t, Options{Only: []Kind{KindMySQL}}) }

// OwnRedis starts a Redis for this test alone, as [OwnRabbit] does.
func OwnRedis(t testing.TB) *Server { t.Helper(); return own(t, Options{Only: []Kind{KindRedis}}) }

// OwnValkey starts a Valkey for this test alone, as [OwnRabbit] does. Where none is installed the test is skipped.
func OwnValkey(t testing.TB) *Server {
	t.Helper()
	return own(t, Options{Only: []Kind{KindRedis}, RedisProgram: "valkey-server"})
}

// EnvClusters asks for the tests on clusters, which take long to start.
const EnvClusters = "ROLLBACKD_TEST_CLUSTERS"

// EnvZooKeeper asks for the tests on ZooKeeper, which is not installed with the other servers.
const EnvZooKeeper = "ROLLBACKD_TEST_ZOOKEEPER"

// OwnZooKeeper starts a ZooKeeper for this test alone, as [OwnRabbit] does, if the environment asks for such tests.
func OwnZooKeeper(t testing.TB) *Server {
	t.Helper()
	if os.Getenv(EnvZooKeeper) == "" {
		t.Skip("make test-zookeeper runs this")
	}
	return own(t, Options{Only: []Kind{KindZooKeeper}})
}

// EnvGalera asks for the tests on a database cluster, whose parts are not installed with the other servers.
const EnvGalera = "ROLLBACKD_TEST_GALERA"

// OwnGalera starts three nodes of MariaDB with Galera behind a HAProxy for this test alone, if the environment asks for
// such tests.
func OwnGalera(t testing.TB) *Stack {
	t.Helper()
	if os.Getenv(EnvGalera) == "" {
		t.Skip("make test-galera runs this")
	}
	return ownCluster(t, Galera)
}

// EnvMySQLHA asks for the tests on MySQL that fails over.
const EnvMySQLHA = "ROLLBACKD_TEST_MYSQL_HA"

// OwnReplicated starts three nodes of MySQL behind a HAProxy for this test alone, if the environment asks for such
// tests.
func OwnReplicated(t testing.TB, replication Replication) *Stack {
	t.Helper()
	if os.Getenv(EnvMySQLHA) == "" {
		t.Skip("make test-mysql-ha runs this")
	}
	return ownCluster(t, replication)
}

func ownCluster(t testing.TB, replication Replication) *Stack {
	t.Helper()
	s, err := Start(t.Context(), Options{Only: []Kind{KindMySQL}, MySQLNodes: 3, Replication: replication})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stop the test's own database cluster: %v", err)
		}
	})
	for _, server := range append(slices.Clone(s.Databases), s.MySQL) {
		server.t = t
	}
	return s
}

// Own starts one server for this test alone with further options; o.Only must name exactly one kind.
func Own(t testing.TB, o Options) *Server { t.Helper(); return own(t, o) }

func own(t testing.TB, o Options) *Server {
	t.Helper()
	if len(o.Only) != 1 {
		t.Fatalf("stack.Own: Options.Only names %d kinds, want one", len(o.Only))
	}
	kind := o.Only[0]
	mayKill(t, kind)
	s, err := Start(t.Context(), o)
	if errors.Is(err, ErrNoDisk) || errors.Is(err, ErrNoFaketime) ||
		o.RedisProgram != "" && errors.Is(err, errNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stop the test's own %s: %v", kind, err)
		}
	})
	server := s.server(kind)
	server.t = t
	return server
}

// mayKill skips the test where a server was given from outside.
func mayKill(t testing.TB, kind Kind) {
	t.Helper()
	private, err := readPrivate()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(kind.env()) != "" && !slices.Contains(private.Kinds, kind) {
		t.Skipf("needs a %s it may kill, and %s names one that is not ours to kill", kind, kind.env())
	}
}

// Addr is the host and port in a URL or DSN of this package, to put a [TCPProxy] in front of it.
func Addr(t testing.TB, target string) string {
	t.Helper()
	if u, err := url.Parse(target); err == nil && u.Scheme != "" && u.Host != "" {
		return u.Host
	}
	config, err := mysql.ParseDSN(target)
	if err != nil {
		t.Fatalf("find the address in a URL or DSN: %v", err)
	}
	return config.Addr
}
