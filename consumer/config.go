package consumer

import (
	"cmp"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/limits"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// Off switches off what has a default: [Config].MaxDead, BatchLinger and LogRetention.
const Off = limits.Off

// Config is what a consumer is told. A field that is left zero takes the default that is named with it; together they
// are [Defaults], which are the daemon's. [New] and [Open] refuse what cannot work.
type Config struct {
	// MySQLDSN names the schema of the consumer log and of the handler's tables, in the form of go-sql-driver/mysql.
	// [Open] needs it; [New] is given a pool instead.
	MySQLDSN string
	// AMQPURLs are the RabbitMQ nodes, amqp:// or amqps://, tried in turn. At least one.
	AMQPURLs []string
	// Lock says on what the lock stands that [Open] makes. Default [lock.KindRedis]. Whatever it is, and whether it
	// works, the consumer log alone keeps the promise: without a lock MySQL has more work when one message is in
	// several hands at once.
	Lock lock.Kind
	// RedisURL is the lock's Redis, redis:// or rediss://, for [lock.KindRedis]. Empty: no lock. [lock.KindRedlock]
	// asks several, comma-separated: masters that know nothing of each other.
	RedisURL string
	// ZooKeeperURL is for [lock.KindZooKeeper], zookeeper://[user:password@]host:port[,host:port…][/folder].
	ZooKeeperURL string
	// MySQLTLS, AMQPTLS and RedisTLS encrypt the connections to these servers, for who has a configuration instead of
	// files. Mostly they are not needed: the URLs and the DSN themselves name PEM files with CA, client certificate and
	// key, which are read again before each connection (docs/tls.md). They go with amqps:// and rediss://, and with a
	// DSN that says nothing of tls.
	MySQLTLS, AMQPTLS, RedisTLS *tls.Config
	// Fresh gives the logins of these servers as they are now.
	Fresh Fresh
	// Migrate makes or updates the consumer log's tables before anything is consumed. Without it, tables that are
	// missing or old end Run with [dedup.ErrSchema].
	Migrate bool
	// Outbox has Run relay what package outbox has put into the schema of the consumer log, by handlers and by services
	// there: the messages go to Exchange, with the first of RoutingKeys, where they name no other place. Migrate makes its
	// table too; without it, a table that is missing ends Run with [outbox.ErrSchema]. One Registerer takes one relay.
	Outbox bool

	// Group is the first part of every identity: messages of two groups never meet. 1 to 100 bytes. Default: Queue, so
	// that two handlers never take each other's messages for done. (The daemon's own default is stock-rollback.)
	Group string
	// Exchange is the durable topic exchange that producers publish to; it is declared. At most 200 bytes. Default
	// stock.
	Exchange string
	// Queue is the main queue; the retry, dead-letter and backstop queues derive their names from it. Default
	// stock.rollback.
	Queue string
	// RoutingKeys bind Queue to Exchange. Default: Queue.
	RoutingKeys []string
	// Topology says whose Queue is. [TopologyDeclare], the default: the engine's own, declared with what it needs and
	// bound to Exchange. [TopologyCheck]: somebody else's, taken as it is; it must be a quorum queue, a policy gives it
	// what it needs, and only the queues beside it are declared.
	Topology Topology
	// RabbitMQAPIURL is RabbitMQ's management API, http:// or https:// with user and password. With it a Queue that is
	// taken as it is, is looked at when the engine starts. Empty: nobody looks.
	RabbitMQAPIURL string
	// KeyFrom says where a message's key is read, in the form of ROLLBACKD_KEY_FROM. Default
	// header:x-message-key,property:message_id,body:sha256. With other sources identities change.
	KeyFrom string
	// LogTable is the consumer log's table. Default consumer_log.
	LogTable string

	// MaxAttempts is how many counted attempts a message gets before it is dead-lettered. Default 5.
	MaxAttempts int
	// RetryDelays are the pauses after attempt 1, 2, …: MaxAttempts-1 at least, growing, whole milliseconds, each with
	// a queue of its own. Default 1s, 5s, 30s, 2m.
	RetryDelays []time.Duration
	// MaxDelay bounds the waits of [Later] and [RetryIn]. 1s to 720h. Default 24h.
	MaxDelay time.Duration

	// Lanes is how many batches are worked on at once. Default 4.
	Lanes int
	// BatchSize is how many messages share a transaction at most. Default 1,000.
	BatchSize int
	// BatchLinger is how long a batch waits for more after its first message. Default 2ms, and up to 20ms behind a batch
	// with messages of a replay; Off: never.
	BatchLinger time.Duration
	// Prefetch is how many deliveries a lane may hold unacked. BatchSize to 65535. Default 2 × BatchSize.
	Prefetch int
	// MemoryBudget bounds what all lanes and the backstop have in hand, in bytes, as it lies in memory: large
	// deliveries make the windows of the lanes smaller than Prefetch. One delivery a lane may come beside it that is
	// larger than the lane's share. Default 64 MiB.
	MemoryBudget int64

	// Lease protects a claimed row from other workers, by the database's clock. Longer than HandlerTimeout. Default
	// 30s.
	Lease time.Duration
	// HandlerTimeout bounds one call of the handler, and a wait for somebody else's lock in MySQL to half of it. At
	// least 2s, because MySQL counts such waits in whole seconds. Default 10s.
	HandlerTimeout time.Duration
	// LockTTL is how long a dead worker's lock keeps others off. At least 100ms. Default 10s.
	LockTTL time.Duration
	// DoneTTL is how long Redis remembers a done message, at about 210 bytes each. Default 5m.
	DoneTTL time.Duration
	// LockOnError says what happens while the lock's server is away. Default proceed.
	LockOnError lock.Policy
	// DrainTimeout bounds a stop: what is in hand then is abandoned. Default 25s.
	DrainTimeout time.Duration
	// GiveBackAfter is how long a lane keeps its batch while a dependency does not answer; then the deliveries go back
	// to the broker and nothing is consumed until the dependency answers. Default 1m.
	GiveBackAfter time.Duration
	// HoldLimit is how long a lane keeps deliveries it has not started. Default 10m, well below RabbitMQ's consumer
	// timeout of 30 minutes.
	HoldLimit time.Duration

	// More than MaxDead letters within MaxDeadWindow, counted for all processes that consume the queue, pause the engine
	// for BrakePause when they are also more than the messages that were applied: a broken deployment, not bad messages.
	// When more than MaxDead messages fail for the first time in that time, and this process applies none, it spaces its
	// attempts out, with pauses that grow from a second to BrakePause, until a message is applied. Default 100 within 1m,
	// paused for 5m; Off: neither.
	MaxDead       int
	MaxDeadWindow time.Duration
	BrakePause    time.Duration

	// LogRetention is how long success and discarded rows are kept; it must outlive every copy of a message, dead
	// letters included. Default 720h; Off: for ever.
	LogRetention time.Duration
	// MaxReplays parks a dead letter that was replayed so often: it stays until a person forces it. Default 10.
	MaxReplays int
	// CompensateAfter is the cool-down before a dead letter whose reason may pass is replayed by itself. Default 0:
	// never.
	CompensateAfter time.Duration
	// Notifier, if set, is told of new dead letters; [deadletter.NewWebhook] makes one that posts them.
	Notifier deadletter.Notifier
	// WithoutKeeper leaves retention, compensation, notifying and the hourly line about what waits longest to somebody
	// else. Otherwise one process of a group is elected for them.
	WithoutKeeper bool

	// Check looks at what the handler does with its transactions, and logs warnings of what a transaction cannot hold or
	// take back, each with the statement, the line of the code and the cure: docs/library.md lists them. It is for
	// development: each call costs three round trips to MySQL more. Handlers of [Calls] have no transaction to look at.
	Check bool

	// Observe, if set, is called once for each delivery that ended, after its ack was sent or when it was given up.
	// Lanes call it at the same time, and wait for it: it must be quick and must not block. A panic is logged and goes
	// no further.
	Observe func(Ended)
	// Registerer takes the metrics, which have the label queue. Consumers of several queues may share one. Default: a
	// registry of its own.
	Registerer prometheus.Registerer
	// TracerProvider, if set, takes a span for each batch, linked to the traces of its messages, and one for each
	// message that is attempted or called for by itself, as a child of the span that published it. The handler's
	// context holds the span. Nil: no spans, at no cost.
	TracerProvider trace.TracerProvider
	// Logger takes what changes: waiting, back, dead letters. Default slog.Default.
	Logger *slog.Logger

	keyFrom []wire.KeySource // KeyFrom, as it is used
	// certs keeps the certificates of RabbitMQ from one connection to the next.
	certs *certs.Store
	// connections counts those that were made, by the server's name; of a pool that is not ours nobody counts them.
	connections *prometheus.CounterVec

	// Hook, if set, is called after each durable step with the step's name (see the Point constants). Tests kill the
	// process there; production leaves it nil.
	Hook func(Point)
}

// Topology says what is done with the main queue.
type Topology string

// The topologies.
const (
	TopologyDeclare Topology = "declare"
	TopologyCheck   Topology = "check"
)

// Fresh gives logins as they are now. Each function that is set is asked before a connection is made; only user and
// password may differ from what Config says. They are for passwords that change while the process runs.
type Fresh struct {
	MySQLDSN func() string
	AMQPURLs func() []string
	RedisURL func() string
}

// Defaults are what a Config takes for fields that are left zero, but for Group and RoutingKeys, which follow Queue.
func Defaults() Config {
	c := Config{
		Exchange: "stock", Queue: "stock.rollback", KeyFrom: "header:x-message-key,property:message_id,body:sha256",
		LogTable: "consumer_log", Topology: TopologyDeclare, RetryDelays: slices.Clone(limits.RetryDelays),
		Lock: lock.KindRedis, LockOnError: lock.Proceed,
	}
	for _, number := range c.numbers() {
		number.Fill()
	}
	return c
}

// numbers are the fields whose defaults and limits do not hang on others.
func (c *Config) numbers() []limits.Field {
	return []limits.Field{
		limits.MaxAttempts.In("MaxAttempts", &c.MaxAttempts), limits.Lanes.In("Lanes", &c.Lanes),
		limits.MaxDelay.In("MaxDelay", &c.MaxDelay),
		limits.BatchSize.In("BatchSize", &c.BatchSize), limits.BatchLinger.In("BatchLinger", &c.BatchLinger),
		limits.MemoryBudget.In("MemoryBudget", &c.MemoryBudget), limits.Lease.In("Lease", &c.Lease),
		limits.HandlerTimeout.In("HandlerTimeout", &c.HandlerTimeout), limits.LockTTL.In("LockTTL", &c.LockTTL),
		limits.DoneTTL.In("DoneTTL", &c.DoneTTL), limits.DrainTimeout.In("DrainTimeout", &c.DrainTimeout),
		limits.GiveBackAfter.In("GiveBackAfter", &c.GiveBackAfter), limits.HoldLimit.In("HoldLimit", &c.HoldLimit),
		limits.MaxDead.In("MaxDead", &c.MaxDead), limits.MaxDeadWindow.In("MaxDeadWindow", &c.MaxDeadWindow),
		limits.BrakePause.In("BrakePause", &c.BrakePause), limits.LogRetention.In("LogRetention", &c.LogRetention),
		limits.MaxReplays.In("MaxReplays", &c.MaxReplays),
	}
}

// withDefaults fills what is zero. What is Off becomes zero: from here on zero means zero.
func (c Config) withDefaults() Config {
	d := Defaults()
	c.Exchange, c.Queue = cmp.Or(c.Exchange, d.Exchange), cmp.Or(c.Queue, d.Queue)
	c.Group = cmp.Or(c.Group, c.Queue)
	if c.RoutingKeys == nil {
		c.RoutingKeys = []string{c.Queue}
	}
	c.KeyFrom, c.LogTable = cmp.Or(c.KeyFrom, d.KeyFrom), cmp.Or(c.LogTable, d.LogTable)
	c.Topology = cmp.Or(c.Topology, d.Topology)
	if c.RetryDelays == nil {
		c.RetryDelays = d.RetryDelays
	}
	c.Lock, c.LockOnError = cmp.Or(c.Lock, d.Lock), cmp.Or(c.LockOnError, d.LockOnError)
	for _, number := range c.numbers() {
		number.Fill()
	}
	c.Prefetch = cmp.Or(c.Prefetch, 2*c.BatchSize)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	if c.certs == nil {
		c.certs = &certs.Store{Warn: c.warnOf(DependencyRabbitMQ)}
		c.connections = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_connections_opened_total", Help: "Connections made, by the server's name.",
		}, []string{"name"})
	}
	return c
}

// warnOf logs what is amiss with the certificates for a server, while the former ones stay in use.
func (c Config) warnOf(server string) func(error) {
	return func(err error) { c.Logger.Warn("certificates cannot be read again", "server", server, "err", err) }
}

// opened counts the connections that are made to a server: each one that replaces another is one more.
func (c Config) opened(server string) func() { return c.connections.WithLabelValues(server).Inc }

// MaxBody is the largest body a message may have; a larger one is malformed.
const MaxBody = 256 << 10

// Point names a durable step of a delivery's life.
type Point string

// The points, in the order in which a message may pass them.
const (
	PointClaimed   Point = "claimed"   // a claim is committed, the attempt has not begun
	PointEffect    Point = "effect"    // the handler has written, nothing is committed
	PointCommitted Point = "committed" // the effect is committed, nothing is acked
	PointFailed    Point = "failed"    // a failed attempt is recorded, no copy is published
	PointRetryCopy Point = "retried"   // the retry copy is confirmed, nothing is acked
	PointLetter    Point = "lettered"  // the letter is confirmed, the row does not say dead
	PointCondemned Point = "condemned" // the letter is refused, its row keeps the reason
	PointDead      Point = "dead"      // the row says dead, nothing is acked
	PointAcked     Point = "acked"     // the acks are sent
)

func (c Config) topology() rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: c.Exchange, Queue: c.Queue, RoutingKeys: c.RoutingKeys, Delays: c.RetryDelays,
		TakeMain: c.Topology == TopologyCheck,
	}
}

// checked is a Handler that can tell beforehand that it cannot work.
type checked interface{ check(cfg Config) error }

// complete is c with its defaults; what cannot work is refused.
func (c Config) complete(h Handler) (Config, error) {
	c = c.withDefaults()
	err := c.validate()
	if h == nil {
		err = errors.Join(err, errors.New("no Handler"))
	}
	if h, ok := h.(checked); ok {
		err = errors.Join(err, h.check(c))
	}
	var keyErr error
	if c.keyFrom, keyErr = wire.ParseKeySources(c.KeyFrom); keyErr != nil {
		err = errors.Join(err, fmt.Errorf("KeyFrom: %w", keyErr))
	}
	if err != nil {
		return c, fmt.Errorf("consumer configuration: %w", err)
	}
	if c.connections, err = operator.Shared(c.Registerer, c.connections); err != nil {
		return c, fmt.Errorf("consumer metrics: %w", err)
	}
	return c, nil
}

func (c Config) validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, number := range c.numbers() {
		errs = append(errs, number.Check())
	}
	errs = append(errs, c.topology().Validate())
	bad(c.Group != "" && len(c.Group) <= limits.MostGroup, "Group must have 1 to %d bytes", limits.MostGroup)
	bad(c.Queue != "" && len(c.Queue) <= limits.MostName, "Queue must have 1 to %d bytes", limits.MostName)
	bad(len(c.Exchange) <= limits.MostName, "Exchange must have at most %d bytes", limits.MostName)
	bad(len(c.RetryDelays) >= max(1, c.MaxAttempts-1), "%d RetryDelays are too few for %d attempts", len(c.RetryDelays),
		c.MaxAttempts)
	for i := 1; i < len(c.RetryDelays); i++ {
		bad(c.RetryDelays[i] > c.RetryDelays[i-1], "RetryDelays must grow: %v", c.RetryDelays)
	}
	bad(c.BatchSize <= c.Prefetch && c.Prefetch <= limits.Prefetch.High, "Prefetch %d must be BatchSize %d to %d",
		c.Prefetch, c.BatchSize, limits.Prefetch.High)
	bad(c.CompensateAfter >= 0, "CompensateAfter must not be negative")
	bad(c.Lease > c.HandlerTimeout, "Lease %v must be longer than HandlerTimeout %v", c.Lease, c.HandlerTimeout)
	bad(slices.Contains([]Topology{TopologyDeclare, TopologyCheck}, c.Topology), "Topology %q must be %s or %s",
		c.Topology, TopologyDeclare, TopologyCheck)
	bad(slices.Contains(lock.Kinds(), c.Lock), "Lock %q must be one of %q", c.Lock, lock.Kinds())
	bad(slices.Contains([]lock.Policy{lock.Proceed, lock.Pause}, c.LockOnError), "LockOnError %q must be %s or %s",
		c.LockOnError, lock.Proceed, lock.Pause)
	bad(len(c.AMQPURLs) > 0, "AMQPURLs: none is given")
	for _, raw := range c.AMQPURLs {
		if err := rabbit.CheckURL(raw); err != nil {
			errs = append(errs, fmt.Errorf("AMQPURLs: %w", err))
		}
	}
	if errors.Join(errs...) == nil {
		if err := c.amqp("").CheckTLS(); err != nil {
			errs = append(errs, fmt.Errorf("AMQPURLs: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (c Config) amqp(command string) rabbit.Config {
	return rabbit.Config{
		URLs: c.AMQPURLs, Current: c.Fresh.AMQPURLs, Name: rabbit.ConnectionName(command), TLS: c.AMQPTLS, Certs: c.certs,
		Opened: c.opened(DependencyRabbitMQ),
	}
}

// lockWait bounds a wait for somebody else's lock, so that it ends before the handler's time does.
func (c Config) lockWait() time.Duration { return (c.HandlerTimeout / 2).Truncate(time.Second) }

// LogOptions are those of the consumer log of a consumer with this Config, to read it with [dedup.NewLog].
func (c Config) LogOptions() dedup.LogOptions {
	c = c.withDefaults()
	return dedup.LogOptions{Table: c.LogTable, Lease: c.Lease, Delays: c.RetryDelays, MaxAttempts: c.MaxAttempts}
}

func (c Config) lockOptions() lock.Options {
	return lock.Options{LockTTL: c.LockTTL, DoneTTL: c.DoneTTL, OnError: c.LockOnError, Log: c.Logger}
}

// letters makes log and letters; c has its defaults. The command is shown beside their connections.
func (c Config) letters(db *gorm.DB, command string) (*dedup.Log, *deadletter.Letters, error) {
	records, err := dedup.NewLog(db, c.LogOptions())
	if err != nil {
		return nil, nil, err
	}
	letters, err := deadletter.New(deadletter.Options{
		Records: records, AMQPURLs: c.AMQPURLs, CurrentAMQPURLs: c.Fresh.AMQPURLs, Name: rabbit.ConnectionName(command),
		AMQPTLS: c.AMQPTLS, Warn: c.warnOf(DependencyRabbitMQ),
		Group: c.Group, Queue: c.Queue, KeyFrom: c.KeyFrom, Retention: c.LogRetention, MaxReplays: c.MaxReplays,
	})
	return records, letters, err
}

// Letters are the dead letters of the queue that a consumer with this Config consumes, to list, replay or discard them
// from code. db is a pool on the schema of MySQLDSN, best one from [dedup.Open], for ten connections at least; it stays
// the caller's. No server is asked yet.
func (c Config) Letters(db *gorm.DB) (*deadletter.Letters, error) {
	if db == nil {
		return nil, errors.New("dead letters: no pool is given; dedup.Open makes one")
	}
	_, letters, err := c.withDefaults().letters(db, "letters")
	return letters, err
}

// RoutingKey is where a message of the outbox goes that does not say it: the first of RoutingKeys, unless that is a
// pattern; then nowhere.
func (c Config) RoutingKey() string {
	first := c.withDefaults().RoutingKeys
	if len(first) == 0 || strings.ContainsAny(first[0], "*#") {
		return ""
	}
	return first[0]
}

// Relay is what a relay is told that sends as Outbox has it, to run one in a process of its own by [relay.New]. db is a
// pool on the schema of the outbox, for [relay.Connections]; it stays the caller's.
func (c Config) Relay(db *sql.DB) relay.Config {
	const mostOfBatch, share = 8 << 20, 16 // bodies of four batches are in memory twice: half of MemoryBudget
	c = c.withDefaults()
	return relay.Config{
		DB: db, AMQPURLs: c.AMQPURLs, CurrentAMQPURLs: c.Fresh.AMQPURLs, AMQPTLS: c.AMQPTLS, Exchange: c.Exchange,
		RoutingKey: c.RoutingKey(), BatchSum: int(min(mostOfBatch, c.MemoryBudget/share)), DrainTimeout: c.DrainTimeout,
		Logger: c.Logger, Metrics: c.Registerer,
	}
}

// statementTimeout is how long a statement's answer is waited for. It is longer than a handler may take: which one ends
// a handler's statement is then no matter of chance, and that statement is known and can be ended on the server.
func (c Config) statementTimeout() time.Duration { return c.HandlerTimeout + time.Second }
