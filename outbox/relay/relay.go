package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/outbox"
)

// How long a relay rests between two looks: shortly after it found something, longer each time that it did not.
const (
	shortestRest = 10 * time.Millisecond
	longestRest  = time.Second
)

// Relay publishes the rows of an outbox. Make it with [New].
type Relay struct {
	cfg       Config
	publisher *rabbit.Publisher
	metrics   *metrics
	looks     looker
	troubles  troubles
	limit     int // how many rows the next claim asks for, and among how many; of the loop of Run
	reach     int
	working   atomic.Bool // the table was found
	draining  atomic.Bool
	stale     atomic.Bool // a queue has refused something on the present connection

	inFlight chan struct{} // holds a token for each batch that awaits its confirms
	batches  sync.WaitGroup
}

// New connects to nothing yet.
func New(cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Relay{
		cfg: cfg, publisher: rabbit.NewPublisher(cfg.rabbit()),
		troubles: troubles{log: cfg.Logger, known: map[string]trouble{}},
		looks:    looker{db: cfg.DB}, limit: cfg.BatchSize, inFlight: make(chan struct{}, cfg.InFlight),
	}
	if r.metrics, err = newMetrics(cfg.Metrics, r); err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return r, nil
}

// ErrDrainTimeout says that DrainTimeout was too short for what was under way. It is sent again, when its lease ends.
var ErrDrainTimeout = errors.New("the relay was stopped before RabbitMQ had confirmed all that was under way")

// Run publishes until ctx ends; then it claims nothing more, waits for what is under way, and returns nil, or
// [ErrDrainTimeout]. Servers that are away are waited for. A schema without a table that it can use is an
// [outbox.ErrSchema]. Run once only.
func (r *Relay) Run(ctx context.Context) error {
	if err := r.awaitTable(ctx); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	// What is under way may go on when ctx ends, but no longer than its claim holds.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	draining := context.AfterFunc(ctx, func() {
		_ = wait.For(work, r.cfg.DrainTimeout) // or until all is done
		stop()
	})
	var pruning sync.WaitGroup
	if r.cfg.Retention > 0 {
		pruning.Go(func() { r.keepRetention(ctx) })
	}
	for rest := shortestRest; ctx.Err() == nil; {
		found, more, err := r.turn(ctx, work)
		r.troubles.told(ctx, noTable, err)
		switch {
		case err != nil || r.troubles.met(noBroker) || r.troubles.met(noConfirm):
			rest = longestRest
		case more:
			continue
		case found > 0:
			rest = shortestRest
		default:
			rest = min(2*rest, longestRest)
		}
		_ = wait.For(ctx, rest) // the loop looks at ctx
	}
	r.draining.Store(true)
	draining() // it has begun
	r.batches.Wait()
	pruning.Wait()
	late := work.Err() != nil
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.publisher.Close(closing); err != nil && !late {
		return fmt.Errorf("relay: %w", err)
	}
	if late {
		return ErrDrainTimeout
	}
	return nil
}

// awaitTable returns when the table was found, or ctx has ended.
func (r *Relay) awaitTable(ctx context.Context) error {
	for ctx.Err() == nil {
		err := outbox.CheckSchema(ctx, r.cfg.DB)
		if errors.Is(err, outbox.ErrSchema) {
			return err
		}
		r.troubles.told(ctx, noTable, err)
		if err == nil {
			r.working.Store(true)
			return nil
		}
		_ = wait.For(ctx, longestRest) // the loop looks at ctx
	}
	return nil
}

// State is how it stands with a relay.
type State struct {
	Working  bool     // it has found the table
	Draining bool     // it was told to stop
	Misses   []string // what is away or takes nothing, "rabbitmq: …", each with the reason
}

// State may be asked for at any time.
func (r *Relay) State() State { return State{r.working.Load(), r.draining.Load(), r.troubles.list()} }

// turn claims one batch and has it delivered beside what comes next. found is how many rows there were, more whether
// there are perhaps more. While RabbitMQ is away nothing is claimed, because what is claimed cannot be cancelled any
// more; while it confirms nothing, one row after the other is, to find out whether it does.
func (r *Relay) turn(ctx, work context.Context) (found int, more bool, err error) {
	from, due, err := r.looks.next(ctx)
	if err != nil {
		return 0, false, err
	}
	if due && r.stale.Swap(false) { // else RabbitMQ 3.10 refuses what comes on it, also when there is room again
		r.batches.Wait()
		r.publisher.Renew()
	}
	if r.unreachable(ctx) {
		return 0, false, nil
	}
	if !due {
		r.troubles.forget(ctx, r.cfg.Lease)
		return 0, false, nil
	}
	most := r.limit
	if r.troubles.met(noConfirm) {
		if most = 1; len(r.inFlight) > 0 {
			return 0, false, nil
		}
	}
	select {
	case r.inFlight <- struct{}{}:
	case <-ctx.Done():
		return 0, false, nil
	}
	until := time.Now().Add(r.cfg.Lease)
	claimed, err := r.claim(work, from, most)
	if err != nil || len(claimed.rows) == 0 {
		<-r.inFlight
		return 0, false, err
	}
	found, sum := len(claimed.rows), claimed.size()
	if r.limit = min(2*r.limit, r.cfg.BatchSize); sum >= r.cfg.BatchSum {
		r.limit = found // the server sends all that is asked for, whatever of it is read
	}
	r.batches.Go(func() {
		defer func() { <-r.inFlight }()
		within, cancel := context.WithDeadline(work, until)
		defer cancel()
		r.deliver(within, claimed)
	})
	return found, found == most || sum >= r.cfg.BatchSum, nil
}

// size is how many bytes are claimed, about.
func (c claim) size() (sum int) {
	for i := range c.rows {
		sum += len(c.rows[i].publishing.Body)
	}
	return sum
}

// unreachable reports whether RabbitMQ takes nothing now: it cannot be reached, or it blocks publishers.
func (r *Relay) unreachable(ctx context.Context) bool {
	err := r.publisher.Connect(ctx)
	r.troubles.told(ctx, noBroker, err)
	why := r.publisher.Blocked()
	if why != "" {
		r.troubles.told(ctx, noConfirm, fmt.Errorf("it blocks publishers: %s", why))
	}
	return err != nil || why != ""
}

// deliver publishes what was claimed and writes down what came of it.
func (r *Relay) deliver(ctx context.Context, c claim) {
	var batch []rabbit.Publishing
	var sent []*row
	for i := range c.rows {
		if one := &c.rows[i]; one.verdict == nil {
			batch, sent = append(batch, one.publishing), append(sent, one)
		}
	}
	for i, err := range r.publisher.Publish(ctx, batch) {
		if sent[i].verdict = err; errors.Is(err, rabbit.ErrNacked) {
			r.stale.Store(true)
		}
	}
	err := r.settle(ctx, c)
	r.troubles.told(ctx, noDelete, err)
}

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
