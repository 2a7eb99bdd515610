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
	"log/slog"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/certs"
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
