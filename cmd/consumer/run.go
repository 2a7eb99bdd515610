package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/daemon"
)

func newRunCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Consume stock-rollback messages until SIGTERM",
		Long: `Consume stock-rollback messages and give the stock back, each message exactly once.

Servers that are away are waited for. SIGTERM or SIGINT drains: nothing new is taken, what is in hand is finished, and
the exit code is 0, or 1 when ROLLBACKD_DRAIN_TIMEOUT was too short (nothing is lost then). A second signal ends at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runDaemon(cmd.Context()) },
	}
}

// gcPercent lets the heap grow to five times what is alive before it is collected, which is little: a lane keeps one
// batch. With Go's default of 100 a sixth of the daemon's CPU went into collecting (bench/README.md); its memory is
// measured there too. The variable GOGC of the Go runtime says otherwise.
const gcPercent = 400

func (a *app) runDaemon(ctx context.Context) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	log := a.logger(cfg)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	d, err := daemon.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "starting", "version", a.build.Version, "group", cfg.Group, "queue", cfg.Queue, "lanes", cfg.Lanes, "batch_size", cfg.BatchSize)
	err = d.Run(ctx)
	switch {
	case errors.Is(err, consumer.ErrDrainTimeout):
		return fmt.Errorf("%w; a longer ROLLBACKD_DRAIN_TIMEOUT (now %v) finishes it", err, cfg.DrainTimeout)
	case err != nil:
		return err
	}
	log.InfoContext(context.WithoutCancel(ctx), "stopped")
	return nil
}
