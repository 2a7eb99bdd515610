package relay

import (
	"cmp"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Connections is how many connections of MySQL a relay has at most, with the default InFlight.
const Connections = defaultInFlight + 2

const defaultInFlight = 4

// Config is what a [Relay] needs. What is zero takes the default named at its field.
type Config struct {
	// DB is connected to the schema of the outbox. A relay uses as many connections as InFlight, and two more:
	// [Connections].
	DB *sql.DB
	// AMQPURLs are tried one after the other, beginning at a random one. CurrentAMQPURLs, if set, is asked before each
	// connection instead: their passwords may have changed.
	AMQPURLs        []string
	CurrentAMQPURLs func() []string
	AMQPTLS         *tls.Config // encrypts, where the URLs name no certificates

	// Exchange and RoutingKey are where a message goes that does not say it. RoutingKey may be empty: then such a
	// message is parked.
	Exchange   string
	RoutingKey string

	Lease     time.Duration // how long a claim keeps rows from other relays; 30s, at least 2s
	BatchSize int           // rows claimed at once; 1000
	InFlight  int           // batches that await their confirms at the same time; 4
	BatchSum  int           // bytes of bodies in one batch, about; 8 MiB
	ParkAfter time.Duration // how long a message is tried that RabbitMQ does not take; 24h
	// Retention is how long a parked message is kept, with its body. Default: until a person drops it.
	Retention time.Duration
	// DrainTimeout bounds how long Run waits at its end for what is under way; Lease, and at most that.
	DrainTimeout time.Duration

	Logger  *slog.Logger          // default slog.Default()
	Metrics prometheus.Registerer // default: none are kept
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.DB == nil:
		return c, errors.New("relay: no DB")
	case len(c.AMQPURLs) == 0:
		return c, errors.New("relay: no AMQPURLs")
	case min(c.BatchSize, c.InFlight, c.BatchSum) < 0 || min(c.ParkAfter, c.Retention, c.DrainTimeout) < 0:
		return c, errors.New("relay: BatchSize, InFlight, BatchSum, ParkAfter, Retention or DrainTimeout is negative")
	case c.Lease != 0 && c.Lease < 2*time.Second:
		return c, fmt.Errorf("relay: Lease %v must be at least 2s", c.Lease)
	}
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.BatchSize = cmp.Or(c.BatchSize, 1000)
	c.InFlight = cmp.Or(c.InFlight, defaultInFlight)
	c.BatchSum = cmp.Or(c.BatchSum, 8<<20)
	c.ParkAfter = cmp.Or(c.ParkAfter, 24*time.Hour)
	c.DrainTimeout = min(cmp.Or(c.DrainTimeout, c.Lease), c.Lease)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c, nil
}

func (c Config) rabbit() rabbit.Config {
	return rabbit.Config{
		URLs: c.AMQPURLs, Current: c.CurrentAMQPURLs, TLS: c.AMQPTLS, Name: rabbit.ConnectionName("relay"),
		// A claim that nobody confirms must be over before its lease is.
		ConfirmTimeout: min(c.Lease/3, 10*time.Second),
		Certs: &certs.Store{Warn: func(err error) {
			c.Logger.Warn("certificates cannot be read again", "server", "rabbitmq", "err", err)
		}},
	}
}
