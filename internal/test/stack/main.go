package stack

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

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
