package dlq

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
)

const mostBody = 1 << 20 // of a file that is read; the outbox refuses less

var editCommand = command.Command{
	Use:   "edit KEY",
	Short: "End a dead letter and send an edited one in its place",
	Long: `End a dead letter and send another message in its place, with another body or other headers. The new one has a
key of its own, the letter's with /edited-1 behind it, and is put into the outbox in the transaction that ends the
letter, so never do both run: the schema must have an outbox (ROLLBACKD_OUTBOX). 'PROGRAM log explain' of either names
the other. The page of the message does the same, and shows before what the handler would make of it.

What is to stay the same message, under its key, is mended by 'PROGRAM dlq replay --from'.`,
	Example: `  PROGRAM dlq edit 20261121-0002 --body mended.json --why "a quantity was a text"`,
	Args:    cobra.ExactArgs(1),
	Needs:   command.NeedsActs,
	Flags: func(f *command.Flags) command.Work {
		tag := f.Tag("its tag, where several have the key")
		body := f.String("body", "", "FILE with the new body; - is the standard input; left out: it stays")
		headers := f.String("headers", "", "FILE with all new headers, a JSON object of texts, numbers, true and false")
		why, by := f.String("why", "", command.WhyHelp), f.By()
		f.Check(func() error {
			return command.RefuseIf(*body == "" && *headers == "", "what is edited? --body, --headers, or both")
		})
		return func(ctx context.Context, c *command.Call) error {
			name, err := deadOne(ctx, c, *tag)
			if err != nil {
				return err
			}
			now, err := c.Acts.Editable(ctx, name)
			if err != nil {
				return err
			}
			r := now.EditRequest
			r.Why = *why
			if *body != "" {
				text, err := c.ReadInput(*body, "the body", mostBody)
				if err != nil {
					return err
				}
				r.Body = string(text)
			}
			if *headers != "" {
				text, err := c.ReadInput(*headers, "the headers", mostBody)
				if err != nil {
					return err
				}
				r.Headers = nil
				if err := json.Unmarshal(text, &r.Headers); err != nil {
					return command.Usagef("the headers are no JSON object: %w", err)
				}
			}
			a, err := c.Acts.Edit(ctx, operator.Actor{Name: by()}, "", r)
			if err != nil {
				return err
			}
			var did operator.Edited
			if err := json.Unmarshal(a.Detail, &did); err != nil {
				return fmt.Errorf("read what was done in act %s: %w", a.ID, err)
			}
			t := command.Table{Header: []string{"", "TAG", "KEY"}}
			t.Add("ended", did.Tag, did.Key)
			t.Add("put into the outbox", did.Sent.Tag, did.Sent.Key)
			waits, err := c.Acts.Outbox().Survey(ctx) // what is done is done, whatever this says
			return c.Print(a, func(p *command.Page) {
				p.Table(t)
				if err == nil && waits.Lag > late {
					p.Addf("The outbox is late: what is due in it has waited for %v. It is sent by daemons with "+
						"ROLLBACKD_OUTBOX=on and by `%s relay`; does one run, and does RabbitMQ take messages?\n",
						waits.Lag.Round(time.Second), c.Program)
				}
			})
		}
	},
}

// late is for how long a message of the outbox may be due before somebody should look for its relay.
const late = 10 * time.Second

// deadOne is the one dead letter with the key that is named, and the tag if there is one.
func deadOne(ctx context.Context, c *command.Call, tag string) (name operator.MessageName, err error) {
	shown, err := c.Letters.Show(ctx, c.Args[0], tag)
	switch {
	case err != nil:
	case len(shown) == 0:
		err = fmt.Errorf("no dead letter has the key %q", c.Args[0])
	case len(shown) > 1:
		err = command.Usagef("%d dead letters have the key %q: say which with --tag", len(shown), c.Args[0])
	default:
		name = operator.MessageName{Tag: shown[0].Tag, Key: shown[0].Key}
	}
	return name, err
}
