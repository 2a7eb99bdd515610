package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/fold"
)

var runCommand = command{
	use:   "run",
	short: "Consume stock-rollback messages until SIGTERM",
	long: `Consume stock-rollback messages and give the stock back, each message exactly once.

Servers that are away are waited for. SIGTERM or SIGINT drains: nothing new is taken, what is in hand is finished, and
the exit code is 0, or 1 when ROLLBACKD_DRAIN_TIMEOUT was too short (nothing is lost then). A second signal ends at
once.

Beside a consumer of the classic algorithm that is still at work it does not begin: of a table that 'migrate --from'
took over, a last pass must have come to its end, and nothing in it may be newer. It looks for five seconds, at the rows
behind the last one first; what it could not read by then is a warning, and 'doctor' looks longer.`,
	needs: needsNothing,
	forms: noForm,
	flags: func(f *flags) work {
		ignoreOldLog := f.Bool("ignore-old-log", false, "begin whatever a table that was taken over holds: nobody "+
			"consumes by it any more")
		return func(ctx context.Context, c *call) error {
			if err := sqlFileError(c.runDaemon(ctx, *ignoreOldLog)); err != nil {
				return told{err}
			}
			return nil
		}
	},
}

// gcPercent lets the heap grow to five times what is alive before it is collected, which is little: a lane keeps one
// batch. With Go's default of 100 a sixth of the daemon's CPU went into collecting (bench/README.md); its memory is
// measured there too. The variable GOGC of the Go runtime says otherwise.
const gcPercent = 400

// loadInLogForm is loadConfig for a command that writes a log: where that is JSON, warnings and the error with which
// the command ends are lines of it, also while the settings are not known yet. In text they are for a person, as
// elsewhere.
func (a *app) loadInLogForm(ctx context.Context) (config.Config, error) {
	format := config.LogFormat(a.environ)
	if !a.logsJSON(format) {
		return a.loadConfig()
	}
	log := a.logger(config.Config{LogFormat: config.LogFormatJSON})
	a.lastWords = func(err error) { log.ErrorContext(ctx, "ended", "err", err.Error()) }
	return a.loadSettings(func(w config.Warning) { log.WarnContext(ctx, w.String()) })
}

// besideBudget is how much memory the Go runtime may take beside ROLLBACKD_MEMORY_BUDGET before it collects more often
// than gcPercent says: large bodies would else lie around as garbage, four times over. The variable GOMEMLIMIT of the
// Go runtime says otherwise.
const besideBudget = 64 << 20

func (a *app) runDaemon(ctx context.Context, ignoreOldLog bool) error {
	cfg, err := a.loadInLogForm(ctx)
	if err != nil {
		return err
	}
	folding := fold.New(a.logger(cfg).Handler(), deadletter.Fingerprint)
	defer folding.Flush()
	log := slog.New(folding)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(cfg.MemoryBudget) + besideBudget)
	}
	d, err := daemon.New(ctx, cfg, log, daemon.Options{
		Version: a.build.Version, Revision: a.build.Revision, IgnoreOldLog: ignoreOldLog,
	})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "starting", "version", a.build.Version, "group", cfg.Group, "queue", cfg.Queue, "lanes",
		cfg.Lanes, "batch_size", cfg.BatchSize)
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
