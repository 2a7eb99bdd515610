// Package outbox has the commands that list, show, retry and drop messages of the outbox. It must not decide which rows
// may be touched.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/outbox"
)

// Commands are those of this folder.
var Commands = []command.Command{{
	Use: "outbox", Short: "List, show, retry and drop messages that are to be sent",
	Of: []command.Command{
		listCommand, showCommand, changeCommand(operator.KindOutboxRetry), changeCommand(operator.KindOutboxDrop),
	},
}}

// conditions are those that choose messages. What it points to is whole once the flags are checked.
func conditions(f *command.Flags) *outbox.Filter {
	filter := new(outbox.Filter)
	f.StringArrayVar(&filter.Keys, "key", nil, "choose by key; may be given several times")
	f.StringVar(&filter.Tag, "tag", "", "choose by tag")
	command.One(f, &filter.State, "state", "choose by how they stand: ", outbox.States())
	f.Span(&filter.Since, &filter.Until, "choose those parked, or else not taken, or else put since then: a time like "+
		"2026-11-21T08:00:00Z, or a duration like 24h", "choose those from before then, said as for --since")
	f.Check(func() error {
		err := filter.Check()
		return cmp.Or(f.RefuseEmpty("tag", "since", "until"), command.RefuseIf(err != nil, "%w", err),
			command.RefuseIf(slices.Contains(filter.Keys, ""), "--key is empty"))
	})
	return filter
}

// asks: the schema of the outbox need have no other table of ours, and beside a relay no other server is known.
var asks = []string{"MYSQL_DSN"}

// hinted says beside err what to do where there is no outbox.
func hinted(c *command.Call, err error) error {
	if errors.Is(err, outbox.ErrNoTable) {
		return fmt.Errorf("%w\n'%s migrate --outbox' makes its table in the schema of ROLLBACKD_MYSQL_DSN", err, c.Program)
	}
	if errors.Is(err, outbox.ErrCursor) {
		return command.Usagef("--after: %w", err)
	}
	return err
}

var listCommand = command.Command{
	Use:   "list",
	Short: "List messages of the outbox, in the order in which relays look at them",
	Long: `List messages of the outbox without their bodies: those that wait for their time, are due, were refused by
RabbitMQ and are tried again, or are parked. Nothing is locked, and a bounded part is read at a time.`,
	Example: "  PROGRAM outbox list --state parked --since 24h",
	Needs:   command.NeedsPool,
	Asks:    asks,
	Flags: func(f *command.Flags) command.Work {
		filter, wanted := conditions(f), f.Listing(100)
		return func(ctx context.Context, c *command.Call) error {
			err := command.List(c, wanted, func() {}, func(most int, after string) ([]outbox.Row, string, error) {
				return outbox.Rows{DB: c.Pool}.List(ctx, *filter, after, min(most, outbox.MaxListed))
			}, []string{"PUT AT", "DUE AT", "TAG", "KEY", "STATE", "TRIES", "REASON"}, func(r outbox.Row) []any {
				return []any{screen.Date(r.PutAt), screen.Date(r.DueAt), r.Tag, r.Key, r.State, r.Tries, c.Fitting(r.Reason)}
			})
			return hinted(c, err)
		}
	},
}

var showCommand = command.Command{
	Use:   "show KEY",
	Short: "Show a message of the outbox: how it stands and why, its body and headers",
	Args:  cobra.ExactArgs(1),
	Needs: command.NeedsPool,
	Asks:  asks,
	Flags: func(f *command.Flags) command.Work {
		tag := f.String("tag", "", "only the message with this tag")
		return func(ctx context.Context, c *command.Call) error {
			found, err := outbox.Rows{DB: c.Pool}.Show(ctx, *tag, c.Args[0])
			if err == nil && len(found) == 0 {
				err = fmt.Errorf("the outbox has no message with the key %q: it was sent or dropped, or was never put; "+
					"'%s log explain' says what a consumer made of it", c.Args[0], c.Program)
			}
			if err != nil {
				return hinted(c, err)
			}
			all := view.OutboxOf(found)
			return c.Print(all, func(p *command.Page) {
				for i, r := range all {
					if i > 0 {
						p.Addf("\n")
					}
					t := command.Table{Header: []string{"tag", screen.Printable(r.Tag)}}
					for _, fact := range r.Facts() {
						t.Fact(fact.Name, screen.Shorten(fact.Text, 4000))
					}
					p.Table(t)
				}
			})
		}
	},
}

var changeTexts = map[operator.Kind]command.Command{
	operator.KindOutboxRetry: {
		Use:   "retry",
		Short: "Have parked and refused messages of the outbox sent now",
		Long: `Have messages sent now that are parked or that RabbitMQ did not take, with all their tries again. Say which:
--all, or one or more of the conditions, which must all hold. One that was sent, perhaps, may then arrive twice, which
the consumer log absorbs. It may be interrupted and run again. The exit code is 1 when a chosen message stays, and when
no message has a --key.`,
		Example: "  PROGRAM outbox retry --tag order.cancelled --why \"the queue is bound again\"",
	},
	operator.KindOutboxDrop: {
		Use:   "drop",
		Short: "Delete messages of the outbox for ever",
		Long: `Delete parked messages for ever, with their bodies, and with --force also those that wait or are tried again;
never one that a relay has in hand. Say which: --all, or one or more of the conditions, which must all hold. A message
that was sent, perhaps, may have arrived all the same. To erase what is known of a person here: --force with each key.
The exit code is 1 when a chosen message stays, and when no message has a --key.`,
		Example: "  PROGRAM outbox drop --key 20261121-0001 --why \"a test order\"",
	},
}

func changeCommand(kind operator.Kind) command.Command {
	it := changeTexts[kind]
	it.Needs, it.Asks = command.NeedsPool, asks
	it.Flags = func(f *command.Flags) command.Work {
		filter, by, r := conditions(f), f.By(), operator.OutboxRequest{Kind: kind}
		f.BoolVar(&r.All, "all", false, "choose all messages")
		dryRun := f.Bool("dry-run", false, "change nothing, count what would be done, of the first 10,000")
		f.StringVar(&r.Why, "why", "", command.WhyHelp)
		if kind == operator.KindOutboxDrop {
			f.BoolVar(&r.Force, "force", false, "also messages that still wait or are tried again")
		}
		f.Check(func() error {
			r.Filter = *filter
			err := r.Check()
			return command.RefuseIf(err != nil && (!*dryRun || r.Why != ""), "%w", err)
		})
		return func(ctx context.Context, c *command.Call) error {
			var res outbox.Changed
			err := c.Act(ctx, by(), *dryRun, r.Task(), func(ctx context.Context, task operator.Task) (
				_ operator.Result, err error,
			) {
				res, err = r.Do(ctx, outbox.Rows{DB: c.Pool}, *dryRun, func(phase string, n int) {
					c.Progress.Count(n, phase)
					task.Progress(phase, n)
				})
				return r.ResultOf(res), err
			})
			if err != nil && res.Changed == 0 {
				return hinted(c, err)
			}
			return errors.Join(render(c, r, res, *dryRun), err, undone(res, len(filter.Keys) > 0))
		}
	}
	return it
}

func render(c *command.Call, r operator.OutboxRequest, res outbox.Changed, dryRun bool) error {
	did := map[operator.Kind]string{operator.KindOutboxRetry: "sent now", operator.KindOutboxDrop: "dropped"}[r.Kind]
	if dryRun {
		did = "would be " + did
	}
	t := command.Table{Header: []string{"MESSAGES", "OUTCOME"}}
	t.Add(res.Changed, did)
	t.Count(res.Left, "stay: a relay or a transaction has them in hand")
	if res.More {
		t.Add("-", "there are more, which were not looked at")
	}
	return c.Render(res, t)
}

func undone(res outbox.Changed, named bool) error {
	switch {
	case res.Left > 0:
		return fmt.Errorf("chosen messages that stay: %d; try again in a moment", res.Left)
	case named && res.Changed == 0:
		return errors.New("no message with such a --key is to be changed so; 'outbox list --key' shows how it stands")
	}
	return nil
}
