package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// paused is how a pause is shown. The names of its JSON form are stable.
type paused struct {
	Paused bool       `json:"paused"`
	ID     string     `json:"id,omitempty"` // of the act
	By     string     `json:"by,omitempty"`
	Why    string     `json:"why,omitempty"`
	Since  *time.Time `json:"since,omitempty"` // by the database's clock
	Until  *time.Time `json:"until,omitempty"`
}

func shownPause(p dedup.Pause) paused {
	if p.ID == "" {
		return paused{}
	}
	return paused{Paused: true, ID: p.ID, By: p.By, Why: p.Why, Since: &p.Since, Until: &p.Until}
}

func pauseTable(p paused) table {
	t := table{header: []string{"PAUSED", "BY", "SINCE", "UNTIL", "WHY"}}
	if !p.Paused {
		t.add("no", "", "", "", "")
		return t
	}
	t.add("yes", p.By, p.Since.Format(time.RFC3339), p.Until.Format(time.RFC3339), p.Why)
	return t
}

func newPauseCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Pause consuming for the whole fleet, for a time",
		Long: `Make all daemons of ROLLBACKD_GROUP take nothing more from ROLLBACKD_QUEUE, within seconds: what they have
begun they finish, the rest goes back to the queue and waits there. They go on by themselves at the end, or when
'` + a.name + ` resume' ends the pause; a daemon that cannot reach MySQL keeps to what it knew. Without --why it shows
whether consuming is paused.

Producers are not stopped, and the queue grows meanwhile.`,
		Example: "  " + a.name + ` pause --why "stock table is being rebuilt" --for 30m`,
		Args:    cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	by := addByFlag(cmd)
	flags := cmd.Flags()
	var r operator.PauseRequest
	flags.StringVar(&r.Why, "why", "", "the reason, for whoever finds the fleet paused")
	flags.DurationVar(&r.For, "for", operator.DefaultPause, "how long, "+operator.LeastPause.String()+" to "+
		operator.LongestPause.String())
	instead := flags.Bool("instead", false, "in place of the pause that stands, if one does")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		order := strings.TrimSpace(r.Why) != ""
		if !order && (flags.Changed("why") || flags.Changed("for") || *instead) {
			return usageErrorf("--why is missing: say why consuming is to be paused")
		}
		return a.atDesk(cmd.Context(), func(ctx context.Context, d *operator.Operator) error {
			now, err := d.Paused(ctx)
			if err == nil && order {
				if *instead {
					r.Instead = now.ID
				}
				now, err = d.Pause(ctx, operator.Actor{Name: by.name()}, r)
			}
			if err != nil {
				return err
			}
			return out.render(a.stdout, shownPause(now), pauseTable(shownPause(now)))
		})
	}
	return cmd
}

func newResumeCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "End a pause of the whole fleet",
		Long:  `End the pause that '` + a.name + ` pause' or a page began: the daemons consume again within seconds.`,
		Args:  cobra.NoArgs,
	}
	by := addByFlag(cmd)
	why := cmd.Flags().String("why", "", "the reason, for whoever asks later")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.atDesk(cmd.Context(), func(ctx context.Context, d *operator.Operator) error {
			p, err := d.Resume(ctx, operator.Actor{Name: by.name()}, operator.ResumeRequest{Why: *why})
			if errors.Is(err, dedup.ErrNotPaused) {
				fmt.Fprintln(a.stdout, "consuming is not paused")
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "consuming was %v; the daemons go on now\n", p)
			return nil
		})
	}
	return cmd
}

// atDesk does something at the desk of the fleet.
func (a *app) atDesk(ctx context.Context, do func(context.Context, *operator.Operator) error) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	db, closeDB, err := a.openDatabase(ctx, cfg, "desk")
	if err != nil {
		return err
	}
	defer closeDB()
	records, err := a.newLog(ctx, cfg, db)
	if err != nil {
		return err
	}
	d, err := a.openDesk(cfg, db, records)
	if err != nil {
		return err
	}
	if err := do(ctx, d); err != nil {
		if errors.Is(err, operator.ErrRequest) {
			return usageErrorf("%w", err)
		}
		return a.mysqlError(cfg, err)
	}
	return nil
}
