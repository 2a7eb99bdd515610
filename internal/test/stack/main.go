package stack

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// shared are the servers of this test process. They are package state because tests share nothing else: the first test
// that needs a server starts it, and [Main] stops what was started.
var shared = map[Kind]*sharedServer{
	KindRabbitMQ: {kind: KindRabbitMQ},
	KindMySQL:    {kind: KindMySQL},
	KindRedis:    {kind: KindRedis},
}

// sharedServer is started, or found in the environment, at first use.
type sharedServer struct {
	kind Kind

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
	if s.url = os.Getenv(s.kind.env()); s.url != "" {
		private, err := readPrivate()
		if err == nil && slices.Contains(private.Kinds, s.kind) {
			s.node = private.Node
		}
		return err
	}
	var err error
	if s.stack, err = Start(context.Background(), Options{Only: []Kind{s.kind}}); err != nil {
		return err
	}
	server := s.stack.server(s.kind)
	s.url, s.node = server.url, server.node
	return nil
}

// AtOnce lets so many tests of a package run at once, more than there may be processors: they wait most of the
// time, for leases, delays and servers. Who names a number gets that. TestMain calls it before [Main].
func AtOnce(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set(strconv.Itoa(n))
	}
}

// Main is TestMain of a package whose tests use servers: it runs the tests, then after, stops the servers they started,
// fails when a goroutine is left, and exits.
func Main(m *testing.M, after ...func() error) {
	code := m.Run()
	for _, f := range after {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, "stack: clean up after the tests:", err)
			code = max(code, 1)
		}
	}
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
	return shared[KindRedis].get(t).url
}
