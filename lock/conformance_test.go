package lock_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// Given Redis, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost replies, its
// server gone.
func TestRedisIsALock(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newRedisBackend(t, stack.OwnRedis(t)) })
}

// Given Valkey, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost replies, its
// server gone.
func TestValkeyIsALock(t *testing.T) {
	t.Parallel()
	stack.OwnValkey(t) // skips the whole test, and says why, where there is none
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newRedisBackend(t, stack.OwnValkey(t)) })
}

// Given Redis with sentinels, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost
// replies, its server gone.
func TestRedisWithSentinelsIsALock(t *testing.T) {
	t.Parallel()
	stack.NeedRedisHA(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newSetBackend(t, stack.OwnSentinels(t)) })
}

// Given a Redis cluster, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost
// replies, its server gone.
func TestRedisClusterIsALock(t *testing.T) {
	t.Parallel()
	stack.NeedRedisHA(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newSetBackend(t, stack.OwnRedisCluster(t, true)) })
}

type redisBackend struct {
	server *stack.Server
	admin  redis.UniversalClient
}

var _ locktest.Backend = redisBackend{}

func newRedisBackend(t *testing.T, server *stack.Server) redisBackend {
	t.Helper()
	return redisBackend{server, openClient(t, server.URL())}
}

func openClient(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	client, err := lock.OpenRedis(url, lock.RedisOptions{Name: "rollbackd test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func openLock(t *testing.T, url string, o lock.Options) lock.Locker {
	t.Helper()
	l, err := lock.NewRedis(openClient(t, url), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (b redisBackend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	return openLock(t, b.server.URL(), o)
}

func (b redisBackend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	wire := stack.Proxy(t, b.server.Addr())
	lose, lost := wire.Losing("rollbackd:")
	return openLock(t, wire.Through(b.server.URL()), o), lose, lost
}

func (redisBackend) Die(*testing.T, lock.Locker) {}

func (redisBackend) Marks() bool { return true }

func (b redisBackend) Spoil(t *testing.T, name lock.Name) { b.set(t, name, "nobody's") }

func (b redisBackend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b redisBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	setKey(t, b.admin, name, value)
}

func setKey(t *testing.T, admin redis.UniversalClient, name lock.Name, value string) {
	t.Helper()
	if err := admin.Set(t.Context(), name.String(), value, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func (b redisBackend) Stop(t *testing.T) {
	t.Helper()
	if err := b.server.Kill(); err != nil {
		t.Fatal(err)
	}
}

func (b redisBackend) Start(t *testing.T) {
	t.Helper()
	if err := b.server.Start(); err != nil {
		t.Fatal(err)
	}
}

// setBackend is several servers that are one for their clients.
type setBackend struct {
	servers *stack.RedisSet
	admin   redis.UniversalClient
}

var _ locktest.Backend = setBackend{}

func newSetBackend(t *testing.T, servers *stack.RedisSet) setBackend {
	t.Helper()
	return setBackend{servers, openClient(t, servers.URL())}
}

func (b setBackend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	return openLock(t, b.servers.URL(), o)
}

// OpenLossy loses replies inside the client: which server it asks is not known before.
func (b setBackend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	client, loser := openClient(t, b.servers.URL()), &replyLoser{}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(loser) })
	} else {
		client.AddHook(loser)
	}
	l, err := lock.NewRedis(client, o)
	if err != nil {
		t.Fatal(err)
	}
	return l, func() { loser.armed.Store(true) }, func() int { return int(loser.lost.Load()) }
}

func (setBackend) Die(*testing.T, lock.Locker) {}

func (setBackend) Marks() bool { return true }

func (b setBackend) Spoil(t *testing.T, name lock.Name) { setKey(t, b.admin, name, "nobody's") }

func (b setBackend) Forget(t *testing.T, name lock.Name) {
	setKey(t, b.admin, name, "lock:host/1/gone/0/7")
}

func (b setBackend) Stop(t *testing.T) {
	t.Helper()
	for _, server := range b.servers.Data {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

func (b setBackend) Start(t *testing.T) {
	t.Helper()
	for _, server := range b.servers.Data {
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	b.servers.Settle()
}
