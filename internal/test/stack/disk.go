package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// ErrNoDisk says that this process may not mount anything, so that there is no disk that could run full.
var ErrNoDisk = errors.New("a disk of its own needs the right to mount (root, or CAP_SYS_ADMIN)")

// disk is a file system in memory that only the servers of one spawner see: its thread is in a mount namespace of its
// own, which its children are born into and which ends with the last of them. Nothing has to be unmounted, however the
// process ends.
type disk struct {
	spawner *spawner
	path    string
	size    int64 // bytes
}

// makeDisk mounts a disk on a new folder.
func makeDisk(sp *spawner, path string, size int64) *disk {
	d := &disk{spawner: sp, path: path, size: size}
	err := sp.do(func() error {
		return must.Catch(func() {
			must.OK(syscall.Unshare(syscall.CLONE_NEWNS))
			// else the machine would see the disk, too
			must.OK(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
			must.OK(os.Mkdir(path, 0o700))
			must.OK(d.mount(0, size))
		})
	})
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		err = fmt.Errorf("%w: %w", ErrNoDisk, err)
	}
	must.OK(err, "mount a disk")
	return d
}

// mount must be called on the spawner's thread.
func (d *disk) mount(flags uintptr, size int64) error {
	return syscall.Mount("tmpfs", d.path, "tmpfs", flags, fmt.Sprintf("size=%d,mode=0700", size))
}

// fill takes away what is free: the disk becomes as small as what is on it.
func (d *disk) fill() error {
	return d.spawner.do(func() (err error) {
		for range 100 { // what is written meanwhile makes the size too small, which is refused
			var now syscall.Statfs_t
			if err := syscall.Statfs(d.path, &now); err != nil {
				return err
			}
			if err = d.mount(syscall.MS_REMOUNT, int64(now.Blocks-now.Bfree)*now.Bsize); !errors.Is(err, syscall.EINVAL) {
				return err
			}
		}
		return err
	})
}

func (d *disk) free() error {
	return d.spawner.do(func() error { return d.mount(syscall.MS_REMOUNT, d.size) })
}

// FillDisk leaves no byte free on the disk that [Options].MySQLDisk gave the server.
func (s *Server) FillDisk() error { return s.report("fill the disk of", s.disk.fill()) }

// FreeDisk gives the disk its size back. A server that did not survive the full disk is started again.
func (s *Server) FreeDisk() error {
	return s.inTime("free the disk of", func(ctx context.Context) error {
		if err := s.disk.free(); err != nil {
			return err
		}
		err := s.waitReady(ctx)
		if err != nil && s.Pid() == 0 {
			err = s.start(ctx)
		}
		return err
	})
}
