// Package service has the commands that are the daemon or ask about it: run, serve, relay, probe, doctor. It must not
// join what the daemon is made of.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/fold"
)

// Commands are those of this folder.
var Commands = []command.Command{runCommand, serveCommand, relayCommand, probeCommand, doctorCommand}

var runCommand = command.Command{
	Use:   "run",
	Short: "Consume stock-rollback messages until SIGTERM",
	Long: `Consume stock-rollback messages and give the stock back, each message exactly once.

Servers that are away are waited for. SIGTERM or SIGINT drains: nothing new is taken, what is in hand is finished, and
the exit code is 0, or 1 when ROLLBACKD_DRAIN_TIMEOUT was too short (nothing is lost then). A second signal ends at
once.

Beside a consumer of the classic algorithm that is still at work it does not begin: of a table that 'migrate --from'
took over, a last pass must have come to its end, and nothing in it may be newer. It looks for five seconds, at the rows
behind the last one first; what it could not read by then is a warning, and 'doctor' looks longer.`,
	Logs:  true,
	Forms: command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		var o daemon.Options
		f.BoolVar(&o.IgnoreOldLog, "ignore-old-log", false, "begin whatever a table that was taken over holds: nobody "+
			"consumes by it any more")
		return work(&o)
	},
}

var serveCommand = command.Command{
	Use:   "serve",
	Short: "Show the pages of a group without consuming, until SIGTERM",
	Long: `Show pages, API, health and metrics at ROLLBACKD_HTTP_ADDR as 'run' does, with the same settings, and consume
nothing: there is no consumer on the queue, no election, no relay, and nothing is declared or changed at the start. What
the daemons of the group say of themselves, such as their rates, stands on their own pages.

What is asked for on the pages is done here too, by accounts that may: docs/rights.md lists what 'pages' needs. With an
account that may only read, everything is shown, and an act says which right is missing.`,
	Logs:  true,
	Forms: command.NoForm,
	Flags: func(*command.Flags) command.Work { return work(&daemon.Options{PagesOnly: true}) },
}

// relayAsks are the servers of a relay.
var relayAsks = []string{"MYSQL_DSN", "AMQP_URL"}

var relayCommand = command.Command{
	Use:   "relay",
	Short: "Publish the messages of an outbox until SIGTERM",
	Long: `Publish what an order service has put into its outbox (docs/outbox.md): the relay beside that service, without a
queue to consume from. ROLLBACKD_MYSQL_DSN names the schema of the service, in which 'migrate --outbox' makes the table,
and ROLLBACKD_AMQP_URL the broker. A message that does not say where it goes is published to ROLLBACKD_EXCHANGE with the
first of ROLLBACKD_ROUTING_KEYS, if that is no pattern. Several relays of one outbox share the work. Health and metrics
answer at ROLLBACKD_HTTP_ADDR.

Servers that are away are waited for. SIGTERM or SIGINT drains: nothing new is claimed, what is under way is confirmed,
and the exit code is 0, or 1 when ROLLBACKD_DRAIN_TIMEOUT was too short (that is sent again, then). Beside the consumer,
ROLLBACKD_OUTBOX=on has the relay work within 'run'.`,
	Asks:  relayAsks,
	Logs:  true,
	Forms: command.NoForm,
	Flags: func(*command.Flags) command.Work { return work(&daemon.Options{RelayOnly: true}) },
}

// besideBudget is how much memory the Go runtime may take beside ROLLBACKD_MEMORY_BUDGET before it collects more often:
// large bodies would else lie around as garbage, four times over.
const besideBudget = 64 << 20

// work runs a daemon until it is told to stop.
func work(o *daemon.Options) command.Work {
	return func(ctx context.Context, c *command.Call) error {
		folding := fold.New(c.Logger(c.Config).Handler(), deadletter.Fingerprint)
		defer folding.Flush()
		limit := int64(besideBudget)
		for _, queue := range c.Config.All() {
			limit += queue.MemoryBudget
		}
		command.CollectSeldom(limit)
		o.Version, o.Revision = c.Build.Version, c.Build.Revision
		err := run(ctx, c, slog.New(folding), *o)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, consumer.ErrDrainTimeout):
			err = fmt.Errorf("%w; a longer ROLLBACKD_DRAIN_TIMEOUT (now %v) finishes it", err, c.Config.DrainTimeout)
		}
		return command.Said(command.SQLFileError(err))
	}
}

func run(ctx context.Context, c *command.Call, log *slog.Logger, o daemon.Options) (err error) {
	cfg, begin := c.Config, log.With("version", o.Version)
	switch {
	case o.RelayOnly:
		begin.InfoContext(ctx, "starting", "exchange", cfg.Exchange, "routing_key", cfg.RoutingKey())
	case o.PagesOnly && cfg.HTTPAddr == "":
		return command.Usagef("ROLLBACKD_HTTP_ADDR is off: nothing would be shown anywhere")
	case o.PagesOnly:
		begin.InfoContext(ctx, "starting", "group", cfg.Group, "queue", cfg.Queue, "pages_only", true)
	default:
		for _, queue := range cfg.All() {
			begin.InfoContext(ctx, "starting", "group", queue.Group, "queue", queue.Queue, "lanes", queue.Lanes, "batch_size",
				queue.BatchSize)
		}
	}
	if cfg.ExpectedFile != "" && !o.RelayOnly { // whose pages know what should come
		o.Expected, err = c.Query(cfg.ExpectedFile, "ROLLBACKD_EXPECTED_FILE")
	}
	var d *daemon.Daemon
	if err == nil {
		d, err = daemon.New(ctx, cfg, log, o)
	}
	if err == nil {
		err = d.Run(ctx)
	}
	if err == nil {
		log.InfoContext(context.WithoutCancel(ctx), "stopped")
	}
	return err
}
