package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/config"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

var handlerTryCommand = command{
	use:   "try FILE|-",
	short: "Run a message against the statements, and roll it back",
	long: `Run the message whose body is FILE, or the standard input, against the statements of ROLLBACKD_SQL_FILE, in a
transaction that is rolled back. Each line is one run of a statement: the rows that it found and that it changed, how
many are expected, and what that means for the message. RabbitMQ, Redis and the consumer log are not asked.

The exit code is 1 when the message would not be marked success.

With --commit the effect is committed, if the message would be marked success. It is for a schema to try things on: the
consumer log does not learn of it, so that a daemon that gets the message applies it again.`,
	example: `  echo '{"order_sn":"20261121-0001","items":[]}' | PROGRAM handler try -`,
	args:    cobra.ExactArgs(1),
	flags: func(f *flags) work {
		commit := f.Bool("commit", false, "commit the effect; the message is not marked done")
		key := f.String("key", "", "the message's key (default: as ROLLBACKD_KEY_FROM finds it in the body)")
		tag := f.String("tag", "", "the message's tag (default: the first of ROLLBACKD_ROUTING_KEYS)")
		return func(ctx context.Context, c *call) error {
			if c.cfg.Handler != config.HandlerSQL {
				return usageErrorf("ROLLBACKD_HANDLER is %s: only the statements of handler sql can be tried", c.cfg.Handler)
			}
			file, err := sqlhandler.Load(c.cfg.SQLFile, c.cfg.OwnTables())
			if err != nil {
				return err
			}
			m, err := c.messageToTry(*key, *tag)
			if err != nil {
				return err
			}
			trial, err := file.Try(ctx, sqlhandler.Server{
				DSN: c.cfg.MySQLDSN, Options: mysqldb.Options{Program: rabbit.ConnectionName(c.command)},
			}, m, *commit)
			if err != nil {
				return err
			}
			return c.showTrial(trial, *commit)
		}
	},
}

// messageToTry is the message as a daemon would be handed it.
func (c *call) messageToTry(key, tag string) (m consumer.Message, err error) {
	cfg := c.cfg
	from, err := c.input(c.args[0], "the message")
	if err != nil {
		return m, err
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

func (c *call) showTrial(trial *sqlhandler.Trial, commit bool) error {
	t := table{header: []string{"LINE", "ITEM", "FOUND", "CHANGED", "EXPECTED", "MEANING", "STATEMENT"}}
	for _, r := range trial.Runs {
		t.add(r.Line, r.Item, r.Found, r.Changed, r.Expected, r.Meaning, r.Statement)
	}
	if err := c.render(trial, t); err != nil {
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
	if c.out.chosen == outputTable {
		if _, err := fmt.Fprintf(c.stdout, "%s; %s\n", outcome, end); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
	return nil
}
