package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"
)

// The environment through which servers are given to the tests.
const (
	EnvAMQP  = "ROLLBACKD_TEST_AMQP_URL"
	EnvMySQL = "ROLLBACKD_TEST_MYSQL_DSN"
	EnvRedis = "ROLLBACKD_TEST_REDIS_URL"
	// EnvPrivate marks servers which cmd/with-servers started for one run. Its value is the folder of that RabbitMQ.
	EnvPrivate = "ROLLBACKD_TEST_PRIVATE"
)

// shared are the servers of this test process. They are package state because tests share nothing else: the first test that needs a server
// starts it, and [Main] stops what was started.
var shared = map[Kind]*sharedServer{
	KindRabbitMQ: {kind: KindRabbitMQ, env: EnvAMQP},
	KindMySQL:    {kind: KindMySQL, env: EnvMySQL},
	KindRedis:    {kind: KindRedis, env: EnvRedis},
}

// sharedServer is started, or found in the environment, at first use.
type sharedServer struct {
	kind Kind
	env  string

	once  sync.Once
	url   string
	node  *rabbitNode // nil when the server is not a RabbitMQ of ours
	stack *Stack      // nil when the server was given
	err   error
}

func (s *sharedServer) get(t testing.TB) *sharedServer {
	t.Helper()
	s.once.Do(func() { s.err = s.find() })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s
}

func (s *sharedServer) find() error {
	if s.url = os.Getenv(s.env); s.url != "" {
		if dir := os.Getenv(EnvPrivate); dir != "" && s.kind == KindRabbitMQ {
			var err error
			s.node, err = readRabbitNode(dir)
			return err
		}
		return nil
	}
	var err error
	if s.stack, err = Start(context.Background(), Options{Only: []Kind{s.kind}}); err != nil {
		return err
	}
	server := s.stack.server(s.kind)
	s.url, s.node = server.url, server.node
	return nil
}

// Main is TestMain of a package whose tests use servers: it runs the tests, stops the servers they started, fails when a goroutine is left,
// and exits.
func Main(m *testing.M) {
	code := m.Run()
	for _, s := range shared {
		if s.stack == nil {
			continue
		}
		if err := s.stack.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stack: stop the servers:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goleak: a goroutine outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Redis returns the URL of a Redis. It is not emptied between tests and shared by them: keys of two tests cannot meet, because they hold a
// hash with the UUID of each test's own schema.
func Redis(t testing.TB) string {
	t.Helper()
	return shared[KindRedis].get(t).url
}

// MySQL makes an empty database and returns a DSN for it, in go-sql-driver's form, of an account that may do everything. The database is
// dropped when the test ends.
func MySQL(t testing.TB) string {
	t.Helper()
	return freshDatabase(t, shared[KindMySQL].get(t).url)
}

// Database makes an empty database on this server, as [MySQL] does on the shared one.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return freshDatabase(t, s.url)
}

func freshDatabase(t testing.TB, serverDSN string) string {
	t.Helper()
	config, err := mysql.ParseDSN(serverDSN)
	if err != nil {
		t.Fatalf("parse the DSN of the test's mysql: %v", err)
	}
	config.DBName = ""
	name := "rollbackd_test_" + uniqueSuffix()
	server := config.FormatDSN()
	execMySQL(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() { dropDatabase(t, server, name) })
	config.DBName = name
	return config.FormatDSN()
}

// dropDatabase does not wait long for a transaction a test left open, and does not mind a server which the test killed.
func dropDatabase(t testing.TB, server, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	db, err := openMySQL(server)
	if err != nil {
		t.Error(err)
		return
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
	if err != nil && db.PingContext(ctx) == nil {
		t.Errorf("drop the test's database %s (does a transaction still hold it?): %v", name, err)
	}
}

// Restricted makes an account that may only do what the grants say, each written as SQL writes it between GRANT and TO ("SELECT, INSERT ON
// consumer_log"), within the database dsn names. It returns that account's DSN and drops it when the test ends.
func Restricted(t testing.TB, dsn string, grants ...string) string {
	t.Helper()
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("parse the DSN of the test's database: %v", err)
	}
	user, password := "r_"+uniqueSuffix(), rand.Text()
	execMySQL(t, dsn, fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", user, password))
	t.Cleanup(func() { execMySQL(t, dsn, fmt.Sprintf("DROP USER '%s'@'%%'", user)) })
	for _, grant := range grants {
		execMySQL(t, dsn, fmt.Sprintf("GRANT %s TO '%s'@'%%'", grant, user))
	}
	config.User, config.Passwd = user, password
	return config.FormatDSN()
}

func execMySQL(t testing.TB, dsn, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	db, err := openMySQL(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil && !errors.Is(err, sql.ErrConnDone) {
		t.Fatalf("%s: %v", statement, err)
	}
}

// uniqueSuffix is short, lower case, and never the same twice, in no process.
func uniqueSuffix() string { return strings.ToLower(rand.Text()[:12]) }

// OwnRabbit starts a RabbitMQ for this test alone, to be killed and frozen at will. With a server given from outside the test is skipped:
// that run asked for tests on its own servers.
func OwnRabbit(t testing.TB) *Server { t.Helper(); return own(t, Options{Only: []Kind{KindRabbitMQ}}) }

// OwnMySQL starts a MySQL or MariaDB for this test alone, as [OwnRabbit] does.
func OwnMySQL(t testing.TB) *Server { t.Helper(); return own(t, Options{Only: []Kind{KindMySQL}}) }

// OwnRedis starts a Redis for this test alone, as [OwnRabbit] does.
func OwnRedis(t testing.TB) *Server { t.Helper(); return own(t, Options{Only: []Kind{KindRedis}}) }

// Own starts one server for this test alone with further options; o.Only must name exactly one kind.
func Own(t testing.TB, o Options) *Server { t.Helper(); return own(t, o) }

func own(t testing.TB, o Options) *Server {
	t.Helper()
	if len(o.Only) != 1 {
		t.Fatalf("stack.Own: Options.Only names %d kinds, want one", len(o.Only))
	}
	kind := o.Only[0]
	if env := shared[kind].env; os.Getenv(env) != "" && os.Getenv(EnvPrivate) == "" {
		t.Skipf("needs a %s it may kill, and %s names one that is not ours to kill", kind, env)
	}
	s, err := Start(t.Context(), o)
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
