package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/redisdb"
)

// What to do about a URL that does not say what is behind it.
const (
	sayCluster = "add cluster=true to ROLLBACKD_REDIS_URL"
	sayMaster  = "name the master in ROLLBACKD_REDIS_URL, or its sentinels with master=NAME"
	fixCluster = "`redis-cli --cluster check` names what is missing"
)

// checkMode says what is wrong with a server that is asked as if it stood alone.
func checkMode(field func(name string) string, l *list) {
	const name = "mode"
	switch {
	case field("redis_mode") == "cluster":
		l.fail(name, "it is a node of a cluster, and takes the locks of its own slots alone", sayCluster)
	case field("redis_mode") == "sentinel":
		l.fail(name, "it is a sentinel, which takes no locks", "add master=NAME to ROLLBACKD_REDIS_URL")
	case field("role") == "slave":
		l.fail(name, "it is a replica, which takes no locks", sayMaster)
	}
}

// orMode is the advice, or a better one for an answer that only another server gives.
func orMode(err error, advice string) string {
	switch {
	case redis.HasErrorPrefix(err, "MOVED"):
		return sayCluster
	case redis.HasErrorPrefix(err, "READONLY"):
		return sayMaster
	case redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		return fixCluster
	}
	return advice
}

// checkSentinels says which master the sentinels name, and whether they could make another one.
func checkSentinels(ctx context.Context, cfg config.Config, o Options, l *list) {
	said, err := redisdb.AskSentinels(ctx, cfg.RedisURL, redisdb.Options{Name: o.Name})
	if err != nil || len(said) == 0 {
		return // the URL names none
	}
	votes, replicas := make(map[string]int), -1
	var quorum error
	for _, s := range said {
		name := "sentinel " + s.Addr
		switch {
		case s.Err != nil:
			l.warn(name, s.Err.Error(), orCertificates(s.Err, "does it run there? The other sentinels are asked meanwhile"))
		case s.Master == "":
			l.warn(name, "it knows no master of that name", "write the name of its `sentinel monitor` after master= in "+
				"ROLLBACKD_REDIS_URL")
		default:
			votes[s.Master]++
			replicas = max(replicas, s.Replicas)
			if s.Quorum != nil {
				quorum = s.Quorum
			}
		}
	}
	const name, failover = "master", "failover"
	found := fmt.Sprintf("%s, say %d of %d sentinels", strings.Join(slices.Sorted(maps.Keys(votes)), " and "),
		sum(votes), len(said))
	switch len(votes) {
	case 0:
		return // each of them has been named
	case 1:
		l.ok(name, found)
	default:
		l.warn(name, found, "a failover may be under way: look again in a minute, else compare what the sentinels say")
	}
	switch {
	case redis.HasErrorPrefix(quorum, "NOQUORUM"):
		l.warn(failover, quorum.Error(), "start the sentinels that are missing: while too few run, nothing takes the place "+
			"of a dead master, and the lock is away with it")
	case replicas == 0:
		l.warn(failover, "the master has no replica that is up", "add one: nothing takes the place of a dead master, and "+
			"the lock is away with it")
	case replicas > 0 && quorum == nil:
		l.ok(failover, fmt.Sprintf("replicas that can take the master's place: %d", replicas))
	}
	if len(said) == 1 {
		l.note("sentinels", "only one is named: a daemon that starts while it is away finds no master; name all of them")
	}
}

func sum(votes map[string]int) (all int) {
	for _, n := range votes {
		all += n
	}
	return all
}

// checkCluster says whether all slots are served, and looks at each master.
func checkCluster(ctx context.Context, client *redis.ClusterClient, l *list) {
	const name, slots = "cluster", 16384
	asked := redis.NewClusterSlotsCmd(ctx, "cluster", "slots") // which the client asks too, so the account may
	_ = client.Process(ctx, asked)
	ranges, err := asked.Result()
	if err != nil {
		l.note(name, "not shown: "+err.Error())
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
	if served < slots {
		l.warn(name, found, fixCluster+"; by default a cluster that misses some takes no locks at all")
	} else {
		l.ok(name, found)
	}
	maps.DeleteFunc(replicas, func(_ string, n int) bool { return n > 0 })
	if len(replicas) > 0 {
		l.note("failover", "without a replica, so that the lock is away while it is: "+
			strings.Join(slices.Sorted(maps.Keys(replicas)), ", "))
	}
	var mu sync.Mutex
	of := make(map[string][]Check)
	// each tells its own error
	_ = client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		one := list{area: l.area}
		if err := node.Ping(ctx).Err(); err != nil {
			one.warn("reachable", err.Error(), orCertificates(err, "does it run there? "+fixCluster))
		} else {
			checkRedisInfo(ctx, node, &one, func(func(string) string, *list) {})
		}
		mu.Lock()
		defer mu.Unlock()
		of[node.Options().Addr] = one.checks
		return nil
	})
	for _, addr := range slices.Sorted(maps.Keys(of)) {
		for _, c := range of[addr] {
			c.Name = "node " + addr + ": " + c.Name
			l.checks = append(l.checks, c)
		}
	}
}
