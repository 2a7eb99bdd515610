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

// disk is a file system in memory in a room of its own.
type disk struct {
	room *room
	path string
	size int64 // bytes
}

// makeDisk mounts a disk on a new folder.
func (s *Stack) makeDisk(ctx context.Context, dir, path string, size int64) *disk {
	d := &disk{path: path, size: size}
	err := must.Catch(func() {
		must.OK(os.Mkdir(path, 0o700))
		d.room = s.newRoom(ctx, dir, "disk", "mount",
			fmt.Sprintf("mount -t tmpfs -o size=%d,mode=0700 tmpfs %s;", size, path))
	})
	if err != nil {
		must.OK(fmt.Errorf("%w: %w", ErrNoDisk, err))
	}
	return d
}

func (d *disk) resize(size int64) error {
	return must.Catch(func() {
		d.room.run(context.Background(), fmt.Sprintf("mount -o remount,size=%d %s", size, d.path))
	})
}

// fill takes away what is free: the disk becomes as small as what is on it.
func (d *disk) fill() (err error) {
	for range 100 { // what is written meanwhile makes the size too small, which is refused
		var now syscall.Statfs_t
		if err := syscall.Statfs(fmt.Sprintf("/proc/%d/root%s", d.room.holder.pid(), d.path), &now); err != nil {
			return err
		}
		if err = d.resize(int64(now.Blocks-now.Bfree) * now.Bsize); err == nil {
			return nil
		}
	}
	return err
}

// FillDisk leaves no byte free on the disk that [Options].MySQLDisk gave the server.
func (s *Server) FillDisk() error { return s.report("fill the disk of", s.disk.fill()) }

// FreeDisk gives the disk its size back. A server that did not survive the full disk is started again.
func (s *Server) FreeDisk() error {
	return s.inTime("free the disk of", func(ctx context.Context) error {
		if err := s.disk.resize(s.disk.size); err != nil {
			return err
		}
		err := s.waitReady(ctx)
		if err != nil && s.Pid() == 0 {
			err = s.start(ctx)
		}
		return err
	})
}
