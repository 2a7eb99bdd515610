package cli

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/config"
)

// maxShownText is how many characters of a body, of properties or of headers are shown on a screen.
const maxShownText = 4000

func newDLQShowCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show a dead letter: why it is dead, its body, properties, headers and story",
		Long: `Show the dead letter with this key as the consumer log knows it: why it is dead, its body, properties and
headers, and its story. The queue is not touched. On a screen long texts are cut and control characters escaped; -o json
has all. A key that is dead under several tags is shown once for each.`,
		Args: cobra.ExactArgs(1),
	}
	out := addOutputFlag(cmd)
	tag := cmd.Flags().String("tag", "", "only the letter with this tag")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		letters, closeAll, err := a.openLetters(cmd.Context(), cfg, "dlq")
		if err != nil {
			return err
		}
		defer closeAll()
		shown, err := letters.Show(cmd.Context(), args[0], *tag)
		switch {
		case err != nil:
			return a.mysqlError(cfg, err)
		case len(shown) == 0:
			return a.noSuchLetter(cfg, args[0])
		case out.chosen == outputJSON:
			return writeJSON(a.stdout, shown)
		}
		var text bytes.Buffer
		for i, s := range shown {
			if i > 0 {
				text.WriteString("\n")
			}
			if err := writeShown(&text, s); err != nil {
				return err
			}
		}
		if _, err := text.WriteTo(a.stdout); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		return nil
	}
	return cmd
}

func (a *app) noSuchLetter(cfg config.Config, key string) error {
	return fmt.Errorf("no dead letter of group %s has the key %q; '%s log explain' says what became of it", cfg.Group, key,
		a.name)
}

// writeShown tells a letter to a person.
func writeShown(w io.Writer, s deadletter.Shown) error {
	facts := table{header: []string{"identity", fmt.Sprintf("group %s, tag %s, key %s", s.Group, s.Tag, s.Key)}}
	add := func(name, value string) {
		if value != "" {
			facts.add(name, shorten(value, maxShownText))
		}
	}
	add("dead", string(s.Reason)+" since "+s.DeadAt.Format(time.RFC3339))
	add("error", s.Remark)
	add("attempts", fmt.Sprintf("%d, replays %s", s.Attempts, replaysText(s.Letter)))
	add("message id", s.MessageID)
	add("body sha256", s.BodyHash)
	add("properties"+cutMark(s.HeadersCut), compactJSON(s.Properties))
	add("headers"+cutMark(s.HeadersCut), compactJSON(s.Headers))
	add("body"+cutMark(s.BodyCut), s.Body)
	add("body in hex"+cutMark(s.BodyCut), hex.EncodeToString(s.BodyBytes[:min(len(s.BodyBytes), maxShownText)]))
	if err := writeTable(w, facts); err != nil || len(s.Events) == 0 {
		return err
	}
	story := table{header: []string{"AT", "FROM", "TO", "ATTEMPT", "REPLAYS", "BY", "NOTE"}}
	for _, e := range s.Events {
		story.add(e.At.Format("2006-01-02T15:04:05.000Z"), e.From, e.To, e.Attempt, e.Replays, e.By, shorten(e.Error, 120))
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return writeTable(w, story)
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
