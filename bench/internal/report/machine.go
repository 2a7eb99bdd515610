package report

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/rollbackd/rollbackd/internal/test/must"
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
func LookAround(versions map[string]string) Machine {
	fs := must.Get(procfs.NewDefaultFS())
	cpu, memory := must.Get(fs.CPUInfo())[0], must.Get(fs.Meminfo())
	// The release up to its first dash: what follows names somebody's build.
	release, _, _ := strings.Cut(strings.TrimSpace(string(must.Get(os.ReadFile("/proc/sys/kernel/osrelease")))), "-")
	m := Machine{
		CPU: cpu.ModelName, Cores: runtime.NumCPU(), MemoryGB: int((*memory.MemTotalBytes + 1<<29) >> 30),
		Kernel: "Linux " + release, Virtual: slices.Contains(cpu.Flags, "hypervisor"), FsyncUS: fsync(), Versions: versions,
	}
	m.Versions["go"] = runtime.Version()
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if slices.Contains(libraries, dep.Path) {
				m.Versions[dep.Path] = dep.Version
			}
		}
	}
	return m
}

// fsync measures how long the disk takes to keep something, in microseconds: the floor of every commit.
func fsync() float64 {
	f := must.Get(os.CreateTemp("", "rollbackd-bench-fsync-"))
	defer os.Remove(f.Name())
	defer f.Close()
	const times, page = 200, 4096
	var took []time.Duration
	for range times {
		began := time.Now()
		must.Get(f.Write(make([]byte, page)))
		must.OK(syscall.Fdatasync(int(f.Fd())))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return float64(took[times/2].Nanoseconds()) / 1000
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
