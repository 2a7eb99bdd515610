package report

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is where the figures come from.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryGB int    `json:"memory_gb"`
	Kernel   string `json:"kernel"`
	Virtual  bool   `json:"virtual"`
	// median of 200 appends of 4 KiB, each synced, where the servers keep their data
	FsyncUS  float64           `json:"fsync_us"`
	Versions map[string]string `json:"versions"` // of Go, the servers and the rivals' libraries
}

// LookAround describes this machine. versions are added to those of Go and of the libraries.
func LookAround(ctx context.Context, versions map[string]string) (Machine, error) {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Versions: map[string]string{"go": runtime.Version()}}
	for name, version := range versions {
		m.Versions[name] = version
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("look at the machine: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Virtual = slices.Contains(strings.Fields(value), "hypervisor")
		}
	}
	var info unix.Sysinfo_t
	var uts unix.Utsname
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("look at the machine: %w", err)
	}
	if err := unix.Uname(&uts); err != nil {
		return m, fmt.Errorf("look at the machine: %w", err)
	}
	m.MemoryGB = int((uint64(info.Totalram)*uint64(info.Unit) + 1<<29) >> 30)
	// The release up to its first dash: what follows names somebody's build.
	release, _, _ := strings.Cut(string(bytes.TrimRight(uts.Release[:], "\x00")), "-")
	m.Kernel = "Linux " + release
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if slices.Contains(libraries, dep.Path) {
				m.Versions[dep.Path] = dep.Version
			}
		}
	}
	m.FsyncUS, err = fsync(ctx)
	return m, err
}

// libraries are those whose versions matter to the figures.
var libraries = []string{
	"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-amqp/v3",
	"github.com/rabbitmq/amqp091-go", "github.com/go-sql-driver/mysql", "github.com/redis/go-redis/v9",
}

// fsync measures how long the disk takes to keep something, in microseconds: the floor of every commit.
func fsync(ctx context.Context) (float64, error) {
	dir, err := os.MkdirTemp("", "rollbackd-bench-fsync-")
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	defer f.Close()
	const times, page = 200, 4096
	var took []time.Duration
	for range times {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		began := time.Now()
		if _, err := f.Write(make([]byte, page)); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return float64(took[times/2].Nanoseconds()) / 1000, nil
}

// String is one line.
func (m Machine) String() string {
	kind := ""
	if m.Virtual {
		kind = " (virtual)"
	}
	return fmt.Sprintf("%s, %d cores%s, %d GB of memory, %s; an fsync of 4 KiB takes %s µs", m.CPU, m.Cores, kind,
		m.MemoryGB, m.Kernel,
		strconv.FormatFloat(m.FsyncUS, 'f', 0, 64))
}
