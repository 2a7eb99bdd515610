package log

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

var actsCommand = command.Command{
	Use:   "acts [ID]",
	Short: "List who did what, by a command, a page or a program, or show one act",
	Long: `List what was done to dead letters, rows and the fleet, the latest first: by whom, why, on what, with what
outcome, when it began and ended; by whichever door, a command, a page, the API, or the fleet by itself. With an ID it
shows that act. Acts are kept for 90 days.`,
	Example: "  PROGRAM acts --since 24h --kind discard",
	Args:    cobra.MaximumNArgs(1),
	Needs:   command.NeedsActs,
	Flags: func(f *command.Flags) command.Work {
		f.BoolFunc("json", "the same as -o json", func(string) error { return f.Output.Set(command.FormJSON) })
		states := []operator.State{operator.Running, operator.Done, operator.Stopped, operator.Failed}
		kind := command.One(f, "kind", "only acts of this kind: ", operator.Kinds())
		state := command.One(f, "state", "only acts in this state: ", states)
		by := f.String("by", "", "only acts of this one, the whole name as it stands in the list")
		since, until := f.Span("only those that began since then: a time, or a duration like 24h",
			"only those that began before then, said as for --since")
		wanted := f.Listing(50)
		return func(ctx context.Context, c *command.Call) error {
			if len(c.Args) == 1 {
				act, err := c.Acts.Act(ctx, c.Args[0])
				if errors.Is(err, operator.ErrNoAct) {
					return fmt.Errorf("no act of this group and queue has the id %q", c.Args[0])
				}
				if err != nil {
					return c.OfActs(err)
				}
				return c.Render(act, actTable(act))
			}
			return c.OfActs(command.List(c, wanted, func() {}, func(most int, after string) ([]operator.Act, string, error) {
				return c.Acts.Acts(ctx, operator.ActFilter{
					Kind: operator.Kind(*kind), State: operator.State(*state), Actor: *by, Since: *since, Until: *until,
					Before: after, Limit: min(most, operator.MaxActs),
				})
			}, []string{"BEGAN", "ENDED", "ACT", "WHO", "STATE", "OUTCOME", "ON WHAT", "WHY", "ID"}, func(a operator.Act) []any {
				return []any{screen.Date(a.Created), screen.Date(a.Ended), a.Kind, a.Actor, a.State,
					screen.Shorten(a.Outcome(), 80), screen.Shorten(a.Subject(), 80), screen.Shorten(a.Why, 80), a.ID}
			}))
		}
	},
}

func actTable(a operator.Act) command.Table {
	t := command.Table{Header: []string{"id", a.ID}}
	for _, fact := range [][2]string{
		{"act", string(a.Kind)}, {"by", a.Actor}, {"why", a.Why}, {"on what", a.Subject()}, {"state", string(a.State)},
		{"outcome", a.Outcome()}, {"error", a.Error}, {"began", screen.Date(a.Created)}, {"ended", screen.Date(a.Ended)},
		{"worked on by", a.Owner}, {"stopped by", a.StopBy},
	} {
		t.Fact(fact[0], fact[1])
	}
	return t
}
