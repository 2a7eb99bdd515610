package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rollbackd/rollbackd/internal/screen"
)

// command is a command of the program. What all commands have in common is done for it: its flags are checked, the
// settings are read, what it opens is closed, and its error says what to do. In its texts PROGRAM stands for the name
// by which the program was called.
type command struct {
	use, short, long, example string
	of                        []command            // it is a group that only holds these
	args                      cobra.PositionalArgs // nil: it takes none
	needs                     need
	forms                     []string // of what it prints, for the flag -o; nil: table and json
	hidden                    bool
	// flags declares what may be said to it, and returns what it does.
	flags func(f *flags) work
}

type work func(ctx context.Context, c *call) error

// need is what a command is given of the world before it begins.
type need int

const (
	needsSettings need = iota
	needsNothing       // or it reads the settings in its own way
	needsLog           // the consumer log with its tables
	needsActs          // and the operator, who looks at acts and does them
)

// flags are those of a command, and what must hold of them.
type flags struct {
	*pflag.FlagSet

	cmd     *cobra.Command
	program string // how it was called
	out     *output
	checks  []func() error
}

// new makes a command of the program.
func (a *app) new(it command) *cobra.Command {
	text := strings.NewReplacer("PROGRAM", a.name)
	cmd := &cobra.Command{
		Use: it.use, Short: it.short, Long: text.Replace(it.long), Example: text.Replace(it.example), Args: it.args,
		Hidden: it.hidden,
	}
	if len(it.of) > 0 {
		a.group(cmd, it.of)
		return cmd
	}
	if it.args == nil {
		cmd.Args = cobra.NoArgs
	}
	if it.forms == nil {
		it.forms = inForms
	}
	f := &flags{FlagSet: cmd.Flags(), cmd: cmd, program: a.name, out: &output{outputTable, it.forms}}
	if len(it.forms) > 0 {
		f.VarP(f.out, "output", "o", "form of the output: "+strings.Join(it.forms, ", "))
		f.offer("output", it.forms...)
	}
	do := it.flags(f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, check := range f.checks {
			if err := check(); err != nil {
				return err
			}
		}
		c := &call{app: a, args: args, command: strings.Fields(cmd.CommandPath())[1], out: f.out,
			progress: a.newProgress(time.Now())}
		defer c.close()
		if err := c.prepare(cmd.Context(), it.needs); err != nil {
			return c.hinted(err)
		}
		return c.hinted(do(cmd.Context(), c))
	}
	return cmd
}

func (c *call) prepare(ctx context.Context, needs need) (err error) {
	if needs != needsNothing {
		c.cfg, err = c.loadConfig()
	}
	switch {
	case err != nil:
	case needs == needsLog:
		err = c.open(ctx)
	case needs == needsActs:
		err = c.openOperator(ctx)
	}
	return err
}

// check has the flags checked before anything is done.
func (f *flags) check(check func() error) { f.checks = append(f.checks, check) }

// some declares a flag whose values are a closed list, which its help ends with and shells offer. What was said is
// whole once the flags are checked.
func some[T any](
	f *flags, name, help string, values []T, declare func(name string, none []string, help string) *[]string,
) *[]T {
	words, chosen := make([]string, len(values)), new([]T)
	for i, v := range values {
		words[i] = fmt.Sprint(v)
	}
	said := declare(name, nil, help+strings.Join(words, ", "))
	f.offer(name, words...)
	f.check(func() error {
		for _, w := range *said {
			i := slices.Index(words, strings.TrimSpace(w))
			if i < 0 {
				return usageErrorf("--%s %q is none; there are %v", name, w, words)
			}
			*chosen = append(*chosen, values[i])
		}
		return nil
	})
	return chosen
}

// one is some for a flag that is said once, or not.
func one[T any](f *flags, name, help string, values []T) *string {
	word := new(string)
	some(f, name, help, values, func(name string, said []string, help string) *[]string {
		f.StringVar(word, name, "", help)
		f.check(func() error {
			said = strings.Fields(*word)
			return nil
		})
		return &said
	})
	return word
}

// offer lets a shell complete a flag with these values, and no file names.
func (f *flags) offer(name string, values ...string) {
	err := f.cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag was not declared before
	}
}

// limit is how many of a list there may be.
func (f *flags) limit(usual int, help string) *int {
	n := f.Int("limit", usual, help)
	f.check(func() error {
		if *n < 0 {
			return usageErrorf("--limit %d is negative", *n)
		}
		return nil
	})
	return n
}

// span is a time from which and one until which something is chosen.
func (f *flags) span(sinceHelp, untilHelp string) (since, until *time.Time) {
	from, to := f.String("since", "", sinceHelp), f.String("until", "", untilHelp)
	since, until = new(time.Time), new(time.Time)
	f.check(func() (err error) {
		now := time.Now()
		if *since, err = readMoment("since", *from, now); err != nil {
			return err
		}
		if *until, err = readMoment("until", *to, now); err != nil {
			return err
		}
		if !since.IsZero() && !until.IsZero() && !since.Before(*until) {
			return usageErrorf("--since must come before --until")
		}
		return nil
	})
	return since, until
}

// readMoment reads a time, or a duration before now.
func readMoment(flag, text string, now time.Time) (time.Time, error) {
	at, ok := screen.Moment(text, now)
	if !ok {
		return at, usageErrorf("--%s %q is neither a time (2026-11-21T08:00:00Z; without a zone it is UTC) nor a "+
			"duration (24h)", flag, text)
	}
	return at, nil
}

// by says in whose name something is done.
func (f *flags) by() func() string {
	who := f.String("by", "", "who does it, for the story of each letter (default the user's name at this host)")
	return func() string {
		if name := strings.TrimSpace(*who); name != "" {
			return name
		}
		return person()
	}
}

const whyHelp = "the reason, for whoever asks later"

// group makes a command one that only holds others. cobra would answer a missing or unknown subcommand with the help
// text and success, which a script takes for done.
func (a *app) group(cmd *cobra.Command, of []command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New("which command?")
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, one := range of {
		cmd.AddCommand(a.new(one))
	}
}

func unknownCommand(parent *cobra.Command, name string) error {
	parent.SuggestionsMinimumDistance = 2
	if near := parent.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %q?", name, near[0])
	}
	return fmt.Errorf("unknown command %q", name)
}

// listing is how much of a list is wanted, and from where.
type listing struct {
	limit *int
	after *string
}

func (f *flags) listing(usual int) listing {
	return listing{f.limit(usual, "list at most so many; 0: all"),
		f.String("after", "", "go on where the last list ended: it said how")}
}

// list reads a list page after page and prints it, each of its things as a row; none says what there is to say of an
// empty one.
func list[T any, C ~string](
	c *call, l listing, none func(), ask func(most int, after C) ([]T, C, error), header []string,
	row func(T) []any,
) error {
	all, t, next := []T{}, table{header: header}, C(*l.after)
	for {
		most := 1 << 30
		if *l.limit > 0 {
			most = *l.limit - len(all)
		}
		page, more, err := ask(most, next)
		if err != nil {
			return err
		}
		all, next = append(all, page...), more
		if next == "" || *l.limit > 0 && len(all) >= *l.limit {
			break
		}
	}
	if len(all) == 0 {
		none()
	}
	if next != "" {
		c.say("there are more; --limit 0 lists all, and this goes on: --after %s", next)
	}
	for _, one := range all {
		t.add(row(one)...)
	}
	return c.render(all, t)
}
