// Package config turns the environment into one checked Config, or says everything that is wrong with it at once.
//
// A Config that Load returned without an error is complete and consistent: every default is filled in, every value is
// in its range, and the values fit together (a lease outlives the handler's timeout, there are enough retry delays for
// MAX_ATTEMPTS). No other package reads ROLLBACKD_ variables, fills in defaults or knows the variables' names.
//
// What lives here: the table of settings in variables.go, what they need of each other in check.go, the masking of
// secrets. What must not: connecting to anything, and importing what a person or a program looks at.
package config

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

// Values of the settings that are one of a few words.
const (
	HandlerStock = "stock" // the built-in stock rollback
	HandlerSQL   = "sql"   // statements of the user's own
	HandlerHTTP  = "http"  // a service of the user's own

	EmptyRollbackRetry  = "retry"  // a rollback without its reservation is an ordinary failure
	EmptyRollbackRefuse = "refuse" // it is remembered, and refuses the late reservation

	EmitStockReleased = "stock.released" // the event of the built-in handler

	LogFormatAuto = "auto" // text on a terminal, else json
	LogFormatText = "text"
	LogFormatJSON = "json"
)

// Config is every setting of rollbackd; [Variables] has their defaults and what is allowed. Load makes it; a Config
// written by hand is not checked. Its String, JSON and log forms mask secrets; the fields do not.
type Config struct {
	// Config is what the engine is told, and goes there as it is: every setting of the engine's has the name of its field.
	// What a setting switches off is [consumer.Off] here.
	consumer.Config

	// Handler names what is run for a message.
	Handler string
	// ExpectedFile is the file with the SELECT of the messages that should have come; empty for none.
	ExpectedFile string
	// SQLFile is the file with the statements of handler sql; empty for others.
	SQLFile string
	// HTTPTarget is the URL that handler http posts to; empty for others.
	HTTPTarget string
	// HTTPTimeout bounds a call of handler http with its answer.
	HTTPTimeout time.Duration
	// HTTPConcurrency is how many calls are made at once.
	HTTPConcurrency int
	// HTTPToken is sent as a bearer token; empty: none.
	HTTPToken string
	// HTTPHMACSecret signs what is posted, each of its [Lines]; empty: unsigned.
	HTTPHMACSecret string
	// HTTPTLSCAFile, HTTPTLSCertFile and HTTPTLSKeyFile are PEM files: who signs the service's certificate, and the
	// client's own; empty: the system's list, and none.
	HTTPTLSCAFile, HTTPTLSCertFile, HTTPTLSKeyFile string
	// EmptyRollback says what a rollback without its reservation is: retry or refuse.
	EmptyRollback string
	// Emit is the event that the built-in handler puts into the outbox; empty: none.
	Emit string

	// HTTPAddr is where health, metrics and pages answer, host:port (port 0 takes a free one); empty when "off".
	HTTPAddr string
	// AdminToken is asked for by pages, API and pprof; without one they answer to loopback only.
	AdminToken string
	// AdminTokensFile holds named tokens; empty: none.
	AdminTokensFile string
	// AdminProxy is a proxy that says who asks; zero: none.
	AdminProxy Proxy
	// BasePath is where pages and API begin, without a slash at its end; empty: at the root.
	BasePath string
	// UIHideBodies: pages and API show no body, no properties and no headers.
	UIHideBodies bool
	// UIRedact are JSON pointers, as their steps, of what pages and API hide in bodies.
	UIRedact [][]string

	// LogLevel is the least level that is logged.
	LogLevel slog.Level
	// LogFormat is text, json, or auto: text on a terminal, else json.
	LogFormat string

	// DeadLetterWebhook is an http or https URL that is told of new dead letters; empty: none.
	DeadLetterWebhook string
	// DeadLetterWebhookSecret signs what the webhook is told, each of its [Lines]; empty: unsigned.
	DeadLetterWebhookSecret string

	// tls are the certificates for the three servers. Load writes them into the URLs and the DSN, where everybody who
	// connects finds them.
	tls struct{ amqp, mysql, redis certs.TLS }

	// Queues are the names under which several queues are told apart in settings; empty for one. A Config is that of the
	// first, which those look at who look at one queue; see [Config.All].
	Queues []string

	beside   []Config    // the other queues
	settings []*Variable // as Load found them
}

// All are the queues that a daemon consumes: this one, and those beside it.
func (c Config) All() []Config { return append([]Config{c}, c.beside...) }

// Retention is how long success rows are kept; 0: for ever.
func (c Config) Retention() time.Duration { return max(0, c.LogRetention) }

// Brakes reports whether too many dead letters pause consuming.
func (c Config) Brakes() bool { return c.MaxDead != consumer.Off }

// What other packages are told of the settings, beside what the engine takes as it is.

// NoDatabase is what to do about a database that does not exist, or not for this user.
const NoDatabase = "`migrate` makes tables only: make the database with CREATE DATABASE and give the user its " +
	"rights, see docs/rights.md"

// Migrations are the tables that this configuration needs: those of the consumer log, of the built-in handler, of a
// lock that is in MySQL, and of an outbox.
func (c Config) Migrations() dedup.MigrateOptions {
	o := dedup.MigrateOptions{Table: c.LogTable}
	if c.Handler == HandlerStock {
		o.Extra = []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}}
	}
	if c.Lock == lock.KindMySQL {
		o.Extra = append(o.Extra, dedup.MigrationSet{Name: lockers.MigrationSet, Files: lockers.Migrations()})
	}
	if c.Outbox || c.Emit != "" {
		o.Extra = append(o.Extra, outbox.Sets().Extra...)
	}
	return o
}

// MySQLConnections is how many connections of MySQL the consumers of all queues have at most.
func (c Config) MySQLConnections() int {
	n := c.Config.MySQLConnections()
	for _, other := range c.beside {
		other.WithoutKeeper, other.Outbox = true, false // there is one for all
		n += other.Config.MySQLConnections()
	}
	return n
}

// OwnTables are the tables that rollbackd has in the schema of ROLLBACKD_MYSQL_DSN, those of a lock there too, and
// without those of the stock, which are the built-in handler's.
func (c Config) OwnTables() []string {
	return append(dedup.Tables(c.LogTable), lockers.MySQLTable, outbox.Table)
}

// LockServers are those of the lock, for connections with this name; engine and pages ask for logins anew besides.
func (c Config) LockServers(name string) lockers.Servers {
	return lockers.Servers{
		Kind: c.Lock, RedisURL: c.RedisURL, MySQLDSN: c.MySQLDSN, ZooKeeperURL: c.ZooKeeperURL, Name: name, Connections: 2,
	}
}

// LockSetting is the key of the setting that says where the lock is.
func (c Config) LockSetting() string {
	return cmp.Or(map[lock.Kind]string{lock.KindMySQL: "MYSQL_DSN", lock.KindZooKeeper: "ZOOKEEPER_URL"}[c.Lock],
		"REDIS_URL")
}

// TopologyConfig is the exchange and the queues.
func (c Config) TopologyConfig() rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: c.Exchange, Queue: c.Queue, RoutingKeys: c.RoutingKeys, Delays: c.RetryDelays,
		TakeMain: c.Topology == consumer.TopologyCheck,
	}
}
