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
	"github.com/rollbackd/rollbackd/internal/config"
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
	Needs: command.NeedsNothing,
	Forms: command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		ignoreOldLog := f.Bool("ignore-old-log", false, "begin whatever a table that was taken over holds: nobody "+
			"consumes by it any more")
		return func(ctx context.Context, c *command.Call) error {
			o := daemon.Options{IgnoreOldLog: *ignoreOldLog}
			return work(ctx, c, o, func(cfg config.Config, log *slog.Logger) error {
				for _, queue := range cfg.All() {
					log.InfoContext(ctx, "starting", "version", c.Build.Version, "group", queue.Group, "queue", queue.Queue, "lanes",
						queue.Lanes, "batch_size", queue.BatchSize)
				}
				return nil
			})
		}
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
	Needs: command.NeedsNothing,
	Forms: command.NoForm,
	Flags: func(*command.Flags) command.Work {
		return func(ctx context.Context, c *command.Call) error {
			return work(ctx, c, daemon.Options{PagesOnly: true}, func(cfg config.Config, log *slog.Logger) error {
				if cfg.HTTPAddr == "" {
					return command.Usagef("ROLLBACKD_HTTP_ADDR is off: nothing would be shown anywhere")
				}
				log.InfoContext(ctx, "starting", "version", c.Build.Version, "group", cfg.Group, "queue", cfg.Queue, "pages_only",
					true)
				return nil
			})
		}
	},
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
	Needs: command.NeedsNothing,
	Forms: command.NoForm,
	Flags: func(*command.Flags) command.Work {
		return func(ctx context.Context, c *command.Call) error {
			return work(ctx, c, daemon.Options{RelayOnly: true}, func(cfg config.Config, log *slog.Logger) error {
				log.InfoContext(ctx, "starting", "version", c.Build.Version, "exchange", cfg.Exchange, "routing_key",
					cfg.RoutingKey())
				return nil
			}, relayAsks...)
		}
	},
}

// loadInLogForm is LoadConfig for a command that writes a log: where that is JSON, warnings and the error with which
// the command ends are lines of it, also while the settings are not known yet. In text they are for a person, as
// elsewhere.
func loadInLogForm(ctx context.Context, a *command.App, asks ...string) (config.Config, error) {
	format := config.LogFormat(a.Environ)
	if !a.LogsJSON(format) {
		return a.LoadConfig(asks...)
	}
	log := a.Logger(config.Config{LogFormat: config.LogFormatJSON})
	a.LastWords = func(err error) { log.ErrorContext(ctx, "ended", "err", err.Error()) }
	return a.LoadSettings(func(w config.Warning) { log.WarnContext(ctx, w.String()) }, asks...)
}

// besideBudget is how much memory the Go runtime may take beside ROLLBACKD_MEMORY_BUDGET before it collects more often:
// large bodies would else lie around as garbage, four times over.
const besideBudget = 64 << 20

// work runs a daemon, of whose beginning begin tells, until it is told to stop.
func work(
	ctx context.Context, c *command.Call, o daemon.Options, begin func(config.Config, *slog.Logger) error, asks ...string,
) error {
	cfg, err := loadInLogForm(ctx, c.App, asks...)
	if err != nil {
		return command.Said(err)
	}
	folding := fold.New(c.Logger(cfg).Handler(), deadletter.Fingerprint)
	defer folding.Flush()
	log := slog.New(folding)
	limit := int64(besideBudget)
	for _, queue := range cfg.All() {
		limit += queue.MemoryBudget
	}
	command.CollectSeldom(limit)
	o.Version, o.Revision = c.Build.Version, c.Build.Revision
	if err = begin(cfg, log); err == nil && cfg.ExpectedFile != "" && !o.RelayOnly { // whose pages know what should come
		o.Expected, err = c.Query(cfg.ExpectedFile, "ROLLBACKD_EXPECTED_FILE")
	}
	var d *daemon.Daemon
	if err == nil {
		d, err = daemon.New(ctx, cfg, log, o)
	}
	if err == nil {
		err = d.Run(ctx)
	}
	switch {
	case errors.Is(err, consumer.ErrDrainTimeout):
		err = fmt.Errorf("%w; a longer ROLLBACKD_DRAIN_TIMEOUT (now %v) finishes it", err, cfg.DrainTimeout)
	case err == nil:
		log.InfoContext(context.WithoutCancel(ctx), "stopped")
		return nil
	}
	return command.Said(command.SQLFileError(err))
}
