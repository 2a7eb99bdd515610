package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/operator"
)

func newActsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "acts [ID]",
		Short: "List who did what, by a command, a page or a program, or show one act",
		Long: `List what was done to dead letters, rows and the fleet, the latest first: by whom, why, on what, with what
outcome, when it began and ended; by whichever door, a command, a page, the API, or the fleet by itself. With an ID it
shows that act. Acts are kept for 90 days.`,
		Example: "  " + a.name + " acts --since 24h --kind discard",
		Args:    cobra.MaximumNArgs(1),
	}
	out := addOutputFlag(cmd)
	var kinds, states []string
	for _, k := range operator.Kinds() {
		kinds = append(kinds, string(k))
	}
	for _, s := range []operator.State{operator.Running, operator.Done, operator.Stopped, operator.Failed} {
		states = append(states, string(s))
	}
	flags := cmd.Flags()
	flags.BoolFunc("json", "the same as -o json", func(string) error { return out.Set(outputJSON) })
	kind := flags.String("kind", "", "only acts of this kind: "+strings.Join(kinds, ", "))
	state := flags.String("state", "", "only acts in this state: "+strings.Join(states, ", "))
	completes(cmd, "kind", kinds...)
	completes(cmd, "state", states...)
	by := flags.String("by", "", "only acts of this one, the whole name as it stands in the list")
	since := flags.String("since", "", "only those that began since then: a time, or a duration like 24h")
	until := flags.String("until", "", "only those that began before then, said as for --since")
	limit := flags.Int("limit", 50, "list at most so many; 0: all")
	after := flags.String("after", "", "go on where the last list ended: it said how")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f := operator.ActFilter{Kind: operator.Kind(*kind), State: operator.State(*state), Actor: *by, Before: *after}
		var err error
		switch {
		case *kind != "" && !slices.Contains(kinds, *kind):
			return usageErrorf("--kind %q is none; there are %v", *kind, kinds)
		case *state != "" && !slices.Contains(states, *state):
			return usageErrorf("--state %q is none; there are %v", *state, states)
		case *limit < 0:
			return usageErrorf("--limit %d is negative", *limit)
		}
		if f.Since, err = readMoment("since", *since, time.Now()); err != nil {
			return err
		}
		if f.Until, err = readMoment("until", *until, time.Now()); err != nil {
			return err
		}
		return a.atDesk(cmd.Context(), func(ctx context.Context, d *operator.Operator) error {
			if len(args) == 1 {
				act, err := d.Act(ctx, args[0])
				if errors.Is(err, operator.ErrNoAct) {
					return fmt.Errorf("no act of this group and queue has the id %q", args[0])
				}
				if err != nil {
					return a.hinted(err)
				}
				return out.render(a.stdout, act, actTable(act))
			}
			acts, next, err := listActs(ctx, d, f, *limit)
			if err != nil {
				return a.hinted(err)
			}
			if next != "" {
				fmt.Fprintf(a.stderr, "%s: there are more; --limit 0 lists all, and this goes on: --after %s\n", a.name, next)
			}
			return out.render(a.stdout, acts, actsTable(acts))
		})
	}
	return cmd
}

// hinted is an error of the table of acts, with what to do.
func (a *app) hinted(err error) error {
	if hint := a.recordHint(err); hint != "" {
		return fmt.Errorf("%w%s", err, hint)
	}
	return err
}

// listActs pages through the acts up to a limit; next is where there would have been more.
func listActs(
	ctx context.Context, d *operator.Operator, f operator.ActFilter, limit int,
) (acts []operator.Act, next string, err error) {
	for {
		if f.Limit = operator.MaxActs; limit > 0 {
			f.Limit = min(limit-len(acts), operator.MaxActs)
		}
		page, next, err := d.Acts(ctx, f)
		if err != nil {
			return nil, "", err
		}
		acts = append(acts, page...)
		if next == "" || limit > 0 && len(acts) >= limit {
			return acts, next, nil
		}
		f.Before = next
	}
}

func actsTable(acts []operator.Act) table {
	t := table{header: []string{"BEGAN", "ENDED", "ACT", "WHO", "STATE", "OUTCOME", "ON WHAT", "WHY", "ID"}}
	for _, a := range acts {
		t.add(a.Created.Format(time.RFC3339), ended(a), a.Kind, a.Actor, a.State, shorten(a.Outcome(), 80),
			shorten(a.Subject(), 80), shorten(a.Why, 80), a.ID)
	}
	return t
}

func actTable(a operator.Act) table {
	t := table{header: []string{"id", a.ID}}
	add := func(name, value string) {
		if value != "" {
			t.add(name, value)
		}
	}
	add("act", string(a.Kind))
	add("by", a.Actor)
	add("why", a.Why)
	add("on what", a.Subject())
	add("state", string(a.State))
	add("outcome", a.Outcome())
	add("error", a.Error)
	add("began", a.Created.Format(time.RFC3339))
	add("ended", ended(a))
	add("worked on by", a.Owner)
	add("stopped by", a.StopBy)
	return t
}

func ended(a operator.Act) string {
	if a.Ended.IsZero() {
		return ""
	}
	return a.Ended.Format(time.RFC3339)
}
