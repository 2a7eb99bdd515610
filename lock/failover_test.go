package lock_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// pair is two workers whose lock fails over.
type pair struct {
	*locktest.World
	set   *stack.RedisSet
	a, b  locktest.Worker
	admin redis.UniversalClient
	fresh int
	log   *program.Log // a's
}

// patient is how long a call waits for an answer: a name is done without where a busy server takes longer.
const patient = 3 * time.Second

// newPair has locks that outlive a failover.
func newPair(t *testing.T, set *stack.RedisSet) *pair {
	t.Helper()
	b := backendOfSet(t, set)
	p := &pair{World: locktest.NewWorld(t, b), set: set, admin: b.admin, log: &program.Log{}}
	o := lock.Options{LockTTL: time.Minute, Timeout: patient}
	p.b = p.Worker("b", o)
	o.Log = slog.New(slog.NewTextHandler(p.log, nil))
	p.a = p.Worker("a", o)
	p.a.Runs()
	p.b.Runs()
	return p
}

// some are keys that nobody had before.
func (p *pair) some(n int) (keys []string) {
	for range n {
		p.fresh++
		keys = append(keys, fmt.Sprint("fresh", p.fresh))
	}
	return keys
}

// isMissed waits until each of these workers, of both if none is named, has noticed that a server is away.
func (p *pair) isMissed(by ...locktest.Worker) {
	p.Helper()
	if by == nil {
		by = []locktest.Worker{p.a, p.b}
	}
	for _, who := range by {
		p.Await("it is missed", func() bool {
			who.As("nobody").Find(p.some(5)...)
			up, _, _ := who.Up()
			return !up
		})
	}
}

// comesBack waits until both workers lock again.
func (p *pair) comesBack(after string) {
	p.Helper()
	start := time.Now()
	p.a.IsAsked()
	p.b.IsAsked()
	p.Logf("locked again %v after it was missed, %s", time.Since(start), after)
}

// on is a client of one server, whatever the others say of it.
func (p *pair) on(server *stack.Server) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	p.Cleanup(func() { _ = client.Close() })
	return client
}

// handedOn waits until a server's replica has all that it has.
func (p *pair) handedOn(server *stack.Server) {
	p.Helper()
	client := p.on(server)
	written := errors.New("nothing")
	for i := 0; i < 100 && written != nil; i++ { // in a cluster, the first key in a slot of that master
		written = client.Set(p.Context(), fmt.Sprint("rollbackd:last", i), "", time.Second).Err()
	}
	require.OK(p, written)
	n, err := client.Wait(p.Context(), 1, time.Minute).Result() // for its own client's writes, and what came before
	require.That(p, n == 1 && err == nil, "%d replicas have it, %v, want 1", n, err)
}

// cutOff ends the replication to a server: it wants to log in to a master that knows no passwords.
func (p *pair) cutOff(replica *stack.Server) {
	p.Helper()
	client := p.on(replica)
	require.OK(p, client.ConfigSet(p.Context(), "masterauth", "nobody's").Err())
	require.OK(p, client.ClientKillByFilter(p.Context(), "TYPE", "master").Err())
	p.Await("the replica has lost its master", func() bool {
		info := require.Get(client.Info(p.Context(), "replication").Result())(p)
		return strings.Contains(info, "master_link_status:down")
	})
}

// Given a lock that the master has handed on to its replica and one that it has not, when it is killed, then the
// workers go on without and lock on the replica after a while: the one is held still, the other is anybody's. When the
// old master is back, it changes nothing.
func TestSentinelsReplaceAKilledMasterAndLoseWhatItHadNotHandedOn(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnSentinels(t))
	master, replica := p.set.Data[0], p.set.Data[1]
	p.a.Finds(lock.Mine, "", "handed on")
	p.handedOn(master)
	p.cutOff(replica)
	p.a.Finds(lock.Mine, "", "kept back")
	p.b.Finds(lock.HeldByOther, "a", "handed on", "kept back")

	require.OK(p, master.Kill())
	p.isMissed()
	p.a.As("a2").Finds(lock.Mine, "", "meanwhile") // nobody can be asked
	p.b.As("b2").Finds(lock.Mine, "", "meanwhile")
	p.comesBack("killed")
	now := p.set.Masters()
	require.That(t, len(now) == 1 && now[0] == replica, "the sentinels name %v", now)
	p.b.Finds(lock.HeldByOther, "a", "handed on")
	p.b.Finds(lock.Mine, "", "kept back") // both have it now
	p.a.GiveBack("kept back")
	p.a.As("a3").Finds(lock.HeldByOther, "b", "kept back")

	require.OK(p, master.Start())
	p.Await("the old master is a replica", func() bool { return p.set.Role(master) == "slave" })
	p.set.Settle()
	p.a.As("a3").Finds(lock.HeldByOther, "b", "kept back")
	p.a.As("a3").Finds(lock.Mine, "", p.some(10)...)
}

// Given a master that stands still until another is in its place, when it goes on and takes itself for the master, then
// nobody asks it, and what it is given is lost when it becomes a replica.
func TestSentinelsLeaveNobodyWithAMasterThatStoodStill(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnSentinels(t))
	master, replica := p.set.Data[0], p.set.Data[1]
	p.a.Finds(lock.Mine, "", "before")
	p.handedOn(master)
	require.OK(p, master.Freeze())
	p.isMissed()
	p.comesBack("frozen")
	now := p.set.Masters()
	require.That(t, len(now) == 1 && now[0] == replica, "the sentinels name %v", now)
	p.b.Finds(lock.HeldByOther, "a", "before")
	p.a.Finds(lock.Mine, "", "after")

	require.OK(p, master.Thaw())
	setKey(t, p.on(master), p.Names("given to the old one")[0], "lock:nobody")
	p.b.Finds(lock.HeldByOther, "a", "before", "after")
	p.b.Finds(lock.Mine, "", "given to the old one")
	p.Await("the old master is a replica", func() bool { return p.set.Role(master) == "slave" })
	p.set.Settle()
	p.a.Finds(lock.HeldByOther, "b", "given to the old one")
}

// Given a host that stands still with a master and the sentinel that a worker asks, then another sentinel is asked.
func TestASentinelThatStandsStillIsLeft(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnSentinels(t))
	p.a.Finds(lock.Mine, "", "before")
	p.handedOn(p.set.Data[0])
	const name = "rollbackd-alone"
	client := require.Get(lock.OpenRedis(p.set.URL(), lock.RedisOptions{Name: name}))(p)
	t.Cleanup(func() { _ = client.Close() })
	alone := p.Of(openLock(t, client, lock.Options{LockTTL: time.Minute, Timeout: patient}), "alone")
	alone.Runs()
	alone.Finds(lock.HeldByOther, "a", "before")
	var asked *stack.Server
	p.Await("one sentinel is asked", func() bool { asked = p.set.AskedBy(name); return asked != nil })
	require.OK(p, asked.Freeze())
	require.OK(p, p.set.Data[0].Freeze())
	p.isMissed(alone)
	alone.IsAsked()
	alone.Finds(lock.HeldByOther, "a", "before")
}

// Given a cluster, when a master is killed or stands still, then the workers go on without until its replica has its
// slots, and all that it had handed on is held still; when it is back, it changes nothing.
func TestARedisClusterReplacesAMaster(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ do, undo func(*stack.Server) error }{
		"killed": {(*stack.Server).Kill, (*stack.Server).Start}, "frozen": {(*stack.Server).Freeze, (*stack.Server).Thaw},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, stack.OwnRedisCluster(t, true))
			held := p.some(50)
			p.a.Finds(lock.Mine, "", held...)
			victim := p.set.Data[0]
			for _, master := range p.set.Masters() {
				p.handedOn(master)
			}
			require.OK(p, fault.do(victim))
			p.isMissed()
			p.comesBack(name)
			p.b.Finds(lock.HeldByOther, "a", held...)
			after := p.some(50)
			p.a.Finds(lock.Mine, "", after...)
			p.b.Finds(lock.HeldByOther, "a", after...)
			require.OK(p, fault.undo(victim))
			p.set.Settle()
			assert.That(t, !slices.Contains(p.set.Masters(), victim), "the one that was away is a master again")
			p.b.Finds(lock.HeldByOther, "a", append(held, after...)...)
			p.a.Finds(lock.Mine, "", p.some(50)...)
		})
	}
}

// Given a cluster that takes what it can while a master without a replica is away, when a call meets that master which
// is dead since a moment ago, then the names on the others have their outcome, and only those of the dead one are
// unknown; and the lock is away until that master is back: it does not come and go with the names that are asked for.
func TestARedisClusterThatLacksAMasterIsGoneWithout(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnRedisCluster(t, false))
	for _, node := range p.set.Data {
		require.OK(p, p.on(node).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	keys, victim := p.some(50), p.set.Data[1]
	p.a.Finds(lock.Mine, "", keys...)
	idle := p.Worker("idle", lock.Options{LockTTL: time.Minute, Timeout: patient}) // nobody probes
	idle.Finds(lock.HeldByOther, "a", keys...)
	owns := map[string]bool{}
	for i, name := range p.Names(keys...) {
		owner := require.Get(p.admin.(*redis.ClusterClient).MasterForKey(t.Context(), name.String()))(p)
		owns[keys[i]] = owner.Options().Addr == victim.Addr()
	}
	require.OK(p, victim.Kill())
	for i, h := range idle.Find(keys...) {
		want := map[bool]lock.Hold{true: lock.Mine, false: lock.HeldByOther}[owns[keys[i]]]
		assert.Is(t, h.Hold, want, "%q is found", keys[i])
	}
	up, _, cause := idle.Up()
	assert.That(t, !up && cause != nil, "the dead master was not noticed")
	p.isMissed()
	start := time.Now()
	p.Await("some probes", func() bool {
		p.a.Finds(lock.Mine, "", p.some(50)...)
		up, _, _ := p.a.Up()
		require.That(t, !up, "it is asked again although a master is away")
		return time.Since(start) > 5*time.Second
	})
	require.OK(p, victim.Start())
	p.comesBack("started")
	after := p.some(50)
	p.a.Finds(lock.Mine, "", after...)
	p.b.Finds(lock.HeldByOther, "a", after...)
	for _, words := range []string{"redis failed", "answers again"} {
		assert.Is(t, strings.Count(p.log.String(), words), 1, "lines of the log that say %q", words)
	}
}
