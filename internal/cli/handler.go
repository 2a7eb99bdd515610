package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/config"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func newHandlerCmd(a *app) *cobra.Command {
	return newGroupCmd("handler", "Try the statements of ROLLBACKD_SQL_FILE", newHandlerTryCmd(a))
}

func newHandlerTryCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "try FILE|-",
		Short: "Run a message against the statements, and roll it back",
		Long: `Run the message whose body is FILE, or the standard input, against the statements of ROLLBACKD_SQL_FILE, in a
transaction that is rolled back. Each line is one run of a statement: the rows that it found and that it changed, how
many are expected, and what that means for the message. RabbitMQ, Redis and the consumer log are not asked.

The exit code is 1 when the message would not be marked success.

With --commit the effect is committed, if the message would be marked success. It is for a schema to try things on: the
consumer log does not learn of it, so that a daemon that gets the message applies it again.`,
		Example: `  echo '{"order_sn":"20261121-0001","items":[]}' | ` + a.name + ` handler try -`,
		Args:    cobra.ExactArgs(1),
	}
	out := addOutputFlag(cmd)
	commit := cmd.Flags().Bool("commit", false, "commit the effect; the message is not marked done")
	key := cmd.Flags().String("key", "", "the message's key (default: as ROLLBACKD_KEY_FROM finds it in the body)")
	tag := cmd.Flags().String("tag", "", "the message's tag (default: the first of ROLLBACKD_ROUTING_KEYS)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		if cfg.Handler != config.HandlerSQL {
			return usageErrorf("ROLLBACKD_HANDLER is %s: only the statements of handler sql can be tried", cfg.Handler)
		}
		file, err := sqlhandler.Load(cfg.SQLFile, cfg.OwnTables())
		if err != nil {
			return a.sqlFileError(err)
		}
		m, err := a.messageToTry(cfg, args[0], *key, *tag)
		if err != nil {
			return err
		}
		trial, err := file.Try(cmd.Context(), sqlhandler.Server{
			DSN: cfg.MySQLDSN, Options: mysqldb.Options{Program: rabbit.ConnectionName("handler")},
		}, m, *commit)
		if err != nil {
			return a.mysqlError(cfg, a.sqlFileError(err))
		}
		return a.showTrial(out, trial, *commit)
	}
	return cmd
}

// messageToTry is the message as a daemon would be handed it.
func (a *app) messageToTry(cfg config.Config, name, key, tag string) (m consumer.Message, err error) {
	from := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return m, usageErrorf("the message: %w", err)
		}
		defer f.Close()
		from = f
	}
	body, err := io.ReadAll(io.LimitReader(from, maxPublishBody+1))
	if err != nil {
		return m, fmt.Errorf("read the message: %w", err)
	}
	if tag == "" {
		tag = cfg.RoutingKeys[0]
	}
	sources, err := wire.ParseKeySources(cfg.KeyFrom)
	if err != nil {
		return m, err
	}
	d := rabbit.Delivery{Message: rabbit.Message{Body: body, Type: tag}}
	id, err := wire.Identify(cfg.Group, sources, cfg.Queue, d)
	if filed, ok := errors.AsType[*wire.FiledError](err); ok && key == "" {
		return m, usageErrorf("the message has no usable key: %s; --key gives it one", filed.Why)
	}
	m.Identity, m.Body = id.Identity, body
	m.Group, m.Tag = cfg.Group, tag
	if key != "" {
		m.Key = key
	}
	return m, nil
}

func (a *app) showTrial(out *output, trial *sqlhandler.Trial, commit bool) error {
	t := table{header: []string{"LINE", "ITEM", "FOUND", "CHANGED", "EXPECTED", "MEANING", "STATEMENT"}}
	for _, r := range trial.Runs {
		t.add(r.Line, r.Item, r.Found, r.Changed, r.Expected, r.Meaning, r.Statement)
	}
	if err := out.render(a.stdout, trial, t); err != nil {
		return err
	}
	outcome := trial.Outcome
	if trial.Why != "" {
		outcome += ": " + printable(trial.Why)
	}
	end := "all was rolled back"
	switch {
	case trial.Committed:
		end = "committed; the consumer log does not know of it"
	case commit:
		end = "all was rolled back, in spite of --commit"
	}
	if !trial.Good() {
		return fmt.Errorf("%s; %s", outcome, end)
	}
	if out.chosen == outputTable {
		if _, err := fmt.Fprintf(a.stdout, "%s; %s\n", outcome, end); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
	return nil
}
