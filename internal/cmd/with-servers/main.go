// Command with-servers runs a command with one set of private servers for it and all its children, and stops them
// afterwards:
//
//	go run ./internal/cmd/with-servers go test ./...
//
// Servers which the environment names already (ROLLBACKD_TEST_AMQP_URL and so on) are not started. It exits as the
// command did. It is for tests; nothing of the product may live here.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: with-servers COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "with-servers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(command []string) (code int, err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	environ := os.Environ()
	if kinds := stack.Missing(); len(kinds) > 0 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		started := make(chan struct{})
		stopped := make(chan struct{})
		go func() { // joined below: a signal while the servers start gives up the start
			defer close(stopped)
			select {
			case <-signals:
				cancel()
			case <-started:
			}
		}()
		s, startErr := stack.Start(ctx, stack.Options{Only: kinds, Log: os.Stderr})
		close(started)
		<-stopped
		if startErr != nil {
			return 1, startErr
		}
		defer func() { err = errors.Join(err, s.Stop()) }()
		more, describeErr := s.Environ(ctx)
		if describeErr != nil {
			return 1, describeErr
		}
		environ = append(environ, more...)
	}
	return child(command, environ, signals)
}

// child runs the command in a process group of its own, so that a Ctrl-C at the terminal reaches this process alone,
// which passes it on, once, to the command and all its children.
func child(command, environ []string, signals <-chan os.Signal) (int, error) {
	// the command is killed when the thread that started it ends; this one lives until the command has ended
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start the command: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // joined below
	for {
		select {
		case sig := <-signals:
			_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal)) // fails only when the group has just ended
		case err := <-ended:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // children the command left behind; mostly there is none
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
					return 128 + int(status.Signal()), nil
				}
				return exit.ExitCode(), nil
			}
			if err != nil {
				return 1, fmt.Errorf("run the command: %w", err)
			}
			return 0, nil
		}
	}
}
