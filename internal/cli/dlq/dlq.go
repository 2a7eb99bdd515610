// Package dlq has the commands that list, show, export, replay, discard and edit dead letters. It must not decide what
// becomes of one.
package dlq

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// Commands are those of this folder.
var Commands = []command.Command{{
	Use: "dlq", Short: "List, show, export, replay, discard and edit dead letters",
	Of: []command.Command{listCommand, showCommand, exportCommand, replayCommand, discardCommand, editCommand},
}}

// conditions are those that all dlq commands know. What it points to is whole once the flags are checked.
func conditions(f *command.Flags) *deadletter.Filter {
	filter := new(deadletter.Filter)
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
	return filter
}

// readFilter is the filter of a command that reads the log, which knows fewer keys at a time than the queue.
func readFilter(f *command.Flags) *deadletter.Filter {
	filter := conditions(f)
	f.FewKeys(&filter.Keys)
	return filter
}

// chosenBy are the flags that choose letters, but for --all.
var chosenBy = []string{"key", "tag", "reason", "since", "until", "order", "sku", "body"}

// choose is the filter of a command that changes something: it must be said what. A file chooses by itself.
func choose(f *command.Flags) (filter *deadletter.Filter, from *string) {
	filter = conditions(f)
	f.BoolVar(&filter.All, "all", false, "choose all letters")
	from = f.String("from", "", "take the letters from this FILE, an export; - is the standard input")
	f.Check(func() error {
		narrow := slices.ContainsFunc(chosenBy, func(name string) bool {
			flag := f.Lookup(name)
			return flag.Value.String() != flag.DefValue
		})
		if filter.All && narrow {
			return command.Usagef("--all and a condition contradict each other")
		}
		queued := *from == "" // where what has an unknown effect never is
		filter.All = filter.All || !queued && !narrow
		return cmp.Or(command.RefuseIf(!filter.All && !narrow, "which letters? --all, or one of --%s",
			strings.Join(chosenBy, ", --")),
			command.RefuseIf(queued && slices.Contains(filter.Reasons, dedup.ReasonEffectUnknown), "--reason %s: the consumer "+
				"before rollbackd left these open, and no queue has a letter of them; '%s dlq export --reason %[1]s -o FILE', "+
				"then --from FILE", dedup.ReasonEffectUnknown, f.Cobra.Root().Name()))
	})
	return filter, from
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
