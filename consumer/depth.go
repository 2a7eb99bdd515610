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

// The kinds of queues in the metrics of their depth.
const (
	queueMain     = "main"
	queueRetry    = "retry"
	queueBackstop = "backstop"
	queueDead     = "dead"
)

// depths asks RabbitMQ now and then how many messages wait in the queues, on a connection of its own: that of a source
// is gone while MySQL is away, when the answer matters most. Each daemon asks, because whoever is elected in MySQL
// is nobody while MySQL is away; the largest of their answers is the one to look at. What is not known is not shown.
type depths struct {
	amqp      rabbit.Config
	queues    []watchedQueue
	ready     *prometheus.GaugeVec
	consumers *prometheus.GaugeVec
	blocked   func(ctx context.Context, why string) // is told whether RabbitMQ takes what is published
	log       *slog.Logger
	conn      *rabbit.Conn // nil: none stands; it belongs to run
}

type watchedQueue struct{ name, kind string }

func newDepths(cfg Config, amqp rabbit.Config, blocked func(context.Context, string)) (*depths, error) {
	amqp.Name = rabbit.ConnectionName("watch")
	d := &depths{
		amqp: amqp, log: cfg.Logger, blocked: blocked,
		queues: []watchedQueue{
			{cfg.Queue, queueMain}, {rabbit.BackstopQueue(cfg.Queue), queueBackstop}, {rabbit.DeadQueue(cfg.Queue), queueDead},
		},
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollbackd_queue_messages_ready",
			Help: "Messages that wait in a queue for their delivery or their time, as RabbitMQ says.",
		}, []string{"queue", "kind"}),
		consumers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollbackd_queue_consumers", Help: "Consumers of a queue, those of all daemons, as RabbitMQ says.",
		}, []string{"queue", "kind"}),
	}
	for _, delay := range cfg.RetryDelays {
		d.queues = append(d.queues, watchedQueue{rabbit.RetryQueue(cfg.Queue, delay), queueRetry})
	}
	return d, errors.Join(cfg.Registerer.Register(d.ready), cfg.Registerer.Register(d.consumers))
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
	for _, q := range d.queues {
		ready, consumers, err := d.conn.Depth(ctx, q.name)
		switch {
		case err == nil:
			d.ready.WithLabelValues(q.name, q.kind).Set(float64(ready))
			d.consumers.WithLabelValues(q.name, q.kind).Set(float64(consumers))
		case d.conn.Err() != nil || ctx.Err() != nil:
			d.forget()
			d.close()
			return err
		default:
			d.ready.DeleteLabelValues(q.name, q.kind)
			d.consumers.DeleteLabelValues(q.name, q.kind)
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
	d.ready.Reset()
	d.consumers.Reset()
}

func (d *depths) close() {
	if d.conn != nil {
		_ = d.conn.Close() // it was only read
		d.conn = nil
	}
}
