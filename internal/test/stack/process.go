package stack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// spawner starts child processes from one operating-system thread of its own.
//
// Linux sends a child its parent-death signal when the *thread* that started it ends, not the process. A Go thread may
// end at any time, so the starting thread is locked and kept until every child is gone. When the process is killed, the
// thread dies with it, and so do they.
type spawner struct {
	calls chan func()
	done  chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{calls: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for call := range s.calls {
			call()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error { return s.do(cmd.Start) }

// output runs a command to its end, where the servers' disks are seen, and returns what it printed.
func (s *spawner) output(cmd *exec.Cmd, what string) []byte {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := s.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	must.OK(err, what, ": ", &out)
	return out.Bytes()
}

// do runs f on the thread.
func (s *spawner) do(f func() error) error {
	result := make(chan error, 1)
	s.calls <- func() { result <- f() }
	return <-result
}

// close ends the thread. Children that are still alive are killed by the kernel.
func (s *spawner) close() {
	close(s.calls)
	<-s.done
}

// process is one server process, which can be started again after it ended.
type process struct {
	name    string
	spawner *spawner
	command func() *exec.Cmd // called once for each start
	logPath string

	mu     sync.Mutex
	cmd    *exec.Cmd     // nil before the first start
	exited chan struct{} // closed when cmd has ended and was reaped
}

// start runs the command in a process group of its own, so that a Ctrl-C at the terminal reaches the tests and not
// their servers.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && !IsClosed(p.exited) {
		return fmt.Errorf("start %s: it runs already with process id %d", p.name, p.cmd.Process.Pid)
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.name, err)
	}
	defer log.Close() // the child has its own copy
	cmd := p.command()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if err := p.spawner.start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	exited := make(chan struct{})
	go func() { // joined by kill and stop, which wait for exited
		defer close(exited)
		_ = cmd.Wait() // how a server ended is in its log; here only that it ended matters
	}()
	p.cmd, p.exited = cmd, exited
	return nil
}

// pid is the process id, or 0 when the process does not run.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || IsClosed(p.exited) {
		return 0
	}
	return p.cmd.Process.Pid
}

// ended is closed when the process has ended.
func (p *process) ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// signal sends sig to the whole process group, which holds the helpers a server forks.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || IsClosed(p.exited) {
		return fmt.Errorf("send %v to %s: %w", sig, p.name, os.ErrProcessDone)
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		return fmt.Errorf("send %v to %s: %w", sig, p.name, err)
	}
	return nil
}

// kill ends the process at once and waits until it is gone. Killing one that does not run is no error.
func (p *process) kill() error {
	err := p.signal(syscall.SIGKILL)
	if err == nil {
		<-p.ended()
	}
	return unlessDone(err)
}

func unlessDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// stop asks the process to end, waits up to grace, then kills it and says so.
func (p *process) stop(grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return unlessDone(err)
	}
	_ = p.signal(syscall.SIGCONT) // a frozen process takes SIGTERM only after it was thawed
	select {
	case <-p.ended():
		return nil
	case <-time.After(grace):
		return errors.Join(fmt.Errorf("stop %s: it took over %v and was killed", p.name, grace), p.kill())
	}
}

// logTail is the end of the server's log, for errors a person has to understand.
func (p *process) logTail() string {
	const tail = 4 << 10
	text, err := os.ReadFile(p.logPath)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return fmt.Sprintf("end of %s:\n%s", filepath.Base(p.logPath), text[max(0, len(text)-tail):])
}

// IsClosed reports whether a channel is closed that nobody sends to.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
