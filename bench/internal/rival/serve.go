package rival

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Names of the rivals.
const (
	PlainEach     = "plain_each"     // every delivery acked by itself
	PlainMultiple = "plain_multiple" // acks over many deliveries
	Classic       = "classic"
	Watermill     = "watermill"
	Pool          = "pool"  // calls a service
	Floor         = "floor" // takes nothing from the queue
)

// rivals are what each runs.
var rivals = map[string]func(context.Context, *contest){
	PlainEach: plain(1), PlainMultiple: plain(ackEvery), Classic: classic, Watermill: watermillRival, Pool: callPool,
	Floor: floor,
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
// learns from the product's own environment variables. It answers at /metrics and says where, as the product does.
func Main(name string, workers int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg, _, err := config.Load(os.Environ())
	must.OK(err)
	run, ok := rivals[name]
	if !ok {
		must.OK(fmt.Errorf("there is no rival %q", name))
	}
	c := &contest{cfg: cfg, workers: workers}
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for outcome, n := range map[string]*atomic.Int64{
			"applied": &c.applied, "duplicate": &c.duplicate, "retried": &c.retried, "dead_lettered": &c.dead,
			"abandoned": &c.abandoned,
		} {
			fmt.Fprintf(w, "rollbackd_deliveries_total{outcome=%q} %d\n", outcome, n.Load())
		}
	}))
	defer pages.Close()
	fmt.Printf(`{"msg": "listening", "addr": %q}`+"\n", pages.Listener.Addr())
	run(ctx, c)
}

// side lets so many workers take deliveries from the main queue side by side, each on a channel of its own, until ctx
// ends or one is not done with. worker makes what one of them does with a delivery.
func (c *contest) side(ctx context.Context, workers, prefetch int, worker func() func(amqp.Delivery) error) {
	conn := must.Get(amqp.Dial(c.cfg.AMQPURLs[0]))
	defer conn.Close()
	must.Side(workers, func(int) {
		take, ch := worker(), must.Get(conn.Channel())
		defer ch.Close()
		const global, autoAck, exclusive, noLocal, noWait = false, false, false, false, false
		must.OK(ch.Qos(prefetch, 0, global))
		deliveries := must.Get(ch.Consume(c.cfg.Queue, "", autoAck, exclusive, noLocal, noWait, nil))
		for {
			select {
			case <-ctx.Done():
				return
			case d, ok := <-deliveries:
				if !ok {
					must.OK(errors.New("the deliveries ended"))
				}
				must.OK(take(d))
			}
		}
	})
}

// settling acks what was processed, and gives back what was not.
func (c *contest) settling(process func(amqp.Delivery)) func(amqp.Delivery) error {
	return func(d amqp.Delivery) error {
		failed := must.Catch(func() { process(d) })
		if failed == nil {
			return d.Ack(false)
		}
		c.abandoned.Add(1)
		if !errors.Is(failed, errHeld) { // who has failed keeps the lock for a while, and the message comes again at once
			fmt.Fprintln(os.Stderr, failed)
		}
		return d.Nack(false, true)
	}
}
