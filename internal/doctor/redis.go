package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
)

func checkRedis(ctx context.Context, cfg config.Config, o Options, l *list) {
	if cfg.RedisURL == "" {
		l.note("lock", "ROLLBACKD_REDIS_URL is off: every duplicate costs MySQL a query; the promise holds without a lock")
		return
	}
	client, err := dedup.OpenRedis(cfg.RedisURL, dedup.RedisOptions{Name: o.Name})
	if err != nil {
		l.fail("reachable", err.Error(), "mend ROLLBACKD_REDIS_URL")
		return
	}
	defer func() { _ = client.Close() }() // nothing is left in it
	if err := client.Ping(ctx).Err(); err != nil {
		const advice = "is it running there, and is the password right? ROLLBACKD_REDIS_URL is "
		if cfg.LockOnError == config.LockOnErrorPause {
			l.fail("reachable", err.Error(), advice+o.Redis)
		} else {
			l.warn("reachable", err.Error()+"; the daemon goes on without it", advice+o.Redis)
		}
		return
	}
	l.ok("reachable", o.Redis)
	checkRedisInfo(ctx, client, l)
	checkLock(ctx, client, l)
}

func checkRedisInfo(ctx context.Context, client redis.UniversalClient, l *list) {
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
		l.warn("memory", fmt.Sprintf("limit %s, policy %s: locks and done markers may be evicted, which costs work and never an effect", limit, policy),
			"set maxmemory-policy noeviction, and a limit that holds 210 bytes × messages per second × ROLLBACKD_DONE_TTL")
	}
}

// checkLock takes and releases a lock of its own, with the very commands of the daemon.
func checkLock(ctx context.Context, client redis.UniversalClient, l *list) {
	const name = "lock"
	probe := uuid.NewString()
	lock, err := dedup.NewRedisLock(client, dedup.RedisLockOptions{SchemaID: "doctor " + probe, LockTTL: time.Second, OnError: dedup.LockPause})
	if err != nil {
		l.fail(name, err.Error(), "report this")
		return
	}
	keys := []dedup.LockKey{lock.LockKey(dedup.Key{Group: "doctor", Tag: "doctor", Name: probe})}
	held, err := lock.Lock(ctx, probe, keys)
	if err == nil && held[0].Hold != dedup.Mine {
		err = fmt.Errorf("a key that nobody else has is %v", held[0].Hold)
	}
	if err = errors.Join(err, lock.Release(ctx, probe, keys)); err != nil {
		l.fail(name, err.Error(), "the user needs get, set, eval and pttl on keys rollbackd:*")
		return
	}
	l.ok(name, "taken and released")
}
