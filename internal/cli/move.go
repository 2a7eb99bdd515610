package cli

import (
	"context"
	"errors"
	"fmt"

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

var moveCommand = command{
	use:   "move --from QUEUE",
	short: "Carry the messages of another queue over to the main queue",
	long:  moveHelp,
	example: `  PROGRAM move --from orders.rollback
  PROGRAM move --from orders.rollback --follow --rate 200`,
	flags: func(f *flags) work {
		var o shovel.Options
		f.StringVar(&o.From, "from", "", "the queue to take messages from; required")
		f.Float64Var(&o.Rate, "rate", 0, "carry at most so many messages per second; 0: as many as can be")
		f.StringVar(&o.Tag, "tag", "", "the tag of messages that have neither a type nor a routing key, as from a fanout "+
			"exchange; without it they are unidentified")
		f.BoolVar(&o.Follow, "follow", false, "go on when the queue is empty, until interrupted")
		f.check(func() error {
			switch {
			case o.From == "":
				return usageErrorf("--from is missing: name the queue to take messages from")
			case o.Rate != 0 && !(o.Rate >= shovel.MinRate && o.Rate <= 1e9):
				return usageErrorf("--rate %v: want 0, or %v and more messages per second", o.Rate, shovel.MinRate)
			}
			return checkTag(o.Tag)
		})
		return func(ctx context.Context, c *call) error { return c.move(ctx, o) }
	},
}

func (c *call) move(ctx context.Context, o shovel.Options) error {
	o.Rabbit, o.Topology = c.rabbit(), c.cfg.TopologyConfig()
	o.Progress = func(at shovel.Progress) { c.progress.draw(moveText(at), at.Moved, movable(at, o.Follow)) }
	o.Say = func(text string) {
		c.progress.end()
		c.say("%s", printable(text))
	}
	res, err := shovel.Run(ctx, o)
	if o.Follow && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // that is how it ends
	}
	if !errors.Is(err, shovel.ErrSource) {
		err = c.ofRabbit(err)
	}
	if err != nil && res.Moved == 0 && res.Left == 0 {
		return err
	}
	t := table{header: []string{"MESSAGES", "OUTCOME"}}
	t.add(res.Moved, fmt.Sprintf("moved from %s to %s", res.From, res.To))
	if res.Left > 0 {
		t.add(res.Left, "stay in "+res.From+": they cannot be carried")
		err = errors.Join(err, fmt.Errorf("messages that stay in %s: %d", res.From, res.Left))
	}
	return errors.Join(c.render(res, t), err)
}

// movable is how many messages there are to carry as far as is known: none while it follows, since there is no end.
func movable(at shovel.Progress, follow bool) int {
	if follow {
		return 0
	}
	return at.Moved + at.Waiting
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
