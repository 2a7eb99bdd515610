package config

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/lock"
)

// Prefix begins the name of every variable.
const Prefix = "ROLLBACKD_"

// fileSuffix after a variable's name names a file that holds the value.
const fileSuffix = "_FILE"

// offWord switches off what can be switched off.
const offWord = "off"

// Variable is one setting: what it is called, what it may be, where its value goes and what of it is a secret.
type Variable struct {
	Name     string // with prefix
	Default  string // as text; empty when there is none
	Range    string // which values are allowed
	Meaning  string // one line
	Example  string // a good value; Default, unless the row has another
	Required bool   // Load refuses to go on without it, unless needless says that nobody asks for it

	key      string   // Name without prefix
	value             // its rule, and its field
	secret   *secrecy // what of the value is masked wherever it is shown; nil: nothing
	empty    bool     // set but empty is a meaningful value: none
	off      bool     // "off" is a value: the field stays zero, unless turnOff says more
	turnOff  func()
	lines    bool          // a secret may have several lines
	by       string        // where it is required, for the documentation; empty: everywhere, or nearly
	needless func() bool   // a setting before this one has made it so; nil: never
	computed func() string // the default follows from settings before this one; Default only describes it
}

// Variables lists every setting in the order of the documentation.
func Variables() []Variable { return variables(new(Config)) }

// variables are the settings, bound to the fields of c. What the engine has a default for, has that one: see
// [consumer.Defaults].
func variables(c *Config) []Variable {
	d := consumer.Defaults()
	all := slices.Concat(connections(c, d), encrypting(c), naming(c, d), calling(c), working(c, d), operating(c, d))
	for i := range all {
		v := &all[i]
		v.Name, v.Range, v.Example = Prefix+v.key, v.text, cmp.Or(v.Example, v.Default)
	}
	return all
}

// offAtZero writes what is switched off by 0 as the engine has it, where zero would be the default.
func offAtZero(field *time.Duration) func(time.Duration) {
	return func(d time.Duration) {
		if *field = d; d == 0 {
			*field = consumer.Off
		}
	}
}

func connections(c *Config, d consumer.Config) []Variable {
	return []Variable{
		{key: "AMQP_URL", value: amqpURLs().into(&c.AMQPURLs),
			Required: true, secret: urlLogins, Example: "amqp://rollbackd:password@rabbitmq:5672/",
			Meaning: "RabbitMQ; several URLs are tried in turn"},
		{key: "MYSQL_DSN", value: mysqlDSN().into(&c.MySQLDSN),
			Required: true, secret: dsnLogin, Example: "rollbackd:password@tcp(mysql:3306)/shop",
			Meaning: "MySQL or MariaDB, the schema that holds the consumer log and the stock; settings that safety needs " +
				"are forced"},
		{key: "LOCK", value: words(lockKinds()...).into((*string)(&c.Lock)), Default: string(d.Lock),
			Meaning: "on what the lock stands that keeps two workers off one message: docs/guarantees.md says what each " +
				"gives. It never decides: off works without a lock, the consumer log alone keeps the promise"},
		{key: "REDIS_URL", value: redisURL().into(&c.RedisURL),
			Required: true, needless: func() bool { return !c.Lock.InRedis() },
			secret: urlLogins, off: true, Example: "redis://redis:6379/0",
			Meaning: "with LOCK=redis: Redis for the lock; off is LOCK=off. With LOCK=redlock: three masters or more that " +
				"know nothing of each other"},
		{key: "ZOOKEEPER_URL", value: zooKeeperURL().into(&c.ZooKeeperURL),
			Required: true, needless: func() bool { return c.Lock != lock.KindZooKeeper }, by: "with LOCK=zookeeper",
			secret: urlLogins, Example: "zookeeper://zk1:2181,zk2:2181,zk3:2181/rollbackd",
			Meaning: "with LOCK=zookeeper: its servers, and the folder under which the locks stand"},
	}
}

func lockKinds() (kinds []string) {
	for _, k := range lock.Kinds() {
		kinds = append(kinds, string(k))
	}
	return kinds
}

// encrypting are the certificates for the three servers: the same four for each.
func encrypting(c *Config) (all []Variable) {
	for _, server := range []struct {
		key, name string
		to        *certs.TLS
	}{{"AMQP", "RabbitMQ", &c.tls.amqp}, {"MYSQL", "MySQL", &c.tls.mysql}, {"REDIS", "Redis", &c.tls.redis}} {
		folder := "/etc/rollbackd/" + strings.ToLower(server.name)
		all = append(all,
			Variable{key: server.key + "_TLS_CA_FILE", value: fileName().into(&server.to.CA), empty: true,
				Example: folder + "-ca.pem",
				Meaning: "who signs " + server.name + "'s certificate, in place of the system's list; read again before each " +
					"connection, see docs/tls.md"},
			Variable{key: server.key + "_TLS_CERT_FILE", value: fileName().into(&server.to.Cert), empty: true,
				Example: folder + "-client.pem",
				Meaning: "the client certificate for " + server.name + " and its chain; read again before each connection"},
			Variable{key: server.key + "_TLS_KEY_FILE", value: fileName().into(&server.to.Key), empty: true,
				Example: folder + "-client-key.pem",
				Meaning: "the key of that certificate"},
			Variable{key: server.key + "_TLS_SERVER_NAME", value: serverName().into(&server.to.ServerName), empty: true,
				Example: strings.ToLower(server.name) + ".example.com",
				Meaning: "the name that " + server.name + "'s certificate must have, if it is not the host's"})
	}
	return all
}

func naming(c *Config, d consumer.Config) []Variable {
	return []Variable{
		// The library's defaults of group and routing keys follow the name of its queue. The daemon keeps its own: the rows
		// and bindings of installations have these names, and in another group everything would be new again.
		{key: "GROUP", value: plainText(100).into(&c.Group), Default: "stock-rollback",
			Meaning: "first part of every identity; with another group everything is new again"},
		{key: "EXCHANGE", value: amqpName().into(&c.Exchange), Default: d.Exchange,
			Meaning: "durable topic exchange that producers publish to"},
		{key: "QUEUE", value: amqpName().into(&c.Queue), Default: d.Queue,
			Meaning: "main queue; the retry, dead-letter and backstop queues derive their names from it"},
		{key: "ROUTING_KEYS", value: routingKeys().into(&c.RoutingKeys),
			Default: "stock.rollback", Example: "stock.rollback,order.cancelled",
			Meaning: "bind the main queue to the exchange"},
		{key: "TOPOLOGY", value: words(string(consumer.TopologyDeclare), string(consumer.TopologyCheck)).
			into((*string)(&c.Topology)), Default: string(d.Topology), Example: string(consumer.TopologyCheck),
			Meaning: "the main queue is declared with what it needs and bound, or taken as it is: see docs/adopting.md"},
		{key: "RABBITMQ_API_URL", value: managementURL().into(&c.RabbitMQAPIURL),
			secret: urlPath, empty: true, Example: "http://rollbackd:password@rabbitmq:15672",
			Meaning: "RabbitMQ's management API, with which a main queue that is taken as it is, is looked at; needs a user " +
				"with the tag monitoring"},
		{key: "KEY_FROM", value: keyFrom().into(&c.KeyFrom), Default: d.KeyFrom,
			Example: "header:x-message-key,json:/order_sn",
			Meaning: "where a message's key comes from, the first source that exists; with other sources identities change"},
		{key: "LOG_TABLE", value: tableName().into(&c.LogTable), Default: d.LogTable,
			Meaning: "table of the consumer log"},
		{key: "HANDLER", value: words(HandlerStock, HandlerSQL, HandlerHTTP).into(&c.Handler), Default: HandlerStock,
			Example: HandlerSQL,
			Meaning: "what is run for a message: the built-in stock rollback, statements of your own, or a service of your " +
				"own"},
		{key: "SQL_FILE", value: fileName().into(&c.SQLFile), empty: true, Example: "/etc/rollbackd/handler.sql",
			Meaning: "with HANDLER=sql: the file with the statements, see docs/handlers.md"},
		{key: "EMPTY_ROLLBACK", value: words(EmptyRollbackRetry, EmptyRollbackRefuse).into(&c.EmptyRollback),
			Default: EmptyRollbackRetry, Example: EmptyRollbackRefuse,
			Meaning: "a rollback without its reservation: an ordinary failure that is retried, or remembered so that the late " +
				"reservation is refused, with a message without items any of its order"},
	}
}

// calling are the settings of handler http.
func calling(c *Config) []Variable {
	return []Variable{
		{key: "HTTP_TARGET", value: httpTarget().into(&c.HTTPTarget),
			secret: urlPath, empty: true, Example: "https://stock.example.com/rollbacks",
			Meaning: "with HANDLER=http: the URL to which each message is posted, see docs/handlers.md"},
		{key: "HTTP_TIMEOUT", value: durations(100*time.Millisecond, 10*time.Minute).into(&c.HTTPTimeout), Default: "5s",
			Meaning: "bounds one call with its answer; at most HANDLER_TIMEOUT"},
		{key: "HTTP_CONCURRENCY", value: ints(1, 10_000).into(&c.HTTPConcurrency), Default: "64",
			Meaning: "calls that this process makes at once, at most"},
		{key: "HTTP_TOKEN", value: headerText().into(&c.HTTPToken),
			secret: wholeText, empty: true, Example: "a-long-random-word",
			Meaning: "sent with each call, as Authorization: Bearer"},
		{key: "HTTP_HMAC_SECRET", value: webhookSecrets().into(&c.HTTPHMACSecret),
			secret: wholeText, empty: true, lines: true, Example: "another-long-random-word",
			Meaning: "signs each call as the webhook's is signed; two while one is changed for the other: both sign"},
		{key: "HTTP_TLS_CA_FILE", value: fileName().into(&c.HTTPTLSCAFile), empty: true, Example: "/etc/rollbackd/ca.pem",
			Meaning: "who signs the service's certificate, in place of the system's list; read again when it is changed"},
		{key: "HTTP_TLS_CERT_FILE", value: fileName().into(&c.HTTPTLSCertFile), empty: true,
			Example: "/etc/rollbackd/client.pem",
			Meaning: "the client certificate and its chain; read again when it is changed"},
		{key: "HTTP_TLS_KEY_FILE", value: fileName().into(&c.HTTPTLSKeyFile), empty: true,
			Example: "/etc/rollbackd/client-key.pem",
			Meaning: "the key of the client certificate"},
	}
}

func working(c *Config, d consumer.Config) []Variable {
	return []Variable{
		{key: "MAX_ATTEMPTS", value: ints(1, 100).into(&c.MaxAttempts), Default: strconv.Itoa(d.MaxAttempts),
			Meaning: "runs of the handler before a message is dead-lettered"},
		{key: "RETRY_DELAYS", value: retryDelays().into(&c.RetryDelays),
			Default: listText(d.RetryDelays, shortDuration),
			Meaning: "waits after the first, second, … failed attempt, a queue each; at least MAX_ATTEMPTS less one"},
		{key: "LANES", value: ints(1, 256).into(&c.Lanes), Default: strconv.Itoa(d.Lanes),
			Meaning: "batches worked on at once"},
		{key: "BATCH_SIZE", value: ints(1, 10_000).into(&c.BatchSize), Default: strconv.Itoa(d.BatchSize),
			Meaning: "deliveries that a lane takes into one transaction"},
		{key: "BATCH_LINGER", value: durations(0, 10*time.Second).to(offAtZero(&c.BatchLinger)),
			Default: shortDuration(d.BatchLinger),
			Meaning: "how long a lane waits for its batch to fill, at most; an idle one, half of it after the last delivery"},
		{key: "PREFETCH", value: ints(1, 65_535).into(&c.Prefetch),
			Default: "2 × BATCH_SIZE", computed: func() string { return strconv.Itoa(2 * c.BatchSize) }, Example: "2000",
			Meaning: "unacked deliveries per lane, at most; at least BATCH_SIZE. A batch takes half of it at most"},
		{key: "MEMORY_BUDGET", value: sizes(4<<20, 64<<30).into((*Bytes)(&c.MemoryBudget)),
			Default: Bytes(d.MemoryBudget).String(),
			Meaning: "memory for the deliveries in hand of all lanes; fewer are taken when they are large. A larger body " +
				"comes through alone"},
		{key: "LEASE", value: durations(time.Second, time.Hour).into(&c.Lease), Default: shortDuration(d.Lease),
			Meaning: "how long a claim protects its row; more than HANDLER_TIMEOUT"},
		{key: "HANDLER_TIMEOUT", value: durations(2*time.Second, 10*time.Minute).into(&c.HandlerTimeout),
			Default: shortDuration(d.HandlerTimeout),
			Meaning: "bounds one call of the handler; a wait for somebody else's lock in MySQL, half of it"},
		{key: "LOCK_TTL", value: durations(time.Second, 10*time.Minute).into(&c.LockTTL),
			Default: shortDuration(d.LockTTL),
			Meaning: "how long a dead worker's lock keeps others off a key; renewed at a third of it"},
		{key: "DONE_TTL", value: durations(time.Second, 24*time.Hour).into(&c.DoneTTL),
			Default: shortDuration(d.DoneTTL),
			Meaning: "with LOCK=redis and redlock: how long Redis remembers a done message, at about 210 bytes each (measured " +
				"on Redis 7)"},
		{key: "LOCK_ON_ERROR", value: words(LockOnErrorProceed, LockOnErrorPause).into((*string)(&c.LockOnError)),
			Default: string(d.LockOnError),
			Meaning: "while the lock's server is away go on without it, or pause"},
	}
}

func operating(c *Config, d consumer.Config) []Variable {
	return []Variable{
		{key: "DRAIN_TIMEOUT", value: durations(100*time.Millisecond, time.Hour).into(&c.DrainTimeout),
			Default: shortDuration(d.DrainTimeout),
			Meaning: "bounds the finishing of what is in hand after SIGTERM"},
		{key: "MAX_DEAD_RATE", value: deadRate().to(func(r Rate) { c.MaxDead, c.MaxDeadWindow = r.Count, r.Per }),
			Default: Rate{d.MaxDead, d.MaxDeadWindow}.String(), off: true, turnOff: func() { c.MaxDead = consumer.Off },
			Meaning: "more dead letters of all daemons than this, and more than were applied, pause consuming; so many " +
				"messages that fail for the first time, and none that is applied, space a daemon's attempts out"},
		{key: "BRAKE_PAUSE", value: durations(time.Second, 24*time.Hour).into(&c.BrakePause),
			Default: shortDuration(d.BrakePause),
			Meaning: "how long that pause lasts before one batch is tried; the longest between two attempts that are " +
				"spaced out"},
		{key: "HTTP_ADDR", value: listenAddr().into(&c.HTTPAddr),
			Default: "127.0.0.1:8080", off: true, Example: "0.0.0.0:8080",
			Meaning: "where health, metrics and pages answer"},
		{key: "ADMIN_TOKEN", value: headerText().into(&c.AdminToken),
			secret: wholeText, empty: true, Example: "a-long-random-word",
			Meaning: "asked for by pages, API and pprof; without one they answer to loopback only"},
		{key: "ADMIN_TOKENS_FILE", value: fileName().into(&c.AdminTokensFile), empty: true,
			Example: "/etc/rollbackd/tokens",
			Meaning: "named tokens, a line each: NAME read|full TOKEN, or sha256: and the token's SHA-256 in its place; " +
				"read again when it is changed"},
		{key: "ADMIN_PROXY", value: adminProxy().into(&c.AdminProxy), empty: true,
			Example: "X-Forwarded-User 10.0.0.0/8 X-Forwarded-Groups=on-call",
			Meaning: "a proxy that says who asks: the header with the name, the addresses of the proxy, and the group of " +
				"those who may act; without a group all may"},
		{key: "BASE_PATH", value: basePath().into(&c.BasePath), empty: true, Example: "/rollbackd",
			Meaning: "where a proxy shows pages and API, if not at its root; it may pass the path on or cut it off"},
		{key: "UI_HIDE_BODIES", value: yesOrNo().into(&c.UIHideBodies), Default: "no", Example: "yes",
			Meaning: "pages and API show no body, no properties and no headers of a message, but error texts, whatever they " +
				"quote; nothing can be downloaded"},
		{key: "UI_REDACT", value: pointers().into(&c.UIRedact), empty: true, Example: "/customer/name,/items/*/note",
			Meaning: "what stands at these JSON pointers in a body is hidden by pages and API, but not what error texts quote " +
				"of it; * is any name or place"},
		{key: "LOG_LEVEL", value: logLevels().into(&c.LogLevel), Default: "info", Example: "debug",
			Meaning: "least level that is logged"},
		{key: "LOG_FORMAT", value: words(LogFormatAuto, LogFormatText, LogFormatJSON).into(&c.LogFormat),
			Default: LogFormatAuto, Example: LogFormatJSON,
			Meaning: "form of the log; auto is text on a terminal, else json"},
		{key: "LOG_RETENTION", value: zeroOr("keeps all", durations(24*time.Hour, 87_600*time.Hour)).
			to(offAtZero(&c.LogRetention)),
			Default: shortDuration(d.LogRetention),
			Meaning: "how long success and discarded rows are kept; must outlive every copy of a message, dead letters " +
				"included"},
		{key: "MAX_REPLAYS", value: ints(1, 1000).into(&c.MaxReplays), Default: strconv.Itoa(d.MaxReplays),
			Meaning: "after so many replays a dead letter is parked: it stays until a person replays it with --force"},
		{key: "COMPENSATE_AFTER", value: offOr(durations(time.Second, 720*time.Hour)).into(&c.CompensateAfter),
			Default: offWord, off: true, Example: "15m",
			Meaning: "cool-down before a letter whose reason may pass (exhausted, crashed, delivery_limit) is replayed by " +
				"itself; it doubles with every replay, up to a day"},
		{key: "DEAD_LETTER_WEBHOOK", value: webhookURL().into(&c.DeadLetterWebhook),
			secret: urlPath, empty: true, Example: "https://example.com/dead-letters",
			Meaning: "is told of new dead letters, as JSON; its answer must be 2xx"},
		{key: "DEAD_LETTER_WEBHOOK_SECRET", value: webhookSecrets().into(&c.DeadLetterWebhookSecret),
			secret: wholeText, empty: true, lines: true,
			Example: "another-long-random-word",
			Meaning: "signs what the webhook is told, with HMAC-SHA256; two while one is changed for the other: both sign"},
	}
}
