package rival

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

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

// counts are what a rival says of itself, under the product's metric so that one reader reads all. An attempt that
// failed is retried or dead; abandoned is what was given back to the queue.
type counts struct{ applied, duplicate, retried, dead, abandoned atomic.Int64 }

// contest is everything a rival is given.
type contest struct {
	cfg     config.Config
	workers int
	counts  *counts
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
	c := contest{cfg: cfg, workers: workers, counts: &counts{}}
	run, ok := map[string]func(context.Context, contest) error{
		PlainEach:     func(ctx context.Context, c contest) error { return plain(ctx, c, 1) },
		PlainMultiple: func(ctx context.Context, c contest) error { return plain(ctx, c, ackEvery) },
		Classic:       classic,
		Watermill:     watermillRival,
		Pool:          callPool,
	}[name]
	if !ok {
		return fmt.Errorf("there is no rival %q", name)
	}
	pages, err := c.counts.listen()
	if err != nil {
		return err
	}
	defer pages()
	return run(ctx, c)
}

// listen serves /metrics and says where, as the product does.
func (c *counts) listen() (stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for outcome, n := range map[string]*atomic.Int64{
			"applied": &c.applied, "duplicate": &c.duplicate, "retried": &c.retried, "dead_lettered": &c.dead,
			"abandoned": &c.abandoned,
		} {
			fmt.Fprintf(w, "rollbackd_deliveries_total{outcome=%q} %d\n", outcome, n.Load())
		}
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) }) // ends by Close
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"msg": "listening",
		"addr": l.Addr().String()}); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return func() { _ = server.Close(); wg.Wait() }, nil
}
