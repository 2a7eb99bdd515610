package lockers_test

import (
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// Given ZooKeeper, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost replies, its
// server gone.
func TestZooKeeperIsALock(t *testing.T) {
	t.Parallel()
	stack.OwnZooKeeper(t) // skips the whole test where nobody asks for it
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newZooKeeperBackend(t) })
}

// zooKeeperBackend is a server of one test, with a wire for each process.
type zooKeeperBackend struct {
	server *stack.Server

	mu    *sync.Mutex
	wires map[lock.Locker]*stack.TCPProxy
}

var _ locktest.Backend = zooKeeperBackend{}

func newZooKeeperBackend(t *testing.T) zooKeeperBackend {
	t.Helper()
	return zooKeeperBackend{stack.OwnZooKeeper(t), &sync.Mutex{}, map[lock.Locker]*stack.TCPProxy{}}
}

func openZooKeeper(t *testing.T, url string, o lock.Options) *lockers.Lock {
	t.Helper()
	return openLock(t, lockers.Servers{Kind: lock.KindZooKeeper, ZooKeeperURL: url}, o)
}

func (b zooKeeperBackend) open(t *testing.T, o lock.Options) (*lockers.Lock, *stack.TCPProxy) {
	t.Helper()
	wire := stack.Proxy(t, b.server.Addr())
	l := openZooKeeper(t, wire.Through(b.server.URL()), o)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wires[l] = wire
	return l, wire
}

func (b zooKeeperBackend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	l, _ := b.open(t, o)
	return l
}

func (b zooKeeperBackend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	l, wire := b.open(t, o)
	lose, lost := wire.Losing("/rollbackd/rollbackd:")
	return l, lose, lost
}

func (b zooKeeperBackend) Die(_ *testing.T, l lock.Locker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wires[l].Refuse(true)
	b.wires[l].Cut()
}

func (zooKeeperBackend) Marks() bool { return false }

func (b zooKeeperBackend) Spoil(t *testing.T, name lock.Name) { b.set(t, name, "nobody's") }

func (b zooKeeperBackend) Forget(t *testing.T, name lock.Name) {
	b.set(t, name, "lock:host/1/gone/0/7")
}

// set makes a node that is of no session.
func (b zooKeeperBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	admin := b.admin(t)
	node := "/rollbackd/" + name.String()
	for _, path := range []string{"/rollbackd", node} {
		_, err := admin.Create(path, []byte(value), 0, zk.WorldACL(zk.PermAll))
		if err == zk.ErrNodeExists && path == node {
			_, err = admin.Set(path, []byte(value), -1)
		}
		if err != nil && err != zk.ErrNodeExists {
			t.Fatal(err)
		}
	}
}

func (b zooKeeperBackend) admin(t *testing.T) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{b.server.Addr()}, 10*time.Second, zk.WithLogger(nobody{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

type nobody struct{}

func (nobody) Printf(string, ...any) {}

func (b zooKeeperBackend) Stop(*testing.T) { _ = b.server.Kill() } // what goes wrong fails the test

func (b zooKeeperBackend) Start(*testing.T) { _ = b.server.Start() }

// zooKeeperWorld is a lock on a server of its own.
type zooKeeperWorld struct {
	lockWorld
	zooKeeperBackend
}

func newZooKeeperWorld(t *testing.T) zooKeeperWorld {
	t.Helper()
	return zooKeeperWorld{lockWorld{t, uuid.NewString()}, newZooKeeperBackend(t)}
}

// Given a server that is frozen, when names are locked, then each call is bounded, and the lock comes back by itself,
// with none of the former session's nodes in anybody's way.
func TestAFrozenZooKeeperIsGoneWithout(t *testing.T) {
	t.Parallel()
	w := newZooKeeperWorld(t)
	o := lock.Options{Timeout: 300 * time.Millisecond, LockTTL: time.Second}
	l, other := w.Open(t, o), w.Open(t, o)
	w.runs(l)
	w.runs(other)
	names := w.names(10)
	w.mine(l, "before", names)
	w.must(l.Release(t.Context(), "before", names)) // a thread of a frozen server may answer for a moment
	w.mine(l, "in hand", names[:5])
	w.must(w.server.Freeze())
	w.goesOnWithout(l, names[5:])
	w.must(w.server.Thaw())
	w.isAsked(l)
	w.isAsked(other)
	w.await("nothing is in the way", func() bool { return w.mine(other, "other", names) == 10 })
}

// Given a session that the server ends because it has not heard of its process, when the process is heard again, then
// what it held is free, and it locks in a new session.
func TestASessionThatExpiresLosesItsLocks(t *testing.T) {
	t.Parallel()
	w := newZooKeeperWorld(t)
	l, wire := w.open(t, lock.Options{LockTTL: 300 * time.Millisecond})
	other := w.Open(t, lock.Options{})
	w.runs(l)
	names := w.names(10)
	w.mine(l, "a", names)
	wire.Refuse(true)
	wire.Cut()
	w.await("the session has ended", func() bool { return w.mine(other, "b", names) == 10 })
	wire.Refuse(false)
	w.await("it is asked again", func() bool { up, _, _ := l.Up(); return up && w.mine(l, "a", names) == 0 })
	w.must(l.Release(t.Context(), "a", names)) // of locks that are another's by now
	if s, err := l.Show(t.Context(), names[0]); err != nil || s.Token != "b" {
		t.Errorf("after the old holder's release Show = %+v, %v, want it held by b", s, err)
	}
}

// Given an account, when it has made locks, then nobody else may read or delete them, and who has another password is
// told so.
func TestLocksOfAnAccountAreItsOwn(t *testing.T) {
	t.Parallel()
	w := newZooKeeperWorld(t)
	open := func(login string) lock.Locker {
		url := strings.Replace(w.server.URL(), "://", "://"+login, 1) + "/of/shop"
		return openZooKeeper(t, url, lock.Options{OnError: lock.Pause})
	}
	names := w.names(3)
	if n := w.mine(open("shop:p%40ss@"), "a", names); n != 3 {
		t.Fatalf("%d names are mine, want 3", n)
	}
	for _, login := range []string{"", "shop:other@"} {
		_, err := open(login).Lock(t.Context(), "b", w.names(10))
		if err == nil || !strings.Contains(err.Error(), "not authenticated") {
			t.Errorf("with login %q Lock = %v, want that it may not", login, err)
		}
	}
}

// Given a node that another account keeps to itself, and one with a node of somebody's below it, in a folder that
// everybody may use, when they are locked and done, then nobody waits for them, and the server counts as well.
func TestANodeThatMayNotBeReadIsInNobodysWay(t *testing.T) {
	t.Parallel()
	w := newZooKeeperWorld(t)
	l, names, admin := w.Open(t, lock.Options{OnError: lock.Pause}), w.names(10), w.admin(t)
	w.mine(l, "first", names[:1]) // makes the folder
	w.must(l.Release(t.Context(), "first", names[:1]))
	w.must(admin.AddAuth("digest", []byte("somebody:else")))
	_, err := admin.Create("/rollbackd/"+names[3].String(), nil, zk.FlagPersistent, zk.AuthACL(zk.PermAll))
	w.must(err)
	for _, node := range []string{"", "/below"} {
		_, err := admin.Create("/rollbackd/"+names[4].String()+node, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
		w.must(err)
	}
	held, err := l.Lock(t.Context(), "a", names)
	w.must(err)
	for i, h := range held {
		want := lock.Mine
		if i == 3 || i == 4 {
			want = lock.Foreign
		}
		if h.Hold != want {
			t.Errorf("name %d is %v, want %v", i, h.Hold, want)
		}
	}
	var marks []lock.Mark
	for _, n := range names {
		marks = append(marks, lock.Mark{Name: n})
	}
	w.must(l.Done(t.Context(), marks))
	if up, _, cause := l.Up(); !up || cause != nil {
		t.Errorf("Up = %v, %v, want up", up, cause)
	}
	if left, _, err := admin.Children("/rollbackd"); err != nil || len(left) != 1 || left[0] != names[4].String() {
		t.Errorf("%q are left (%v), want the node that has another below it", left, err)
	}
}

// Given an address at which something else answers, as a web server does, when names are locked, then all go on without
// the lock, and what was answered is not taken for the length of an answer.
func TestWhatIsNoZooKeeperIsGoneWithout(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	url := "zookeeper://" + listener.Addr().String() + "/rollbackd"
	l := openZooKeeper(t, url, lock.Options{Timeout: 300 * time.Millisecond})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	held, err := l.Lock(t.Context(), "a", []lock.Name{lock.NameOf("s", "g", "t", "k")})
	if err != nil || held[0].Hold != lock.Mine {
		t.Errorf("Lock = %v, %v, want to go on without it", held, err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 512<<20 { // other tests run; the word HTTP alone is a gibibyte
		t.Errorf("%d MiB were allocated for one call", took>>20)
	}
}
