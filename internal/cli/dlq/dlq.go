// Package dlq has the commands that list, show, export, replay, discard and edit dead letters. It must not decide what
// becomes of one.
package dlq

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// Commands are those of this folder.
var Commands = []command.Command{{
	Use: "dlq", Short: "List, show, export, replay, discard and edit dead letters",
	Of: []command.Command{listCommand, showCommand, exportCommand, replayCommand, discardCommand, editCommand},
}}

// conditions are those that all dlq commands know. The filter is whole once the flags are checked.
func conditions(f *command.Flags, filter *deadletter.Filter) {
	f.StringArrayVar(&filter.Keys, "key", nil, "choose by key; may be given several times")
	f.StringVar(&filter.Tag, "tag", "", "choose by tag")
	command.Some(f, &filter.Reasons, "reason", "choose by reason; may be given several times: ", dedup.Reasons(),
		f.StringArray)
	f.StringVar(&filter.Order, "order", "", "choose those whose body names this order_sn, or whose key it is")
	sku := f.String("sku", "", "choose those whose body names this sku_id, at whatever depth")
	f.StringVar(&filter.Body, "body", "", "choose those whose body holds this text, letter by letter")
	f.Check(func() (err error) {
		filter.SKU, err = strconv.ParseInt(*sku, 10, 64)
		return cmp.Or(command.RefuseIf(slices.Contains(filter.Keys, ""), "--key is empty"),
			command.RefuseIf(*sku != "" && (err != nil || filter.SKU < 1), "--sku %q is no sku_id, which is a number", *sku))
	})
	f.Span(&filter.Since, &filter.Until, "choose those dead since then: a time like 2026-11-21T08:00:00Z, or a duration "+
		"like 24h", "choose those dead before then, said as for --since")
}

// readFilter is the filter of a command that reads the log, which knows fewer keys at a time than the queue.
func readFilter(f *command.Flags) *deadletter.Filter {
	filter := new(deadletter.Filter)
	conditions(f, filter)
	f.FewKeys(&filter.Keys)
	return filter
}

// chosenBy are the flags that choose letters, but for --all.
var chosenBy = []string{"key", "tag", "reason", "since", "until", "order", "sku", "body"}

// choose has the letters chosen that a command changes: it must be said which. A file chooses by itself.
func choose(f *command.Flags, r *operator.Request) {
	filter := &r.Filter
	conditions(f, filter)
	f.BoolVar(&filter.All, "all", false, "choose all letters")
	f.StringVar(&r.From, "from", "", "take the letters from this FILE, an export; - is the standard input")
	f.Check(func() error {
		narrow := slices.ContainsFunc(chosenBy, func(name string) bool {
			flag := f.Lookup(name)
			return flag.Value.String() != flag.DefValue
		})
		if filter.All && narrow {
			return command.Usagef("--all and a condition contradict each other")
		}
		queued := r.From == "" // where what has an unknown effect never is
		filter.All = filter.All || !queued && !narrow
		return cmp.Or(f.RefuseEmpty(chosenBy...),
			command.RefuseIf(!filter.All && !narrow, "which letters? --all, or one of --%s", strings.Join(chosenBy, ", --")),
			command.RefuseIf(queued && slices.Contains(filter.Reasons, dedup.ReasonEffectUnknown), "--reason %s: the consumer "+
				"before rollbackd left these open, and no queue has a letter of them; '%s dlq export --reason %[1]s -o FILE', "+
				"then --from FILE", dedup.ReasonEffectUnknown, f.Cobra.Root().Name()))
	})
}

var listCommand = command.Command{
	Use:   "list",
	Short: "List dead letters, the latest first, or count them by reason",
	Long: `List dead letters as the consumer log knows them, the latest first, or count them with --by reason. The queue
is not touched, and RabbitMQ need not answer. Every page is read through an index, however large the log is.`,
	Example: "  PROGRAM dlq list --by reason --since 24h",
	Needs:   command.NeedsLog,
	Flags: func(f *command.Flags) command.Work {
		filter := readFilter(f)
		wanted := f.Listing(100)
		by := f.String("by", "", "count them by this: reason")
		f.Offer("by", "reason")
		f.Check(func() error {
			return cmp.Or(command.RefuseIf(*by != "" && *by != "reason", "--by %q can only be reason", *by),
				command.RefuseIf(*by != "" && (f.Changed("after") || f.Changed("limit")), "--by counts all letters that are "+
					"chosen: without --limit and --after"))
		})
		return func(ctx context.Context, c *command.Call) error {
			if *by != "" {
				return countLetters(ctx, c, *filter)
			}
			return command.List(c, wanted, func() { c.SayUnknownGroup(ctx) }, func(most int, after dedup.Cursor) (
				[]deadletter.Letter, dedup.Cursor, error) {
				filter.Limit = min(most, dedup.MaxListed)
				return c.Letters.List(ctx, *filter, after)
			}, []string{"DEAD AT", "TAG", "KEY", "REASON", "ATTEMPTS", "REPLAYS", "REMARK"}, func(l deadletter.Letter) []any {
				return []any{screen.Date(l.DeadAt), l.Tag, l.Key, l.Reason, l.Attempts, replaysText(l), c.Fitting(l.Remark)}
			})
		}
	},
}

func countLetters(ctx context.Context, c *command.Call, f deadletter.Filter) error {
	reasons, err := c.Letters.Reasons(ctx, f)
	if err != nil {
		return err
	}
	if len(reasons) == 0 {
		c.SayUnknownGroup(ctx)
	}
	t := command.Table{Header: []string{"REASON", "LETTERS", "OLDEST", "NEWEST"}}
	for _, r := range reasons {
		t.Add(r.Reason, r.Count, screen.Date(r.Oldest), screen.Date(r.Newest))
	}
	return c.Render(reasons, t)
}

func replaysText(l deadletter.Letter) string {
	text := strconv.Itoa(l.Replays)
	if l.Parked {
		text += " (parked)"
	}
	return text
}

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

var exportCommand = command.Command{
	Use:   "export",
	Short: "Write dead letters to a file, a JSON object per line",
	Long: `Write dead letters as the consumer log knows them, the latest first, one JSON object per line: tag, key,
reason, properties, headers, and the body in base64. All are written unless conditions choose. The queue is not touched,
and the letters stay.

'PROGRAM dlq replay --from FILE' replays the lines, also with a body that was mended. Change its text: jq 1.6
rounds a sku_id beyond 2^53 when it reads the body as JSON. 'PROGRAM publish --letters FILE' puts them on the
main queue as they are, like a letter moved by hand.`,
	Example: `  PROGRAM dlq export --reason malformed -o letters.ndjson
  jq -c '.body |= (@base64d | sub("\"quantity\": *[0-9]+"; "\"quantity\":2") | @base64)' letters.ndjson > mended.ndjson
  PROGRAM dlq replay --from mended.ndjson`,
	Needs: command.NeedsLog,
	Forms: command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		filter := readFilter(f)
		f.Limit(&filter.Limit, 0, "write at most so many; 0: all")
		path := f.StringP("output", "o", "-", "the FILE, which must not exist; - is the standard output")
		return func(ctx context.Context, c *command.Call) (err error) {
			to := c.Stdout
			if *path != "-" {
				file, err := os.OpenFile(*path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // bodies are nobody else's business
				if err != nil {
					return command.Usagef("the export: %w", err)
				}
				to = file
				defer func() {
					err = errors.Join(err, file.Close())
				}()
			}
			buffered := bufio.NewWriterSize(to, 64<<10)
			n, err := c.Letters.Export(ctx, *filter, command.Escaping{Writer: buffered})
			err = errors.Join(c.Hinted(err), buffered.Flush())
			if n == 0 && err == nil {
				c.SayUnknownGroup(ctx)
			}
			c.Say("exported %s", screen.Plural(n, "letter"))
			return err
		}
	},
}
