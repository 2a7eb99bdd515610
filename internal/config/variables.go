package config

import (
	"cmp"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/limits"
	"github.com/rollbackd/rollbackd/lock"
)

// Prefix begins the name of every variable.
const Prefix = "ROLLBACKD_"

// fileSuffix after a variable's name names a file that holds the value.
const fileSuffix = "_FILE"

// offWord switches off what can be switched off.
const offWord = "off"

const onWord = "on"

// Variable is one setting: what it is called, what it may be, where its value goes and what of it is a secret.
type Variable struct {
	Name     string // with prefix
	Default  string // as text; empty when there is none
	Range    string // which values are allowed
	Meaning  string // one line
	Example  string // a good value; Default, unless the row has another
	Required bool   // Load refuses to go on without it, unless needless says that nobody asks for it

	key    string                                   // Name without prefix
	read   func(raw string) (put func(), err error) // its rule; put gives the field the value
	secret *secrecy                                 // what of the value is masked wherever it is shown; nil: nothing
	empty  bool                                     // set but empty is a meaningful value: none
	// by says where it is required, for the documentation; empty: everywhere, or nearly.
	by string
	// needless reports that a setting before this one has made it so; nil: never.
	needless func() bool
	// computed is the default, when it follows from settings before this one; Default only describes it then.
	computed func() string

	// What Load found.
	raw   string // empty also when there is no text
	from  Source
	path  string // the file, when from is FromFile
	wrong string // what is wrong, completes the sentence "NAME=value …"; then no further check looks at it
}

// row is a setting that is read by the rule into the field.
func row[T any](key string, r rule[T], field *T, meaning string) Variable {
	return rowTo(key, r, func(v T) { *field = v }, meaning)
}

func rowTo[T any](key string, r rule[T], put func(T), meaning string) Variable {
	read := func(raw string) (func(), error) {
		v, err := r.read(raw)
		return func() { put(v) }, err
	}
	return Variable{Name: Prefix + key, key: key, Default: r.standard, Range: r.text, Meaning: meaning, read: read}
}

// byDefault gives a setting its default, if its rule has none.
func (v Variable) byDefault(standard string) Variable {
	v.Default = standard
	return v
}

// example gives it an example that is not its default.
func (v Variable) example(text string) Variable {
	v.Example = text
	return v
}

// optional may be set to nothing at all.
func (v Variable) optional(example string) Variable {
	v.empty, v.Example = true, example
	return v
}

// needed is required, unless needless says that nobody asks for it.
func (v Variable) needed(example string, needless func() bool) Variable {
	v.Required, v.Example, v.needless = true, example, needless
	return v
}

func (v Variable) hides(what *secrecy) Variable {
	v.secret = what
	return v
}

// Variables lists every setting in the order of the documentation.
func Variables() []Variable { return variables(new(Config)) }

// variables are the settings, bound to the fields of c.
func variables(c *Config) []Variable {
	all := slices.Concat(connections(c), encrypting(c), naming(c), calling(c), working(c), operating(c))
	for i := range all {
		all[i].Example = cmp.Or(all[i].Example, all[i].Default)
	}
	return all
}

// standard is what the engine takes for what it is not told.
var standard = consumer.Defaults()

func connections(c *Config) []Variable {
	zookeeper := row("ZOOKEEPER_URL", zooKeeperURL(), &c.ZooKeeperURL,
		"with LOCK=zookeeper: its servers, and the folder under which the locks stand")
	zookeeper.by = "with LOCK=zookeeper"
	return []Variable{
		row("AMQP_URL", amqpURLs(), &c.AMQPURLs, "RabbitMQ; several URLs are tried in turn").
			needed("amqp://rollbackd:password@rabbitmq:5672/", nil).hides(urlLogins),
		row("MYSQL_DSN", mysqlDSN(), &c.MySQLDSN, "MySQL or MariaDB, the schema that holds the consumer log and the stock; "+
			"settings that safety needs are forced").
			needed("rollbackd:password@tcp(mysql:3306)/shop", nil).hides(dsnLogin),
		row("LOCK", words(lock.Kinds()...), &c.Lock, "on what the lock stands that keeps two workers off one message: "+
			"docs/guarantees.md says what each gives. It never decides: off works without a lock, the consumer log alone keeps "+
			"the promise").byDefault(string(standard.Lock)),
		row("REDIS_URL", redisURL(), &c.RedisURL, "with LOCK=redis: Redis for the lock; off is LOCK=off. With LOCK=redlock: "+
			"three masters or more that know nothing of each other").
			needed("redis://redis:6379/0", func() bool { return !c.Lock.InRedis() }).hides(urlLogins),
		zookeeper.needed("zookeeper://zk1:2181,zk2:2181,zk3:2181/rollbackd",
			func() bool { return c.Lock != lock.KindZooKeeper }).hides(urlLogins),
	}
}

// encrypting are the certificates for the three servers: the same four for each.
func encrypting(c *Config) (all []Variable) {
	for _, s := range c.encrypted() {
		key, file := s.key+"_TLS_", "/etc/rollbackd/"+strings.ToLower(s.name)
		all = append(all,
			row(key+"CA_FILE", fileName(), &s.tls.CA, "who signs "+s.name+"'s certificate, in place of the system's list; read "+
				"again before each connection, see docs/tls.md").optional(file+"-ca.pem"),
			row(key+"CERT_FILE", fileName(), &s.tls.Cert, "the client certificate for "+s.name+" and its chain; read again "+
				"before each connection").optional(file+"-client.pem"),
			row(key+"KEY_FILE", fileName(), &s.tls.Key, "the key of that certificate").optional(file+"-client-key.pem"),
			row(key+"SERVER_NAME", serverName(), &s.tls.ServerName, "the name that "+s.name+"'s certificate must have, if it "+
				"is not the host's").optional(strings.ToLower(s.name)+".example.com"))
	}
	return all
}

func naming(c *Config) []Variable {
	return []Variable{
		// The library's defaults of group and routing keys follow the name of its queue. The daemon keeps its own: the rows
		// and bindings of installations have these names, and in another group everything would be new again.
		row("GROUP", group(), &c.Group, "first part of every identity; with another group everything is new again").
			byDefault("stock-rollback"),
		row("EXCHANGE", amqpName(), &c.Exchange, "durable topic exchange that producers publish to").
			byDefault(standard.Exchange),
		row("QUEUE", amqpName(), &c.Queue, "main queue; the retry, dead-letter and backstop queues derive their names from "+
			"it").byDefault(standard.Queue),
		row("ROUTING_KEYS", routingKeys(), &c.RoutingKeys, "bind the main queue to the exchange").
			byDefault("stock.rollback").example("stock.rollback,order.cancelled"),
		row("QUEUES", queueNames(), &c.Queues, "several queues in one daemon, by names of your own: ROLLBACKD_NAME__X says "+
			"X for one of them, see docs/settings.md#several-queues").optional("stock"),
		row("TOPOLOGY", words(consumer.TopologyDeclare, consumer.TopologyCheck), &c.Topology, "the main queue is declared "+
			"with what it needs and bound, or taken as it is: see docs/adopting.md").
			byDefault(string(standard.Topology)).example(string(consumer.TopologyCheck)),
		row("RABBITMQ_API_URL", managementURL(), &c.RabbitMQAPIURL, "RabbitMQ's management API, with which a main queue "+
			"that is taken as it is, is looked at; needs a user with the tag monitoring").
			optional("http://rollbackd:password@rabbitmq:15672").hides(urlPath),
		row("KEY_FROM", keyFrom(), &c.KeyFrom, "where a message's key comes from, the first source that exists; with other "+
			"sources identities change").byDefault(standard.KeyFrom).example("header:x-message-key,json:/order_sn"),
		row("LOG_TABLE", tableName(), &c.LogTable, "table of the consumer log").byDefault(standard.LogTable),
		row("HANDLER", words(HandlerStock, HandlerSQL, HandlerHTTP), &c.Handler, "what is run for a message: the built-in "+
			"stock rollback, statements of your own, or a service of your own").byDefault(HandlerStock).example(HandlerSQL),
		row("SQL_FILE", fileName(), &c.SQLFile, "with HANDLER=sql: the file with the statements, see docs/handlers.md").
			optional("/etc/rollbackd/handler.sql"),
		row("OUTBOX", choice([]string{onWord, offWord}, []bool{true, false}), &c.Outbox, "the relay of the outbox works "+
			"within `run`, and `migrate` makes its table; without it `rollbackd relay` is a process of its own").
			byDefault(offWord).example(onWord),
		row("EXPECTED_FILE", fileName(), &c.ExpectedFile, "the file with a SELECT of the messages that should have come, "+
			"for pages and API: see docs/outbox.md").optional("/etc/rollbackd/cancelled.sql"),
		row("EMPTY_ROLLBACK", words(EmptyRollbackRetry, EmptyRollbackRefuse), &c.EmptyRollback, "a rollback without its "+
			"reservation: an ordinary failure that is retried, or remembered so that the late reservation is refused, with a "+
			"message without items any of its order").byDefault(EmptyRollbackRetry).example(EmptyRollbackRefuse),
		row("EMIT", choice([]string{EmitStockReleased, offWord}, []string{EmitStockReleased, ""}), &c.Emit, "with "+
			"HANDLER=stock: the event that is put into the outbox for each message that gives something back, see "+
			"docs/handlers.md").byDefault(offWord).example(EmitStockReleased),
	}
}

// calling are the settings of handler http.
func calling(c *Config) []Variable {
	return []Variable{
		row("HTTP_TARGET", httpTarget(), &c.HTTPTarget, "with HANDLER=http: the URL to which each message is posted, see "+
			"docs/handlers.md").optional("https://stock.example.com/rollbacks").hides(urlPath),
		row("HTTP_TIMEOUT", durations(limits.HTTPTimeout), &c.HTTPTimeout, "bounds one call with its answer; at most "+
			"HANDLER_TIMEOUT"),
		row("HTTP_CONCURRENCY", ints(limits.HTTPConcurrency), &c.HTTPConcurrency, "calls that this process makes at once, "+
			"at most"),
		row("HTTP_TOKEN", headerText(), &c.HTTPToken, "sent with each call, as Authorization: Bearer").
			optional("a-long-random-word").hides(wholeText),
		row("HTTP_HMAC_SECRET", webhookSecrets(), &c.HTTPHMACSecret, "signs each call as the webhook's is signed; two while "+
			"one is changed for the other: both sign").optional("another-long-random-word").hides(textLines),
		row("HTTP_TLS_CA_FILE", fileName(), &c.HTTPTLSCAFile, "who signs the service's certificate, in place of the "+
			"system's list; read again when it is changed").optional("/etc/rollbackd/ca.pem"),
		row("HTTP_TLS_CERT_FILE", fileName(), &c.HTTPTLSCertFile, "the client certificate and its chain; read again when it "+
			"is changed").optional("/etc/rollbackd/client.pem"),
		row("HTTP_TLS_KEY_FILE", fileName(), &c.HTTPTLSKeyFile, "the key of the client certificate").
			optional("/etc/rollbackd/client-key.pem"),
	}
}

func working(c *Config) []Variable {
	prefetch := row("PREFETCH", ints(limits.Prefetch), &c.Prefetch, "unacked deliveries per lane, at most; at least "+
		"BATCH_SIZE. A batch takes half of it at most").byDefault("2 × BATCH_SIZE").example("2000")
	prefetch.computed = func() string { return strconv.Itoa(2 * c.BatchSize) }
	return []Variable{
		row("MAX_ATTEMPTS", ints(limits.MaxAttempts), &c.MaxAttempts, "runs of the handler before a message is "+
			"dead-lettered"),
		row("RETRY_DELAYS", retryDelays(), &c.RetryDelays, "waits after the first, second, … failed attempt, a queue each; "+
			"at least MAX_ATTEMPTS less one"),
		row("MAX_DELAY", durations(limits.MaxDelay), &c.MaxDelay, "the longest wait that a handler, or the Retry-After of "+
			"a service, may ask for"),
		row("LANES", ints(limits.Lanes), &c.Lanes, "batches worked on at once"),
		row("BATCH_SIZE", ints(limits.BatchSize), &c.BatchSize, "deliveries that a lane takes into one transaction"),
		row("BATCH_LINGER", durations(limits.BatchLinger).or(isNought, consumer.Off), &c.BatchLinger, "how long a lane "+
			"waits for its batch to fill, at most (behind a replay's 20ms, unless it is 0); an idle one, half of it after the "+
			"last delivery"),
		prefetch,
		row("MEMORY_BUDGET", sizes(limits.MemoryBudget), &c.MemoryBudget, "memory for the deliveries in hand of all lanes; "+
			"fewer are taken when they are large. A larger body comes through alone"),
		row("LEASE", durations(limits.Lease), &c.Lease, "how long a claim protects its row; more than HANDLER_TIMEOUT"),
		row("HANDLER_TIMEOUT", durations(limits.HandlerTimeout), &c.HandlerTimeout, "bounds one call of the handler; a wait "+
			"for somebody else's lock in MySQL, half of it"),
		row("LOCK_TTL", durations(limits.LockTTL), &c.LockTTL, "how long a dead worker's lock keeps others off a key; "+
			"renewed at a third of it"),
		row("DONE_TTL", durations(limits.DoneTTL), &c.DoneTTL, "with LOCK=redis and redlock: how long Redis remembers a "+
			"done message, at about 210 bytes each (measured on Redis 7)"),
		row("LOCK_ON_ERROR", words(lock.Proceed, lock.Pause), &c.LockOnError, "while the lock's server is away go on "+
			"without it, or pause").byDefault(string(standard.LockOnError)),
	}
}

func operating(c *Config) []Variable {
	dead := func(r rate) { c.MaxDead, c.MaxDeadWindow = r.count, r.per }
	return []Variable{
		row("DRAIN_TIMEOUT", durations(limits.DrainTimeout), &c.DrainTimeout, "bounds the finishing of what is in hand "+
			"after SIGTERM"),
		rowTo("MAX_DEAD_RATE", deadRate(), dead, "more dead letters of all daemons than this, and more than were applied, "+
			"pause consuming; so many messages that fail for the first time, and none that is applied, space a daemon's "+
			"attempts out"),
		row("BRAKE_PAUSE", durations(limits.BrakePause), &c.BrakePause, "how long that pause lasts before one batch is "+
			"tried; the longest between two attempts that are spaced out"),
		row("HTTP_ADDR", listenAddr().or(isOff, ""), &c.HTTPAddr, "where health, metrics and pages answer").
			byDefault("127.0.0.1:8080").example("0.0.0.0:8080"),
		row("ADMIN_TOKEN", headerText(), &c.AdminToken, "asked for by pages, API and pprof; without one they answer to "+
			"loopback only").optional("a-long-random-word").hides(wholeText),
		row("ADMIN_TOKENS_FILE", fileName(), &c.AdminTokensFile, "named tokens, a line each: NAME read|full TOKEN, or "+
			"sha256: and the token's SHA-256 in its place; read again when it is changed").optional("/etc/rollbackd/tokens"),
		row("ADMIN_PROXY", adminProxy(), &c.AdminProxy, "a proxy that says who asks: the header with the name, the "+
			"addresses of the proxy, and the group of those who may act; without a group all may").
			optional("X-Forwarded-User 10.0.0.0/8 X-Forwarded-Groups=on-call"),
		row("BASE_PATH", basePath(), &c.BasePath, "where a proxy shows pages and API, if not at its root; it may pass the "+
			"path on or cut it off").optional("/rollbackd"),
		row("UI_HIDE_BODIES", choice([]string{"yes", "no"}, []bool{true, false}), &c.UIHideBodies, "pages and API show no "+
			"body, no properties and no headers of a message, but error texts, whatever they quote; nothing can be "+
			"downloaded").byDefault("no").example("yes"),
		row("UI_REDACT", pointers(), &c.UIRedact, "what stands at these JSON pointers in a body is hidden by pages and API, "+
			"but not what error texts quote of it; * is any name or place").optional("/customer/name,/items/*/note"),
		row("CHECK", choice([]string{onWord, offWord}, []bool{true, false}), &c.Check, "for development: warnings of what a "+
			"handler does that its transaction cannot hold or take back, see docs/library.md#warnings-in-development").
			byDefault(offWord).example(onWord),
		row("LOG_LEVEL", choice([]string{"debug", "info", "warn", "error"},
			[]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}), &c.LogLevel,
			"least level that is logged").byDefault("info").example("debug"),
		row("LOG_FORMAT", words(LogFormatAuto, LogFormatText, LogFormatJSON), &c.LogFormat, "form of the log; auto is text "+
			"on a terminal, else json").byDefault(LogFormatAuto).example(LogFormatJSON),
		row("LOG_RETENTION", durationsAs("0 (keeps all) or %s to %s", limits.LogRetention).or(isNought, consumer.Off),
			&c.LogRetention, "how long success and discarded rows are kept; must outlive every copy of a message, dead letters "+
				"included"),
		row("MAX_REPLAYS", ints(limits.MaxReplays), &c.MaxReplays, "after so many replays a dead letter is parked: it stays "+
			"until a person replays it with --force"),
		row("COMPENSATE_AFTER", durationsAs("%s to %s or off", limits.CompensateAfter).or(isOff, 0), &c.CompensateAfter,
			"cool-down before a letter whose reason may pass (exhausted, crashed, delivery_limit) is replayed by itself; it "+
				"doubles with every replay, up to a day").byDefault(offWord).example("15m"),
		row("DEAD_LETTER_WEBHOOK", webURL(""), &c.DeadLetterWebhook, "is told of new dead letters, as JSON; its answer "+
			"must be 2xx").optional("https://example.com/dead-letters").hides(urlPath),
		row("DEAD_LETTER_WEBHOOK_SECRET", webhookSecrets(), &c.DeadLetterWebhookSecret, "signs what the webhook is told, "+
			"with HMAC-SHA256; two while one is changed for the other: both sign").
			optional("another-long-random-word").hides(textLines),
	}
}
