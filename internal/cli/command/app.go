package command

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/rollbackd/rollbackd/internal/config"
)

// App is what every command has of the world outside. Its fields are set once, before any command runs.
type App struct {
	Program        string // how the program was called; usage texts and errors begin with it
	Environ        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Build          Build

	// Started is set when a command's own code begins: an error before that is one of usage.
	Started bool
	Now     func() time.Time
	// Log, where there is one, has what else would be said to a person: warnings, and the error with which a command ends.
	Log *slog.Logger
}

// Build says what was built from what.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source, as version control names it
	Time     string `json:"time,omitempty"`     // of the revision, RFC 3339
	Modified *bool  `json:"modified"`           // built with uncommitted changes; nil when nothing tells
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Say writes a line for a person, beside the output.
func (a *App) Say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "%s: %s\n", a.Program, fmt.Sprintf(format, args...))
}

// UsageError is an error that the caller must cure: a wrong flag, argument or setting. It ends with the exit code 2.
type UsageError struct{ err error }

func (e *UsageError) Error() string { return e.err.Error() }
func (e *UsageError) Unwrap() error { return e.err }

// Usagef makes a UsageError; the text should say what to do.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...)}
}

// RefuseIf is a UsageError when something is so, and nil else.
func RefuseIf(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return Usagef(format, args...)
}

// LoadConfig reads the settings, says their warnings, and returns every bad one in a single UsageError. For asks see
// [config.Load].
func (a *App) LoadConfig(asks ...string) (config.Config, error) {
	cfg, warnings, err := config.Load(a.Environ, asks...)
	for _, w := range warnings {
		if a.Log != nil {
			a.Log.Warn(w.String())
		} else {
			a.Say("warning: %s", w)
		}
	}
	if bad, ok := errors.AsType[*config.Error](err); ok {
		head := "a setting is wrong"
		if n := len(bad.Problems); n > 1 {
			head = fmt.Sprintf("%d settings are wrong", n)
		}
		return cfg, Usagef("%s:\n  %s", head, strings.ReplaceAll(bad.Error(), "\n", "\n  "))
	}
	return cfg, err
}

// Logger writes the log to stderr in the form and from the level that cfg asks for.
func (a *App) Logger(cfg config.Config) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Value.Kind() == slog.KindDuration { // JSON would have bare nanoseconds
			attr.Value = slog.StringValue(attr.Value.Duration().String())
		}
		return attr
	}}
	if a.LogsJSON(cfg.LogFormat) {
		return slog.New(slog.NewJSONHandler(a.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.Stderr, options))
}

// logInItsForm has all that is said in the log where that is JSON, also while the settings are not known yet. In text it
// is for a person, as elsewhere.
func (a *App) logInItsForm() {
	if a.LogsJSON(config.LogFormat(a.Environ)) {
		a.Log = a.Logger(config.Config{LogFormat: config.LogFormatJSON})
	}
}

// LogsJSON reports whether the log has the form json with this LOG_FORMAT; an empty or unknown one is auto.
func (a *App) LogsJSON(format string) bool {
	return format == config.LogFormatJSON || format != config.LogFormatText && !onTerminal(a.Stderr)
}

// onTerminal reports whether w is a person's screen, for colours, progress bars and the log's form.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
