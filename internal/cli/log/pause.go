package log

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

var pauseCommand = command.Command{
	Use:   "pause",
	Short: "Pause consuming for the whole fleet, for a time",
	Long: `Make all daemons of ROLLBACKD_GROUP take nothing more from ROLLBACKD_QUEUE, within seconds: what they have
begun they finish, the rest goes back to the queue and waits there. They go on by themselves at the end, or when
'PROGRAM resume' ends the pause; a daemon that cannot reach MySQL keeps to what it knew. Without --why it shows
whether consuming is paused.

Producers are not stopped, and the queue grows meanwhile.`,
	Example: `  PROGRAM pause --why "stock table is being rebuilt" --for 30m`,
	Needs:   command.NeedsActs,
	Flags: func(f *command.Flags) command.Work {
		by := f.By()
		var r operator.PauseRequest
		f.StringVar(&r.Why, "why", "", "the reason, for whoever finds the fleet paused")
		length := f.Duration("for", operator.DefaultPause, "how long, "+operator.LeastPause.String()+" to "+
			operator.LongestPause.String())
		instead := f.Bool("instead", false, "in place of the pause that stands, if one does")
		f.Check(func() error {
			return command.RefuseIf(strings.TrimSpace(r.Why) == "" && (f.Changed("why") || f.Changed("for") || *instead),
				"--why is missing: say why consuming is to be paused")
		})
		return func(ctx context.Context, c *command.Call) error {
			now, err := c.Acts.Paused(ctx)
			if err == nil && strings.TrimSpace(r.Why) != "" {
				if r.Seconds = length.Seconds(); *instead {
					r.Instead = now.ID
				}
				now, err = c.Acts.Pause(ctx, operator.Actor{Name: by()}, r)
			}
			if err != nil {
				return err
			}
			p := view.PauseOf(now)
			t := command.Table{Header: []string{"PAUSED", "BY", "SINCE", "UNTIL", "WHY"}}
			t.Add(map[bool]string{true: "yes", false: "no"}[p.Paused], p.By, screen.Date(p.Since), screen.Date(p.Until), p.Why)
			return c.Render(p, t)
		}
	},
}

var resumeCommand = command.Command{
	Use:   "resume",
	Short: "End a pause of the whole fleet",
	Long:  `End the pause that 'PROGRAM pause' or a page began: the daemons consume again within seconds.`,
	Needs: command.NeedsActs,
	Forms: command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		by, why := f.By(), f.String("why", "", command.WhyHelp)
		return func(ctx context.Context, c *command.Call) error {
			p, err := c.Acts.Resume(ctx, operator.Actor{Name: by()}, operator.ResumeRequest{Why: *why})
			if errors.Is(err, dedup.ErrNotPaused) {
				fmt.Fprintln(c.Stdout, "consuming is not paused")
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.Stdout, "consuming was %v; the daemons go on now\n", p)
			return nil
		}
	},
}
