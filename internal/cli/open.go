package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/doctor"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/store"
)

// firstAnswer is how long a command waits for MySQL's first answer: a server that is frozen gives none.
const firstAnswer = 8 * time.Second

// call is one run of a command: its settings, and what it opens as it needs it.
type call struct {
	*app

	command  string // its name, or that of its group
	args     []string
	cfg      config.Config
	out      *output
	progress *progress

	lockWait     time.Duration      // of MySQL; 0: the server's
	*store.Store                    // once it is opened
	acts         *operator.Operator // once it is opened
	closers      []func() error
}

func (c *call) close() {
	c.progress.end()
	for _, end := range slices.Backward(c.closers) {
		_ = end() // nothing is left in it that closing could lose
	}
}

// open opens the log, and makes sure that its tables are there.
func (c *call) open(ctx context.Context) error {
	if err := c.openPool(ctx); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	err := c.Records.CheckSchema(asking)
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		return told{fmt.Errorf("MySQL cannot be used: no answer within %v\nROLLBACKD_MYSQL_DSN is %s", firstAnswer,
			c.cfg.Shown("MYSQL_DSN"))}
	}
	return err
}

// openPool opens the log without asking.
func (c *call) openPool(ctx context.Context) (err error) {
	if c.Store, err = store.Open(ctx, c.cfg, c.command, store.Options{LockWait: c.lockWait}); err != nil {
		return err
	}
	for _, w := range c.Warnings {
		c.say("warning: ROLLBACKD_MYSQL_DSN: %s", w)
	}
	c.closers = append(c.closers, c.Close)
	return nil
}

// openOperator opens what acts are done and looked at with.
func (c *call) openOperator(ctx context.Context) (err error) {
	if err := c.open(ctx); err != nil {
		return err
	}
	c.acts, err = operator.New(operator.Options{
		Lookup: c.Lookup, Queue: c.cfg.Queue, Unwritten: func(err error) {
			c.say("the record of acts lacks this, which is done all the same: %s%s", printable(err.Error()),
				c.recordHint(err))
		},
	})
	return err
}

// act does what changes something, as an act that is written down. A dry run changes nothing, and is none.
func (c *call) act(
	ctx context.Context, who string, dry bool, r operator.TaskRequest,
	work func(context.Context, operator.Task) (operator.Result, error),
) error {
	if err := c.openOperator(ctx); err != nil {
		return err
	}
	if dry {
		_, err := work(ctx, operator.Task{
			By: who, Progress: func(string, int) {}, Letters: func(deadletter.Progress) {},
		})
		return err
	}
	return c.acts.Do(ctx, operator.Actor{Name: who}, r, work)
}

// sayUnknownGroup says that no message was ever filed under this group, and which groups there are: the setting may be
// another daemon's, or misspelt.
func (c *call) sayUnknownGroup(ctx context.Context) {
	const most = 20
	groups, err := c.Records.Groups(ctx, most)
	if err != nil || slices.Contains(groups, c.cfg.Group) || len(groups) == most {
		return // the list itself is right
	}
	known := "it is empty"
	if len(groups) > 0 {
		known = "it has " + printable(strings.Join(groups, ", "))
	}
	c.say("%s has no row of group %s (ROLLBACKD_GROUP); %s", c.Records.Options().Table, printable(c.cfg.Group), known)
}

func (c *call) rabbit() rabbit.Config {
	return rabbit.Config{URLs: c.cfg.AMQPURLs, Name: rabbit.ConnectionName(c.command)}
}

// told is an error that says already what to do.
type told struct{ error }

func (e told) Unwrap() error { return e.error }

// hinted says beside err what to do about it, once. What is not RabbitMQ's is MySQL's.
func (c *call) hinted(err error) error {
	_, already := errors.AsType[told](err)
	_, usage := errors.AsType[*usageError](err)
	switch {
	case err == nil, already, usage, errors.Is(err, context.Canceled), errors.Is(err, dedup.ErrSchema):
		return err
	case errors.Is(err, operator.ErrRequest):
		return usageErrorf("%w", err)
	case errors.Is(err, deadletter.ErrBroker):
		return c.ofRabbit(err)
	case mysqldb.NoDatabase(err):
		return told{fmt.Errorf("MySQL has no such database, or not for this user: %w\n%s\nROLLBACKD_MYSQL_DSN names it: %s",
			err, doctor.NoDatabase, c.cfg.Shown("MYSQL_DSN"))}
	case mysqldb.Classify(err) == mysqldb.FaultUnavailable:
		return told{fmt.Errorf("MySQL cannot be used: %w\nROLLBACKD_MYSQL_DSN is %s", err, c.cfg.Shown("MYSQL_DSN"))}
	}
	return sqlFileError(err)
}

// ofRabbit is hinted for an error of which only RabbitMQ is to blame.
func (c *call) ofRabbit(err error) error {
	const notFound = 404
	broker, known := errors.AsType[*rabbit.BrokerError](err)
	_, already := errors.AsType[told](err)
	switch {
	case err == nil, already, errors.Is(err, context.Canceled):
		return err
	case known && errors.Is(err, rabbit.ErrUnroutable): // which says it already
	case known && broker.Code == notFound, errors.Is(err, rabbit.ErrUnroutable):
		err = fmt.Errorf("%w\n'%s migrate' makes exchange and queues", err, c.name)
	case !known && mysqldb.Classify(err) != mysqldb.FaultOther || errors.Is(err, rabbit.ErrClosed):
		err = fmt.Errorf("RabbitMQ cannot be used: %w\nROLLBACKD_AMQP_URL is %s", err, c.cfg.Shown("AMQP_URL"))
	}
	return told{err}
}

// recordHint says what to do when MySQL refuses the table of acts.
func (c *call) recordHint(err error) string {
	if !mysqldb.Answered(err) {
		return ""
	}
	return fmt.Sprintf("; '%s migrate' makes the table of acts, and docs/rights.md names the rights on it", c.name)
}

// sqlFileError makes a usageError of what is wrong with handler sql's file: to start again does not help.
func sqlFileError(err error) error {
	_, unread := errors.AsType[*sqlhandler.Error](err)
	_, refused := errors.AsType[*sqlhandler.Refusal](err)
	if unread || refused || errors.Is(err, sqlhandler.ErrFile) {
		return usageErrorf("ROLLBACKD_SQL_FILE: %w", err)
	}
	return err
}

// person is who runs the command, for the story of a row.
func person() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
