package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
)

var probeCommand = command.Command{
	Use:   "probe",
	Short: "Ask the daemon on this machine whether it is alive, or ready",
	Long: `Ask the daemon that listens at ROLLBACKD_HTTP_ADDR, for a container's HEALTHCHECK: an image without a shell has
nothing else to ask with. No other setting is looked at, and no server is asked.

The exit code is 0 when the daemon is alive, or with --ready when it takes deliveries; 1 when it is not, or when nobody
answers in time; 2 when it cannot be asked. A daemon whose dependency is away is alive, and not ready: restarting it
would not help.`,
	Needs: command.NeedsNothing,
	Forms: command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		ready := f.Bool("ready", false, "ask whether it takes deliveries, and not only whether it is alive")
		limit := f.Duration("timeout", 3*time.Second, "give up after this time, 100ms to 1m")
		return func(ctx context.Context, c *command.Call) error {
			if *limit < 100*time.Millisecond || *limit > time.Minute {
				return command.Usagef("--timeout must be from 100ms to 1m, not %v", *limit)
			}
			addr, err := probed(c.Environ)
			if err != nil {
				return err
			}
			ask := server.Alive
			if *ready {
				ask = server.Ready
			}
			err = ask(ctx, addr, *limit)
			if errors.Is(err, server.ErrStuck) || errors.Is(err, server.ErrNotReady) || err == nil {
				return err
			}
			return command.Said(fmt.Errorf("no daemon answers at ROLLBACKD_HTTP_ADDR %s: %w", addr, err))
		}
	},
}

// probed is the address to ask.
func probed(environ []string) (string, error) {
	addr, err := config.HTTPAddr(environ)
	if err != nil {
		return "", command.Usagef("a setting is wrong:\n  %w", err)
	}
	if addr == "" {
		return "", command.Usagef("ROLLBACKD_HTTP_ADDR is off: a daemon that listens nowhere cannot be asked")
	}
	if _, port, err := net.SplitHostPort(addr); err == nil && port == "0" {
		return "", command.Usagef("ROLLBACKD_HTTP_ADDR is %s, which is another port each time: give it a number", addr)
	}
	return addr, nil
}
