package dlq

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// maxShownText is how many characters of a body, of properties or of headers are shown on a screen.
const maxShownText = 4000

var showCommand = command.Command{
	Use:   "show KEY",
	Short: "Show a dead letter: why it is dead, its body, properties, headers and story",
	Long: `Show the dead letter with this key as the consumer log knows it: why it is dead, its body, properties and
headers, and its story. The queue is not touched. On a screen long texts are cut and control characters escaped; -o json
has all. A key that is dead under several tags is shown once for each.`,
	Args:  cobra.ExactArgs(1),
	Needs: command.NeedsLog,
	Flags: func(f *command.Flags) command.Work {
		tag := f.String("tag", "", "only the letter with this tag")
		return func(ctx context.Context, c *command.Call) error {
			all, err := c.Letters.Show(ctx, c.Args[0], *tag)
			if err == nil && len(all) == 0 {
				c.SayUnknownGroup(ctx)
				err = fmt.Errorf("no dead letter of group %s has the key %q; '%s log explain' says what became of it",
					c.Config.Group, c.Args[0], c.Program)
			}
			if err != nil {
				return err
			}
			return c.Print(all, func(p *command.Page) {
				for i, s := range all {
					if i > 0 {
						p.Addf("\n")
					}
					writeLetter(p, s)
				}
			})
		}
	},
}

// letter tells of a letter.
func writeLetter(p *command.Page, s deadletter.Shown) {
	facts := command.Table{Header: []string{"identity", fmt.Sprintf("group %s, tag %s, key %s", s.Group, s.Tag, s.Key)}}
	for _, fact := range [][2]string{
		{"dead", string(s.Reason) + " since " + screen.Date(s.DeadAt)}, {"error", s.Remark},
		{"attempts", fmt.Sprintf("%d, replays %s", s.Attempts, replaysText(s.Letter))}, {"message id", s.MessageID},
		{"body sha256", s.BodyHash}, {"properties" + cutMark(s.HeadersCut), compactJSON(s.Properties)},
		{"headers" + cutMark(s.HeadersCut), compactJSON(s.Headers)}, {"body" + cutMark(s.BodyCut), s.Body},
		{"body in hex" + cutMark(s.BodyCut), hex.EncodeToString(s.BodyBytes[:min(len(s.BodyBytes), maxShownText)])},
	} {
		facts.Fact(fact[0], screen.Shorten(fact[1], maxShownText))
	}
	p.Table(facts)
	if len(s.Events) == 0 {
		return
	}
	story := command.Table{Header: []string{"AT", "FROM", "TO", "ATTEMPT", "REPLAYS", "BY", "NOTE"}}
	for _, e := range s.Events {
		story.Add(e.At.Format("2006-01-02T15:04:05.000Z"), e.From, e.To, e.Attempt, e.Replays, e.By,
			screen.Shorten(e.Error, 120))
	}
	p.Addf("\n")
	p.Table(story)
}

func cutMark(cut bool) string {
	if cut {
		return " (cut in the log)"
	}
	return ""
}

func compactJSON(text json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return string(text)
	}
	return b.String()
}
