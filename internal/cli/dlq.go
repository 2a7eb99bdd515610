package cli

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/screen"
)

func newDLQCmd(a *app) *cobra.Command {
	return newGroupCmd("dlq", "List, show, export, replay and discard dead letters",
		newDLQListCmd(a), newDLQShowCmd(a), newDLQExportCmd(a), newDLQReplayCmd(a), newDLQDiscardCmd(a))
}

// filterFlags are the conditions that all dlq commands know.
type filterFlags struct {
	keys, reasons     []string
	tag, since, until string
	order, sku, body  string
}

func addFilterFlags(cmd *cobra.Command) *filterFlags {
	f := new(filterFlags)
	var reasons []string
	for _, r := range dedup.Reasons() {
		reasons = append(reasons, string(r))
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.keys, "key", nil, "choose by key; may be given several times")
	flags.StringVar(&f.tag, "tag", "", "choose by tag")
	flags.StringArrayVar(&f.reasons, "reason", nil, "choose by reason; may be given several times: "+strings.Join(reasons,
		", "))
	completes(cmd, "reason", reasons...)
	flags.StringVar(&f.order, "order", "", "choose those whose body names this order_sn, or whose key it is")
	flags.StringVar(&f.sku, "sku", "", "choose those whose body names this sku_id, at whatever depth")
	flags.StringVar(&f.body, "body", "", "choose those whose body holds this text, letter by letter")
	flags.StringVar(&f.since, "since", "", "choose those dead since then: a time like 2026-11-21T08:00:00Z, or a "+
		"duration like 24h")
	flags.StringVar(&f.until, "until", "", "choose those dead before then, said as for --since")
	return f
}

// read makes a filter that need not choose anything.
func (f *filterFlags) read(now time.Time, limit int) (deadletter.Filter, error) {
	filter := deadletter.Filter{Keys: f.keys, Tag: f.tag, Order: f.order, Body: f.body, Limit: limit}
	for _, reason := range f.reasons {
		if !slices.Contains(dedup.Reasons(), dedup.Reason(reason)) {
			return filter, usageErrorf("--reason %q is none; there are %v", reason, dedup.Reasons())
		}
		filter.Reasons = append(filter.Reasons, dedup.Reason(reason))
	}
	if slices.Contains(f.keys, "") {
		return filter, usageErrorf("--key is empty")
	}
	var err error
	if f.sku != "" {
		if filter.SKU, err = strconv.ParseInt(f.sku, 10, 64); err != nil || filter.SKU < 1 {
			return filter, usageErrorf("--sku %q is no sku_id, which is a number", f.sku)
		}
	}
	if filter.Since, err = readMoment("since", f.since, now); err != nil {
		return filter, err
	}
	if filter.Until, err = readMoment("until", f.until, now); err != nil {
		return filter, err
	}
	switch {
	case limit < 0:
		return filter, usageErrorf("--limit %d is negative", limit)
	case !filter.Since.IsZero() && !filter.Until.IsZero() && !filter.Since.Before(filter.Until):
		return filter, usageErrorf("--since must come before --until")
	}
	return filter, nil
}

// list makes a filter for a command that reads the log.
func (f *filterFlags) list(now time.Time, limit int) (deadletter.Filter, error) {
	if n := len(f.keys); n > dedup.MaxListedKeys {
		return deadletter.Filter{}, usageErrorf("%d keys: at most %d", n, dedup.MaxListedKeys)
	}
	return f.read(now, limit)
}

func (f *filterFlags) narrow() bool {
	return len(f.keys) > 0 || len(f.reasons) > 0 || f.tag != "" || f.since != "" || f.until != "" ||
		f.order != "" || f.sku != "" || f.body != ""
}

// choose makes a filter for a command that changes something: it must be said what.
func (f *filterFlags) choose(now time.Time, all bool, limit int) (deadletter.Filter, error) {
	filter, err := f.read(now, limit)
	if err != nil {
		return filter, err
	}
	narrow := f.narrow()
	switch {
	case !all && !narrow:
		return filter, usageErrorf("which letters? --all, or one of --key, --tag, --reason, --since, --until, --order, " +
			"--sku, --body")
	case all && narrow:
		return filter, usageErrorf("--all and a condition contradict each other")
	}
	filter.All = all
	return filter, nil
}

// readMoment reads a time, or a duration before now.
func readMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04",
		"2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, usageErrorf("--%s %q is neither a time (2026-11-21T08:00:00Z; without a zone it is UTC) nor a "+
		"duration (24h)", flag, text)
}

func shorten(s string, characters int) string { return screen.Shorten(s, characters) }

// fitting is a remark as a list shows it: cut on a terminal, whole for whoever reads on.
func (a *app) fitting(remark string) string {
	if onTerminal(a.stdout) {
		return shorten(remark, 80)
	}
	return remark
}

// byFlag says in whose name something is done.
type byFlag struct{ who string }

func addByFlag(cmd *cobra.Command) *byFlag {
	f := new(byFlag)
	cmd.Flags().StringVar(&f.who, "by", "", "who does it, for the story of each letter (default the user's name at "+
		"this host)")
	return f
}

func (f *byFlag) name() string {
	if who := strings.TrimSpace(f.who); who != "" {
		return who
	}
	return person()
}
