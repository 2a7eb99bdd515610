package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	depthEvery = 15 * time.Second // as often as a scrape
	// depthTimeout bounds a look at all queues.
	depthTimeout = 10 * time.Second
)

// depths asks RabbitMQ now and then how many messages wait in the queues, on a connection of its own: that of a source
// is gone while MySQL is away, when the answer matters most. Each daemon asks, because whoever is elected in MySQL
// is nobody while MySQL is away; the largest of their answers is the one to look at. What is not known is not shown.
type depths struct {
	amqp      rabbit.Config
	queues    map[string]string // kinds by name
	ready     *prometheus.GaugeVec
	consumers *prometheus.GaugeVec
	blocked   func(ctx context.Context, why string) // is told whether RabbitMQ takes what is published
	log       *slog.Logger
	conn      *rabbit.Conn // nil: none stands; it belongs to run
}

func newDepths(cfgs []Config, blocked func(context.Context, string)) (*depths, error) {
	reg := newRegistry(cfgs[0])
	d := &depths{
		amqp: cfgs[0].amqp("watch"), log: cfgs[0].Logger, blocked: blocked, queues: map[string]string{},
		ready: reg.shared("rollbackd_queue_messages_ready",
			"Messages that wait in a queue for their delivery or their time, as RabbitMQ says.", "queue", "kind"),
		consumers: reg.shared("rollbackd_queue_consumers",
			"Consumers of a queue, those of all daemons, as RabbitMQ says.", "queue", "kind"),
	}
	for _, cfg := range cfgs {
		d.queues[cfg.Queue], d.queues[rabbit.BackstopQueue(cfg.Queue)] = "main", "backstop"
		d.queues[rabbit.DeadQueue(cfg.Queue)] = "dead"
		for _, delay := range cfg.RetryDelays {
			d.queues[rabbit.RetryQueue(cfg.Queue, delay)] = "retry"
		}
	}
	return d, reg.err
}

// run looks until ctx ends.
func (d *depths) run(ctx context.Context) {
	defer d.close()
	for {
		if err := d.look(ctx); err != nil && ctx.Err() == nil {
			d.log.DebugContext(ctx, "look at the queues", "err", err) // the engine says so if RabbitMQ is away
		}
		if wait.For(ctx, depthEvery) != nil {
			return
		}
	}
}

// look asks for each queue once. A queue that cannot be looked at, because it is missing, keeps nobody from the others.
func (d *depths) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, depthTimeout)
	defer cancel()
	if d.conn == nil || d.conn.Err() != nil {
		d.close()
		conn, err := rabbit.Dial(ctx, d.amqp)
		if err != nil {
			d.forget()
			return err
		}
		d.conn = conn
	}
	var errs []error
	for name, kind := range d.queues {
		ready, consumers, err := d.conn.Depth(ctx, name)
		switch {
		case err == nil:
			d.ready.WithLabelValues(name, kind).Set(float64(ready))
			d.consumers.WithLabelValues(name, kind).Set(float64(consumers))
		case d.conn.Err() != nil || ctx.Err() != nil:
			d.forget()
			d.close()
			return err
		default:
			d.ready.DeleteLabelValues(name, kind)
			d.consumers.DeleteLabelValues(name, kind)
			errs = append(errs, err)
		}
	}
	why, err := d.conn.Blocks(ctx)
	if why != "" || err == nil {
		d.blocked(ctx, why)
	}
	if why != "" {
		d.close() // it answers no more
	}
	return errors.Join(append(errs, err)...)
}

// forget shows nothing rather than what was true once.
func (d *depths) forget() {
	for name, kind := range d.queues {
		d.ready.DeleteLabelValues(name, kind)
		d.consumers.DeleteLabelValues(name, kind)
	}
}

func (d *depths) close() {
	if d.conn != nil {
		_ = d.conn.Close() // it was only read
		d.conn = nil
	}
}
