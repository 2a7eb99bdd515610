package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/lock"
)

// What to do about a command or a key that an account may not use, and about a URL that does not say what is behind it.
const (
	redisAdvice = "allow it in the account's ACL: " + rightsPage + " has the line"
	sayCluster  = "add cluster=true to ROLLBACKD_REDIS_URL"
	sayMaster   = "name the master in ROLLBACKD_REDIS_URL, or its sentinels with master=NAME"
	fixCluster  = "`redis-cli --cluster check` names what is missing"
)

func lookAtLock(ctx context.Context, a *area) {
	switch a.Lock {
	case lock.KindOff:
		a.note("lock", "ROLLBACKD_LOCK or ROLLBACKD_REDIS_URL is off: every duplicate costs MySQL a query; the promise "+
			"holds without a lock")
	case lock.KindRedlock:
		a.redlock(ctx)
	case lock.KindZooKeeper:
		a.name = "lock"
		if a.takeAndRelease(ctx, a.lockAway(), "do a majority of the servers of ROLLBACKD_ZOOKEEPER_URL run, and may the "+
			"account make and delete nodes in the folder? rollbackd config shows the setting") {
			a.note("session", fmt.Sprintf("ROLLBACKD_LOCK_TTL %v is asked for; the servers keep it within their "+
				"minSessionTimeout and maxSessionTimeout, by default 4s and 40s", a.LockTTL))
		}
	case lock.KindMySQL: // whether it is well and the table is there, its own checks tell
		a.name = "lock"
		if a.takeAndRelease(ctx, Fail, "`migrate` makes its table, and "+rightsPage+" has the rights") {
			a.note("cost", "each batch costs MySQL two more commits, and a duplicate a query: Redis is cheaper where there is "+
				"one")
		}
	default:
		if a.redis(ctx) {
			a.takeAndRelease(ctx, Fail, redisAdvice)
		}
	}
}

// lockAway is what it is that the lock's server is away.
func (a *area) lockAway() Level {
	if a.LockOnError == lock.Pause {
		return Fail
	}
	return Warn // the daemon goes on without it
}

// redlock looks at each master and then takes a lock on more than half of them.
func (a *area) redlock(ctx context.Context) {
	urls, shown := redisdb.SplitURLs(a.RedisURL), redisdb.SplitURLs(a.redisShown)
	good := 0
	for i, url := range urls {
		one := a.without()
		one.RedisURL, one.redisShown = url, shown[i]
		one.LockOnError = lock.Proceed // one that is away stops nobody
		if one.redis(ctx) {
			good++
		}
		a.with(fmt.Sprintf("master %d: ", i+1), one)
	}
	if good > len(urls)/2 {
		a.takeAndRelease(ctx, Fail, redisAdvice)
		return
	}
	a.away("masters", fmt.Sprintf("%d of %d can be used", good, len(urls)), "the lock", "more than half are needed")
}

// away tells of what cannot be used of the lock, which is called so.
func (a *area) away(name, found, called, do string) {
	a.tell(name, failIf(a.lockAway() == Fail, found, do),
		warnIf(true, found+"; the daemon goes on without "+called, do))
}

// redis looks at one Redis and reports whether it can be asked.
func (a *area) redis(ctx context.Context) bool {
	var encryption shown
	client, err := redisdb.Open(a.RedisURL, redisdb.Options{Name: connections(), Certs: encryption.store()})
	if a.failed("reachable", err, "mend ROLLBACKD_REDIS_URL") {
		return false
	}
	defer func() { _ = client.Close() }() // nothing is left in it
	a.sentinels(ctx)
	if err := client.Ping(ctx).Err(); redis.HasErrorPrefix(err, "NOPERM") {
		a.fail("right", err.Error(), redisAdvice)
		return false
	} else if err != nil {
		advice := orCertificates(err, "is it running there, and is the password right? ROLLBACKD_REDIS_URL is "+a.redisShown)
		if redis.HasErrorPrefix(err, "This instance has cluster support disabled") {
			advice = "leave cluster=true out of ROLLBACKD_REDIS_URL: this is no cluster"
		}
		a.away("reachable", err.Error(), "it", advice)
		return false
	}
	a.ok("reachable", a.redisShown)
	encryption.tell(a, redisdb.Hosts(a.RedisURL), redisdb.TLSSetting, "ROLLBACKD_REDIS_URL", "write rediss://")
	if cluster, ok := client.(*redis.ClusterClient); ok {
		a.cluster(ctx, cluster)
	} else {
		a.info(ctx, client, false)
	}
	a.commands(ctx, client)
	return true
}

// commands tries each command that the daemon and the command line use, on a key of its own. A lock would tell of some
// only: a right that its scripts lack leaves locks behind which nobody renews or releases.
func (a *area) commands(ctx context.Context, client redis.UniversalClient) {
	key := strings.TrimSuffix(rights.RedisKeys, "*") + "doctor:" + uuid.NewString()
	lacking := 0
	for _, c := range rights.Redis(rights.Daemon, rights.CLI) {
		args := c.Try(key)
		if args == nil {
			continue
		}
		if err := client.Do(ctx, args...).Err(); redis.HasErrorPrefix(err, "NOPERM") {
			lacking++
			found := c.Name + " (" + c.For + "): " + err.Error()
			a.tell("right", failIf(slices.Contains(c.By, rights.Daemon), found, redisAdvice),
				warnIf(true, found, redisAdvice))
		}
	}
	a.tell("rights", okIf(lacking == 0, "all commands that are needed"))
}

// info looks at what one server says of itself. One that is no node of a cluster is asked as if it stood alone.
func (a *area) info(ctx context.Context, client redis.UniversalClient, node bool) {
	info, err := client.Info(ctx).Result()
	if a.tell("version and memory", notShown(err)) == Note {
		return
	}
	said := map[string]string{}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		said[name] = value
	}
	mode := said["redis_mode"]
	a.tell("mode",
		failIf(!node && mode == "cluster", "it is a node of a cluster, and takes the locks of its own slots alone",
			sayCluster),
		failIf(!node && mode == "sentinel", "it is a sentinel, which takes no locks", "add master=NAME to "+
			"ROLLBACKD_REDIS_URL"),
		failIf(!node && said["role"] == "slave", "it is a replica, which takes no locks", sayMaster))
	version, kind := said["redis_version"], "Redis"
	if v := said["valkey_version"]; v != "" {
		version, kind = v, "Valkey"
	}
	number, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(number)
	a.tell("version", noteIf(err != nil, "unknown: "+strconv.Quote(version)),
		failIf(major < 7, kind+" "+version, "use Redis 7 or later: the lock needs SET with NX and GET together"),
		fine(kind+" "+version))
	policy, limit := said["maxmemory_policy"], said["maxmemory_human"]
	a.tell("memory", noteIf(policy == "", "its limit and policy are not shown"),
		okIf(policy == "noeviction" || said["maxmemory"] == "0", fmt.Sprintf("%s used, limit %s, policy %s",
			said["used_memory_human"], limit, policy)),
		warnIf(true, fmt.Sprintf("limit %s, policy %s: locks and done markers may be evicted, which costs work and never an "+
			"effect", limit, policy), "set maxmemory-policy noeviction, and a limit that holds 210 bytes × messages per second "+
			"× ROLLBACKD_DONE_TTL"))
}

// takeAndRelease takes and releases a lock of its own, with the very commands of the daemon.
func (a *area) takeAndRelease(ctx context.Context, level Level, advice string) bool {
	const check = "lock"
	probe := uuid.NewString()
	locker, err := lockers.Open(ctx, a.LockServers(connections()), lock.Options{LockTTL: time.Second,
		OnError: lock.Pause})
	if a.failed(check, err, "report this") {
		return false
	}
	defer func() { _ = locker.Close() }() // nothing is left in it
	names := []lock.Name{lock.NameOf("doctor "+probe, "doctor", "doctor", probe)}
	held, err := locker.Lock(ctx, probe, names)
	if err == nil && held[0].Hold != lock.Mine {
		err = fmt.Errorf("a key that nobody else has is %v", held[0].Hold)
	}
	err = errors.Join(err, locker.Release(ctx, probe, names))
	switch { // what only another server answers
	case redis.HasErrorPrefix(err, "MOVED"):
		advice = sayCluster
	case redis.HasErrorPrefix(err, "READONLY"):
		advice = sayMaster
	case redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		advice = fixCluster
	}
	return a.tell(check, warnIf(err != nil && level == Warn, fmt.Sprintf("%v; the daemon goes on without it", err),
		advice), verdict{err != nil, level, fmt.Sprint(err), advice}, fine("taken and released")) == OK
}

// sentinels says which master the sentinels that the URL names, if it does, name, and whether they could make another.
func (a *area) sentinels(ctx context.Context) {
	said, err := redisdb.AskSentinels(ctx, a.RedisURL, redisdb.Options{Name: connections()})
	if err != nil || len(said) == 0 {
		return
	}
	masters, votes, replicas := make(map[string]bool), 0, -1
	var quorum error
	for _, s := range said {
		if a.tell("sentinel "+s.Addr, warnIf(s.Err != nil, fmt.Sprint(s.Err), orCertificates(s.Err, "does it run there? The "+
			"other sentinels are asked meanwhile")),
			warnIf(s.Master == "", "it knows no master of that name", "write the name of its `sentinel monitor` after master= "+
				"in ROLLBACKD_REDIS_URL")) == Warn {
			continue
		}
		masters[s.Master] = true
		votes++
		replicas = max(replicas, s.Replicas)
		if s.Quorum != nil {
			quorum = s.Quorum
		}
	}
	if votes == 0 {
		return // each of them has been named
	}
	found := fmt.Sprintf("%s, say %d of %d sentinels", strings.Join(slices.Sorted(maps.Keys(masters)), " and "), votes,
		len(said))
	a.tell("master", okIf(len(masters) == 1, found), warnIf(true, found, "a failover may be under way: look again in a "+
		"minute, else compare what the sentinels say"))
	a.tell("failover",
		warnIf(redis.HasErrorPrefix(quorum, "NOQUORUM"), fmt.Sprint(quorum), "start the sentinels that are missing: while "+
			"too few run, nothing takes the place of a dead master, and the lock is away with it"),
		warnIf(replicas == 0, "the master has no replica that is up", "add one: nothing takes the place of a dead master, "+
			"and the lock is away with it"),
		okIf(replicas > 0 && quorum == nil, fmt.Sprintf("replicas that can take the master's place: %d", replicas)))
	a.tell("sentinels", noteIf(len(said) == 1, "only one is named: a daemon that starts while it is away finds no "+
		"master; name all of them"))
}

// cluster says whether all slots are served, and looks at each master.
func (a *area) cluster(ctx context.Context, client *redis.ClusterClient) {
	const slots = 16384
	asked := redis.NewClusterSlotsCmd(ctx, "cluster", "slots") // which the client asks too, so the account may
	_ = client.Process(ctx, asked)
	ranges, err := asked.Result()
	if a.tell("cluster", notShown(err)) == Note {
		return
	}
	served, replicas := 0, make(map[string]int)
	for _, r := range ranges {
		if len(r.Nodes) > 0 {
			served += r.End - r.Start + 1
			replicas[r.Nodes[0].Addr] = len(r.Nodes) - 1
		}
	}
	found := fmt.Sprintf("masters: %d, slots that are served: %d of %d", len(replicas), served, slots)
	a.tell("cluster", warnIf(served < slots, found, fixCluster+"; by default a cluster that misses some takes no locks "+
		"at all"), fine(found))
	maps.DeleteFunc(replicas, func(_ string, n int) bool { return n > 0 })
	a.tell("failover", noteIf(len(replicas) > 0, "without a replica, so that the lock is away while it is: "+
		strings.Join(slices.Sorted(maps.Keys(replicas)), ", ")))
	var mu sync.Mutex
	masters := make(map[string]*area)
	// each tells its own error
	_ = client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		one := a.without()
		if err := node.Ping(ctx).Err(); err != nil {
			one.warn("reachable", err.Error(), orCertificates(err, "does it run there? "+fixCluster))
		} else {
			one.info(ctx, node, true)
		}
		mu.Lock()
		defer mu.Unlock()
		masters[node.Options().Addr] = one
		return nil
	})
	for _, addr := range slices.Sorted(maps.Keys(masters)) {
		a.with("node "+addr+": ", masters[addr])
	}
}
