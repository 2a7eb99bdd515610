package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

const (
	folderPrefix = "rollbackd-stack-"
	lockFile     = "in-use"
)

// makeFolder makes a temporary folder and locks it for the life of this process. Folders whose process was killed, and
// therefore could not remove them, are removed on the way: their lock went with the process.
func makeFolder() (dir string, lock *os.File, err error) {
	removeStale()
	err = must.Catch(func() {
		dir = must.Get(os.MkdirTemp("", folderPrefix))
		// The file gets its name when it is locked: seen without its lock, the folder would be taken for a dead process's.
		unnamed := filepath.Join(dir, lockFile+".new")
		lock = must.Get(openLocked(unnamed, os.O_CREATE))
		must.OK(os.Rename(unnamed, filepath.Join(dir, lockFile)))
	})
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("make the folder of the servers: %w", err), os.RemoveAll(dir))
	}
	return dir, lock, nil
}

// openLocked fails when another process, or this one, holds the lock.
func openLocked(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeStale is a service to the machine and not to the caller, so what it cannot do it leaves. A folder without a
// lock file is being made right now, or not ours.
func removeStale() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*")) // the pattern is well-formed
	for _, dir := range dirs {
		if lock, err := openLocked(filepath.Join(dir, lockFile), 0); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}
