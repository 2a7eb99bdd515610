package lockers_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// Given several masters of Redis, then it passes the suite that each lock must pass: one holder, expiry, renewal,
// lost replies, its server gone.
func TestRedlockIsALock(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newRedlockBackend(t) })
}

// redlockBackend is three masters of one test.
type redlockBackend struct {
	servers []*stack.Server
	admins  []*redis.Client
}

var _ locktest.Backend = redlockBackend{}

func newRedlockBackend(t *testing.T) (b redlockBackend) {
	t.Helper()
	for range 3 {
		server := stack.OwnRedis(t)
		admin := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = admin.Close() })
		b.servers, b.admins = append(b.servers, server), append(b.admins, admin)
	}
	return b
}

func (b redlockBackend) urls() (urls []string) {
	for _, s := range b.servers {
		urls = append(urls, s.URL())
	}
	return urls
}

func openRedlock(t *testing.T, urls []string, o lock.Options) *lockers.Lock {
	t.Helper()
	return openLock(t, lockers.Servers{Kind: lock.KindRedlock, RedisURL: strings.Join(urls, ", ")}, o)
}

func (b redlockBackend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	return openRedlock(t, b.urls(), o)
}

func (b redlockBackend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	urls := b.urls()
	wire := stack.Proxy(t, b.servers[0].Addr())
	u, err := url.Parse(urls[0])
	if err != nil {
		t.Fatal(err)
	}
	u.Host = wire.Addr
	urls[0] = u.String()
	lose, lost := wire.Losing("rollbackd:")
	return openRedlock(t, urls, o), lose, lost
}

func (redlockBackend) Die(*testing.T, lock.Locker) {}

func (redlockBackend) Marks() bool { return true }

func (b redlockBackend) Spoil(t *testing.T, name lock.Name) { b.set(t, name, "nobody's") }

func (b redlockBackend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b redlockBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	for _, admin := range b.admins {
		if err := admin.Set(t.Context(), name.String(), value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func (b redlockBackend) Stop(*testing.T) { b.all((*stack.Server).Kill) }

func (b redlockBackend) Start(*testing.T) { b.all((*stack.Server).Start) }

func (b redlockBackend) all(do func(*stack.Server) error) {
	for _, server := range b.servers {
		_ = do(server) // what goes wrong fails the test
	}
}

// redlockWorld is a lock on masters of its own.
type redlockWorld struct {
	lockWorld
	redlockBackend
}

func newRedlockWorld(t *testing.T) redlockWorld {
	t.Helper()
	return redlockWorld{lockWorld{t, uuid.NewString()}, newRedlockBackend(t)}
}

// Given one master of three that is frozen or killed, when names are locked, then the other two are enough, and nobody
// waits for the third again and again; the log says that it is away, and that it is back.
func TestAMinorityOfMastersIsNotMissed(t *testing.T) {
	t.Parallel()
	w := newRedlockWorld(t)
	said := &text{}
	l, other := openRedlock(t, w.urls(), lock.Options{
		Timeout: 2 * time.Second, Log: slog.New(slog.NewTextHandler(said, nil)),
	}), w.open(t)
	w.runs(l)
	w.runs(other)
	third, faults := w.servers[2], 0
	for name, fault := range map[string]struct{ do, undo func() error }{
		"frozen": {third.Freeze, third.Thaw}, "killed": {third.Kill, third.Start},
	} {
		w.must(fault.do())
		start := time.Now()
		for i := range 50 {
			names := w.names(20)
			token := fmt.Sprint(name, i)
			if n := w.mine(l, token, names); n != 20 {
				t.Fatalf("%s, batch %d: %d names are mine, want 20", name, i, n)
			}
			if n := w.mine(other, "other", names); n != 0 {
				t.Fatalf("%s, batch %d: another worker has %d names too", name, i, n)
			}
			w.must(l.Release(t.Context(), token, names))
		}
		if took := time.Since(start); took > 20*time.Second { // a fifth of what waiting for the third would take
			t.Errorf("%s: 50 batches took %v", name, took)
		}
		if up, _, cause := l.Up(); !up || cause != nil {
			t.Errorf("%s: Up = %v, %v, want up", name, up, cause)
		}
		faults++
		w.await("the log says that it is away", func() bool { // which is found out by calls that end in vain
			token, names := fmt.Sprint(name, "again"), w.names(1)
			w.mine(l, token, names)
			w.must(l.Release(t.Context(), token, names))
			return strings.Count(said.String(), "masters are away; the others are enough") >= faults
		})
		w.must(fault.undo())
		w.await("the log says that it is back", func() bool {
			return strings.HasSuffix(strings.TrimSpace(said.String()), `msg="redlock: all masters answer again"`)
		})
	}
}

// Given a value on one master that no lock of ours is, and a second master away, when the name is locked, then nobody
// waits for what never ends: the message goes on without a lock.
func TestAForeignValueOfAMinorityIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := newRedlockWorld(t)
	l, names := w.open(t), w.names(2)
	w.must(w.admins[0].Set(t.Context(), names[0].String(), "nobody's", 0).Err())
	w.must(w.servers[2].Kill())
	held, err := l.Lock(t.Context(), "a", names)
	w.must(err)
	if held[0].Hold != lock.Foreign || held[1].Hold != lock.Mine {
		t.Errorf("Lock found %v and %v, want foreign and mine", held[0].Hold, held[1].Hold)
	}
	if n := l.Attempts(lock.ResultForeign); n != 1 {
		t.Errorf("%d foreign values were counted, want 1", n)
	}
}

// text is a log that is read while it is written.
type text struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *text) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Given two masters of three that are away, when names are locked, then nobody can be asked: with one policy all go on
// and with the other nobody does; they come back by themselves.
func TestAMajorityOfMastersIsMissed(t *testing.T) {
	t.Parallel()
	w := newRedlockWorld(t)
	l := w.open(t)
	pausing := openRedlock(t, w.urls(), lock.Options{OnError: lock.Pause, Timeout: 300 * time.Millisecond})
	w.runs(l)
	w.runs(pausing)
	names := w.names(10)
	w.must(w.servers[0].Freeze())
	w.must(w.servers[1].Kill())
	start := time.Now()
	for range 100 {
		if n := w.mine(l, "a", names); n != 10 {
			t.Fatalf("%d names are mine, want 10", n)
		}
		if _, err := pausing.Lock(t.Context(), "b", names); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("Lock = %v, want ErrUnavailable", err)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("100 batches took %v", took)
	}
	if up, _, cause := l.Up(); up || cause == nil || !strings.Contains(cause.Error(), "master 2 of 3") {
		t.Errorf("Up = %v, %v, want down, and which", up, cause)
	}
	w.must(l.Release(t.Context(), "a", names))
	w.must(w.servers[0].Thaw())
	w.must(w.servers[1].Start())
	w.isAsked(l)
	w.isAsked(pausing)
	w.await("the names are free again", func() bool { return w.mine(pausing, "b", names) == 10 })
}

// Given a lock on all masters, when one forgets it, then it is held still; when two do, then it is lost, which costs
// work only, and a late release takes nobody's lock away.
func TestWipedMastersCostTheLockWhenTheyAreMoreThanHalf(t *testing.T) {
	t.Parallel()
	w := newRedlockWorld(t)
	a, b := w.open(t), w.open(t)
	names := w.names(5)
	w.mine(a, "a", names)
	w.must(w.admins[0].FlushAll(t.Context()).Err())
	if n := w.mine(b, "b", names); n != 0 {
		t.Errorf("%d names are b's although a has them on two masters", n)
	}
	w.must(w.admins[0].FlushAll(t.Context()).Err())
	w.must(w.admins[1].FlushAll(t.Context()).Err())
	w.changesHands(a, b, names)
}

func (w redlockWorld) open(t *testing.T) *lockers.Lock {
	t.Helper()
	return openRedlock(t, w.urls(), lock.Options{Timeout: 300 * time.Millisecond})
}
