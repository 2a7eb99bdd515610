// Package cli is the program rollbackd: the table of its commands, and their exit codes. A command is a value in one of
// the folders below, which have those of a subject each; command has what all of them are made of. Whoever adds one
// writes a file and a row in the Commands of its folder. Signals and os.Exit exist in [Main] only: run does everything
// in process. Neither it nor a folder below must decide what a page or a program could want too.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/cli/dlq"
	"github.com/rollbackd/rollbackd/internal/cli/log"
	"github.com/rollbackd/rollbackd/internal/cli/messages"
	"github.com/rollbackd/rollbackd/internal/cli/outbox"
	"github.com/rollbackd/rollbackd/internal/cli/service"
	"github.com/rollbackd/rollbackd/internal/cli/setup"
)

// Main runs the program, called by whichever name.
func Main() {
	redis.SetLogger(silent{}) // it would write to stderr, unasked and in a form of its own, what we get as an error anyway
	ctx := untilSignalled(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	os.Exit(run(ctx, os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// untilSignalled ends the context it returns at the first of the signals, and the process at the second, however soon
// that comes: signal.NotifyContext would swallow one that comes before it has stopped listening.
func untilSignalled(ctx context.Context, signals ...os.Signal) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan os.Signal, 2)
	signal.Notify(got, signals...)
	go func() { // lives as long as the process
		<-got
		cancel()
		second := <-got
		code := 128 // and the signal's number, as a shell says it
		if s, ok := second.(syscall.Signal); ok {
			code += int(s)
		}
		os.Exit(code)
	}()
	return ctx
}

// silent is a logger of go-redis that says nothing.
type silent struct{}

// Printf says nothing.
func (silent) Printf(context.Context, string, ...any) {}

// commands is the table of the program's commands, which each folder below this one has a part of.
func commands() []command.Command {
	return slices.Concat(service.Commands, setup.Commands, messages.Commands, dlq.Commands, outbox.Commands, log.Commands,
		[]command.Command{versionCommand}, manCommands)
}

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // wrong usage or configuration: trying again does not help
)

// run is the whole program. args begins with the program's name, as os.Args does. It prints an error once, to stderr,
// and returns the exit code. Cancelling ctx asks the command to stop: the daemon drains, everything else ends early.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		args = []string{"consumer"} // whoever started us gave not even a name
	}
	a := &command.App{Program: filepath.Base(args[0]), Environ: environ, Stdin: stdin, Stdout: stdout, Stderr: stderr,
		Build: readBuild(), Now: time.Now}
	return perform(ctx, a, newRoot(a, commands()...), args[1:])
}

// perform runs the command that args name and turns its error into a line and an exit code.
func perform(ctx context.Context, a *command.App, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitDone
	case !a.Started:
		err = command.Usagef("%w\nSee '%s --help'.", err, cmd.CommandPath())
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		err = errors.New("interrupted before it was done")
	}
	if a.Log != nil {
		a.Log.ErrorContext(ctx, "ended", "err", err.Error())
	} else {
		a.Say("%v", err)
	}
	if _, ok := errors.AsType[*command.UsageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// newRoot joins commands to the program.
func newRoot(a *command.App, commands ...command.Command) *cobra.Command {
	root := a.New(command.Command{
		Use: a.Program, Short: "Give stock back exactly once", Of: commands,
		Long: `rollbackd consumes stock-rollback messages from RabbitMQ and gives the stock back in MySQL:
delivered at least once, in effect exactly once.

It is set up by environment variables alone: 'PROGRAM config' shows them, 'PROGRAM config -o markdown' explains them.`,
	})
	root.SilenceUsage, root.SilenceErrors = true, true // run prints an error once
	root.Version = a.Build.Version
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetHelpCommand(newHelpCmd())
	// A group is runnable for cobra only so that it can refuse; its usage must not offer that.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not "+
		".HasAvailableSubCommands)}}", 1))
	root.PersistentPreRun = func(*cobra.Command, []string) { a.Started = true }
	return root
}

// newHelpCmd replaces cobra's own, which answers an unknown topic with success.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		// That of the root would have its errors taken for those of a command.
		PersistentPreRun: func(*cobra.Command, []string) {},
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return command.Usagef("%w", err)
			case len(rest) > 0:
				return command.Usagef("%w", command.UnknownCommand(target, rest[0]))
			}
			target.InitDefaultHelpFlag()
			return target.Help()
		},
	}
}

// version is set by the linker for releases (-ldflags "-X …/internal/cli.version=v1.2.3"); nothing else writes it.
var version string

// unknown stands where neither the linker nor the go command noted anything.
const unknown = "unknown"

// readBuild takes what the linker was told, else what the go command noted in the binary.
func readBuild() (b command.Build) {
	b = command.Build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	defer func() { b.Version = cmp.Or(b.Version, unknown) }()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = new(s.Value == "true")
		}
	}
	return b
}

var versionCommand = command.Command{
	Use:   "version",
	Short: "Show version, revision and platform",
	Needs: command.NeedsNothing,
	Flags: func(*command.Flags) command.Work {
		return func(_ context.Context, c *command.Call) error {
			b := c.Build
			modified := unknown
			if b.Modified != nil {
				modified = fmt.Sprint(*b.Modified)
			}
			t := command.Table{Header: []string{"VERSION", "REVISION", "TIME", "MODIFIED", "GO", "PLATFORM"}}
			t.Add(b.Version, cmp.Or(b.Revision, unknown), cmp.Or(b.Time, unknown), modified, b.Go, b.Platform)
			return c.Render(b, t)
		}
	},
}
