package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

var pauseCommand = command{
	use:   "pause",
	short: "Pause consuming for the whole fleet, for a time",
	long: `Make all daemons of ROLLBACKD_GROUP take nothing more from ROLLBACKD_QUEUE, within seconds: what they have
begun they finish, the rest goes back to the queue and waits there. They go on by themselves at the end, or when
'PROGRAM resume' ends the pause; a daemon that cannot reach MySQL keeps to what it knew. Without --why it shows
whether consuming is paused.

Producers are not stopped, and the queue grows meanwhile.`,
	example: `  PROGRAM pause --why "stock table is being rebuilt" --for 30m`,
	needs:   needsActs,
	flags: func(f *flags) work {
		by := f.by()
		var r operator.PauseRequest
		f.StringVar(&r.Why, "why", "", "the reason, for whoever finds the fleet paused")
		f.DurationVar(&r.For, "for", operator.DefaultPause, "how long, "+operator.LeastPause.String()+" to "+
			operator.LongestPause.String())
		instead := f.Bool("instead", false, "in place of the pause that stands, if one does")
		f.check(func() error {
			if strings.TrimSpace(r.Why) == "" && (f.Changed("why") || f.Changed("for") || *instead) {
				return usageErrorf("--why is missing: say why consuming is to be paused")
			}
			return nil
		})
		return func(ctx context.Context, c *call) error {
			now, err := c.acts.Paused(ctx)
			if err == nil && strings.TrimSpace(r.Why) != "" {
				if *instead {
					r.Instead = now.ID
				}
				now, err = c.acts.Pause(ctx, operator.Actor{Name: by()}, r)
			}
			if err != nil {
				return err
			}
			p := view.PauseOf(now)
			t := table{header: []string{"PAUSED", "BY", "SINCE", "UNTIL", "WHY"}}
			t.add(map[bool]string{true: "yes", false: "no"}[p.Paused], p.By, date(p.Since), date(p.Until), p.Why)
			return c.render(p, t)
		}
	},
}

var resumeCommand = command{
	use:   "resume",
	short: "End a pause of the whole fleet",
	long:  `End the pause that 'PROGRAM pause' or a page began: the daemons consume again within seconds.`,
	needs: needsActs,
	forms: noForm,
	flags: func(f *flags) work {
		by, why := f.by(), f.String("why", "", whyHelp)
		return func(ctx context.Context, c *call) error {
			p, err := c.acts.Resume(ctx, operator.Actor{Name: by()}, operator.ResumeRequest{Why: *why})
			if errors.Is(err, dedup.ErrNotPaused) {
				fmt.Fprintln(c.stdout, "consuming is not paused")
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "consuming was %v; the daemons go on now\n", p)
			return nil
		}
	},
}
