package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Module is the folder of rollbackd's own module, which the module that the caller stands in is or requires.
func Module(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/rollbackd/rollbackd").Output()
	if err != nil {
		return "", fmt.Errorf("find rollbackd's module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Build compiles cmd/rollbackd into dir, with the versions of libraries that it is released with whichever module asks,
// and returns the binary's path.
func Build(ctx context.Context, dir string) (string, error) {
	module, err := Module(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "rollbackd")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/rollbackd")
	cmd.Dir = module
	// The compilers and the linker that go starts must end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build rollbackd: %w\n%s", errors.Join(err, context.Cause(ctx)), out)
	}
	return path, nil
}

// sharedDir holds the binary that all tests of a process share; it is made with it.
var (
	sharedDir string
	shared    = sync.OnceValues(func() (path string, err error) {
		if sharedDir, err = os.MkdirTemp("", "rollbackd-test-"); err == nil {
			path, err = Build(context.Background(), sharedDir)
		}
		return path, err
	})
)

// Shared builds the binary once for all tests of a process. The package's TestMain calls [Remove].
func Shared(t testing.TB) string {
	t.Helper()
	path, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Remove removes the shared binary.
func Remove() error { return os.RemoveAll(sharedDir) }

// Log keeps what processes write, for tests that fail.
type Log struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

// Write takes a line.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is everything.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tail is the last n lines.
func (l *Log) Tail(n int) string {
	all := strings.Split(l.String(), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// Run runs a command of the binary to its end, with env and nothing else as its environment. The output is standard
// output and standard error together; it is part of the error too.
func Run(ctx context.Context, path string, env []string, args ...string) (output string, err error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %v: %w\n%s", filepath.Base(path), args, errors.Join(err, context.Cause(ctx)), out)
	}
	return string(out), nil
}
