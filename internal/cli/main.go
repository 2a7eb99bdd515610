// Package cli is the program rollbackd: the table of its commands (root.go), and their exit codes. A command is a value
// in one of the folders below, which have those of a subject each; command has what all of them are made of. Whoever
// adds one writes a file and a row in the Commands of its folder. Signals and os.Exit exist in [Main] only: run does
// everything in process. Neither it nor a folder below must decide what a page or a program could want too.
package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
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
