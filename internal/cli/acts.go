package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/operator"
)

var actsCommand = command{
	use:   "acts [ID]",
	short: "List who did what, by a command, a page or a program, or show one act",
	long: `List what was done to dead letters, rows and the fleet, the latest first: by whom, why, on what, with what
outcome, when it began and ended; by whichever door, a command, a page, the API, or the fleet by itself. With an ID it
shows that act. Acts are kept for 90 days.`,
	example: "  PROGRAM acts --since 24h --kind discard",
	args:    cobra.MaximumNArgs(1),
	needs:   needsActs,
	flags: func(f *flags) work {
		f.BoolFunc("json", "the same as -o json", func(string) error { return f.out.Set(outputJSON) })
		states := []operator.State{operator.Running, operator.Done, operator.Stopped, operator.Failed}
		kind := one(f, "kind", "only acts of this kind: ", operator.Kinds())
		state := one(f, "state", "only acts in this state: ", states)
		by := f.String("by", "", "only acts of this one, the whole name as it stands in the list")
		since, until := f.span("only those that began since then: a time, or a duration like 24h",
			"only those that began before then, said as for --since")
		wanted := f.listing(50)
		return func(ctx context.Context, c *call) error {
			if len(c.args) == 1 {
				act, err := c.acts.Act(ctx, c.args[0])
				if errors.Is(err, operator.ErrNoAct) {
					return fmt.Errorf("no act of this group and queue has the id %q", c.args[0])
				}
				if err != nil {
					return c.noRecord(err)
				}
				return c.render(act, actTable(act))
			}
			return c.noRecord(list(c, wanted, func() {}, func(most int, after string) ([]operator.Act, string, error) {
				return c.acts.Acts(ctx, operator.ActFilter{
					Kind: operator.Kind(*kind), State: operator.State(*state), Actor: *by, Since: *since, Until: *until,
					Before: after, Limit: min(most, operator.MaxActs),
				})
			}, []string{"BEGAN", "ENDED", "ACT", "WHO", "STATE", "OUTCOME", "ON WHAT", "WHY", "ID"}, func(a operator.Act) []any {
				return []any{date(a.Created), date(a.Ended), a.Kind, a.Actor, a.State, shorten(a.Outcome(), 80),
					shorten(a.Subject(), 80), shorten(a.Why, 80), a.ID}
			}))
		}
	},
}

// noRecord is an error of the table of acts, with what to do.
func (c *call) noRecord(err error) error {
	if hint := c.recordHint(err); hint != "" {
		return fmt.Errorf("%w%s", err, hint)
	}
	return err
}

func actTable(a operator.Act) table {
	t := table{header: []string{"id", a.ID}}
	for _, fact := range [][2]string{
		{"act", string(a.Kind)}, {"by", a.Actor}, {"why", a.Why}, {"on what", a.Subject()}, {"state", string(a.State)},
		{"outcome", a.Outcome()}, {"error", a.Error}, {"began", date(a.Created)}, {"ended", date(a.Ended)},
		{"worked on by", a.Owner}, {"stopped by", a.StopBy},
	} {
		t.fact(fact[0], fact[1])
	}
	return t
}
