package config

import "time"

// Prefix begins the name of every variable.
const Prefix = "ROLLBACKD_"

// fileSuffix after a variable's name names a file that holds the value.
const fileSuffix = "_FILE"

// offWord switches off what can be switched off.
const offWord = "off"

// Variable describes one setting: for the documentation, for error messages and for `config`.
type Variable struct {
	Name     string // with prefix
	Default  string // as text; empty when there is none
	Range    string // which values are allowed
	Meaning  string // one line
	Example  string // a good value
	Secret   bool   // the value, or a part of it, is masked wherever it is shown
	Required bool   // Load refuses to go on without it

	key   string // Name without prefix, the env tag of the Config field
	empty bool   // set but empty is a meaningful value: none
	off   bool   // "off" is a value: the field stays zero
	given bool   // Default is computed from other settings, so it is not parsed
	rule  rule
}

// Variables lists every setting in the order of the documentation.
func Variables() []Variable {
	all := append(connections(), naming()...)
	all = append(all, working()...)
	all = append(all, operating()...)
	for i := range all {
		all[i].Name, all[i].Range = Prefix+all[i].key, all[i].rule.text
	}
	return all
}

func connections() []Variable {
	return []Variable{
		{key: "AMQP_URL", Required: true, Secret: true, rule: amqpURLs(), Example: "amqp://rollbackd:password@rabbitmq:5672/",
			Meaning: "RabbitMQ; several URLs are tried in turn"},
		{key: "MYSQL_DSN", Required: true, Secret: true, rule: mysqlDSN(), Example: "rollbackd:password@tcp(mysql:3306)/shop",
			Meaning: "MySQL or MariaDB, the schema that holds the consumer log and the stock; settings that safety needs are forced"},
		{key: "REDIS_URL", Required: true, Secret: true, off: true, rule: redisURL(), Example: "redis://redis:6379/0",
			Meaning: "Redis for the lock; off works without a lock, the consumer log alone keeps the promise"},
	}
}

func naming() []Variable {
	return []Variable{
		{key: "GROUP", Default: "stock-rollback", rule: plainText(100), Example: "stock-rollback",
			Meaning: "first part of every identity; with another group everything is new again"},
		{key: "EXCHANGE", Default: "stock", rule: amqpName(), Example: "stock",
			Meaning: "durable topic exchange that producers publish to"},
		{key: "QUEUE", Default: "stock.rollback", rule: amqpName(), Example: "stock.rollback",
			Meaning: "main queue; the retry, dead-letter and backstop queues derive their names from it"},
		{key: "ROUTING_KEYS", Default: "stock.rollback", rule: routingKeys(), Example: "stock.rollback,order.cancelled",
			Meaning: "bind the main queue to the exchange"},
		{key: "KEY_FROM", Default: "header:x-message-key,property:message_id,body:sha256", rule: keyFrom(),
			Example: "header:x-message-key,json:/order_sn",
			Meaning: "where a message's key comes from, the first source that exists; with other sources identities change"},
		{key: "LOG_TABLE", Default: "consumer_log", rule: tableName(), Example: "consumer_log",
			Meaning: "table of the consumer log"},
		{key: "HANDLER", Default: HandlerStock, rule: words(HandlerStock), Example: HandlerStock,
			Meaning: "what is run for a message"},
		{key: "EMPTY_ROLLBACK", Default: EmptyRollbackRetry, rule: words(EmptyRollbackRetry, EmptyRollbackRefuse), Example: EmptyRollbackRefuse,
			Meaning: "a rollback without its reservation: an ordinary failure that is retried, or remembered so that the late reservation is refused"},
	}
}

func working() []Variable {
	return []Variable{
		{key: "MAX_ATTEMPTS", Default: "5", rule: ints(1, 100), Example: "5",
			Meaning: "runs of the handler before a message is dead-lettered"},
		{key: "RETRY_DELAYS", Default: "1s,5s,30s,2m", rule: retryDelays(), Example: "1s,5s,30s,2m",
			Meaning: "waits after the first, second, … failed attempt, a queue each; at least MAX_ATTEMPTS less one"},
		{key: "LANES", Default: "4", rule: ints(1, 256), Example: "4",
			Meaning: "batches worked on at once"},
		{key: "BATCH_SIZE", Default: "1000", rule: ints(1, 10_000), Example: "1000",
			Meaning: "deliveries that a lane takes into one transaction"},
		{key: "BATCH_LINGER", Default: "2ms", rule: durations(0, 10*time.Second), Example: "2ms",
			Meaning: "how long a lane waits for its batch to fill, at most; an idle one, half of it after the last delivery"},
		{key: "PREFETCH", Default: "2 × BATCH_SIZE", given: true, rule: ints(1, 65_535), Example: "2000",
			Meaning: "unacked deliveries per lane; at least BATCH_SIZE"},
		{key: "LEASE", Default: "30s", rule: durations(time.Second, time.Hour), Example: "30s",
			Meaning: "how long a claim protects its row; more than HANDLER_TIMEOUT"},
		{key: "HANDLER_TIMEOUT", Default: "10s", rule: durations(100*time.Millisecond, 10*time.Minute), Example: "10s",
			Meaning: "bounds one call of the handler"},
		{key: "LOCK_TTL", Default: "10s", rule: durations(time.Second, 10*time.Minute), Example: "10s",
			Meaning: "how long a dead worker's lock keeps others off a key; renewed at a third of it"},
		{key: "DONE_TTL", Default: "5m", rule: durations(time.Second, 24*time.Hour), Example: "5m",
			Meaning: "how long Redis remembers a done message, at about 210 bytes each (measured on Redis 7)"},
		{key: "LOCK_ON_ERROR", Default: LockOnErrorProceed, rule: words(LockOnErrorProceed, LockOnErrorPause), Example: LockOnErrorProceed,
			Meaning: "without Redis go on, or pause"},
	}
}

func operating() []Variable {
	return []Variable{
		{key: "DRAIN_TIMEOUT", Default: "25s", rule: durations(100*time.Millisecond, time.Hour), Example: "25s",
			Meaning: "bounds the finishing of what is in hand after SIGTERM"},
		{key: "MAX_DEAD_RATE", Default: "100/60s", off: true, rule: deadRate(), Example: "100/60s",
			Meaning: "more dead letters than this, and more than half of what was settled, pause consuming"},
		{key: "BRAKE_PAUSE", Default: "5m", rule: durations(time.Second, 24*time.Hour), Example: "5m",
			Meaning: "how long that pause lasts before one batch is tried"},
		{key: "HTTP_ADDR", Default: "127.0.0.1:8080", off: true, rule: listenAddr(), Example: "0.0.0.0:8080",
			Meaning: "where health, metrics and pages answer"},
		{key: "ADMIN_TOKEN", Secret: true, empty: true, rule: headerText(), Example: "a-long-random-word",
			Meaning: "asked for by pages, API and pprof; without one they answer to loopback only"},
		{key: "LOG_LEVEL", Default: "info", rule: words("debug", "info", "warn", "error"), Example: "debug",
			Meaning: "least level that is logged"},
		{key: "LOG_FORMAT", Default: LogFormatAuto, rule: words(LogFormatAuto, LogFormatText, LogFormatJSON), Example: LogFormatJSON,
			Meaning: "form of the log; auto is text on a terminal, else json"},
		{key: "LOG_RETENTION", Default: "720h", rule: zeroOr("keeps all", durations(24*time.Hour, 87_600*time.Hour)), Example: "720h",
			Meaning: "how long success and discarded rows are kept; must outlive every copy of a message, dead letters included"},
		{key: "MAX_REPLAYS", Default: "10", rule: ints(1, 1000), Example: "10",
			Meaning: "after so many replays a dead letter is parked: it stays until a person replays it with --force"},
		{key: "COMPENSATE_AFTER", Default: offWord, off: true, rule: offOr(durations(time.Second, 720*time.Hour)), Example: "15m",
			Meaning: "cool-down before a letter whose reason may pass (exhausted, crashed, delivery_limit) is replayed by itself; it doubles with every replay, up to a day"},
		{key: "DEAD_LETTER_WEBHOOK", Secret: true, empty: true, rule: webhookURL(), Example: "https://example.com/dead-letters",
			Meaning: "is told of new dead letters, as JSON; its answer must be 2xx"},
		{key: "DEAD_LETTER_WEBHOOK_SECRET", Secret: true, empty: true, rule: anyText(), Example: "another-long-random-word",
			Meaning: "signs what the webhook is told, with HMAC-SHA256"},
	}
}
