package doctor

import (
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/lock"
)

// mysqlConnections is how many connections of MySQL a daemon with these settings has at most: those of its engine,
// those of what persons do and look at, and those with which the pages look at a lock in MySQL.
func mysqlConnections(cfg config.Config) int {
	n := cfg.MySQLConnections()
	if cfg.HTTPAddr != "" {
		n += operator.Connections + view.Connections
		if cfg.Lock == lock.KindMySQL {
			n += view.Connections
		}
	}
	return n
}

// redisConnections is the same for the lock in Redis, with one node for each URL.
func redisConnections(cfg config.Config) int {
	servers := cfg.LockServers("")
	if servers.None() || !servers.Kind.InRedis() {
		return 0
	}
	each := cfg.Lanes + 4 // as the engine has
	if cfg.HTTPAddr != "" {
		each += view.Connections
	}
	return each * len(redisdb.SplitURLs(servers.RedisURL))
}
