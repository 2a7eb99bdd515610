package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/locking"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/lock"
)

func checkLock(ctx context.Context, cfg config.Config, o Options, l *list) {
	switch cfg.Lock {
	case lock.KindOff:
		l.note("lock", "ROLLBACKD_LOCK or ROLLBACKD_REDIS_URL is off: every duplicate costs MySQL a query; the promise "+
			"holds without a lock")
	case lock.KindRedlock:
		checkRedlock(ctx, cfg, o, l)
	case lock.KindZooKeeper:
		l.area = "lock"
		checkZooKeeper(ctx, cfg, o, l)
	case lock.KindMySQL:
		l.area = "lock"
		checkMySQLLock(ctx, cfg, o, l)
	default:
		if checkRedis(ctx, cfg, o, l) {
			takeAndRelease(ctx, cfg.LockServers(o.Name), Fail, redisAdvice, l)
		}
	}
}

// checkRedlock looks at each master and then takes a lock on more than half of them.
func checkRedlock(ctx context.Context, cfg config.Config, o Options, l *list) {
	urls, shown := redisdb.SplitURLs(cfg.RedisURL), redisdb.SplitURLs(o.Redis)
	good := 0
	for i, url := range urls {
		one, of, options := list{area: l.area}, cfg, o
		of.RedisURL, options.Redis = url, shown[i]
		of.LockOnError = config.LockOnErrorProceed // one that is away stops nobody
		if checkRedis(ctx, of, options, &one) {
			good++
		}
		for _, c := range one.checks {
			c.Name = fmt.Sprintf("master %d: %s", i+1, c.Name)
			l.checks = append(l.checks, c)
		}
	}
	const name = "masters"
	found, advice := fmt.Sprintf("%d of %d can be used", good, len(urls)), "more than half are needed"
	switch {
	case good > len(urls)/2:
		takeAndRelease(ctx, cfg.LockServers(o.Name), Fail, redisAdvice, l)
	case cfg.LockOnError == config.LockOnErrorPause:
		l.fail(name, found, advice)
	default:
		l.warn(name, found+"; the daemon goes on without the lock", advice)
	}
}

// checkZooKeeper takes and releases a lock of its own: that needs a majority of the servers, the folder, and the right
// to make nodes in it.
func checkZooKeeper(ctx context.Context, cfg config.Config, o Options, l *list) {
	level := Fail
	if cfg.LockOnError != config.LockOnErrorPause {
		level = Warn // the daemon goes on without it
	}
	const advice = "do a majority of the servers of ROLLBACKD_ZOOKEEPER_URL run, and may the account make and delete " +
		"nodes in the folder? consumer config shows the setting"
	if takeAndRelease(ctx, cfg.LockServers(o.Name), level, advice, l) {
		l.note("session", fmt.Sprintf("ROLLBACKD_LOCK_TTL %v is asked for; the servers keep it within their "+
			"minSessionTimeout and maxSessionTimeout, by default 4s and 40s", cfg.LockTTL))
	}
}

// checkMySQLLock takes and releases a lock of its own. Whether MySQL is well and the table is there, its own checks
// tell.
func checkMySQLLock(ctx context.Context, cfg config.Config, o Options, l *list) {
	const advice = "`migrate` makes its table, and " + rightsPage + " has the rights"
	if !takeAndRelease(ctx, cfg.LockServers(o.Name), Fail, advice, l) {
		return
	}
	l.note("cost", "each batch costs MySQL two more commits, and a duplicate a query: Redis is cheaper where there is one")
}

// checkRedis looks at one Redis and reports whether it can be asked.
func checkRedis(ctx context.Context, cfg config.Config, o Options, l *list) bool {
	var encryption shown
	client, err := redisdb.Open(cfg.RedisURL, redisdb.Options{Name: o.Name, Certs: encryption.store()})
	if err != nil {
		l.fail("reachable", err.Error(), "mend ROLLBACKD_REDIS_URL")
		return false
	}
	defer func() { _ = client.Close() }() // nothing is left in it
	checkSentinels(ctx, cfg, o, l)
	if err := client.Ping(ctx).Err(); redis.HasErrorPrefix(err, "NOPERM") {
		l.fail("right", err.Error(), redisAdvice)
		return false
	} else if err != nil {
		advice := orCertificates(err, "is it running there, and is the password right? ROLLBACKD_REDIS_URL is "+o.Redis)
		if redis.HasErrorPrefix(err, "This instance has cluster support disabled") {
			advice = "leave cluster=true out of ROLLBACKD_REDIS_URL: this is no cluster"
		}
		if cfg.LockOnError == config.LockOnErrorPause {
			l.fail("reachable", err.Error(), advice)
		} else {
			l.warn("reachable", err.Error()+"; the daemon goes on without it", advice)
		}
		return false
	}
	l.ok("reachable", o.Redis)
	encryption.check(l, redisdb.Hosts(cfg.RedisURL), redisdb.TLSSetting, "ROLLBACKD_REDIS_URL", "write rediss://")
	if cluster, ok := client.(*redis.ClusterClient); ok {
		checkCluster(ctx, cluster, l)
	} else {
		checkRedisInfo(ctx, client, l, checkMode)
	}
	checkCommands(ctx, client, l)
	return true
}

// redisAdvice is what to do about a command or a key that an account may not use.
const redisAdvice = "allow it in the account's ACL: " + rightsPage + " has the line"

// checkCommands tries each command that the daemon and the command line use, on a key of its own. A lock would tell
// of some only: a right that its scripts lack leaves locks behind which nobody renews or releases.
func checkCommands(ctx context.Context, client redis.UniversalClient, l *list) {
	key := strings.TrimSuffix(rights.RedisKeys, "*") + "doctor:" + uuid.NewString()
	commands, lacking := rights.Redis(rights.Daemon, rights.CLI), 0
	for _, c := range commands {
		args := c.Try(key)
		if args == nil {
			continue
		}
		if err := client.Do(ctx, args...).Err(); err != nil && redis.HasErrorPrefix(err, "NOPERM") {
			lacking++
			if slices.Contains(c.By, rights.Daemon) {
				l.fail("right", c.Name+" ("+c.For+"): "+err.Error(), redisAdvice)
			} else {
				l.warn("right", c.Name+" ("+c.For+"): "+err.Error(), redisAdvice)
			}
		}
	}
	if lacking == 0 {
		l.ok("rights", "all commands that are needed")
	}
}

// checkRedisInfo looks at what one server says of itself. mode says whether it is one that can be asked like that.
func checkRedisInfo(
	ctx context.Context, client redis.UniversalClient, l *list, mode func(field func(name string) string, l *list),
) {
	info, err := client.Info(ctx).Result()
	if err != nil {
		l.note("version and memory", "not shown: "+err.Error())
		return
	}
	field := func(name string) string {
		for line := range strings.Lines(info) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
				return value
			}
		}
		return ""
	}
	mode(field, l)
	version, kind := field("redis_version"), "Redis"
	if v := field("valkey_version"); v != "" {
		version, kind = v, "Valkey"
	}
	major, err := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
	switch {
	case err != nil:
		l.note("version", "unknown: "+strconv.Quote(version))
	case major < 7:
		l.fail("version", kind+" "+version, "use Redis 7 or later: the lock needs SET with NX and GET together")
	default:
		l.ok("version", kind+" "+version)
	}
	policy, limit := field("maxmemory_policy"), field("maxmemory_human")
	switch {
	case policy == "":
		l.note("memory", "its limit and policy are not shown")
	case policy == "noeviction" || field("maxmemory") == "0":
		l.ok("memory", fmt.Sprintf("%s used, limit %s, policy %s", field("used_memory_human"), limit, policy))
	default:
		l.warn("memory", fmt.Sprintf("limit %s, policy %s: locks and done markers may be evicted, which costs work and "+
			"never an effect", limit, policy),
			"set maxmemory-policy noeviction, and a limit that holds 210 bytes × messages per second × ROLLBACKD_DONE_TTL")
	}
}

// takeAndRelease takes and releases a lock of its own, with the very commands of the daemon.
func takeAndRelease(ctx context.Context, servers locking.Servers, level Level, advice string, l *list) bool {
	const check = "lock"
	probe := uuid.NewString()
	locker, closer, err := locking.Open(ctx, servers, lock.Options{LockTTL: time.Second, OnError: lock.Pause})
	if err != nil {
		l.fail(check, err.Error(), "report this")
		return false
	}
	defer func() { _ = closer.Close() }() // nothing is left in it
	names := []lock.Name{lock.NameOf("doctor "+probe, "doctor", "doctor", probe)}
	held, err := locker.Lock(ctx, probe, names)
	if err == nil && held[0].Hold != lock.Mine {
		err = fmt.Errorf("a key that nobody else has is %v", held[0].Hold)
	}
	if err = errors.Join(err, locker.Release(ctx, probe, names)); err != nil {
		found := err.Error()
		if level == Warn {
			found += "; the daemon goes on without it"
		}
		l.add(level, check, found, orMode(err, advice))
		return false
	}
	l.ok(check, "taken and released")
	return true
}
