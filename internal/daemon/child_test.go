package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/stock"
)

// childEnv, set to a key, makes this test binary a daemon that dies whenever its handler gets a message with that key.
const childEnv = "ROLLBACKD_TEST_POISON"

// crashEnv, set to a point of a message's life, makes this test binary a daemon that kills itself there.
const crashEnv = "ROLLBACKD_TEST_CRASH_AT"

// hangEnv, set to a point of a message's life, makes this test binary a daemon whose lanes stand still there.
const hangEnv = "ROLLBACKD_TEST_HANG_AT"

// hangAt is a hook at which a lane stands still.
func hangAt(point consumer.Point) func(consumer.Point) {
	return func(p consumer.Point) {
		if p == point {
			select {}
		}
	}
}

// killAt is a hook that ends the process as kill -9 does.
func killAt(point consumer.Point) func(consumer.Point) {
	return func(p consumer.Point) {
		if p == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
	}
}

// crashCode is the exit code of such a death.
const crashCode = 66

// poisonedHandler rolls back like the daemon's own, but the message with the key poison kills the process.
type poisonedHandler struct{ poison string }

// Handle is a [consumer.Handler]'s.
func (h poisonedHandler) Handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	requests := make([]stock.Request, len(msgs))
	for i, m := range msgs {
		if m.Key == h.poison {
			os.Exit(crashCode)
		}
		var body struct {
			OrderSN string `json:"order_sn"`
		}
		if err := json.Unmarshal(m.Body, &body); err != nil {
			return fmt.Errorf("the test sent what it cannot read: %w", err)
		}
		requests[i] = stock.Request{OrderSN: body.OrderSN, Tag: m.Tag, Key: m.Key}
	}
	return stock.Rollback(ctx, tx, requests, stock.Options{})
}

// runChild is main of the child process.
func runChild(o daemon.Options) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	cfg, _, err := config.Load(os.Environ())
	if err != nil {
		log.Error("configuration", "err", err)
		return 2
	}
	d, err := daemon.New(ctx, cfg, log, o)
	if err == nil {
		err = d.Run(ctx)
	}
	if err != nil {
		log.Error("run", "err", err)
		return 1
	}
	return 0
}
