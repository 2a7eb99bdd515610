package run

import (
	"crypto/sha256"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Fixed is what fixed pieces of work take, in milliseconds: "cpu" hashes 16 MiB on each core, "memory" copies 256 MiB,
// and "fsync" is 50 times 4 KiB that the disk keeps. Whoever else is at work on the machine makes them slower.
type Fixed map[string]float64

// fixedWork does each piece three times and takes the shortest: the servers put away what the last round left.
func fixedWork() Fixed {
	const times, mib = 3, 1 << 20
	file := must.Get(os.CreateTemp("", "rollbackd-bench-fixed-"))
	defer os.Remove(file.Name())
	defer file.Close()
	from, to := make([]byte, 64*mib), make([]byte, 64*mib)
	pieces := map[string]func(){
		"cpu": func() {
			var all sync.WaitGroup
			for range runtime.NumCPU() {
				all.Go(func() { sha256.Sum256(from[:16*mib]) })
			}
			all.Wait()
		},
		"memory": func() {
			for range 4 {
				copy(to, from)
			}
		},
		"fsync": func() {
			for range 50 {
				must.Get(file.WriteAt(from[:4096], 0))
				must.OK(syscall.Fdatasync(int(file.Fd())))
			}
		},
	}
	all := Fixed{}
	for range times {
		for name, do := range pieces {
			began := time.Now()
			do()
			took := float64(time.Since(began).Microseconds()) / 1000
			if best, ok := all[name]; !ok || took < best {
				all[name] = took
			}
		}
	}
	return all
}

// longer has the longer time of each piece.
func (a Fixed) longer(b Fixed) Fixed {
	all := Fixed{}
	for name := range a {
		all[name] = max(a[name], b[name])
	}
	return all
}
