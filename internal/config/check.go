package config

import (
	"slices"
	"strconv"
	"time"

	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/lock"
)

// checkTogether compares settings with each other. A pair with a bad member is left alone: one mistake, one line.
func (c *Config) checkTogether() {
	good := func(keys ...string) bool {
		return !slices.ContainsFunc(keys, func(key string) bool { return c.of(key).wrong != "" })
	}
	if good("BATCH_SIZE", "PREFETCH") && c.Prefetch < c.BatchSize {
		c.of("PREFETCH").refuse("is less than BATCH_SIZE (%d), so that no batch could fill: at least that is needed",
			c.BatchSize)
	}
	if good("LEASE", "HANDLER_TIMEOUT") && c.Lease <= c.HandlerTimeout {
		c.of("LEASE").refuse("must be longer than HANDLER_TIMEOUT (%s), else a second worker takes over while the first "+
			"one runs",
			shortDuration(c.HandlerTimeout))
	}
	if good("MAX_ATTEMPTS", "RETRY_DELAYS") && len(c.RetryDelays) < c.MaxAttempts-1 {
		c.of("RETRY_DELAYS").refuse("has too few delays (%d): MAX_ATTEMPTS (%d) needs at least %d",
			len(c.RetryDelays), c.MaxAttempts, c.MaxAttempts-1)
	}
	if good("LOG_RETENTION", "RETRY_DELAYS") && c.LogRetention > 0 {
		var longest time.Duration
		for _, d := range c.RetryDelays {
			longest += d
		}
		if c.LogRetention <= longest {
			c.of("LOG_RETENTION").refuse(
				"must be longer than all RETRY_DELAYS together (%s), else a success row goes before its last copy",
				shortDuration(longest))
		}
	}
	if good("HANDLER", "SQL_FILE") && c.Handler == HandlerSQL && c.SQLFile == "" {
		c.of("SQL_FILE").refuse("is needed by HANDLER=sql: the file with the statements")
	}
	c.checkHTTP(good)
	c.joinTLS(good)
	if good("LOCK", "REDIS_URL") {
		c.joinLock()
	}
	if good("DEAD_LETTER_WEBHOOK", "DEAD_LETTER_WEBHOOK_SECRET") && c.DeadLetterWebhook == "" &&
		c.DeadLetterWebhookSecret != "" {
		c.of("DEAD_LETTER_WEBHOOK_SECRET").refuse(
			"is set, but there is no DEAD_LETTER_WEBHOOK that it could sign: set both or none")
	}
}

// joinLock leaves one of two ways in which there may be no lock, and no Redis that nobody asks.
func (c *Config) joinLock() {
	url := c.of("REDIS_URL")
	const fewest = 3 // with two both are needed, and with one there is nothing to agree on
	urls := len(redisdb.SplitURLs(c.RedisURL))
	switch {
	case !c.Lock.InRedis():
		c.RedisURL = ""
	case c.Lock == lock.KindRedis && urls > 1:
		url.refuse("names %d servers that know nothing of each other: LOCK=redlock asks several, LOCK=redis one", urls)
	case c.Lock == lock.KindRedlock && c.RedisURL != "" && (urls < fewest || urls%2 == 0):
		url.refuse("names %d: LOCK=redlock needs an odd number of masters that know nothing of each other, three or more, "+
			"comma-separated", urls)
	case c.Lock == lock.KindRedlock && redisdb.Twice(c.RedisURL) != "":
		url.refuse("names %s twice: the masters of LOCK=redlock must be different servers, or one of them has two votes",
			redisdb.Twice(c.RedisURL))
	case c.RedisURL == "":
		c.Lock = lock.KindOff
	}
}

// checkHTTP compares the settings of handler http.
func (c *Config) checkHTTP(good func(...string) bool) {
	if c.Handler != HandlerHTTP || !good("HANDLER") {
		return
	}
	if good("HTTP_TARGET") && c.HTTPTarget == "" {
		c.of("HTTP_TARGET").refuse("is needed by HANDLER=http: the URL of the service")
	}
	if good("HTTP_TIMEOUT", "HANDLER_TIMEOUT") && c.HTTPTimeout > c.HandlerTimeout {
		c.of("HTTP_TIMEOUT").refuse("must be at most HANDLER_TIMEOUT (%s)", shortDuration(c.HandlerTimeout))
	}
	if good("HTTP_TLS_CERT_FILE", "HTTP_TLS_KEY_FILE") && (c.HTTPTLSCertFile == "") != (c.HTTPTLSKeyFile == "") {
		c.of("HTTP_TLS_CERT_FILE").refuse("and HTTP_TLS_KEY_FILE belong together: set both or none")
	}
}

// doubts are combinations that work, but hardly as meant.
func (c *Config) doubts() []Warning {
	var doubts []Warning
	if c.DrainTimeout < c.HandlerTimeout {
		doubts = append(doubts, Warning{Variable: Prefix + "DRAIN_TIMEOUT", What: "is shorter than HANDLER_TIMEOUT (" +
			shortDuration(c.HandlerTimeout) + "): a stop may cut a running handler off, its messages are then delivered again"})
	}
	if c.SQLFile != "" && c.Handler != HandlerSQL {
		doubts = append(doubts, Warning{Variable: Prefix + "SQL_FILE", What: "has no effect: HANDLER is " + c.Handler})
	}
	if c.HTTPTarget != "" && c.Handler != HandlerHTTP {
		doubts = append(doubts, Warning{Variable: Prefix + "HTTP_TARGET", What: "has no effect: HANDLER is " + c.Handler})
	}
	if url := c.of("REDIS_URL"); url.raw != "" && url.raw != offWord && c.RedisURL == "" {
		doubts = append(doubts, Warning{Variable: url.Name, What: "has no effect: LOCK is " + string(c.Lock)})
	}
	if c.ZooKeeperURL != "" && c.Lock != lock.KindZooKeeper {
		doubts = append(doubts, Warning{Variable: Prefix + "ZOOKEEPER_URL", What: "has no effect: LOCK is " + string(c.Lock)})
	}
	doubts = append(doubts, c.idleTLS()...)
	const shortToken = 16
	if n := len(c.AdminToken); n > 0 && n < shortToken {
		doubts = append(doubts, Warning{Variable: Prefix + "ADMIN_TOKEN", What: "has fewer than " + strconv.Itoa(shortToken) +
			" characters: whoever guesses it can replay and discard messages"})
	}
	if c.AdminProxy.Header != "" && c.HTTPAddr == "" {
		doubts = append(doubts, Warning{Variable: Prefix + "ADMIN_PROXY", What: "has no effect: HTTP_ADDR is off"})
	}
	return doubts
}
