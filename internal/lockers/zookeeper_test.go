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

	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
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
		require.That(t, err == nil || err == zk.ErrNodeExists, "%v", err)
	}
}

func (b zooKeeperBackend) admin(t *testing.T) *zk.Conn {
	t.Helper()
	conn := require.First(zk.Connect([]string{b.server.Addr()}, 10*time.Second, zk.WithLogger(nobody{})))(t)
	t.Cleanup(conn.Close)
	return conn
}

type nobody struct{}

func (nobody) Printf(string, ...any) {}

func (b zooKeeperBackend) Stop(*testing.T) { _ = b.server.Kill() } // what goes wrong fails the test

func (b zooKeeperBackend) Start(*testing.T) { _ = b.server.Start() }

func (b zooKeeperBackend) Freeze(*testing.T) { _ = b.server.Freeze() }

func (b zooKeeperBackend) Thaw(*testing.T) { _ = b.server.Thaw() }

// Given a session that the server ends because it has not heard of its process, when the process is heard again, then
// what it held is free, and it locks in a new session.
func TestASessionThatExpiresLosesItsLocks(t *testing.T) {
	w, server := newWorld(t, newZooKeeperBackend)
	l, wire := server.open(t, lock.Options{LockTTL: 300 * time.Millisecond})
	a, b, keys := w.Of(l, "a"), w.Worker("b", lock.Options{}), locktest.Keys(10)
	a.Runs()
	a.Find(keys...)
	wire.Refuse(true)
	wire.Cut()
	w.Await("the session has ended", func() bool { return b.Mine(keys...) == 10 })
	wire.Refuse(false)
	w.Await("it is asked again", func() bool { up, _, _ := l.Up(); return up && a.Mine(keys...) == 0 })
	a.GiveBack(keys...) // of locks that are another's by now
	assert.Is(t, a.Look(keys[0]).Token, "b", "after the old holder's release Show")
}

// Given an account, when it has made locks, then nobody else may read or delete them, and who has another password is
// told so.
func TestLocksOfAnAccountAreItsOwn(t *testing.T) {
	w, b := newWorld(t, newZooKeeperBackend)
	open := func(login string) locktest.Worker {
		url := strings.Replace(b.server.URL(), "://", "://"+login, 1) + "/of/shop"
		return w.Of(openZooKeeper(t, url, lock.Options{OnError: lock.Pause, Timeout: 8 * time.Second}), "a")
	}
	open("shop:p%40ss@").Finds(lock.Mine, "", "1", "2", "3")
	for _, login := range []string{"", "shop:other@"} {
		_, err := open(login).Lock(t.Context(), "b", w.Names("1", "4"))
		assert.That(t, err != nil && strings.Contains(err.Error(), "not authenticated"),
			"with login %q Lock = %v, want that it may not", login, err)
	}
}

// Given a node that another account keeps to itself, and one with a node of somebody's below it, in a folder that
// everybody may use, when they are locked and done, then nobody waits for them, and the server counts as well.
func TestANodeThatMayNotBeReadIsInNobodysWay(t *testing.T) {
	w, b := newWorld(t, newZooKeeperBackend)
	a, admin := w.Worker("a", lock.Options{OnError: lock.Pause, Timeout: 8 * time.Second}), b.admin(t)
	a.Find("first") // makes the folder
	a.GiveBack("first")
	require.OK(w, admin.AddAuth("digest", []byte("somebody:else")))
	kept, parent := "/rollbackd/"+w.Names("kept")[0].String(), w.Names("parent")[0].String()
	require.Get(admin.Create(kept, nil, zk.FlagPersistent, zk.AuthACL(zk.PermAll)))(w.T)
	for _, node := range []string{"", "/below"} {
		require.Get(admin.Create("/rollbackd/"+parent+node, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)))(w.T)
	}
	for i, h := range a.Find("kept", "free", "parent") {
		assert.Is(t, h.Hold, []lock.Hold{lock.Foreign, lock.Mine, lock.Foreign}[i], "name %d", i)
	}
	a.Ends(0, "kept", "free", "parent")
	up, _, cause := a.Up()
	assert.That(t, up && cause == nil, "Up = %v, %v, want up", up, cause)
	if left, _, err := admin.Children("/rollbackd"); err != nil || len(left) != 1 || left[0] != parent {
		t.Errorf("%q are left (%v), want the node that has another below it", left, err)
	}
}

// Given an address at which something else answers, as a web server does, when names are locked, then all go on without
// the lock, and what was answered is not taken for the length of an answer.
func TestWhatIsNoZooKeeperIsGoneWithout(t *testing.T) {
	t.Parallel()
	listener := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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
	assert.That(t, err == nil && held[0].Hold == lock.Mine, "Lock = %v, %v, want to go on without it", held, err)
	runtime.ReadMemStats(&after)
	// other tests run; the word HTTP alone is a gibibyte
	assert.AtMost(t, after.TotalAlloc-before.TotalAlloc, 512<<20, "bytes were allocated for one call")
}
