package doctor

import (
	"context"
	"fmt"

	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/config"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// lookAtSettings says what settings mean together; each by itself was checked when they were read.
func lookAtSettings(_ context.Context, a *area) {
	for _, r := range a.Remarks() {
		a.warn(r.Variable, r.What, r.Do)
	}
	if a.Handler == config.HandlerSQL {
		_, err := sqlhandler.Load(a.SQLFile, a.OwnTables())
		a.failed("ROLLBACKD_SQL_FILE", err, "mend the file: run refuses to start")
	}
	if a.ExpectedFile != "" {
		_, _, err := sqlhandler.LoadQuery(a.ExpectedFile, "after", "limit")
		a.failed("ROLLBACKD_EXPECTED_FILE", err, "mend the file, see docs/outbox.md: run refuses to start")
	}
	a.tell("together", okIf(len(a.checks) == 0, "they go together"))
}

// lookAtHost compares the file descriptors that the process may have with those that a daemon may need at once: pools
// of MySQL and of the lock, two connections to RabbitMQ, the pages, and what the process has anyway.
func lookAtHost(_ context.Context, a *area) {
	const name = "file descriptors"
	limit, err := server.OpenFiles()
	need := uint64(a.mysqlConnections() + a.redisConnections() + 2 + 64)
	found := fmt.Sprintf("%d allowed, a daemon with these settings may need %d", limit, need)
	a.tell(name, noteIf(err != nil, fmt.Sprintf("their limit is not shown: %v", err)),
		failIf(limit < need, found, "raise the limit (ulimit -n, LimitNOFILE=), or use fewer ROLLBACKD_LANES"),
		warnIf(limit < 2*need, found, "raise the limit (ulimit -n, LimitNOFILE=)"),
		fine(found))
}

// mysqlConnections is how many connections of MySQL a daemon with these settings has at most: those of its engine,
// those of what persons do and look at, and those with which the pages look at a lock in MySQL.
func (a *area) mysqlConnections() int {
	if a.ofRelay {
		return relay.Connections
	}
	n := a.MySQLConnections()
	if a.HTTPAddr != "" {
		n += operator.Connections + view.Connections
		if a.Lock == lock.KindMySQL {
			n += view.Connections
		}
	}
	return n
}

// redisConnections is the same for the lock in Redis, with one node for each URL.
func (a *area) redisConnections() int {
	servers := a.LockServers("")
	if servers.None() || !servers.Kind.InRedis() {
		return 0
	}
	each := a.Lanes + 4 // as the engine has
	for _, other := range a.All()[1:] {
		each += other.Lanes
	}
	if a.HTTPAddr != "" {
		each += view.Connections
	}
	return each * len(redisdb.SplitURLs(servers.RedisURL))
}
