package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/internal/wire"
)

var handlerTryCommand = command.Command{
	Use:   "try FILE|-",
	Short: "Run a message against the statements, and roll it back",
	Long: `Run the message whose body is FILE, or the standard input, against the statements of ROLLBACKD_SQL_FILE, in a
transaction that is rolled back. Each line is one run of a statement: the rows that it found and that it changed, how
many are expected, and what that means for the message. RabbitMQ, Redis and the consumer log are not asked.

The exit code is 1 when the message would not be marked success.

With --commit the effect is committed, if the message would be marked success. It is for a schema to try things on: the
consumer log does not learn of it, so that a daemon that gets the message applies it again.`,
	Example: `  echo '{"order_sn":"20261121-0001","items":[]}' | PROGRAM handler try -`,
	Args:    cobra.ExactArgs(1),
	Flags: func(f *command.Flags) command.Work {
		commit := f.Bool("commit", false, "commit the effect; the message is not marked done")
		key := f.String("key", "", "the message's key (default: as ROLLBACKD_KEY_FROM finds it in the body)")
		tag := f.String("tag", "", "the message's tag (default: the first of ROLLBACKD_ROUTING_KEYS)")
		return func(ctx context.Context, c *command.Call) error {
			if c.Config.Handler != config.HandlerSQL {
				return command.Usagef("ROLLBACKD_HANDLER is %s: only the statements of handler sql can be tried", c.Config.Handler)
			}
			file, err := sqlhandler.Load(c.Config.SQLFile, c.Config.OwnTables())
			if err != nil {
				return err
			}
			m, err := messageToTry(c, *key, *tag)
			if err != nil {
				return err
			}
			server := sqlhandler.Server{DSN: c.Config.MySQLDSN}
			server.Program = c.Rabbit().Name
			trial, err := file.Try(ctx, server, m, *commit)
			if err != nil {
				return err
			}
			return showTrial(c, trial, *commit)
		}
	},
}

// messageToTry is the message as a daemon would be handed it.
func messageToTry(c *command.Call, key, tag string) (m consumer.Message, err error) {
	cfg := c.Config
	body, err := c.ReadInput(c.Args[0], "the message", strictjson.MaxBytes+1)
	if err != nil {
		return m, err
	}
	tag = cmp.Or(tag, cfg.RoutingKeys[0])
	sources, _ := wire.ParseKeySources(cfg.KeyFrom) // the settings were read
	d := rabbit.Delivery{Message: rabbit.Message{Body: body, Type: tag}}
	id, err := wire.Identify(cfg.Group, sources, cfg.Queue, d)
	if filed, ok := errors.AsType[*wire.FiledError](err); ok && key == "" {
		return m, command.Usagef("the message has no usable key: %s; --key gives it one", filed.Why)
	}
	m.Body, m.Group, m.Tag, m.Key = body, cfg.Group, tag, cmp.Or(key, id.Identity.Key)
	return m, nil
}

func showTrial(c *command.Call, trial *sqlhandler.Trial, commit bool) error {
	t := command.Table{Header: []string{"LINE", "ITEM", "FOUND", "CHANGED", "EXPECTED", "MEANING", "STATEMENT"}}
	for _, r := range trial.Runs {
		t.Add(r.Line, r.Item, r.Found, r.Changed, r.Expected, r.Meaning, r.Statement)
	}
	if err := c.Render(trial, t); err != nil {
		return err
	}
	outcome := trial.Outcome
	if trial.Why != "" {
		outcome += ": " + screen.Printable(trial.Why)
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
	if c.Output.Chosen == command.FormTable {
		if _, err := fmt.Fprintf(c.Stdout, "%s; %s\n", outcome, end); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
	return nil
}
