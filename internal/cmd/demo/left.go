package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// waitForNone waits until no process of the demo is left, for a moment only: one that was killed takes its time to go.
func waitForNone(ctx context.Context, dir string) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if left, err = processesOf(dir); len(left) == 0 || err != nil {
			return left, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return left, nil
		}
	}
}

// processesOf lists the processes that belong to the demo whose folder is dir: every server and every child has it in
// its environment or its command line, what they have started in turn as well (RabbitMQ starts epmd and more). Where
// the system has no /proc, nothing can be found.
func processesOf(dir string) ([]string, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, process := range all {
		if process == fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(process, "cmdline")) // one that has just ended, or is not ours to look at
		environ, _ := os.ReadFile(filepath.Join(process, "environ"))
		if bytes.Contains(command, []byte(dir)) || bytes.Contains(environ, []byte(dir)) {
			name, _, _ := bytes.Cut(command, []byte{0})
			found = append(found, fmt.Sprintf("%s (process %s)", strconv.Quote(string(name)), filepath.Base(process)))
		}
	}
	return found, nil
}
