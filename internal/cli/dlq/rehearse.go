package dlq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	// lookEvery is how often it is looked whether a rehearsal has ended.
	lookEvery = 300 * time.Millisecond
	// takenAfter is after how long it is said that no daemon has taken it up.
	takenAfter = 10 * time.Second
)

// rehearse asks for a rehearsal and waits for its end. Interrupted, it stops it.
func (m *moving) rehearse(ctx context.Context, c *command.Call) error {
	if err := c.OpenOperator(ctx); err != nil {
		return err
	}
	who := operator.Actor{Name: m.by()}
	a, err := c.Acts.Rehearse(ctx, who, "", operator.RehearsalRequest{Filter: m.Filter, Force: m.Force})
	if err != nil {
		return c.OfActs(err)
	}
	began, said := time.Now(), false
	for err == nil && a.State == operator.Running {
		if a.Terms == 0 && !said && time.Since(began) > takenAfter {
			said = true
			c.Say("no daemon has taken it up yet: one that consumes and has pages (ROLLBACKD_HTTP_ADDR) does it")
		}
		if a.Progress != nil {
			c.Progress.Count(a.Progress.Done, "letters")
		}
		if err = wait.For(ctx, lookEvery); err == nil {
			a, err = c.Acts.Act(ctx, a.ID)
		}
	}
	if err != nil {
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), takenAfter)
		defer cancel()
		if _, stopped := c.Acts.Stop(over, who, a.ID); stopped != nil && !errors.Is(stopped, operator.ErrEnded) {
			err = errors.Join(err, stopped)
		}
		return err
	}
	if report := a.Rehearsed(); report != nil {
		if err := c.Render(report, rehearsalTable(report)); err != nil {
			return err
		}
	}
	if a.State != operator.Done {
		return command.Said(fmt.Errorf("the rehearsal, act %s, is %s: %s", a.ID, a.State, screen.Printable(a.Error)))
	}
	return nil
}

func rehearsalTable(r *operator.Rehearsal) command.Table {
	t := command.Table{Header: []string{"LETTERS", "OUTCOME", "ROWS THAT WOULD CHANGE", "FIRST", "WHY"}}
	for _, g := range r.Groups {
		t.Add(g.Count, g.Outcome.Words(), strings.Join(g.Rows(), ", "), g.First[0].Key, screen.Shorten(g.Error, 160))
	}
	t.Count(r.Moved, "replayed or ended by somebody meanwhile", "", "", "")
	t.Count(r.Parked, "parked: stay without --force", "", "", "")
	if r.More {
		t.Add("-", "older letters were not looked at", "", "", "")
	}
	t.Add("-", "this was a rehearsal: nothing was changed", "", "", "")
	return t
}
