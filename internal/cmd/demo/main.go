// Command demo shows a shop's life in one minute: orders reserve stock, are cancelled, and their rollback messages,
// some of them twice and a few of them bad, give the stock back exactly once. `make demo` runs it, with the
// tables of the built-in handler; `make demo HANDLER=sql` with those of the classic algorithm, for which the daemon
// runs the statements of an example; `make demo HOLD=1` stays up after the report, for a person to look and mend.
//
// It does what a user does, with the real binary (migrate, run, dlq replay), on private servers with their data in a
// temporary folder; it leaves no process running. It exits with 1 when the stock is not what it must be. What belongs
// here: the story and its report. What does not: anything a test would want besides.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

const (
	exitFailed      = 1
	exitInterrupted = 130
)

// errInterrupted says that a person has seen enough.
var errInterrupted = errors.New("interrupted")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills at once; the servers die with this process
	err := command(ctx, os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "demo:", err)
	if errors.Is(err, errInterrupted) {
		os.Exit(exitInterrupted)
	}
	os.Exit(exitFailed)
}

// command reads which handler is wanted, none is the built-in one, and whether to stay up.
func command(ctx context.Context, args []string, out *os.File) error {
	hold := len(args) > 0 && args[0] == "-hold"
	if hold {
		args = args[1:]
	}
	if len(args) == 1 && args[0] == "-outbox" {
		d := &demo{ctx: ctx, out: out, tables: stockTables{}}
		return d.over(must.Catch(d.outboxStory))
	}
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == config.HandlerStock:
		return run(ctx, out, stockTables{}, hold)
	case len(args) == 1 && args[0] == config.HandlerSQL:
		return run(ctx, out, classicTables{}, hold)
	}
	return fmt.Errorf("there is no demo of %q: the handlers are %s and %s", args, config.HandlerStock, config.HandlerSQL)
}

// run tells the story from top to bottom. Whatever happens, what was started is stopped and what was written is
// removed.
func run(ctx context.Context, out *os.File, t tables, hold bool) error {
	d := &demo{ctx: ctx, out: out, tables: t}
	err := must.Catch(func() {
		d.say("rollbackd: %s cancelled orders give their stock back, each exactly once\n", number(orders))
		d.begin()        // servers, binary, tables and queues
		d.reserve()      // orders take their goods
		d.startDaemon()  // rollbackd run
		d.publish()      // their rollbacks, some twice, a few bad
		d.await()        // the end of every message
		d.report()       // what became of them
		d.mend()         // the unknown orders become known
		d.replay()       // their dead letters go back
		d.reportReplay() // what that changed
		d.judge()        // all of it once more, by the oracle
		if hold {
			d.hold() // a person's turn
		}
	})
	return d.over(err)
}

// over ends a story, which err has stopped, if anything has.
func (d *demo) over(err error) error {
	if err != nil && d.ctx.Err() != nil {
		err = errInterrupted // whatever the interrupted step made of it
	}
	return errors.Join(err, d.end())
}
