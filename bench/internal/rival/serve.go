package rival

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/config"
)

// Names of the rivals.
const (
	PlainEach     = "plain_each"     // every delivery acked by itself
	PlainMultiple = "plain_multiple" // acks over many deliveries
	Classic       = "classic"
	Watermill     = "watermill"
	Pool          = "pool" // calls a service
)

// rivals are what each runs.
var rivals = map[string]func(context.Context, *contest) error{
	PlainEach:     func(ctx context.Context, c *contest) error { return plain(ctx, c, 1) },
	PlainMultiple: func(ctx context.Context, c *contest) error { return plain(ctx, c, ackEvery) },
	Classic:       classic,
	Watermill:     watermillRival,
	Pool:          callPool,
}

// contest is everything a rival is given, and what it says of itself under the product's metric, so that one reader
// reads all: deliveries by their outcomes. An attempt that failed is retried or dead; abandoned is what was given back
// to the queue.
type contest struct {
	cfg     config.Config
	workers int

	applied, duplicate, retried, dead, abandoned atomic.Int64
}

// Main is the whole process of a rival: it works until SIGTERM, finishes what is in hand and returns. Where to work it
// learns from the product's own environment variables.
func Main(name string, workers int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg, _, err := config.Load(os.Environ())
	if err != nil {
		return err
	}
	run, ok := rivals[name]
	if !ok {
		return fmt.Errorf("there is no rival %q", name)
	}
	c := &contest{cfg: cfg, workers: workers}
	pages, err := c.serve()
	defer pages.Close()
	if err != nil {
		return err
	}
	return run(ctx, c)
}

// serve answers at /metrics and says where, as the product does.
func (c *contest) serve() (*httptest.Server, error) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for outcome, n := range map[string]*atomic.Int64{
			"applied": &c.applied, "duplicate": &c.duplicate, "retried": &c.retried, "dead_lettered": &c.dead,
			"abandoned": &c.abandoned,
		} {
			fmt.Fprintf(w, "rollbackd_deliveries_total{outcome=%q} %d\n", outcome, n.Load())
		}
	}))
	return s, json.NewEncoder(os.Stdout).Encode(map[string]string{"msg": "listening", "addr": s.Listener.Addr().String()})
}

// side runs work side by side until all of them end, and returns the first error.
func side(workers int, work func() error) error {
	errs := make(chan error, workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			if err := work(); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// consume takes deliveries from the main queue, on a channel of its own, until ctx ends or one is not done with.
func (c *contest) consume(ctx context.Context, conn *amqp.Connection, prefetch int,
	take func(amqp.Delivery) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	defer ch.Close()
	const global, autoAck, exclusive, noLocal, noWait = false, false, false, false, false
	if err := ch.Qos(prefetch, 0, global); err != nil {
		return fmt.Errorf("set the prefetch: %w", err)
	}
	deliveries, err := ch.Consume(c.cfg.Queue, "", autoAck, exclusive, noLocal, noWait, nil)
	if err != nil {
		return fmt.Errorf("consume from %s: %w", c.cfg.Queue, err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("consume from %s: it ended", c.cfg.Queue)
			}
			if err := take(d); err != nil {
				return err
			}
		}
	}
}

// settle acks what was processed, and gives back what was not.
func (c *contest) settle(d amqp.Delivery, failed error) error {
	if failed == nil {
		return d.Ack(false)
	}
	c.abandoned.Add(1)
	if !errors.Is(failed, errHeld) { // who has failed keeps the lock for a while, and the message comes again at once
		fmt.Fprintln(os.Stderr, failed)
	}
	return d.Nack(false, true)
}

func dial(url string) (*amqp.Connection, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}
