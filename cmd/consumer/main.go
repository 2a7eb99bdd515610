// Command consumer is rollbackd: the daemon that gives stock back exactly once, and the tools around it.
//
// What belongs here: reading flags and arguments, calling one function of a package below, printing its result, and the
// exit code. What does not: anything a test would want to call without a command line. Signals and os.Exit exist in main
// only; run does everything in process, and the tests call it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() {
	redis.SetLogger(silent{}) // it would write to stderr, unasked and in a form of its own, what we get as an error anyway
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills at once
	os.Exit(run(ctx, os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// silent is a logger of go-redis that says nothing.
type silent struct{}

// Printf says nothing.
func (silent) Printf(context.Context, string, ...any) {}
