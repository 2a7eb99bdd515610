package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/shovel"
)

const moveHelp = `Carry the messages of the queue --from over to the main queue ROLLBACKD_QUEUE. Each is
published there, confirmed, and then acked in its own queue. Whatever kind of queue that is and whatever its arguments,
nothing is declared or changed.

A copy keeps body, headers, message_id, timestamp and the other properties but user_id and the expiry, and has the
identity of its message: a tag that came from the routing key stands in its type. So it may be killed and run again at
any time, run twice at once, and run beside the queue's old consumer and beside daemons: what is carried twice has one
effect.

It ends when nothing waits in the queue; what another consumer has in hand is not seen. With --follow it goes on, for as
long as producers use the old name, until it is interrupted. A full main queue makes it wait, a lost connection is made
again. Interrupted, it finishes what it has in hand or gives it back.

A message that cannot be carried, because its headers cannot be read or it is too large for a copy, stays in its queue
and is named; the others go on. The exit code is then 1.`

var moveCommand = command.Command{
	Use:   "move --from QUEUE",
	Short: "Carry the messages of another queue over to the main queue",
	Long:  moveHelp,
	Example: `  PROGRAM move --from orders.rollback
  PROGRAM move --from orders.rollback --follow --rate 200`,
	Flags: func(f *command.Flags) command.Work {
		var o shovel.Options
		f.StringVar(&o.From, "from", "", "the queue to take messages from; required")
		f.Float64Var(&o.Rate, "rate", 0, "carry at most so many messages per second; 0: as many as can be")
		tag := f.Tag("the tag of messages that have neither a type nor a routing key, as from a fanout " +
			"exchange; without it they are unidentified")
		f.BoolVar(&o.Follow, "follow", false, "go on when the queue is empty, until interrupted")
		f.Check(func() error {
			o.Tag = *tag
			return cmp.Or(command.RefuseIf(o.From == "", "--from is missing: name the queue to take messages from"),
				command.RefuseIf(o.Rate != 0 && !(o.Rate >= shovel.MinRate && o.Rate <= 1e9), "--rate %v: want 0, or %v and more "+
					"messages per second", o.Rate, shovel.MinRate))
		})
		return func(ctx context.Context, c *command.Call) error { return move(ctx, c, o) }
	},
}

func move(ctx context.Context, c *command.Call, o shovel.Options) error {
	o.Rabbit, o.Topology = c.Rabbit(), c.Config.TopologyConfig()
	o.Progress = func(at shovel.Progress) {
		all := at.Moved + at.Waiting
		if o.Follow { // there is no end
			all = 0
		}
		c.Progress.Draw(moveText(at), at.Moved, all)
	}
	o.Say = func(text string) {
		c.Progress.End()
		c.Say("%s", screen.Printable(text))
	}
	res, err := shovel.Run(ctx, o)
	if o.Follow && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // that is how it ends
	}
	if !errors.Is(err, shovel.ErrSource) {
		err = c.OfRabbit(err)
	}
	if err != nil && res.Moved == 0 && res.Left == 0 {
		return err
	}
	t := command.Table{Header: []string{"MESSAGES", "OUTCOME"}}
	t.Add(res.Moved, fmt.Sprintf("moved from %s to %s", res.From, res.To))
	t.Count(res.Left, "stay in "+res.From+": they cannot be carried")
	if res.Left > 0 {
		err = errors.Join(err, fmt.Errorf("messages that stay in %s: %d", res.From, res.Left))
	}
	return errors.Join(c.Render(res, t), err)
}

func moveText(at shovel.Progress) string {
	text := fmt.Sprintf("%d moved, %d wait", at.Moved, at.Waiting)
	if at.Left > 0 {
		text += fmt.Sprintf(", %d stay", at.Left)
	}
	if at.Why != "" {
		text += "; " + at.Why
	}
	return text
}
