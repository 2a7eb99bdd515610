package lock_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// Given Redis, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost replies, its
// server gone.
func TestRedisIsALock(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t *testing.T) locktest.Backend { return backendOf(t, stack.OwnRedis(t)) })
}

// Given Valkey, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost replies, its
// server gone.
func TestValkeyIsALock(t *testing.T) {
	t.Parallel()
	valkey := stack.Options{Only: []stack.Kind{stack.KindRedis}, RedisProgram: "valkey-server"}
	stack.Own(t, valkey) // skips the whole test, and says why, where there is none
	locktest.Run(t, func(t *testing.T) locktest.Backend { return backendOf(t, stack.Own(t, valkey)) })
}

// Given Redis with sentinels, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost
// replies, its server gone.
func TestRedisWithSentinelsIsALock(t *testing.T) {
	t.Parallel()
	stack.NeedRedisHA(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend { return backendOfSet(t, stack.OwnSentinels(t)) })
}

// Given a Redis cluster, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost
// replies, its server gone.
func TestRedisClusterIsALock(t *testing.T) {
	t.Parallel()
	stack.NeedRedisHA(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend { return backendOfSet(t, stack.OwnRedisCluster(t, true)) })
}

// backend is one Redis, or several servers that are one for their clients.
type backend struct {
	url     string
	servers []*stack.Server
	settle  func()
	admin   redis.UniversalClient
}

var _ locktest.Backend = backend{}

func backendOf(t *testing.T, server *stack.Server) backend {
	t.Helper()
	return backend{server.URL(), []*stack.Server{server}, func() {}, openClient(t, server.URL())}
}

func backendOfSet(t *testing.T, set *stack.RedisSet) backend {
	t.Helper()
	return backend{set.URL(), set.Data, set.Settle, openClient(t, set.URL())}
}

func openClient(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	client := require.Get(lock.OpenRedis(url, lock.RedisOptions{Name: "rollbackd test"}))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func openLock(t *testing.T, client redis.UniversalClient, o lock.Options) *lock.Redis {
	t.Helper()
	return require.Get(lock.NewRedis(client, o))(t)
}

func (b backend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	return openLock(t, openClient(t, b.url), o)
}

// OpenLossy loses replies of several servers inside the client: which one it asks is not known before.
func (b backend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	if len(b.servers) == 1 {
		wire := stack.Proxy(t, b.servers[0].Addr())
		lose, lost := wire.Losing("rollbackd:")
		return openLock(t, openClient(t, wire.Through(b.url)), o), lose, lost
	}
	client, loser := openClient(t, b.url), &replyLoser{}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(loser) })
	} else {
		client.AddHook(loser)
	}
	return openLock(t, client, o), func() { loser.armed.Store(true) }, func() int { return int(loser.lost.Load()) }
}

func (backend) Die(*testing.T, lock.Locker) {}

func (backend) Marks() bool { return true }

func (b backend) Spoil(t *testing.T, name lock.Name)  { b.set(t, name, "nobody's") }
func (b backend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b backend) set(t *testing.T, name lock.Name, value string) { setKey(t, b.admin, name, value) }

func setKey(t *testing.T, admin redis.UniversalClient, name lock.Name, value string) {
	t.Helper()
	require.OK(t, admin.Set(t.Context(), name.String(), value, 0).Err())
}

func (b backend) Stop(t *testing.T) { b.all(t, (*stack.Server).Kill) }

func (b backend) Start(t *testing.T) {
	b.all(t, (*stack.Server).Start)
	b.settle()
}

func (b backend) Freeze(t *testing.T) { b.all(t, (*stack.Server).Freeze) }

func (b backend) Thaw(t *testing.T) {
	b.all(t, (*stack.Server).Thaw)
	b.settle()
}

func (b backend) all(t *testing.T, do func(*stack.Server) error) {
	t.Helper()
	for _, server := range b.servers {
		require.OK(t, do(server))
	}
}

// redisWorld is a Redis with the lock of worker a, and a client beside it.
type redisWorld struct {
	*locktest.World
	l     *lock.Redis
	a     locktest.Worker
	admin redis.UniversalClient
}

func newRedisWorld(t *testing.T, url string, o lock.Options) *redisWorld {
	t.Helper()
	b := backend{url: url, admin: openClient(t, url)}
	w := &redisWorld{World: locktest.NewWorld(t, b), admin: b.admin}
	w.l = w.Open(t, o).(*lock.Redis)
	w.a = w.Of(w.l, "a")
	return w
}

func (w *redisWorld) key(key string) string { return w.Names(key)[0].String() }

func (w *redisWorld) do(args ...any) {
	w.Helper()
	require.OK(w, w.admin.Do(w.Context(), args...).Err())
}

func TestRefusedLoginDoesNotShowThePassword(t *testing.T) {
	t.Parallel()
	u := require.Get(url.Parse(stack.OwnRedis(t).URL()))(t)
	u.User = url.UserPassword("nobody", "s3cret")
	l, name := openLock(t, openClient(t, u.String()), lock.Options{OnError: lock.Pause}), lock.NameOf("s", "g", "t", "k")
	_, err := l.Lock(t.Context(), "a", []lock.Name{name})
	_, shown := l.Show(t.Context(), name)
	for what, err := range map[string]error{"Lock": err, "Show": shown, "probe": l.Probe(t.Context())} {
		assert.That(t, err != nil && strings.Contains(err.Error(), "WRONGPASS") && !strings.Contains(err.Error(), "s3cret"),
			"%s = %v, want the refused login without the password", what, err)
	}
}

// Redis may answer with an error instead of a result. That is no lock, and above all no done marker.
func TestRefusingRedisIsAFailureAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		policy    lock.Policy
		set, undo []any
	}{
		"OOM":      {lock.Proceed, []any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}},
		"READONLY": {lock.Pause, []any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRedisWorld(t, stack.OwnRedis(t).URL(), lock.Options{OnError: fault.policy})
			w.a.Runs()
			w.do(fault.set...)
			held, err := w.l.Lock(t.Context(), "a", w.Names("one", "two"))
			assert.That(t, (fault.policy != lock.Pause || errors.Is(err, lock.ErrUnavailable)) &&
				(fault.policy != lock.Proceed || err == nil && held[0].Hold == lock.Mine && held[1].Hold == lock.Mine),
				"Lock = %v, %v with policy %s", held, err, fault.policy)
			_, _, cause := w.l.Up()
			assert.That(t, cause != nil && strings.Contains(cause.Error(), name), "Up says %v, want down for %s", cause, name)
			assert.Is(t, w.l.InHand(), 0, "locks are renewed")
			w.do(fault.undo...)
			w.a.IsAsked()
		})
	}
}

// One key of a pipeline may fail (in a cluster, one node) while others have their answer.
func TestPartialFailureSpoilsOnlyItsKeys(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	w := newRedisWorld(t, server.URL(), lock.Options{})
	w.a.As("other").Find("held")
	w.a.Ends(1, "done")
	acl := []any{"acl", "setuser", "half", "on", ">pw", "+@all", "resetkeys", "~" + lock.ProbeKey}
	for _, k := range w.Names("held", "done", "free") { // and not "forbidden"
		acl = append(acl, "~"+k.String())
	}
	w.do(acl...)
	u := require.Get(url.Parse(server.URL()))(w.T)
	u.User = url.UserPassword("half", "pw")
	keys := []string{"held", "forbidden", "done", "free"}

	proceed := openLock(t, openClient(t, u.String()), lock.Options{})
	var found []lock.Hold
	for _, h := range w.Of(proceed, "a").Find(keys...) {
		found = append(found, h.Hold)
	}
	d := cmp.Diff([]lock.Hold{lock.HeldByOther, lock.Mine, lock.DoneMarker, lock.Mine}, found)
	assert.That(t, d == "", "what was found (-want +got):\n%s", d)
	up, _, _ := proceed.Up()
	assert.That(t, !up && proceed.InHand() == 1, "up %v, %d are renewed, want down, and one", up, proceed.InHand())
	pausing := openLock(t, openClient(t, u.String()), lock.Options{OnError: lock.Pause})
	held, err := pausing.Lock(t.Context(), "a", w.Names(keys...))
	assert.That(t, errors.Is(err, lock.ErrUnavailable) && held == nil && pausing.InHand() == 0,
		"Lock = %v, %v, %d locks are renewed; want ErrUnavailable, and none that nobody will release", held, err,
		pausing.InHand())
}

// Given locks in hand, then those that are ours are renewed, however many, and no other key is touched; what is
// released or done is forgotten.
func TestRenewingTouchesItsOwnLocksAndAllOfThem(t *testing.T) {
	t.Parallel()
	w := newRedisWorld(t, stack.OwnRedis(t).URL(), lock.Options{LockTTL: 2 * time.Second})
	keys := locktest.Keys(2*lock.RenewChunk + 1)
	w.a.Find(keys...)
	w.a.Find("lost", "list", "gone", "given back", "done")
	w.a.As("b").Find("lost", "b's")                             // the first is not b's
	w.a.As("b").GiveBack("lost", "list", "gone", "b's", "done") // its own only
	for i, step := range []func(){func() { w.a.GiveBack("given back") }, func() { w.a.Ends(1, "done") }} {
		step()
		assert.Is(t, w.l.InHand(), len(keys)+4-i, "after step %d locks are renewed", i)
	}
	w.do("del", w.key("lost"), w.key("list"), w.key("gone"))
	w.do("set", w.key("lost"), "lock:b", "px", "60000")
	w.do("lpush", w.key("list"), "x")
	w.a.Runs()
	w.Await("only ours are renewed", func() bool { return w.l.InHand() == len(keys) })
	left := w.a.Look("lost").TTL
	since := time.Now()
	w.Await("three lifetimes of a lock", func() bool { return time.Since(since) > 6*time.Second })
	for _, k := range keys {
		s := w.a.Look(k)
		require.That(t, s.Token == "a" && s.TTL > 0, "lock %s of %d: %+v, want it renewed", k, len(keys), s)
	}
	s := w.a.Look("lost")
	assert.That(t, s.Token == "b" && left-s.TTL >= 5*time.Second, "another's lock: %+v, want it as it was", s)
	assert.Is(t, w.a.Look("gone").Hold, 0, "an expired lock")
}

// answer is an error reply of Redis.
type answer string

func (a answer) Error() string { return string(a) }

// RedisError marks it as one of the server's.
func (answer) RedisError() {}

func TestHopelessAnswersAreExplained(t *testing.T) {
	for reply, want := range map[answer]string{
		"ERR syntax error":          "redis 7.0 or later", // so Redis 6.2 answers SET with NX and GET
		"MOVED 7566 127.0.0.1:7802": "cluster=true",
	} {
		if err := lock.Explain(reply); !strings.Contains(err.Error(), want) || !errors.Is(err, reply) {
			t.Errorf("explain(%s) = %v, want what to do (%s) and the answer", reply, err, want)
		}
	}
}

// A value that rollbackd did not write is no lock to wait for, because nobody ends it, and tells of no success.
func TestForeignValueIsNeitherHeldNorDone(t *testing.T) {
	t.Parallel()
	w := newRedisWorld(t, stack.Redis(t), lock.Options{})
	hash := strings.Repeat("h", sha256.Size)
	for i, value := range []string{"", "1", "done", "done:", "done:" + hash[1:], "done:" + hash + "h", "Done:" + hash,
		"lock:", hash, "a"} {
		key := fmt.Sprint("foreign", i)
		setKey(t, w.admin, w.Names(key)[0], value)
		w.a.Finds(lock.Foreign, "", key)
		s := w.a.Look(key)
		assert.That(t, s.Hold == lock.Foreign && s.Token == "" && s.TTL < 0, "of %q Show = %+v, want it foreign", value, s)
	}
	w.do("lpush", w.key("list"), "x")
	w.a.Finds(lock.Foreign, "", "list")
	w.a.Finds(lock.Mine, "", "mine")
	w.a.GiveBack("list", "mine")
	assert.Is(t, w.a.Look("list").Hold, lock.Foreign, "Show of a list")
	w.a.Ends(0, "list") // of whatever type the key is
	w.a.Finds(lock.DoneMarker, "", "list")
	up, _, cause := w.l.Up()
	assert.That(t, up, "a foreign key was taken for a failure of redis: %v", cause)
	n := w.admin.MemoryUsage(t.Context(), w.key("list")).Val()
	assert.That(t, n != 0 && n <= 160, "a done marker takes %d bytes by MEMORY USAGE, the docs say about 152", n)
}

// A lock that would stand for longer than a lock does ends with nobody's work: who waited for it would wait for ever.
func TestALockWithoutAnEndInSightIsForeign(t *testing.T) {
	t.Parallel()
	w := newRedisWorld(t, stack.Redis(t), lock.Options{LockTTL: 10 * time.Second})
	w.a.As("mine").Find("own")
	for key, ttl := range map[string]int{"live": 10_000, "late": 60_000} {
		w.do("set", w.key(key), "lock:other", "px", ttl)
	}
	setKey(t, w.admin, w.Names("endless")[0], "lock:other")
	w.do("persist", w.key("own"))
	want := []lock.Held{
		{Hold: lock.HeldByOther, Holder: "other"}, {Hold: lock.Foreign}, {Hold: lock.Foreign},
		{Hold: lock.HeldByOther, Holder: "mine"}, // this process renews it, which gives it an end again
		{Hold: lock.Mine},
	}
	d := cmp.Diff(want, w.a.Find("live", "late", "endless", "own", "free"))
	assert.That(t, d == "", "Lock (-want +got):\n%s", d)
	assert.Is(t, w.l.Attempts(lock.ResultForeign), 2, "Attempts(foreign)")
	w.a.Runs()
	w.Await("the lock in hand has an end", func() bool { return w.a.Look("own").TTL > 0 })
}

// Given locks that outlive their process by far, and a value of somebody else's under the probe's name, when some are
// released and some are done while Redis is not asked because a call has failed, then none stands in anybody's way when
// it is asked again.
func TestLocksThatWereOverWhileNobodyAskedAreGivenUp(t *testing.T) {
	t.Parallel()
	w := newRedisWorld(t, stack.OwnRedis(t).URL(), lock.Options{LockTTL: 10 * time.Minute, Timeout: patient,
		OnError: lock.Pause})
	w.do("lpush", lock.ProbeKey, "x")
	w.a.Finds(lock.Mine, "", "one", "two", "three")
	w.l.Fails(errors.New("told so by the test"))
	w.a.GiveBack("one")
	w.a.Ends(0, "two")
	for _, key := range []string{"one", "two"} {
		assert.Is(t, w.a.Look(key).Hold, lock.HeldByOther, "while nobody asks, under %s stands", key)
	}
	w.a.Runs()
	w.Await("nothing of these stands any more", func() bool { return w.a.Look("one").Hold+w.a.Look("two").Hold == 0 })
	assert.Is(t, w.a.Look("three").Token, "a", "what is in hand is held by")
}

// While a fleet is upgraded, former and new daemons read each other's values and run scripts that mean the same.
func TestValuesAndScriptsStandInRedisAsTheyAlwaysDid(t *testing.T) {
	t.Parallel()
	w := newRedisWorld(t, stack.Redis(t), lock.Options{})
	w.a.As("host/1/x/0/7").Find("locked")
	w.a.Ends(7, "done")
	for key, want := range map[string]string{
		"locked": "lock:host/1/x/0/7", "done": "done:" + strings.Repeat("\a", sha256.Size),
	} {
		assert.Is(t, w.admin.Get(t.Context(), w.key(key)).Val(), want, "under %s stands", key)
	}
	want := []string{
		`if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`,
		`if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) end return 0`,
	}
	d := cmp.Diff(want, lock.Scripts)
	assert.That(t, d == "" && lock.ProbeKey == "rollbackd:probe", "scripts (-want +got):\n%s\nprobe %q", d, lock.ProbeKey)
}

// replyLoser is a hook of a client: told so, it drops the next reply to a lock, and its connection.
type replyLoser struct {
	armed atomic.Bool
	lost  atomic.Int64
}

var _ redis.Hook = (*replyLoser)(nil)

// DialHook watches each connection.
func (l *replyLoser) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &watchedConn{Conn: conn, by: l}, nil
	}
}

// ProcessHook changes nothing.
func (*replyLoser) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook changes nothing.
func (*replyLoser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type watchedConn struct {
	net.Conn
	by    *replyLoser
	asked atomic.Bool // for a lock
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("\r\nnx\r\n")) {
		c.asked.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.asked.Swap(false) && c.by.armed.CompareAndSwap(true, false) {
		c.by.lost.Add(1)
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}
