package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// ErrNoFaketime says that the library is missing through which a server sees another clock than the machine's.
var ErrNoFaketime = errors.New("no libfaketime: run scripts/install-servers.sh clock")

// fakeClock is the clock that a server of its own sees: the machine's, and an offset that can be changed at work.
type fakeClock struct{ file string }

// makeClock returns the environment by which a program sees the clock. What measures spans is left alone.
func makeClock(program executable, dir string) (*fakeClock, []string) {
	// the only error is a malformed pattern, and ours is constant
	found, _ := filepath.Glob(filepath.Join(program.tree, "/usr/lib/*/faketime/libfaketimeMT.so.1"))
	if len(found) == 0 {
		must.OK(ErrNoFaketime)
	}
	c := &fakeClock{filepath.Join(dir, "clock")}
	must.OK(c.set(0))
	return c, []string{
		"LD_PRELOAD=" + strings.TrimPrefix(found[0], program.tree), "FAKETIME_TIMESTAMP_FILE=" + c.file,
		"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
	}
}

// set is atomic: the server reads the file whenever it asks for the time.
func (c *fakeClock) set(offset time.Duration) error {
	text := fmt.Sprintf("%+d\n", int64(offset/time.Second))
	if err := os.WriteFile(c.file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(c.file+".new", c.file)
}

// SetClock puts the clock that [Options].MySQLClock gave the server so far ahead of the machine's, in whole seconds.
func (s *Server) SetClock(offset time.Duration) error {
	return s.report("set the clock of", s.clock.set(offset))
}
