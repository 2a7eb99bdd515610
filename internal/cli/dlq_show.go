package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
)

// maxShownText is how many characters of a body, of properties or of headers are shown on a screen.
const maxShownText = 4000

var dlqShowCommand = command{
	use:   "show KEY",
	short: "Show a dead letter: why it is dead, its body, properties, headers and story",
	long: `Show the dead letter with this key as the consumer log knows it: why it is dead, its body, properties and
headers, and its story. The queue is not touched. On a screen long texts are cut and control characters escaped; -o json
has all. A key that is dead under several tags is shown once for each.`,
	args:  cobra.ExactArgs(1),
	needs: needsLog,
	flags: func(f *flags) work {
		tag := f.String("tag", "", "only the letter with this tag")
		return func(ctx context.Context, c *call) error {
			all, err := c.Letters.Show(ctx, c.args[0], *tag)
			if err == nil && len(all) == 0 {
				err = fmt.Errorf("no dead letter of group %s has the key %q; '%s log explain' says what became of it",
					c.cfg.Group, c.args[0], c.name)
			}
			if err != nil {
				return err
			}
			return c.print(all, func(p *page) {
				for i, s := range all {
					if i > 0 {
						p.f("\n")
					}
					p.letter(s)
				}
			})
		}
	},
}

// letter tells of a letter.
func (p *page) letter(s deadletter.Shown) {
	facts := table{header: []string{"identity", fmt.Sprintf("group %s, tag %s, key %s", s.Group, s.Tag, s.Key)}}
	for _, fact := range [][2]string{
		{"dead", string(s.Reason) + " since " + date(s.DeadAt)}, {"error", s.Remark},
		{"attempts", fmt.Sprintf("%d, replays %s", s.Attempts, replaysText(s.Letter))}, {"message id", s.MessageID},
		{"body sha256", s.BodyHash}, {"properties" + cutMark(s.HeadersCut), compactJSON(s.Properties)},
		{"headers" + cutMark(s.HeadersCut), compactJSON(s.Headers)}, {"body" + cutMark(s.BodyCut), s.Body},
		{"body in hex" + cutMark(s.BodyCut), hex.EncodeToString(s.BodyBytes[:min(len(s.BodyBytes), maxShownText)])},
	} {
		facts.fact(fact[0], shorten(fact[1], maxShownText))
	}
	p.table(facts)
	if len(s.Events) == 0 {
		return
	}
	story := table{header: []string{"AT", "FROM", "TO", "ATTEMPT", "REPLAYS", "BY", "NOTE"}}
	for _, e := range s.Events {
		story.add(e.At.Format("2006-01-02T15:04:05.000Z"), e.From, e.To, e.Attempt, e.Replays, e.By, shorten(e.Error, 120))
	}
	p.f("\n")
	p.table(story)
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
