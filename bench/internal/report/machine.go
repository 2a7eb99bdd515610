package report

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
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

// libraries are those whose versions matter to the figures.
var libraries = []string{
	"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-amqp/v3",
	"github.com/rabbitmq/amqp091-go", "github.com/go-sql-driver/mysql", "github.com/redis/go-redis/v9",
}

// LookAround describes this machine. versions are the servers'.
func LookAround(versions map[string]string) (m Machine, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("look at the machine: %w", err)
		}
	}()
	m = Machine{Cores: runtime.NumCPU(), Versions: versions}
	m.Versions["go"] = runtime.Version()
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if slices.Contains(libraries, dep.Path) {
				m.Versions[dep.Path] = dep.Version
			}
		}
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return m, err
	}
	cpus, err := fs.CPUInfo()
	if err != nil {
		return m, err
	}
	m.CPU, m.Virtual = cpus[0].ModelName, slices.Contains(cpus[0].Flags, "hypervisor")
	memory, err := fs.Meminfo()
	if err != nil {
		return m, err
	}
	m.MemoryGB = int((*memory.MemTotalBytes + 1<<29) >> 30)
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, err
	}
	// The release up to its first dash: what follows names somebody's build.
	release, _, _ := strings.Cut(strings.TrimSpace(string(kernel)), "-")
	m.Kernel = "Linux " + release
	m.FsyncUS, err = fsync()
	return m, err
}

// fsync measures how long the disk takes to keep something, in microseconds: the floor of every commit.
func fsync() (float64, error) {
	dir, err := os.MkdirTemp("", "rollbackd-bench-fsync-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	const times, page = 200, 4096
	var took []time.Duration
	for range times {
		began := time.Now()
		if _, err := f.Write(make([]byte, page)); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
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
	return fmt.Sprintf("%s, %d cores%s, %d GB of memory, %s; an fsync of 4 KiB takes %.0f µs", m.CPU, m.Cores, kind,
		m.MemoryGB, m.Kernel, m.FsyncUS)
}
