// Package setup has the commands that prepare servers, or show the settings: migrate, migrate --from, config. It must
// not know how a table or a queue is made.
package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/outbox"
)

// Commands are those of this folder.
var Commands = []command.Command{migrateCommand, configCommand}

// thing is one thing that migrate makes.
type thing struct {
	What  string     `json:"what"`  // migration, exchange, queue or binding
	Name  string     `json:"name"`  // of a migration: its set and file
	State string     `json:"state"` // there, made now, or missing
	At    *time.Time `json:"at,omitempty"`
}

const (
	stateThere   = "there"
	stateMade    = "made now"
	stateMissing = "missing"
)

var migrateCommand = command.Command{
	Use:   "migrate",
	Short: "Make or update tables, exchange and queues",
	Long: `Bring the tables in MySQL and the exchange and queues in RabbitMQ to what this version needs. It may run again,
and in several places at once: what is there stays as it is.

With --outbox: make the table of the outbox alone, in whatever schema ROLLBACKD_MYSQL_DSN names, that of a producer for
example; no other setting is needed, and RabbitMQ is not asked.

With --status: show what is there and what is missing, change nothing, and exit with 1 when something is missing.` +
		migrateFromHelp,
	Example: `  PROGRAM migrate --from trade_mq_consumer_log --map-group order_cancel_group=stock-rollback \
    --map-tag order_cancel=stock.rollback --dry-run`,
	Flags: func(f *command.Flags) command.Work {
		status := f.Bool("status", false, "only show what is there and what is missing")
		alone := f.Only("outbox", "only the table of the outbox", "MYSQL_DSN")
		old := takenOver(f, status)
		f.Check(func() error {
			return command.RefuseIf(*alone && old.From != "", "--outbox and --from do not go together")
		})
		return func(ctx context.Context, c *command.Call) error {
			if old.From != "" {
				return takeOver(ctx, c, *old)
			}
			things, err := migrateAll(ctx, c, *status, *alone)
			if len(things) == 0 {
				return err
			}
			t := command.Table{Header: []string{"WHAT", "NAME", "STATE"}}
			for _, th := range things {
				t.Add(th.What, th.Name, th.State)
			}
			return errors.Join(c.Render(things, t), err)
		}
	},
}

// migrateAll is migrate for each queue of ROLLBACKD_QUEUES; what two of them share is told once.
func migrateAll(ctx context.Context, c *command.Call, look, outboxAlone bool) (all []thing, err error) {
	for _, c.Config = range c.Config.All() {
		things, lost := migrate(ctx, c, look, outboxAlone)
		for _, th := range things {
			if !slices.ContainsFunc(all, func(told thing) bool { return told.What == th.What && told.Name == th.Name }) {
				all = append(all, th)
			}
		}
		if err = errors.Join(err, lost); outboxAlone || lost != nil && !look {
			break
		}
	}
	return all, err
}

// migrate makes what is missing, or only looks, and says of everything whether it was there. MySQL comes first: without
// its tables the queues are of no use. Who only looks asks both servers, whichever answers.
func migrate(ctx context.Context, c *command.Call, look, outboxAlone bool) ([]thing, error) {
	otherwise, sets, cure := stateMade, c.Config.Migrations(), "migrate"
	if look {
		otherwise = stateMissing
	}
	if outboxAlone {
		sets, cure = outbox.Sets(), "migrate --outbox"
	}
	things, err := tables(ctx, c, sets, otherwise)
	if err != nil && !look {
		return nil, err
	}
	var err2 error
	if !outboxAlone {
		var made []thing
		made, err2 = queues(ctx, c, otherwise)
		things = append(things, made...)
	}
	if err := errors.Join(c.Hinted(err), c.OfRabbit(err2)); err != nil {
		return things, err
	}
	there := slices.DeleteFunc(slices.Clone(things), func(th thing) bool { return th.State == stateMissing })
	if missing := len(things) - len(there); missing > 0 {
		return things, fmt.Errorf("missing: %d of these; '%s %s' makes them", missing, c.Program, cure)
	}
	return things, nil
}

// tables makes the tables, or looks; otherwise is the state of a step that was not applied.
func tables(
	ctx context.Context, c *command.Call, o dedup.MigrateOptions, otherwise string,
) (things []thing, err error) {
	if err := c.OpenPool(ctx); err != nil {
		return nil, err
	}
	o.Waiting = func(err error) { c.Say("somebody else has a table in use, waiting: %v", err) }
	steps, err := dedup.MigrationStatus(ctx, c.DB, o)
	if err == nil && otherwise == stateMade {
		err = dedup.Migrate(ctx, c.DB, o)
	}
	if err != nil {
		return nil, err
	}
	whole := true
	for _, m := range steps {
		th := thing{What: "migration", Name: m.Set + "/" + m.Name, State: otherwise}
		if m.Applied {
			th.State, th.At = stateThere, &m.At
		}
		whole = whole && m.Applied
		things = append(things, th)
	}
	if otherwise == stateMissing && whole && !o.NoLog {
		err = dedup.CheckSchema(ctx, c.DB, c.Config.LogTable)
	}
	return things, err
}

// queues makes exchange and queues, or looks; otherwise is the state of those that are missing.
func queues(ctx context.Context, c *command.Call, otherwise string) (things []thing, err error) {
	conn, err := rabbit.Dial(ctx, c.Rabbit())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // everything is declared, or err says what is not
	missing, err := rabbit.Missing(ctx, conn, c.Config.TopologyConfig())
	if err != nil {
		return nil, err
	}
	if otherwise == stateMade {
		warnings, err := rabbit.Declare(ctx, conn, c.Config.TopologyConfig())
		for _, w := range warnings {
			c.Say("warning: %s", w)
		}
		if err != nil {
			return nil, err
		}
	}
	taken := c.Config.Topology == consumer.TopologyCheck
	if !taken {
		things = append(things, thing{What: "exchange", Name: c.Config.Exchange})
	}
	for _, q := range c.Config.TopologyConfig().Queues() {
		things = append(things, thing{What: "queue", Name: q})
	}
	for i, th := range things {
		things[i].State = stateThere
		if slices.Contains(missing, fmt.Sprintf("%s %q", th.What, th.Name)) {
			things[i].State = otherwise
		}
	}
	main := fmt.Sprintf("queue %q", c.Config.Queue)
	switch {
	case otherwise == stateMissing && taken && slices.Contains(missing, main): // which migrate does not make either
		return things, command.Said(fmt.Errorf("%s %w", main, rabbit.ErrNoMain))
	case otherwise == stateMissing:
		return things, nil
	case taken:
		return things, lookAtMain(ctx, c, conn)
	}
	for _, key := range c.Config.RoutingKeys {
		things = append(things, thing{
			What: "binding", Name: fmt.Sprintf("%s to %s by %s", c.Config.Queue, c.Config.Exchange, key), State: stateThere,
		})
	}
	return things, nil
}

// lookAtMain says what a main queue that is taken as it is needs, and what it lacks as far as that is seen.
func lookAtMain(ctx context.Context, c *command.Call, conn *rabbit.Conn) error {
	found, err := rabbit.LookAtMain(ctx, c.Rabbit(), conn, c.Config.RabbitMQAPIURL, c.Config.TopologyConfig())
	if errors.Is(err, rabbit.ErrClassic) {
		return command.Said(err)
	}
	if err != nil {
		c.Say("warning: the main queue could not be looked at: %v", err)
	}
	for _, flaw := range found.Flaws {
		c.Say("warning: queue %q: %s", c.Config.Queue, flaw)
	}
	if !found.Seen || len(found.Flaws) > 0 {
		c.Say("queue %q is taken as it is (ROLLBACKD_TOPOLOGY=check). It needs this policy, which migrate does not make; "+
			"only one policy applies to a queue, so add to it what another one gives the queue now:\n%s", c.Config.Queue,
			found.Command)
	}
	return nil
}

var configCommand = command.Command{
	Use:   "config",
	Short: "Show the effective configuration, secrets masked",
	Long: `Show every setting as it is in effect, secrets masked, and where it came from: default, environment or file.
With -o markdown: the table of all settings for the documentation, which needs no configuration.`,
	Needs: command.NeedsNothing,
	Forms: append(slices.Clip(command.InForms), command.FormMarkdown),
	Flags: func(*command.Flags) command.Work {
		return func(_ context.Context, c *command.Call) error {
			if c.Output.Chosen == command.FormMarkdown {
				return c.Print(nil, func(p *command.Page) { p.WriteString(config.Markdown()) })
			}
			cfg, err := c.LoadConfig()
			if err != nil {
				return err
			}
			t := command.Table{Header: []string{"VARIABLE", "VALUE", "SOURCE"}}
			for _, s := range cfg.Settings() {
				source := string(s.Source)
				if s.File != "" {
					source += " " + s.File
				}
				t.Add(s.Name, s.Value, source)
			}
			return c.Render(cfg.Settings(), t)
		}
	},
}
