package program

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
)

const mainPackage = "github.com/rollbackd/rollbackd/cmd/rollbackd"

// Build compiles cmd/rollbackd into dir and returns the binary's path. It must be called from within the module.
func Build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "rollbackd")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, mainPackage)
	// The compilers and the linker that go starts must end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", mainPackage, errors.Join(err, context.Cause(ctx)), out)
	}
	return path, nil
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
