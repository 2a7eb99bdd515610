package lock

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// lockBundle is one installation's lock on a Redis of the test.
type lockBundle struct {
	*Redis
	schema string // of its names
	client redis.UniversalClient
	log    *lockLog
}

func newLock(t *testing.T, url string, o Options) *lockBundle {
	t.Helper()
	client, err := OpenRedis(url, RedisOptions{Name: "rollbackd test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	b := &lockBundle{schema: uuid.NewString(), client: client, log: &lockLog{}}
	o.Log = slog.New(slog.NewTextHandler(b.log, nil))
	if b.Redis, err = NewRedis(client, o); err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs the lock until the test ends or the returned function is called.
func (b *lockBundle) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

func (b *lockBundle) names(keys ...string) []Name {
	names := make([]Name, len(keys))
	for i, k := range keys {
		names[i] = NameOf(b.schema, "g", "t", k)
	}
	return names
}

func (b *lockBundle) lock(t *testing.T, token string, names ...string) []Hold {
	t.Helper()
	held, err := b.Lock(t.Context(), token, b.names(names...))
	if err != nil {
		t.Fatalf("Lock(%s, %v) = %v", token, names, err)
	}
	return holdsOf(held)
}

func (b *lockBundle) show(t *testing.T, name string) State {
	t.Helper()
	s, err := b.Show(t.Context(), b.names(name)[0])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// size is how many locks are in hand.
func (r *renewer) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}

func holdsOf(held []Held) []Hold {
	holds := make([]Hold, len(held))
	for i, h := range held {
		holds[i] = h.Hold
	}
	return holds
}

func wantHolds(t *testing.T, got []Hold, want ...Hold) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("what was found (-want +got):\n%s", d)
	}
}

// await waits for a condition of the servers.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	poll.Until(t, what, ok)
}

type lockLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *lockLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *lockLog) count(words string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
