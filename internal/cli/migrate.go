package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

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

func newMigrateCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or update tables, exchange and queues",
		Long: `Bring the tables in MySQL and the exchange and queues in RabbitMQ to what this version needs. It may run again,
and in several places at once: what is there stays as it is.

With --status: show what is there and what is missing, change nothing, and exit with 1 when something is missing.` +
			migrateFromHelp,
		Example: "  " + a.name + ` migrate --from trade_mq_consumer_log --map-group order_cancel_group=stock-rollback \
    --map-tag order_cancel=stock.rollback --dry-run`,
		Args: cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	status := cmd.Flags().Bool("status", false, "only show what is there and what is missing")
	takeOver := addTakeOverFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := takeOver.check(cmd, *status); err != nil {
			return err
		}
		if takeOver.from != "" {
			return a.takeOver(cmd.Context(), out, takeOver)
		}
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		work := a.migrate
		if *status {
			work = a.migrationStatus
		}
		things, err := work(cmd.Context(), cfg)
		if len(things) == 0 {
			return err
		}
		t := table{header: []string{"WHAT", "NAME", "STATE"}}
		for _, th := range things {
			t.add(th.What, th.Name, th.State)
		}
		return errors.Join(out.render(a.stdout, things, t), err)
	}
	return cmd
}

// migrate makes what is missing and says of everything whether it was there. MySQL comes first: without its tables the
// queues are of no use.
func (a *app) migrate(ctx context.Context, cfg config.Config) ([]thing, error) {
	db, closeDB, err := a.openDatabase(ctx, cfg, "migrate")
	if err != nil {
		return nil, err
	}
	defer closeDB()
	o := a.migrateOptions(cfg)
	before, err := dedup.MigrationStatus(ctx, db, o)
	if err != nil {
		return nil, a.mysqlError(cfg, err)
	}
	if err := dedup.Migrate(ctx, db, o); err != nil {
		return nil, a.mysqlError(cfg, err)
	}
	things := migrations(before, stateMade)

	conn, err := rabbit.Dial(ctx, rabbitConfig(cfg, "migrate"))
	if err != nil {
		return things, a.rabbitError(cfg, err)
	}
	defer func() { _ = conn.Close() }() // everything is declared, or err says what is not
	missing, err := rabbit.Missing(ctx, conn, topology(cfg))
	if err != nil {
		return things, a.rabbitError(cfg, err)
	}
	warnings, err := rabbit.Declare(ctx, conn, topology(cfg))
	for _, w := range warnings {
		fmt.Fprintf(a.stderr, "%s: warning: %s\n", a.name, w)
	}
	if err != nil {
		return things, a.rabbitError(cfg, err)
	}
	things = append(things, declared(cfg, missing, stateMade)...)
	if cfg.Topology == consumer.TopologyCheck {
		return things, a.lookAtMain(ctx, cfg, conn)
	}
	for _, key := range cfg.RoutingKeys {
		things = append(things, thing{
			What: "binding", Name: fmt.Sprintf("%s to %s by %s", cfg.Queue, cfg.Exchange, key), State: stateThere,
		})
	}
	return things, nil
}

// lookAtMain says what a main queue that is taken as it is needs, and what it lacks as far as that is seen.
func (a *app) lookAtMain(ctx context.Context, cfg config.Config, conn *rabbit.Conn) error {
	found, err := rabbit.LookAtMain(ctx, rabbitConfig(cfg, "migrate"), conn, cfg.RabbitMQAPIURL, topology(cfg))
	if errors.Is(err, rabbit.ErrClassic) {
		return err
	}
	if err != nil {
		fmt.Fprintf(a.stderr, "%s: warning: the main queue could not be looked at: %v\n", a.name, err)
	}
	for _, flaw := range found.Flaws {
		fmt.Fprintf(a.stderr, "%s: warning: queue %q: %s\n", a.name, cfg.Queue, flaw)
	}
	if found.Seen && len(found.Flaws) == 0 {
		return nil
	}
	fmt.Fprintf(a.stderr, "%s: queue %q is taken as it is (ROLLBACKD_TOPOLOGY=check). It needs this policy, which "+
		"migrate does not make; only one policy applies to a queue, so add to it what another one gives the queue now:\n%s\n",
		a.name, cfg.Queue, found.Command)
	return nil
}

// migrationStatus asks both servers, whichever answers.
func (a *app) migrationStatus(ctx context.Context, cfg config.Config) ([]thing, error) {
	tables, err1 := a.tableStatus(ctx, cfg)
	queues, err2 := a.queueStatus(ctx, cfg)
	things := append(tables, queues...)
	if err := errors.Join(err1, err2); err != nil {
		return things, err
	}
	missing := 0
	for _, th := range things {
		if th.State == stateMissing {
			missing++
		}
	}
	if missing > 0 {
		return things, fmt.Errorf("missing: %d of these; '%s migrate' makes them", missing, a.name)
	}
	return things, nil
}

func (a *app) tableStatus(ctx context.Context, cfg config.Config) ([]thing, error) {
	db, closeDB, err := a.openDatabase(ctx, cfg, "migrate")
	if err != nil {
		return nil, err
	}
	defer closeDB()
	steps, err := dedup.MigrationStatus(ctx, db, a.migrateOptions(cfg))
	if err != nil {
		return nil, a.mysqlError(cfg, err)
	}
	things := migrations(steps, stateMissing)
	if slices.ContainsFunc(things, func(th thing) bool { return th.State == stateMissing }) {
		return things, nil
	}
	return things, a.mysqlError(cfg, dedup.CheckSchema(ctx, db, cfg.LogTable))
}

func (a *app) queueStatus(ctx context.Context, cfg config.Config) ([]thing, error) {
	conn, err := rabbit.Dial(ctx, rabbitConfig(cfg, "migrate"))
	if err != nil {
		return nil, a.rabbitError(cfg, err)
	}
	defer func() { _ = conn.Close() }()
	missing, err := rabbit.Missing(ctx, conn, topology(cfg))
	if err != nil {
		return nil, a.rabbitError(cfg, err)
	}
	things := declared(cfg, missing, stateMissing)
	if main := fmt.Sprintf("queue %q", cfg.Queue); topology(cfg).TakeMain && slices.Contains(missing, main) {
		return things, fmt.Errorf("%s %w", main, rabbit.ErrNoMain) // which migrate does not make either
	}
	return things, nil
}

// migrateOptions wait for whoever has a table in use, and say so.
func (a *app) migrateOptions(cfg config.Config) dedup.MigrateOptions {
	o := cfg.Migrations()
	o.Waiting = func(err error) {
		fmt.Fprintf(a.stderr, "%s: somebody else has a table in use, waiting: %v\n", a.name, err)
	}
	return o
}

// migrations lists the steps; otherwise is the state of those that were not applied.
func migrations(steps []dedup.Migration, otherwise string) []thing {
	var things []thing
	for _, m := range steps {
		th := thing{What: "migration", Name: m.Set + "/" + m.Name, State: otherwise}
		if m.Applied {
			th.State, th.At = stateThere, &m.At
		}
		things = append(things, th)
	}
	return things
}

// declared lists exchange and queues; otherwise is the state of those that are missing.
func declared(cfg config.Config, missing []string, otherwise string) []thing {
	var things []thing
	if cfg.Topology != consumer.TopologyCheck {
		things = append(things, thing{What: "exchange", Name: cfg.Exchange})
	}
	for _, q := range topology(cfg).Queues() {
		things = append(things, thing{What: "queue", Name: q})
	}
	for i, th := range things {
		things[i].State = stateThere
		if slices.Contains(missing, fmt.Sprintf("%s %q", th.What, th.Name)) {
			things[i].State = otherwise
		}
	}
	return things
}
