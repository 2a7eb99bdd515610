package lock_test

import (
	"net/url"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

func TestRedisIsALock(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newRedisBackend(t, stack.OwnRedis(t)) })
}

func TestValkeyIsALock(t *testing.T) {
	t.Parallel()
	stack.OwnValkey(t) // skips the whole test, and says why, where there is none
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newRedisBackend(t, stack.OwnValkey(t)) })
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
	u, err := url.Parse(b.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	cutter := newReplyCutter(t, u.Host)
	u.Host = cutter.addr
	return openLock(t, u.String(), o), cutter.cut, cutter.lost
}

func (redisBackend) Die(*testing.T, lock.Locker) {}

func (redisBackend) Marks() bool { return true }

func (b redisBackend) Spoil(t *testing.T, name lock.Name) { b.set(t, name, "nobody's") }

func (b redisBackend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b redisBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	if err := b.admin.Set(t.Context(), name.String(), value, 0).Err(); err != nil {
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
