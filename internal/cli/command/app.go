package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/store"
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

// logInItsForm has all that is said in the log where that is JSON, also while the settings are not known yet. In text
// it is for a person, as elsewhere.
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

// firstAnswer is how long a command waits for MySQL's first answer: a server that is frozen gives none.
const firstAnswer = 8 * time.Second

// Call is one run of a command: its settings, and what it opens as it needs it.
type Call struct {
	*App

	Command  string // its name, or that of its group
	Args     []string
	Config   config.Config
	Output   *output
	Progress *progress

	LockWait     time.Duration      // of MySQL; 0: the server's
	*store.Store                    // once it is opened
	Acts         *operator.Operator // once it is opened
	closers      []func() error
}

// End closes what the command has opened.
func (c *Call) End() {
	for _, end := range slices.Backward(c.closers) {
		_ = end() // nothing is left in it that closing could lose
	}
}

// OpenLog opens the log, and makes sure that its tables are there.
func (c *Call) OpenLog(ctx context.Context) error {
	if err := c.OpenPool(ctx); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	err := c.Records.CheckSchema(asking)
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		return told{fmt.Errorf("MySQL cannot be used: no answer within %v\nROLLBACKD_MYSQL_DSN is %s", firstAnswer,
			c.Config.Shown("MYSQL_DSN"))}
	}
	return err
}

// OpenPool opens the log without asking.
func (c *Call) OpenPool(ctx context.Context) (err error) {
	if c.Store, err = store.Open(ctx, store.Queue{
		Config: c.Config.Config, OrderOf: handler.OrderOf(c.Config.Handler),
	}, c.Command, store.Options{LockWait: c.LockWait}); err != nil {
		return err
	}
	for _, w := range c.Warnings {
		c.Say("warning: ROLLBACKD_MYSQL_DSN: %s", w)
	}
	c.closers = append(c.closers, c.Close)
	return nil
}

// OpenOperator opens what acts are done and looked at with, and the log, unless its pool is open.
func (c *Call) OpenOperator(ctx context.Context) (err error) {
	if c.Store == nil {
		err = c.OpenLog(ctx)
	}
	if err != nil {
		return err
	}
	c.Acts, err = operator.New(operator.Options{
		Lookup: c.Lookup, Letters: c.Letters, Queue: c.Config.Queue, Unwritten: func(err error) {
			c.Say("the record of acts lacks this, which is done all the same: %s", screen.Printable(c.OfActs(err).Error()))
		},
	})
	return err
}

// Act does what changes something, as an act that is written down. A dry run changes nothing, and is none.
func (c *Call) Act(
	ctx context.Context, who string, dry bool, r operator.TaskRequest,
	work func(context.Context, operator.Task) (operator.Result, error),
) error {
	if err := c.OpenOperator(ctx); err != nil {
		return err
	}
	if dry {
		_, err := work(ctx, operator.Task{
			By: who, Progress: func(string, int) {}, Letters: func(deadletter.Progress) {},
		})
		return err
	}
	return c.Acts.Do(ctx, operator.Actor{Name: who}, r, work)
}

// Input opens a file until the command ends, or the standard input for "-".
func (c *Call) Input(path, what string) (io.Reader, error) {
	if path == "" || path == "-" {
		return c.Stdin, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, Usagef("%s: %w", what, err)
	}
	c.closers = append(c.closers, file.Close) // it was only read
	return file, nil
}

// ReadInput reads a file, or the standard input for "-", as far as so many bytes.
func (c *Call) ReadInput(path, what string, most int64) ([]byte, error) {
	from, err := c.Input(path, what)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(from, most))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return text, nil
}

// SayUnknownGroup says that the log has no row of ROLLBACKD_GROUP, and which groups it has.
func (c *Call) SayUnknownGroup(ctx context.Context) {
	if text, err := c.UnknownGroup(ctx); err == nil && text != "" { // the list itself is right
		c.Say("%s (ROLLBACKD_GROUP)", text)
	}
}

// Rabbit is how RabbitMQ is reached.
func (c *Call) Rabbit() rabbit.Config {
	return rabbit.Config{URLs: c.Config.AMQPURLs, Name: rabbit.ConnectionName(c.Command)}
}

// told is an error that says already what to do.
type told struct{ error }

func (e told) Unwrap() error { return e.error }

// Said marks such an error.
func Said(err error) error { return told{err} }

// Hinted says beside err what to do about it, once. What is not RabbitMQ's is MySQL's.
func (c *Call) Hinted(err error) error {
	_, already := errors.AsType[told](err)
	_, usage := errors.AsType[*UsageError](err)
	switch {
	case err == nil, already, usage, errors.Is(err, context.Canceled), errors.Is(err, dedup.ErrSchema),
		errors.Is(err, deadletter.ErrNoEdit): // also because no table of the outbox is there
		return err
	case errors.Is(err, operator.ErrRequest):
		return Usagef("%w", err)
	case errors.Is(err, deadletter.ErrBroker):
		return c.OfRabbit(err)
	case mysqldb.NoDatabase(err):
		return told{fmt.Errorf("MySQL has no such database, or not for this user: %w\n%s\nROLLBACKD_MYSQL_DSN names it: %s",
			err, config.NoDatabase, c.Config.Shown("MYSQL_DSN"))}
	case mysqldb.Classify(err) == mysqldb.FaultUnavailable:
		return told{fmt.Errorf("MySQL cannot be used: %w\nROLLBACKD_MYSQL_DSN is %s", err, c.Config.Shown("MYSQL_DSN"))}
	}
	return SQLFileError(err)
}

// OfRabbit is hinted for an error of which only RabbitMQ is to blame.
func (c *Call) OfRabbit(err error) error {
	const notFound = 404
	broker, known := errors.AsType[*rabbit.BrokerError](err)
	_, already := errors.AsType[told](err)
	switch {
	case err == nil, already, errors.Is(err, context.Canceled):
		return err
	case known && errors.Is(err, rabbit.ErrUnroutable): // which says it already
	case known && broker.Code == notFound, errors.Is(err, rabbit.ErrUnroutable):
		err = fmt.Errorf("%w\n'%s migrate' makes exchange and queues", err, c.Program)
	case !known && mysqldb.Classify(err) != mysqldb.FaultOther || errors.Is(err, rabbit.ErrClosed):
		err = fmt.Errorf("RabbitMQ cannot be used: %w\nROLLBACKD_AMQP_URL is %s", err, c.Config.Shown("AMQP_URL"))
	}
	return told{err}
}

// OfActs says beside an error what to do when MySQL refuses the table of acts.
func (c *Call) OfActs(err error) error {
	if !mysqldb.Answered(err) {
		return err
	}
	return fmt.Errorf("%w; '%s migrate' makes the table of acts, and docs/rights.md names the rights on it", err,
		c.Program)
}

// Query reads the file of what should have come; named says what names it.
func (a *App) Query(file, named string) (operator.Query, error) {
	text, params, err := sqlhandler.LoadQuery(file, "after", "limit")
	if err != nil {
		err = Usagef("%s: %w", named, err)
	}
	return operator.Query{Text: text, Params: params}, err
}

// SQLFileError makes a UsageError of what is wrong with handler sql's file: to start again does not help.
func SQLFileError(err error) error {
	_, unread := errors.AsType[*sqlhandler.Error](err)
	_, refused := errors.AsType[*sqlhandler.Refusal](err)
	_, said := errors.AsType[*UsageError](err)
	if !said && (unread || refused || errors.Is(err, sqlhandler.ErrFile)) {
		return Usagef("ROLLBACKD_SQL_FILE: %w", err)
	}
	return err
}

// Person is who runs the command, for the story of a row.
func Person() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// CollectSeldom lets the heap grow to five times what is alive before it is collected, but not beyond limit bytes. That
// is little where one batch is alive: with Go's default of 100 percent a sixth of the daemon's CPU, and a fifth of a
// replay's, went into collecting. The variables GOGC and GOMEMLIMIT of the Go runtime say otherwise.
func CollectSeldom(limit int64) {
	const percent = 400
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}
