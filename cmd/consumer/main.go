// Command consumer is rollbackd: the daemon that gives stock back exactly once, and the tools around it.
//
// What belongs here: reading flags and arguments, calling one function of a package below, printing its result, and the
// exit code. What does not: anything a test would want to call without a command line. Signals and os.Exit exist in
// main only; run does everything in process, and the tests call it.
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
