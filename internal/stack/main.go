package stack

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

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
