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
	"syscall"

	"github.com/rollbackd/rollbackd/internal/test/program"
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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	environ := os.Environ()
	if kinds := stack.Missing(); len(kinds) > 0 {
		// The processors are the tests': two schedulers that wake each other cost a sixth more than one.
		s, failed := stack.Start(ctx, stack.Options{Only: kinds, RabbitMQErl: "+S 1:1 +SDio 2 +A 1", Log: os.Stderr})
		if failed != nil {
			return 1, failed
		}
		defer func() { err = errors.Join(err, s.Stop()) }()
		more, failed := s.Environ(ctx)
		if failed != nil {
			return 1, failed
		}
		environ = append(environ, more...)
	}
	return child(ctx, command, environ)
}

// child runs the command in a process group of its own, so that a Ctrl-C at the terminal reaches this process alone,
// which ends, once, the command and all its children.
func child(ctx context.Context, command, environ []string) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, os.Stdin, os.Stdout, os.Stderr
	p, err := program.Launch(cmd)
	if err != nil {
		return 1, err
	}
	select {
	case <-p.Exited():
	case <-ctx.Done():
		_ = p.Signal(syscall.SIGTERM) // fails only when it has ended
	}
	code, err := p.Wait(context.Background())
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // children the command left behind; mostly there is none
	return code, err
}
