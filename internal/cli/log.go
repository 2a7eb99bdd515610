package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// question is what log explain was asked.
type question struct {
	key, tag, order string
	queue           bool // count the copies in the dead-letter queue
}

var logExplainCommand = command{
	use:   "explain KEY | --order SN",
	short: "Tell all that is known of one message, or of one order's, what it means and what to do next",
	long: `Tell all that is known of the message with this key: its row in the consumer log, its story in order of time,
the reservations that it gave back, its lock, what that means and what to do next. A key that exists under
several tags is told once for each, and so are messages that are filed as conflict or unidentified because of it.

With --order: the same for every message of an order. They are found by what its reservations name, by the order's
number as key, and by the bodies that the log keeps of messages which are not applied.

The dead-letter queue is not touched: whether a copy lies there, the row says. --count-letters looks: it reads all
letters and gives them back to their places, which RabbitMQ counts as one delivery of the million that the queue allows,
and hides them from other readers meanwhile.`,
	args:  cobra.MaximumNArgs(1),
	needs: needsLog,
	flags: func(f *flags) work {
		var q question
		f.StringVar(&q.tag, "tag", "", "only the message with this tag")
		f.StringVar(&q.order, "order", "", "all messages of the order with this number")
		f.BoolVar(&q.queue, "count-letters", false, "count the copies in the dead-letter queue too")
		f.check(func() error {
			keys := f.NArg()
			switch {
			case keys == 0 && q.order == "":
				return usageErrorf("which message? A key, or --order SN")
			case keys == 1 && q.order != "":
				return usageErrorf("a key and --order exclude each other")
			case q.order != "" && q.tag != "":
				return usageErrorf("--tag goes with a key")
			}
			q.key = f.Arg(0)
			return nil
		})
		return func(ctx context.Context, c *call) error {
			told, err := c.explain(ctx, q)
			if err != nil {
				return err
			}
			if c.out.chosen == outputJSON && q.order == "" {
				for _, unseen := range told.Unseen {
					c.say("not seen: %s", unseen)
				}
				return writeJSON(c.stdout, told.Messages)
			}
			return c.print(explained{Told: told}, func(p *page) {
				_ = told.Write(p) // into memory
			})
		}
	},
}

// explained is the answer to a question, which is whole. The names of its JSON form are stable.
type explained struct {
	view.Told
	More bool `json:"more,omitempty"`
}

// explain gathers the answer.
func (c *call) explain(ctx context.Context, q question) (answer view.Told, err error) {
	var found operator.Told
	if q.order != "" {
		found, err = c.OfOrder(ctx, q.order)
	} else {
		found, err = c.OfKey(ctx, q.key, q.tag)
	}
	switch {
	case err != nil:
		return answer, err
	case q.order != "" && len(found.Messages)+len(found.Reservations) == 0:
		return answer, fmt.Errorf("nothing is known of order %q: no reservation, no message that names it\nNot seen: %s",
			q.order, found.Unseen[len(found.Unseen)-1])
	case q.order == "" && len(found.Messages) == 0:
		return answer, c.noSuchKey(q.key, q.tag)
	}
	// A lock's server that is away is no reason to tell nothing.
	lock, err := c.LockWords(ctx)
	if err != nil {
		return answer, fmt.Errorf("%s: %w", config.Prefix+c.cfg.LockSetting(), err)
	}
	copies := func(row dedup.Row) string { return operator.CopiesText(row, c.cfg.Queue) }
	if q.queue {
		if copies, err = c.copiesInQueue(ctx, found); err != nil {
			return answer, err
		}
	}
	names := operator.Names{Queue: c.cfg.Queue, MaxAttempts: c.cfg.MaxAttempts, Program: c.name}
	answer = view.Tell(found, q.order, names, func(id dedup.Identity) string {
		text := lock(ctx, id)
		if strings.HasPrefix(text, "unknown: ") {
			text += fmt.Sprintf("; %s is %s", config.Prefix+c.cfg.LockSetting(), c.cfg.Shown(c.cfg.LockSetting()))
		}
		return text
	}, copies)
	return answer, nil
}

// copiesInQueue reads the whole dead-letter queue once.
func (c *call) copiesInQueue(ctx context.Context, told operator.Told) (func(dedup.Row) string, error) {
	count := map[dedup.Identity]int{}
	for _, m := range told.Messages {
		count[m.Row.Identity] = 0
	}
	res, err := c.Letters.Survey(ctx, deadletter.SurveyOptions{Each: func(s deadletter.Surveyed) error {
		if n, ok := count[s.Row.Identity]; ok {
			count[s.Row.Identity] = n + 1
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return func(row dedup.Row) string {
		text := fmt.Sprintf("%d of the %d letters in %s", count[row.Identity], res.Seen, c.Letters.Queue())
		if res.Others > 0 {
			text += "; somebody else was reading it, so there may be more"
		}
		return text
	}, nil
}

func (c *call) noSuchKey(key, tag string) error {
	cfg := c.cfg
	where := fmt.Sprintf("group %s", cfg.Group)
	if tag != "" {
		where += fmt.Sprintf(" under tag %q", tag)
	}
	return fmt.Errorf(`the consumer log knows no key %q in %s
It may not have been published or consumed yet, its row may have outlived ROLLBACKD_LOG_RETENTION (%v), or the key is
another one: ROLLBACKD_KEY_FROM is %s. What could not be identified stands under a key of rollbackd's own:
'%s dlq list --tag rollbackd.unidentified', and --tag rollbackd.conflict`, key, where, cfg.LogRetention, cfg.KeyFrom,
		c.name)
}
