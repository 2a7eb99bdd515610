package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rollbackd/rollbackd/internal/config"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // wrong usage or configuration: trying again does not help
)

// app is what every command has of the world outside. Its fields are set once, before any command runs.
type app struct {
	name           string // how the program was called; usage texts and errors begin with it
	environ        []string
	stdin          io.Reader
	stdout, stderr io.Writer
	build          build

	// started is set when a command's own code begins: an error before that is one of usage.
	started bool
	// lastWords, if a command has set it, writes the error with which it ends.
	lastWords func(error)
}

// run is the whole program. args begins with the program's name, as os.Args does. It prints an error once, to stderr,
// and returns the exit code. Cancelling ctx asks the command to stop: the daemon drains, everything else ends early.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		args = []string{"consumer"} // whoever started us gave not even a name
	}
	a := &app{name: filepath.Base(args[0]), environ: environ, stdin: stdin, stdout: stdout, stderr: stderr,
		build: readBuild()}
	return a.execute(ctx, newRoot(a, commands()...), args[1:])
}

// execute runs the command that args name and turns its error into a line and an exit code.
func (a *app) execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitDone
	case !a.started:
		err = usageErrorf("%w\nSee '%s --help'.", err, cmd.CommandPath())
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		err = errors.New("interrupted before it was done")
	}
	if a.lastWords != nil {
		a.lastWords(err)
	} else {
		a.say("%v", err)
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// say writes a line for a person, beside the output.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "%s: %s\n", a.name, fmt.Sprintf(format, args...))
}

// usageError is an error that the caller must cure: a wrong flag, argument or setting. It ends with exitUsage.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usageErrorf makes a usageError; the text should say what to do.
func usageErrorf(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// loadConfig reads the settings, prints their warnings to stderr, and returns every bad one in a single usageError.
func (a *app) loadConfig() (config.Config, error) {
	return a.loadSettings(func(w config.Warning) { a.say("warning: %s", w) })
}

func (a *app) loadSettings(warn func(config.Warning)) (config.Config, error) {
	cfg, warnings, err := config.Load(a.environ)
	for _, w := range warnings {
		warn(w)
	}
	if bad, ok := errors.AsType[*config.Error](err); ok {
		head := "a setting is wrong"
		if n := len(bad.Problems); n > 1 {
			head = fmt.Sprintf("%d settings are wrong", n)
		}
		return cfg, usageErrorf("%s:\n  %s", head, strings.ReplaceAll(bad.Error(), "\n", "\n  "))
	}
	return cfg, err
}

// logger writes the log to stderr in the form and from the level that cfg asks for.
func (a *app) logger(cfg config.Config) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Value.Kind() == slog.KindDuration { // JSON would have bare nanoseconds
			attr.Value = slog.StringValue(attr.Value.Duration().String())
		}
		return attr
	}}
	if a.logsJSON(cfg.LogFormat) {
		return slog.New(slog.NewJSONHandler(a.stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.stderr, options))
}

// logsJSON reports whether the log has the form json with this LOG_FORMAT; an empty or unknown one is auto.
func (a *app) logsJSON(format string) bool {
	return format == config.LogFormatJSON || format != config.LogFormatText && !onTerminal(a.stderr)
}

// onTerminal reports whether w is a person's screen, for colours, progress bars and the log's form.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
