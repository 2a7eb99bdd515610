package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// waitForNone waits until no process of the demo is left, for a moment only: one that was killed takes its time to go.
func waitForNone(ctx context.Context, dir string) (left []string, err error) {
	for late := time.Now().Add(3 * time.Second); ; {
		left, err = processesOf(dir)
		if len(left) == 0 || err != nil || time.Now().After(late) || wait.For(ctx, 50*time.Millisecond) != nil {
			return left, err
		}
	}
}

// processesOf lists the processes that belong to the demo whose folder is dir: every server and every child has it in
// its environment or its command line, what they have started in turn as well (RabbitMQ starts epmd and more). Where
// the system has no /proc, nothing can be found.
func processesOf(dir string) (found []string, err error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	for _, process := range all {
		command, _ := os.ReadFile(filepath.Join(process, "cmdline")) // one that has just ended, or is not ours to look at
		environ, _ := os.ReadFile(filepath.Join(process, "environ"))
		ours := process != fmt.Sprintf("/proc/%d", os.Getpid())
		if ours && bytes.Contains(append(command, environ...), []byte(dir)) {
			name, _, _ := bytes.Cut(command, []byte{0})
			found = append(found, fmt.Sprintf("%q (process %s)", name, filepath.Base(process)))
		}
	}
	return found, err
}
