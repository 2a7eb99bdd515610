// Command demo shows a shop's life in one minute: orders reserve stock, are cancelled, and their rollback messages,
// some of them twice and a few of them bad, give the stock back exactly once. `make demo` runs it, with the
// tables of the built-in handler; `make demo HANDLER=sql` with those of the classic algorithm, for which the daemon
// runs the statements of an example; `make demo OUTBOX=on` shows the whole chain from the order's commit on, by chaos
// with two kinds of faults; `make demo HOLD=1` stays up after the report, for a person to look and mend.
//
// It does what a user does, with the real binary (migrate, run, dlq replay), on private servers with their data in a
// temporary folder; it leaves no process running. It exits with 1 when the stock is not what it must be. What belongs
// here: the story and its report. What does not: anything a test would want besides.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/must"
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
		os.Exit(130)
	}
	os.Exit(1)
}

// command tells the story that is wanted. Whatever happens, what was started is stopped and what was written is
// removed.
func command(ctx context.Context, args []string, out *os.File) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	hold := flags.Bool("hold", false, "stay up after the report")
	outbox := flags.Bool("outbox", false, "the story of orders whose messages go through the outbox")
	if err := flags.Parse(args); err != nil {
		return err
	}
	d := &demo{ctx: ctx, out: out, classic: flags.Arg(0) == config.HandlerSQL}
	if handler := flags.Arg(0); handler != "" && handler != config.HandlerStock && !d.classic {
		return fmt.Errorf("there is no demo of %q: the handlers are %s and %s", handler, config.HandlerStock,
			config.HandlerSQL)
	}
	err := must.Catch(func() {
		if *outbox {
			d.chain()
			return
		}
		d.story()
		if *hold {
			d.hold() // a person's turn
		}
	})
	if err != nil && ctx.Err() != nil {
		err = errInterrupted // whatever the interrupted step made of it
	}
	return errors.Join(err, d.end())
}
