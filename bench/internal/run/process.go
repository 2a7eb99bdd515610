package run

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/PID/stat's times on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpuOf is the time that a process's threads have spent so far, in user and system mode.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the times of process %d: %w", pid, err)
	}
	// The name, in parentheses, may hold anything; behind it come state, ppid, …; utime and stime are the 12th and 13th.
	_, rest, ok := bytes.Cut(text, []byte(") "))
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("read the times of process %d: %q", pid, text)
	}
	var sum time.Duration
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the times of process %d: %w", pid, err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// rssOf is a process's resident memory, in bytes.
func rssOf(pid int) (int64, error) { return memoryOf(pid, "VmRSS:") }

// memoryOf is a line of /proc/PID/status that tells of memory, in bytes.
func memoryOf(pid int, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("the memory of process %d is not told", pid)
}

// watched are the processes whose CPU a round accounts for.
type watched map[string][]int

// times are the CPU times of watched processes at one moment.
type times map[string]time.Duration

func (w watched) now() (times, error) {
	t := times{}
	for name, pids := range w {
		for _, pid := range pids {
			cpu, err := cpuOf(pid)
			if err != nil {
				return nil, err
			}
			t[name] += cpu
		}
	}
	return t, nil
}

// since is what was spent from before to t.
func (t times) since(before times) times {
	d := times{}
	for name := range t {
		d[name] = t[name] - before[name]
	}
	return d
}
