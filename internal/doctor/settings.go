package doctor

import (
	"fmt"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/config"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/lock"
)

// checkSettings looks at what settings mean together; each by itself was checked when they were read.
func checkSettings(cfg config.Config, l *list) {
	before := len(l.checks)
	if cfg.DrainTimeout < cfg.HandlerTimeout {
		l.warn("ROLLBACKD_DRAIN_TIMEOUT", fmt.Sprintf("%v is shorter than ROLLBACKD_HANDLER_TIMEOUT, %v", cfg.DrainTimeout,
			cfg.HandlerTimeout),
			"make it longer, and the time that your supervisor waits before it kills too: else a stop may end with exit code "+
				"1 (nothing is lost)")
	}
	if !cfg.Brakes() {
		l.warn("ROLLBACKD_MAX_DEAD_RATE", "off: a broken deployment dead-letters everything", "set it, for example to "+
			"100/60s")
	}
	if cfg.Lock == lock.KindOff && cfg.LockOnError == config.LockOnErrorPause {
		l.warn("ROLLBACKD_LOCK_ON_ERROR", "pause has no effect, because there is no lock: ROLLBACKD_LOCK or "+
			"ROLLBACKD_REDIS_URL is off", "leave it out")
	}
	if cfg.Handler == config.HandlerSQL {
		if _, err := sqlhandler.Load(cfg.SQLFile, cfg.OwnTables()); err != nil {
			l.fail("ROLLBACKD_SQL_FILE", err.Error(), "mend the file: run refuses to start")
		}
	}
	longest := time.Duration(0)
	for _, d := range cfg.RetryDelays {
		longest += d
	}
	longest += time.Duration(cfg.MaxReplays) * cfg.CompensateAfter
	if cfg.LogRetention > 0 && longest > cfg.LogRetention {
		l.warn("ROLLBACKD_LOG_RETENTION", fmt.Sprintf("%v is shorter than a message may live by retries and automatic "+
			"replays, %v", cfg.LogRetention, longest),
			"make it longer: a success row must outlive every copy of its message")
	}
	if cfg.Lease < cfg.HandlerTimeout*3/2 {
		l.warn("ROLLBACKD_LEASE", fmt.Sprintf("%v is hardly longer than ROLLBACKD_HANDLER_TIMEOUT, %v", cfg.Lease,
			cfg.HandlerTimeout),
			"make it at least one and a half times as long: a slow commit loses the lease, and the attempt with it")
	}
	if len(l.checks) == before {
		l.ok("together", "they go together")
	}
}

// files is how many file descriptors a daemon may need at once: pools of MySQL and of the lock, two connections to
// RabbitMQ, the pages, and what the process has anyway.
func files(cfg config.Config) uint64 {
	return uint64(mysqlConnections(cfg) + redisConnections(cfg) + 2 + 64)
}

func checkHost(cfg config.Config, l *list) {
	const name = "file descriptors"
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		l.note(name, "their limit is not shown: "+err.Error())
		return
	}
	need := files(cfg)
	found := fmt.Sprintf("%d allowed, a daemon with these settings may need %d", limit.Cur, need)
	switch {
	case limit.Cur < need:
		l.fail(name, found, "raise the limit (ulimit -n, LimitNOFILE=), or use fewer ROLLBACKD_LANES")
	case limit.Cur < 2*need:
		l.warn(name, found, "raise the limit (ulimit -n, LimitNOFILE=)")
	default:
		l.ok(name, found)
	}
}
