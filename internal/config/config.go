package config

import (
	"log/slog"
	"time"
)

// Values of the settings that are one of a few words.
const (
	HandlerStock = "stock" // the built-in stock rollback

	EmptyRollbackRetry  = "retry"  // a rollback without its reservation is an ordinary failure
	EmptyRollbackRefuse = "refuse" // it is remembered, and refuses the late reservation

	LockOnErrorProceed = "proceed" // without Redis the consumer log alone keeps the promise
	LockOnErrorPause   = "pause"   // without Redis nothing is consumed

	LogFormatAuto = "auto" // text on a terminal, else json
	LogFormatText = "text"
	LogFormatJSON = "json"
)

// Config is every setting of rollbackd, one field per variable. Load makes it; a Config written by hand is not checked.
// Its String, JSON and log forms mask secrets; the fields themselves do not.
type Config struct {
	// AMQPURLs are the RabbitMQ nodes, amqp:// or amqps://, tried in turn. Required, no default.
	AMQPURLs URLs `env:"AMQP_URL"`
	// MySQLDSN names the schema of consumer log and stock, in go-sql-driver's form, with a database. Required, no default.
	MySQLDSN string `env:"MYSQL_DSN"`
	// RedisURL is the lock's Redis, redis:// or rediss://; empty when set to "off": no lock. Required, no default.
	RedisURL string `env:"REDIS_URL"`

	// Group is the first part of every identity. 1 to 100 bytes. Default stock-rollback. Changing it forgets what was done.
	Group string `env:"GROUP"`
	// Exchange is the durable topic exchange that producers publish to. 1 to 200 bytes, not amq.*. Default stock.
	Exchange string `env:"EXCHANGE"`
	// Queue is the main queue; retry, dead-letter and backstop queues derive from it. 1 to 200 bytes, not amq.*. Default
	// stock.rollback.
	Queue string `env:"QUEUE"`
	// RoutingKeys bind the main queue to the exchange; topic patterns, each at most 255 bytes. Default stock.rollback.
	RoutingKeys []string `env:"ROUTING_KEYS"`
	// KeyFrom lists where a message's key comes from, first existing source wins: header:NAME, property:message_id,
	// property:correlation_id, json:/POINTER, body:sha256. Default header:x-message-key,property:message_id,body:sha256. Changing it changes identities.
	KeyFrom string `env:"KEY_FROM"`
	// LogTable is the consumer log's table: an identifier of at most 41 characters. Default consumer_log.
	LogTable string `env:"LOG_TABLE"`

	// Handler names what is run for a message: stock. Default stock.
	Handler string `env:"HANDLER"`
	// EmptyRollback says what a rollback without its reservation is: retry or refuse. Default retry.
	EmptyRollback string `env:"EMPTY_ROLLBACK"`

	// MaxAttempts is how many claimed runs of the handler a message gets before it is dead-lettered. 1 to 100. Default 5.
	MaxAttempts int `env:"MAX_ATTEMPTS"`
	// RetryDelays are the waits after attempt 1, 2, …: growing, whole milliseconds, each 100ms to 24h, at least MAX_ATTEMPTS
	// less one, at most 20, one queue each. Default 1s,5s,30s,2m.
	RetryDelays []time.Duration `env:"RETRY_DELAYS"`

	// Lanes is how many batches are worked on at once, each on a channel of its own. 1 to 256. Default 4.
	Lanes int `env:"LANES"`
	// BatchSize is how many deliveries a lane takes into one transaction. 1 to 10000. Default 1000.
	BatchSize int `env:"BATCH_SIZE"`
	// BatchLinger is how long a lane waits for a batch to fill once it has a first delivery. 0 to 10s. Default 2ms.
	BatchLinger time.Duration `env:"BATCH_LINGER"`
	// Prefetch is how many unacked deliveries RabbitMQ gives one lane. 1 to 65535 (AMQP has 16 bits for it), at least
	// BATCH_SIZE. Default 2 × BATCH_SIZE.
	Prefetch int `env:"PREFETCH"`

	// Lease is how long a claim protects its row, by the database's clock. 1s to 1h, more than HANDLER_TIMEOUT. Default 30s.
	Lease time.Duration `env:"LEASE"`
	// HandlerTimeout bounds one call of the handler. 100ms to 10m. Default 10s.
	HandlerTimeout time.Duration `env:"HANDLER_TIMEOUT"`
	// LockTTL is how long a dead worker's lock keeps others off a key; it is renewed at a third. 1s to 10m. Default 10s.
	LockTTL time.Duration `env:"LOCK_TTL"`
	// DoneTTL is how long Redis remembers a done message (about 210 bytes each (measured on Redis 7)). 1s to 24h. Default 5m.
	DoneTTL time.Duration `env:"DONE_TTL"`
	// LockOnError says what happens while Redis is away: proceed or pause. Default proceed.
	LockOnError string `env:"LOCK_ON_ERROR"`

	// DrainTimeout bounds the finishing of what is in hand after SIGTERM. 100ms to 1h. Default 25s.
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT"`
	// MaxDeadRate is the brake: more dead letters than this in this time pause consuming; the zero Rate when "off". 1 to
	// 1000000 per 1s to 1h. Default 100/60s.
	MaxDeadRate Rate `env:"MAX_DEAD_RATE"`
	// BrakePause is how long the brake pauses before one batch is tried. 1s to 24h. Default 5m.
	BrakePause time.Duration `env:"BRAKE_PAUSE"`

	// HTTPAddr is where health, metrics and pages answer, host:port (port 0 takes a free one); empty when "off". Default
	// 127.0.0.1:8080.
	HTTPAddr string `env:"HTTP_ADDR"`
	// AdminToken is asked for by pages, API and pprof; without one they answer to loopback only. No spaces or control
	// characters. Default empty.
	AdminToken string `env:"ADMIN_TOKEN"`

	// LogLevel is the least level that is logged: debug, info, warn or error. Default info.
	LogLevel slog.Level `env:"LOG_LEVEL"`
	// LogFormat is text, json, or auto: text on a terminal, else json. Default auto.
	LogFormat string `env:"LOG_FORMAT"`

	// LogRetention is how long success and discarded rows are kept; it must outlive every copy of a message, dead letters included. 0
	// keeps all, else 24h to 87600h. Default 720h.
	LogRetention time.Duration `env:"LOG_RETENTION"`
	// MaxReplays is how often a dead letter is replayed before it is parked. 1 to 1000. Default 10.
	MaxReplays int `env:"MAX_REPLAYS"`
	// CompensateAfter is the cool-down before dead letters whose reason may pass are replayed by themselves, 1s to 720h; 0
	// when "off". Default off.
	CompensateAfter time.Duration `env:"COMPENSATE_AFTER"`
	// DeadLetterWebhook is an http or https URL that is told of new dead letters; empty: none. Default empty.
	DeadLetterWebhook string `env:"DEAD_LETTER_WEBHOOK"`
	// DeadLetterWebhookSecret signs what the webhook is told; empty: unsigned. Default empty.
	DeadLetterWebhookSecret string `env:"DEAD_LETTER_WEBHOOK_SECRET"`

	// given holds the text of each setting and where it came from, by the variable's name without prefix; Load writes it,
	// Settings reads it.
	given map[string]given
}
