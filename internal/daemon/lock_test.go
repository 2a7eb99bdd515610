package daemon_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// lockServers starts the servers of a test's own that the lock of these settings needs, and returns the settings that
// name them.
func lockServers(t *testing.T, settings []string) (servers []*stack.Server, set *stack.RedisSet, more []string) {
	t.Helper()
	has := func(kind lock.Kind) bool { return slices.Contains(settings, string(kind)) }
	switch {
	case slices.Contains(settings, withSentinels):
		set = stack.OwnSentinels(t)
		return set.Data, set, []string{"REDIS_URL", set.URL()}
	case slices.Contains(settings, inCluster):
		set = stack.OwnRedisCluster(t, true)
		return set.Data, set, []string{"REDIS_URL", set.URL()}
	case has(lock.KindZooKeeper):
		server := stack.OwnZooKeeper(t)
		return []*stack.Server{server}, nil, []string{"ZOOKEEPER_URL", server.URL(), "REDIS_URL", "off"}
	case has(lock.KindRedlock):
		var urls []string
		for range 3 {
			server := stack.OwnRedis(t)
			servers, urls = append(servers, server), append(urls, server.URL())
		}
		return servers, nil, []string{"REDIS_URL", strings.Join(urls, ",")}
	case has(lock.KindMySQL):
		return nil, nil, []string{"REDIS_URL", "off"} // nobody asks it
	}
	server := stack.OwnRedis(t)
	return []*stack.Server{server}, nil, []string{"REDIS_URL", server.URL()}
}

// wipeLock returns what empties the world's own lock, and says how much was in it.
func (w *world) wipeLock() func() int {
	w.t.Helper()
	if w.config().Lock == lock.KindMySQL {
		return func() int {
			result := require.Get(w.db.ExecContext(w.t.Context(), "DELETE FROM "+lockers.MySQLTable))(w.t)
			n := require.Get(result.RowsAffected())(w.t)
			return int(n)
		}
	}
	if w.config().Lock == lock.KindZooKeeper {
		return w.wipeZooKeeper()
	}
	var clients []*redis.Client
	for _, server := range w.lockServers {
		options := require.Get(redis.ParseURL(server.URL()))(w.t)
		client := redis.NewClient(options)
		w.t.Cleanup(func() { _ = client.Close() })
		clients = append(clients, client)
	}
	return func() (wiped int) {
		for _, client := range clients {
			n, err := client.DBSize(w.t.Context()).Result()
			if err == nil && n > 0 {
				err, wiped = client.FlushAll(w.t.Context()).Err(), wiped+int(n)
			}
			if redis.HasErrorPrefix(err, "READONLY") { // a replica, which its master wipes
				err = nil
			}
			if err != nil {
				w.t.Fatal(err)
			}
		}
		return wiped
	}
}

func (w *world) wipeZooKeeper() func() int {
	w.t.Helper()
	conn := require.First(zk.Connect([]string{w.lockServers[0].Addr()}, 10*time.Second, zk.WithLogInfo(false)))(w.t)
	w.t.Cleanup(conn.Close)
	return func() (wiped int) {
		nodes, _, err := conn.Children("/rollbackd")
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			w.t.Fatal(err)
		}
		for _, node := range nodes {
			if conn.Delete("/rollbackd/"+node, -1) == nil { // else its holder was faster
				wiped++
			}
		}
		return wiped
	}
}

// lockFault is something that happens to a lock's servers, and its end.
type lockFault struct{ do, undo func() }

// lockFaults are those of the world's own lock: its servers stand still, and are gone.
func (w *world) lockFaults() []lockFault {
	w.t.Helper()
	switch w.config().Lock {
	case lock.KindMySQL: // its server is the log's, so its table
		letGo := func() {}
		return []lockFault{{
			func() { letGo = w.hold([]string{"UNLOCK TABLES"}, "LOCK TABLES rollbackd_lock WRITE") }, func() { letGo() },
		}, {
			func() { w.exec("RENAME TABLE rollbackd_lock TO away") }, func() { w.exec("RENAME TABLE away TO rollbackd_lock") },
		}}
	}
	all := func(do func(*stack.Server) error) func() {
		return func() {
			for _, server := range slices.Clone(w.lockServers) {
				_ = do(server) // has failed the test already
			}
		}
	}
	faults := []lockFault{
		{all((*stack.Server).Freeze), all((*stack.Server).Thaw)},
		{all((*stack.Server).Kill), all((*stack.Server).Start)},
	}
	if w.lockSet != nil {
		faults = append(faults, w.failover())
	}
	return faults
}

// failover kills a master of the lock, and starts it again when another is in its place.
func (w *world) failover() lockFault {
	var dead *stack.Server
	var count int
	return lockFault{
		func() {
			w.lockSet.Settle() // the former faults are over
			masters := w.lockSet.Masters()
			dead, count = masters[0], len(masters)
			_ = dead.Kill() // has failed the test already
		},
		func() {
			w.eventually("another is master", func() bool {
				masters := w.lockSet.Masters()
				return len(masters) == count && !slices.Contains(masters, dead)
			})
			_ = dead.Start()
		},
	}
}
