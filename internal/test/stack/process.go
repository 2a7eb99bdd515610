package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

// process is one server process, which can be started again after it ended.
type process struct {
	name    string
	log     string           // a file
	command func() *exec.Cmd // called once for each start
	now     atomic.Pointer[program.Process]
}

// newProcess makes one that runs a program in a folder, and writes its log there. It does not run yet.
func newProcess(name, dir string, p executable, env []string, args ...string) *process {
	return &process{name: name, log: filepath.Join(dir, name+".log"), command: func() *exec.Cmd {
		return p.command(context.Background(), dir, env, args...)
	}}
}

func (p *process) start() error {
	if pid := p.pid(); pid != 0 {
		return fmt.Errorf("start %s: it runs already with process id %d", p.name, pid)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.name, err)
	}
	defer log.Close() // the child has its own
	cmd := p.command()
	cmd.Stdout, cmd.Stderr = log, log
	now, err := program.Launch(cmd)
	if err == nil {
		p.now.Store(now)
	}
	return err
}

// pid is the process id, or 0 when the process does not run.
func (p *process) pid() int {
	if now := p.now.Load(); now != nil && now.Runs() {
		return now.Pid()
	}
	return 0
}

// ended is closed when the process has ended.
func (p *process) ended() <-chan struct{} { return p.now.Load().Exited() }

// signal sends a signal to a process that was started once.
func (p *process) signal(s syscall.Signal) error { return p.now.Load().Signal(s) }

// kill ends the process at once and waits until it is gone. Killing one that does not run is no error.
func (p *process) kill() error {
	if p.pid() == 0 {
		return nil
	}
	return p.now.Load().Kill()
}

// stop asks the process to end, waits up to grace, then kills it and says so.
func (p *process) stop(grace time.Duration) error {
	if p.pid() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), grace, fmt.Errorf("it took over %v", grace))
	defer cancel()
	_, err := p.now.Load().Stop(ctx)
	return err
}

// logTail is the end of the server's log, for errors a person has to understand.
func (p *process) logTail() string {
	const tail = 4 << 10
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return fmt.Sprintf("end of %s:\n%s", filepath.Base(p.log), text[max(0, len(text)-tail):])
}

// output runs a command to its end and returns what it printed.
func output(cmd *exec.Cmd, what string) []byte {
	out, err := cmd.CombinedOutput()
	must.OK(err, what, ": ", string(out))
	return out
}
