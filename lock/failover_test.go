package lock_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// pair is two workers whose lock fails over.
type pair struct {
	*testing.T
	set    *stack.RedisSet
	a, b   lock.Locker
	admin  redis.UniversalClient
	schema string
	fresh  int
	log    *text // a's
}

// newPair has locks that outlive a failover.
func newPair(t *testing.T, set *stack.RedisSet) *pair {
	t.Helper()
	p := &pair{T: t, set: set, admin: openClient(t, set.URL()), schema: uuid.NewString(), log: &text{}}
	o := lock.Options{LockTTL: time.Minute}
	p.b = openLock(t, set.URL(), o)
	o.Log = slog.New(slog.NewTextHandler(p.log, nil))
	p.a = openLock(t, set.URL(), o)
	p.run(p.a)
	p.run(p.b)
	return p
}

func (p *pair) run(l lock.Locker) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Run(ctx); err != nil {
			p.Errorf("Run = %v, want nil", err)
		}
	})
	p.Cleanup(func() { cancel(); wg.Wait() })
}

func (p *pair) names(keys ...string) []lock.Name {
	names := make([]lock.Name, len(keys))
	for i, k := range keys {
		names[i] = lock.NameOf(p.schema, "group", "tag", k)
	}
	return names
}

// finds locks the keys and says what is not as expected. A holder is known by its token.
func (p *pair) finds(l lock.Locker, token string, want lock.Hold, holder string, keys ...string) {
	p.Helper()
	held, err := l.Lock(p.Context(), token, p.names(keys...))
	if err != nil {
		p.Fatal(err)
	}
	for i, h := range held {
		if h.Hold != want || h.Holder != holder {
			p.Errorf("%s finds %q %v, held by %q, want %v %q", token, keys[i], h.Hold, h.Holder, want, holder)
		}
	}
}

// some are names that nobody had before.
func (p *pair) some(n int) (keys []string) {
	for range n {
		p.fresh++
		keys = append(keys, fmt.Sprint("fresh", p.fresh))
	}
	return keys
}

// isMissed waits until both workers have noticed that a server is away.
func (p *pair) isMissed() {
	p.Helper()
	for _, l := range []lock.Locker{p.a, p.b} {
		p.await("it is missed", func() bool {
			_, err := l.Lock(p.Context(), "nobody", p.names(p.some(5)...))
			p.must(err)
			up, _, _ := l.Up()
			return !up
		})
	}
}

// isAsked waits until both workers lock again.
func (p *pair) isAsked() {
	p.Helper()
	for _, l := range []lock.Locker{p.a, p.b} {
		p.await("it is asked again", func() bool { up, _, _ := l.Up(); return up })
	}
}

func (p *pair) await(what string, ok func() bool) {
	p.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			up, since, cause := p.a.Up()
			p.Fatalf("waited in vain: %s; up %v since %v: %v", what, up, since, cause)
		}
	}
}

func (p *pair) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
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
	p.must(client.Set(p.Context(), "rollbackd:last", "", time.Second).Err()) // WAIT waits for its own client's writes
	if n, err := client.Wait(p.Context(), 1, 10*time.Second).Result(); n != 1 || err != nil {
		p.Fatalf("%d replicas have it, %v, want 1", n, err)
	}
}

// cutOff ends the replication to a server: it wants to log in to a master that knows no passwords.
func (p *pair) cutOff(replica *stack.Server) {
	p.Helper()
	client := p.on(replica)
	p.must(client.ConfigSet(p.Context(), "masterauth", "nobody's").Err())
	p.must(client.ClientKillByFilter(p.Context(), "TYPE", "master").Err())
	p.await("the replica has lost its master", func() bool {
		info, err := client.Info(p.Context(), "replication").Result()
		p.must(err)
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
	p.finds(p.a, "a", lock.Mine, "", "handed on")
	p.handedOn(master)
	p.cutOff(replica)
	p.finds(p.a, "a", lock.Mine, "", "kept back")
	p.finds(p.b, "b", lock.HeldByOther, "a", "handed on", "kept back")

	start := time.Now()
	p.must(master.Kill())
	p.isMissed()
	p.finds(p.a, "a2", lock.Mine, "", "meanwhile") // nobody can be asked
	p.finds(p.b, "b2", lock.Mine, "", "meanwhile")
	p.isAsked()
	p.Logf("locked on the new master %v after the old one was killed", time.Since(start))
	if now := p.set.Masters(); len(now) != 1 || now[0] != replica {
		t.Fatalf("the sentinels name %v", now)
	}
	p.finds(p.b, "b", lock.HeldByOther, "a", "handed on")
	p.finds(p.b, "b", lock.Mine, "", "kept back") // both have it now
	p.must(p.a.Release(t.Context(), "a", p.names("kept back")))
	p.finds(p.a, "a3", lock.HeldByOther, "b", "kept back")

	p.must(master.Start())
	p.await("the old master is a replica", func() bool { return p.set.Role(master) == "slave" })
	p.set.Settle()
	p.finds(p.a, "a3", lock.HeldByOther, "b", "kept back")
	p.finds(p.a, "a3", lock.Mine, "", p.some(10)...)
}

// Given a master that stands still until another is in its place, when it goes on and takes itself for the master, then
// nobody asks it, and what it is given is lost when it becomes a replica.
func TestSentinelsLeaveNobodyWithAMasterThatStoodStill(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnSentinels(t))
	master, replica := p.set.Data[0], p.set.Data[1]
	p.finds(p.a, "a", lock.Mine, "", "before")
	p.handedOn(master)
	start := time.Now()
	p.must(master.Freeze())
	p.isMissed()
	p.isAsked()
	p.Logf("locked on the new master %v after the old one was frozen", time.Since(start))
	if now := p.set.Masters(); len(now) != 1 || now[0] != replica {
		t.Fatalf("the sentinels name %v", now)
	}
	p.finds(p.b, "b", lock.HeldByOther, "a", "before")
	p.finds(p.a, "a", lock.Mine, "", "after")

	p.must(master.Thaw())
	setKey(t, p.on(master), p.names("given to the old one")[0], "lock:nobody")
	p.finds(p.b, "b", lock.HeldByOther, "a", "before", "after")
	p.finds(p.b, "b", lock.Mine, "", "given to the old one")
	p.await("the old master is a replica", func() bool { return p.set.Role(master) == "slave" })
	p.set.Settle()
	p.finds(p.a, "a", lock.HeldByOther, "b", "given to the old one")
}

// Given a host that stands still with a master and the sentinel that a worker asks, then another sentinel is asked.
func TestASentinelThatStandsStillIsLeft(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnSentinels(t))
	p.finds(p.a, "a", lock.Mine, "", "before")
	p.handedOn(p.set.Data[0])
	const name = "rollbackd-alone"
	client, err := lock.OpenRedis(p.set.URL(), lock.RedisOptions{Name: name})
	p.must(err)
	t.Cleanup(func() { _ = client.Close() })
	alone, err := lock.NewRedis(client, lock.Options{LockTTL: time.Minute})
	p.must(err)
	p.run(alone)
	p.finds(alone, "alone", lock.HeldByOther, "a", "before")
	var asked *stack.Server
	p.await("one sentinel is asked", func() bool { asked = p.set.AskedBy(name); return asked != nil })
	start := time.Now()
	p.must(asked.Freeze())
	p.must(p.set.Data[0].Freeze())
	p.await("it is missed", func() bool {
		p.finds(alone, "alone", lock.Mine, "", p.some(1)...)
		up, _, _ := alone.Up()
		return !up
	})
	p.await("it is asked again", func() bool { up, _, _ := alone.Up(); return up })
	p.Logf("locked on the new master %v after the old one and a sentinel were frozen", time.Since(start))
	p.finds(alone, "alone", lock.HeldByOther, "a", "before")
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
			p.finds(p.a, "a", lock.Mine, "", held...)
			victim := p.set.Data[0]
			for _, master := range p.set.Masters() {
				p.handedOnInCluster(master)
			}
			start := time.Now()
			p.must(fault.do(victim))
			p.isMissed()
			p.isAsked()
			p.Logf("locked again on all masters %v after one was %s", time.Since(start), name)
			p.finds(p.b, "b", lock.HeldByOther, "a", held...)
			after := p.some(50)
			p.finds(p.a, "a", lock.Mine, "", after...)
			p.finds(p.b, "b", lock.HeldByOther, "a", after...)
			p.must(fault.undo(victim))
			p.set.Settle()
			if slices.Contains(p.set.Masters(), victim) {
				t.Error("the one that was away is a master again")
			}
			p.finds(p.b, "b", lock.HeldByOther, "a", append(held, after...)...)
			p.finds(p.a, "a", lock.Mine, "", p.some(50)...)
		})
	}
}

// handedOnInCluster waits until the replica of a master has all that it has. The key is in a slot of that master.
func (p *pair) handedOnInCluster(master *stack.Server) {
	p.Helper()
	client := p.on(master)
	for i := range 100 {
		err := client.Set(p.Context(), fmt.Sprint("rollbackd:last", i), "", time.Second).Err()
		if redis.HasErrorPrefix(err, "MOVED") {
			continue
		}
		p.must(err)
		break
	}
	p.await("the replica has what its master has", func() bool {
		info, err := client.Info(p.Context(), "replication").Result()
		p.must(err)
		var offset string
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "master_repl_offset:"); ok {
				offset = v
			}
		}
		return strings.Contains(info, "state=online,offset="+offset+",")
	})
}

// Given a cluster that takes what it can while a master without a replica is away, then the lock is away until that
// master is back: it does not come and go with the names that are asked for.
func TestARedisClusterThatLacksAMasterIsGoneWithout(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnRedisCluster(t, false))
	for _, node := range p.set.Data {
		p.must(p.on(node).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	p.finds(p.a, "a", lock.Mine, "", p.some(50)...)
	p.must(p.set.Data[1].Kill())
	p.isMissed()
	start := time.Now()
	p.await("some probes", func() bool {
		p.finds(p.a, "a", lock.Mine, "", p.some(50)...)
		if up, _, _ := p.a.Up(); up {
			t.Fatal("it is asked again although a master is away")
		}
		return time.Since(start) > 5*time.Second
	})
	p.must(p.set.Data[1].Start())
	p.isAsked()
	after := p.some(50)
	p.finds(p.a, "a", lock.Mine, "", after...)
	p.finds(p.b, "b", lock.HeldByOther, "a", after...)
	if said := p.log.String(); strings.Count(said, "redis failed") != 1 || strings.Count(said, "answers again") != 1 {
		t.Errorf("the log tells of more than one loss and return:\n%s", said)
	}
}

// Given a call that meets a cluster's master which is dead since a moment ago, then the names on the others have their
// outcome, and only those of the dead one are unknown.
func TestADeadMasterOfARedisClusterSpoilsOnlyItsKeys(t *testing.T) {
	t.Parallel()
	p := newPair(t, stack.OwnRedisCluster(t, false))
	keys := p.some(50)
	p.finds(p.a, "a", lock.Mine, "", keys...)
	victim := p.set.Data[2]
	var others []string
	for i, name := range p.names(keys...) {
		owner, err := p.admin.(*redis.ClusterClient).MasterForKey(t.Context(), name.String())
		p.must(err)
		if owner.Options().Addr != victim.Addr() {
			others = append(others, keys[i])
		}
	}
	idle := openLock(t, p.set.URL(), lock.Options{LockTTL: time.Minute}) // nobody probes
	p.finds(idle, "idle", lock.HeldByOther, "a", keys...)
	p.must(victim.Kill())
	held, err := idle.Lock(t.Context(), "idle", p.names(keys...))
	p.must(err)
	for i, h := range held {
		want := lock.Mine
		if slices.Contains(others, keys[i]) {
			want = lock.HeldByOther
		}
		if h.Hold != want {
			t.Errorf("%q is found %v, want %v", keys[i], h.Hold, want)
		}
	}
	if up, _, cause := idle.Up(); up || cause == nil {
		t.Error("the dead master was not noticed")
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
