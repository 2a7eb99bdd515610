package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/lock"
)

// checkTogether compares settings with each other. A row is the setting that is refused, those that it is compared
// with, and when. What is bad by itself is left alone: one mistake, one line.
func (c *Config) checkTogether() {
	need := c.needs
	retries, timeout, calls := c.longestWait(), shortDuration(c.HandlerTimeout), c.Handler == HandlerHTTP
	urls, redlock := len(redisdb.SplitURLs(c.RedisURL)), c.Lock == lock.KindRedlock && c.RedisURL != ""
	twice := redisdb.Twice(c.RedisURL)
	const fewest = 3 // masters: with two both are needed, and with one there is nothing to agree on
	need("PREFETCH", "BATCH_SIZE", c.Prefetch < c.BatchSize, "is less than BATCH_SIZE (%d), so that no batch could fill: "+
		"at least that is needed", c.BatchSize)
	need("LEASE", "HANDLER_TIMEOUT", c.Lease <= c.HandlerTimeout, "must be longer than HANDLER_TIMEOUT (%s), else a "+
		"second worker takes over while the first one runs", timeout)
	need("RETRY_DELAYS", "MAX_ATTEMPTS", len(c.RetryDelays) < c.MaxAttempts-1, "has too few delays (%d): MAX_ATTEMPTS "+
		"(%d) needs at least %d", len(c.RetryDelays), c.MaxAttempts, c.MaxAttempts-1)
	need("LOG_RETENTION", "RETRY_DELAYS", c.LogRetention > 0 && c.LogRetention <= retries, "must be longer than all "+
		"RETRY_DELAYS together (%s), else a success row goes before its last copy", shortDuration(retries))
	need("SQL_FILE", "HANDLER", c.Handler == HandlerSQL && c.SQLFile == "", "is needed by HANDLER=sql: the file with the "+
		"statements")
	need("EMIT", "HANDLER", c.Emit != "" && c.Handler != HandlerStock, "is an event of HANDLER=stock; another handler "+
		"puts its events into the outbox itself")
	need("HTTP_TARGET", "HANDLER", calls && c.HTTPTarget == "", "is needed by HANDLER=http: the URL of the service")
	need("HTTP_TIMEOUT", "HANDLER HANDLER_TIMEOUT", calls && c.HTTPTimeout > c.HandlerTimeout, "must be at most "+
		"HANDLER_TIMEOUT (%s)", timeout)
	need("HTTP_TLS_CERT_FILE", "HANDLER HTTP_TLS_KEY_FILE", calls && (c.HTTPTLSCertFile == "") != (c.HTTPTLSKeyFile == ""),
		"and HTTP_TLS_KEY_FILE belong together: set both or none")
	need("REDIS_URL", "LOCK", c.Lock == lock.KindRedis && urls > 1, "names %d servers that know nothing of each other: "+
		"LOCK=redlock asks several, LOCK=redis one", urls)
	need("REDIS_URL", "LOCK", redlock && (urls < fewest || urls%2 == 0), "names %d: LOCK=redlock needs an odd number of "+
		"masters that know nothing of each other, three or more, comma-separated", urls)
	need("REDIS_URL", "LOCK", redlock && twice != "", "names %s twice: the masters of LOCK=redlock must be different "+
		"servers, or one of them has two votes", twice)
	need("DEAD_LETTER_WEBHOOK_SECRET", "DEAD_LETTER_WEBHOOK", c.DeadLetterWebhook == "" && c.DeadLetterWebhookSecret != "",
		"is set, but there is no DEAD_LETTER_WEBHOOK that it could sign: set both or none")
	c.joinTLS()
	switch { // one of two ways to have no lock is left, and no Redis that nobody asks
	case !c.Lock.InRedis():
		c.RedisURL = ""
	case c.RedisURL == "":
		c.Lock = lock.KindOff
	}
}

// needs refuses the setting with the key when something is broken, unless it or one of the others is bad by itself.
func (c *Config) needs(key, others string, broken bool, format string, args ...any) {
	if broken && c.good(append(strings.Fields(others), key)...) {
		c.of(key).refuse(format, args...)
	}
}

// good reports whether nothing is wrong with any of these settings.
func (c *Config) good(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return c.of(key).wrong != "" })
}

// longestWait is how long a message waits for all its attempts.
func (c *Config) longestWait() (all time.Duration) {
	for _, d := range c.RetryDelays {
		all += d
	}
	return all
}

// warnings collects what is told of combinations that work.
type warnings []Warning

func (w *warnings) add(key string, when bool, what, do string) {
	if when {
		*w = append(*w, Warning{Prefix + key, what, do})
	}
}

// doubts are combinations that work, but hardly as meant.
func (c *Config) doubts() (w warnings) {
	const shortToken, none = 16, "has no effect: "
	noHandler, noLock := none+"HANDLER is "+c.Handler, none+"LOCK is "+string(c.Lock)
	redis, noRedis := c.of("REDIS_URL").raw, noLock
	if redis == offWord {
		noRedis = none + "REDIS_URL is " + offWord
	}
	w.add("DRAIN_TIMEOUT", c.DrainTimeout < c.HandlerTimeout, "is shorter than HANDLER_TIMEOUT ("+
		shortDuration(c.HandlerTimeout)+"): a stop may cut a running handler off, its messages are then delivered again", "")
	w.add("SQL_FILE", c.SQLFile != "" && c.Handler != HandlerSQL, noHandler, "")
	w.add("HTTP_TARGET", c.HTTPTarget != "" && c.Handler != HandlerHTTP, noHandler, "")
	w.add("REDIS_URL", redis != "" && redis != offWord && c.RedisURL == "", noLock, "")
	w.add("ZOOKEEPER_URL", c.ZooKeeperURL != "" && c.Lock != lock.KindZooKeeper, noLock, "")
	for _, key := range c.encrypted()[2].settings() {
		w.add(key, c.RedisURL == "" && c.of(key).raw != "", noRedis, "")
	}
	w.add("ADMIN_TOKEN", c.AdminToken != "" && len(c.AdminToken) < shortToken, fmt.Sprintf("has fewer than %d "+
		"characters: whoever guesses it can replay and discard messages", shortToken), "")
	w.add("ADMIN_PROXY", c.AdminProxy.Header != "" && c.HTTPAddr == "", none+"HTTP_ADDR is off", "")
	return w
}

// Remarks are what a check of an installation says of the settings beside the warnings of Load, and what to do.
func (c Config) Remarks() []Warning {
	longest := c.longestWait() + time.Duration(c.MaxReplays)*c.CompensateAfter
	var w warnings
	w.add("DRAIN_TIMEOUT", c.DrainTimeout < c.HandlerTimeout, fmt.Sprintf("%v is shorter than ROLLBACKD_HANDLER_TIMEOUT, "+
		"%v", c.DrainTimeout, c.HandlerTimeout), "make it longer, and the time that your supervisor waits before it kills "+
		"too: else a stop may end with exit code 1 (nothing is lost)")
	w.add("MAX_DEAD_RATE", !c.Brakes(), "off: a broken deployment dead-letters everything",
		"set it, for example to 100/60s")
	w.add("LOCK_ON_ERROR", c.Lock == lock.KindOff && c.LockOnError == lock.Pause, "pause has no effect, because there is "+
		"no lock: ROLLBACKD_LOCK or ROLLBACKD_REDIS_URL is off", "leave it out")
	w.add("LOG_RETENTION", c.LogRetention > 0 && longest > c.LogRetention, fmt.Sprintf("%v is shorter than a message may "+
		"live by retries and automatic replays, %v", c.LogRetention, longest),
		"make it longer: a success row must outlive every copy of its message")
	w.add("LEASE", c.Lease < c.HandlerTimeout*3/2, fmt.Sprintf("%v is hardly longer than ROLLBACKD_HANDLER_TIMEOUT, %v",
		c.Lease, c.HandlerTimeout), "make it at least one and a half times as long: a slow commit loses the lease, and the "+
		"attempt with it")
	return w
}
