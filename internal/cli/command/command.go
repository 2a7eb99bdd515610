// Package command is what the program's commands are made of: flags and what must hold of them, settings, what a
// command opens, what it prints, and what is said beside an error. It must not know a command.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// Command is a command of the program. What all commands have in common is done for it: its flags are checked, the
// settings are read, what it opens is closed, and its error says what to do. In its texts PROGRAM stands for the name
// By which the program was called.
type Command struct {
	Use, Short, Long, Example string
	Of                        []Command            // it is a group that only holds these
	Args                      cobra.PositionalArgs // nil: it takes none
	Needs                     need
	Asks                      []string // the settings of the servers that it asks; nil: all
	Logs                      bool     // it writes a log, in whose form it says all
	Forms                     []string // of what it prints, for the flag -o; nil: table and json
	Hidden                    bool
	// Flags declares what may be said to it, and returns what it does.
	Flags func(f *Flags) Work
}

// Work is what a command does.
type Work func(ctx context.Context, c *Call) error

// need is what a command is given of the world before it begins.
type need int

const (
	needsSettings need = iota
	NeedsNothing       // or it reads the settings in its own way
	NeedsPool          // MySQL, whatever tables are there
	NeedsLog           // the consumer log with its tables
	NeedsActs          // and the operator, who looks at acts and does them
)

// Flags are those of a command, and what must hold of them.
type Flags struct {
	*pflag.FlagSet

	Cobra  *cobra.Command // it is to the library
	Output *output
	asks   []string
	checks []func() error
}

// New makes a command of the program.
func (a *App) New(it Command) *cobra.Command {
	text := strings.NewReplacer("PROGRAM", a.Program)
	cmd := &cobra.Command{
		Use: it.Use, Short: it.Short, Long: text.Replace(it.Long), Example: text.Replace(it.Example), Args: it.Args,
		Hidden: it.Hidden,
	}
	if len(it.Of) > 0 {
		a.group(cmd, it.Of)
		return cmd
	}
	if it.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	if it.Forms == nil {
		it.Forms = InForms
	}
	f := &Flags{FlagSet: cmd.Flags(), Cobra: cmd, Output: &output{FormTable, it.Forms}, asks: it.Asks}
	if len(it.Forms) > 0 {
		f.VarP(f.Output, "output", "o", "form of the output: "+strings.Join(it.Forms, ", "))
		f.Offer("output", it.Forms...)
	}
	do := it.Flags(f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, check := range f.checks {
			if err := check(); err != nil {
				return err
			}
		}
		c := &Call{App: a, Args: args, Command: strings.Fields(cmd.CommandPath())[1], Output: f.Output,
			Progress: a.newProgress()}
		defer c.End()
		defer c.Progress.End()
		if it.Logs {
			c.logInItsForm()
		}
		err := c.prepare(cmd.Context(), it.Needs, f.asks)
		if err == nil {
			err = do(cmd.Context(), c)
		}
		return c.Hinted(err)
	}
	return cmd
}

func (c *Call) prepare(ctx context.Context, needs need, asks []string) (err error) {
	if needs != NeedsNothing {
		c.Config, err = c.LoadConfig(asks...)
	}
	open := map[need]func(context.Context) error{
		NeedsPool: c.OpenPool, NeedsLog: c.OpenLog, NeedsActs: c.OpenOperator,
	}[needs]
	if err != nil || open == nil {
		return err
	}
	return open(ctx)
}

// Check has the flags checked before anything is done.
func (f *Flags) Check(check func() error) { f.checks = append(f.checks, check) }

// Only declares a flag with which nothing but the servers of these settings is asked.
func (f *Flags) Only(name, help string, asks ...string) *bool {
	only := f.Bool(name, false, help)
	f.Check(func() error {
		if *only {
			f.asks = asks
		}
		return nil
	})
	return only
}

// Some declares a flag whose values are a closed list, which its help ends with and shells offer. What was said is
// whole once the flags are checked.
func Some[T any](
	f *Flags, chosen *[]T, name, help string, values []T, declare func(name string, none []string, help string) *[]string,
) {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = fmt.Sprint(v)
	}
	said := declare(name, nil, help+strings.Join(words, ", "))
	f.Offer(name, words...)
	f.Check(func() error {
		for _, w := range *said {
			i := slices.Index(words, strings.TrimSpace(w))
			if i < 0 {
				return Usagef("--%s %q is none; there are %v", name, w, words)
			}
			*chosen = append(*chosen, values[i])
		}
		return nil
	})
}

// One is some for a flag that is said once, or not.
func One[T ~string](f *Flags, chosen *T, name, help string, values []T) {
	Some(f, new([]T), name, help, values, func(name string, said []string, help string) *[]string {
		word := f.String(name, "", help)
		f.Check(func() error {
			*chosen, said = T(*word), strings.Fields(*word)
			return nil
		})
		return &said
	})
}

// Offer lets a shell complete a flag with these values, and no file names.
func (f *Flags) Offer(name string, values ...string) {
	err := f.Cobra.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag was not declared before
	}
}

// Limit is how many of a list there may be.
func (f *Flags) Limit(n *int, usual int, help string) {
	f.IntVar(n, "limit", usual, help)
	f.Check(func() error { return RefuseIf(*n < 0, "--limit %d is negative", *n) })
}

// FewKeys has as many keys as one look through the log may ask for.
func (f *Flags) FewKeys(keys *[]string) {
	f.Check(func() error {
		return RefuseIf(len(*keys) > dedup.MaxListedKeys, "%d keys: at most %d", len(*keys), dedup.MaxListedKeys)
	})
}

// Span declares a time from which and one until which something is chosen.
func (f *Flags) Span(since, until *time.Time, sinceHelp, untilHelp string) {
	from, to := f.String("since", "", sinceHelp), f.String("until", "", untilHelp)
	f.Check(func() error {
		var err, err2 error
		now := time.Now()
		*since, err = readMoment("since", *from, now)
		*until, err2 = readMoment("until", *to, now)
		return cmp.Or(err, err2, RefuseIf(!since.IsZero() && !until.IsZero() && !since.Before(*until),
			"--since must come before --until"))
	})
}

// RefuseEmpty refuses conditions without a value, as of a variable that a shell does not know: more would be chosen
// than was meant.
func (f *Flags) RefuseEmpty(names ...string) error {
	for _, name := range names {
		if f.Changed(name) && f.Lookup(name).Value.String() == "" {
			return Usagef("--%s is empty", name)
		}
	}
	return nil
}

// readMoment reads a time, or a duration before now.
func readMoment(flag, text string, now time.Time) (time.Time, error) {
	at, ok := screen.Moment(text, now)
	return at, RefuseIf(!ok, "--%s %q is neither a time (2026-11-21T08:00:00Z; without a zone it is UTC) nor a "+
		"duration (24h)", flag, text)
}

// By says in whose name something is done.
func (f *Flags) By() func() string {
	who := f.String("by", "", "who does it, for the story of each letter (default the user's name at this host)")
	return func() string {
		if name := strings.TrimSpace(*who); name != "" {
			return name
		}
		return Person()
	}
}

// WhyHelp is the help of the flag --why.
const WhyHelp = "the reason, for whoever asks later"

// Tag declares the tag of what is sent; none at all is fine.
func (f *Flags) Tag(help string) *string {
	tag := f.String("tag", "", help)
	f.Check(func() error {
		err := dedup.Identity{Group: "any", Tag: *tag, Key: "any"}.Validate()
		return RefuseIf(*tag != "" && (err != nil || strings.HasPrefix(*tag, "rollbackd.")),
			"--tag %q: a tag is 1 to %d bytes of text and does not begin with rollbackd.", *tag, dedup.MaxTag)
	})
	return tag
}

// group makes a command one that only holds others. cobra would answer a missing or unknown subcommand with the help
// text and success, which a script takes for done.
func (a *App) group(cmd *cobra.Command, of []Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New("which command?")
		}
		return UnknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, one := range of {
		cmd.AddCommand(a.New(one))
	}
}

// UnknownCommand is the error of a name that no command has, with the nearest one.
func UnknownCommand(parent *cobra.Command, name string) error {
	parent.SuggestionsMinimumDistance = 2
	if near := parent.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %q?", name, near[0])
	}
	return fmt.Errorf("unknown command %q", name)
}

// Listing is how much of a list is wanted, and from where.
type listing struct {
	limit int
	after string
}

// Listing declares how much of a list is wanted.
func (f *Flags) Listing(usual int) *listing {
	l := new(listing)
	f.Limit(&l.limit, usual, "list at most so many; 0: all")
	f.StringVar(&l.after, "after", "", "go on where the last list ended: it said how")
	return l
}

// List reads a list page after page and prints it, each of its things as a row; none says what there is to say of an
// empty one.
func List[T any, C ~string](
	c *Call, l *listing, none func(), ask func(most int, after C) ([]T, C, error), header []string,
	row func(T) []any,
) error {
	all, t, next := []T{}, Table{Header: header}, C(l.after)
	for {
		most := 1 << 30
		if l.limit > 0 {
			most = l.limit - len(all)
		}
		page, more, err := ask(most, next)
		if err != nil {
			return err
		}
		all, next = append(all, page...), more
		if next == "" || l.limit > 0 && len(all) >= l.limit {
			break
		}
	}
	if len(all) == 0 {
		none()
	}
	if next != "" {
		c.Say("there are more; --limit 0 lists all, and this goes on: --after %s", next)
	}
	for _, one := range all {
		t.Add(row(one)...)
	}
	return c.Render(all, t)
}
