package program

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// Options say what to start.
type Options struct {
	Path string
	Args []string
	Env  []string // the whole environment
	// Log receives what the process writes to standard output and standard error, line by line.
	Log io.Writer
}

// Process is a running child. Its methods may be called from any goroutine.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended and all its output was read
	code   int           // valid after exited
	addrAt chan struct{} // closed when addr is known
	addr   string        // valid after addrAt
}

// Start starts the process. Whoever starts it must see to its end with [Process.Kill], or [Process.Stop].
func Start(o Options) (*Process, error) {
	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env = o.Env
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Path, err)
	}
	defer in.Close() // the child has its own
	cmd.Stdout, cmd.Stderr = in, in
	return launch(cmd, func(p *Process) {
		defer out.Close()
		p.readLog(out, o.Log)
	})
}

// Launch starts a command as [Start] does, whose output goes where the command says.
func Launch(cmd *exec.Cmd) (*Process, error) { return launch(cmd, func(*Process) {}) }

// launch stays with the process to its end. Linux sends the parent-death signal when the *thread* that started a child
// ends, so the goroutine that starts it keeps its thread for as long as the child lives.
func launch(cmd *exec.Cmd, beside func(*Process)) (*Process, error) {
	p := &Process{cmd: cmd, exited: make(chan struct{}), addrAt: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A group of its own: Ctrl-C at the terminal reaches whoever started it, who then decides.
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	started := make(chan error, 1)
	go func() { // joined by whoever waits for exited
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		err := cmd.Start()
		started <- err
		beside(p)
		if err == nil {
			_ = cmd.Wait() // how it ended is in its state
			p.code = cmd.ProcessState.ExitCode()
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
				p.code = 128 + int(status.Signal()) // as shells say it
			}
		}
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Serve starts a process that ends with the test at the latest, which shows what it wrote last if it fails.
func Serve(t testing.TB, o Options) *Process {
	t.Helper()
	log := &Log{}
	o.Log = log
	p, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill() // if it still runs
		if t.Failed() {
			t.Logf("the end of what %v wrote:\n%s", o.Args, log.Tail(100))
		}
	})
	return p
}

// readLog copies line by line to the end and catches the address the pages listen on.
func (p *Process) readLog(out io.Reader, log io.Writer) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		_, _ = log.Write(line) // a log that takes no more must not stop the child
		var said struct{ Msg, Addr string }
		if p.addr == "" && json.Unmarshal(line, &said) == nil && said.Msg == "listening" && said.Addr != "" {
			p.addr = said.Addr
			close(p.addrAt)
		}
		if err != nil {
			return
		}
	}
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Wait waits for the end and returns the exit code, 128 + the signal for a process that was killed.
func (p *Process) Wait(ctx context.Context) (code int, err error) {
	select {
	case <-p.exited:
		return p.code, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the end of process %d: %w", p.Pid(), context.Cause(ctx))
	}
}

// Signal sends a signal to the process and the helpers that it has forked, which are its group; to one that has ended
// it is [os.ErrProcessDone]. SIGSTOP stops one thread after another, on a busy machine so slowly that the others go on
// for a while: Signal returns when the last one stands still, unless somebody lets the process go on before.
func (p *Process) Signal(s syscall.Signal) error {
	err := os.ErrProcessDone
	if p.Runs() {
		err = syscall.Kill(-p.Pid(), s)
	}
	if errors.Is(err, syscall.ESRCH) { // it has ended meanwhile
		err = os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("send %v to process %d: %w", s, p.Pid(), err)
	}
	if s == syscall.SIGSTOP {
		const most, rest = 10 * time.Second, time.Millisecond
		poll.During(context.Background(), most, rest, func() bool {
			var changed unix.Siginfo
			const any = unix.WSTOPPED | unix.WEXITED | unix.WNOWAIT | unix.WNOHANG
			err := unix.Waitid(unix.P_PID, p.Pid(), &changed, any, nil)
			return err != nil && !errors.Is(err, unix.EINTR) || changed.Signo != 0
		})
	}
	return nil
}

// Runs says whether the process has not ended yet.
func (p *Process) Runs() bool { return !poll.IsClosed(p.exited) }

// Kill ends the process with SIGKILL and returns when it is gone. Killing one that has ended is no error.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.exited
	return nil
}

// Stop asks the process to end with SIGTERM and returns its exit code; when ctx ends first, it is killed.
func (p *Process) Stop(ctx context.Context) (code int, err error) {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	_ = p.Signal(syscall.SIGCONT) // a frozen one takes SIGTERM when it is thawed; fails only when it has ended
	code, err = p.Wait(ctx)
	if err != nil {
		return code, errors.Join(err, p.Kill())
	}
	return code, nil
}

// Addr waits until the process says where its pages listen. It must log as JSON.
func (p *Process) Addr(ctx context.Context) (string, error) {
	select {
	case <-p.addrAt:
	case <-p.exited:
		return "", fmt.Errorf("process %d ended with code %d before it listened", p.Pid(), p.code)
	case <-ctx.Done():
		return "", fmt.Errorf("wait for the address of process %d: %w", p.Pid(), context.Cause(ctx))
	}
	return p.addr, nil
}

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

// Get asks one of the daemon's pages.
func (p *Process) Get(ctx context.Context, path string) (status int, body string, err error) {
	addr, err := p.Addr(ctx)
	if err != nil {
		return 0, "", err
	}
	return Get(ctx, addr, path)
}

// Get asks one page at addr, on a connection of its own: the pages must not be kept open by those who look at them.
func Get(ctx context.Context, addr, path string) (status int, body string, err error) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer from %s within %v", path, patience))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, "", fmt.Errorf("get %s: %w", path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// Metrics are samples by their name and labels, as written: rollbackd_deliveries_total{outcome="applied"}. The labels
// queue and group are left out, and what they tell apart is added up.
type Metrics map[string]float64

var whose = regexp.MustCompile(`\b(queue|group)="[^"]*",?`)

// Metrics reads the daemon's metrics, in Prometheus' text form; lines it does not know are left out.
func (p *Process) Metrics(ctx context.Context) (Metrics, error) {
	_, text, err := p.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	m := Metrics{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			sample := strings.ReplaceAll(whose.ReplaceAllString(line[:i], ""), ",}", "}")
			m[strings.TrimSuffix(sample, "{}")] += v
		}
	}
	return m, nil
}

// Deliveries is how many deliveries ended with this outcome.
func (m Metrics) Deliveries(outcome string) int {
	return int(m[`rollbackd_deliveries_total{outcome="`+outcome+`"}`])
}

// Settled is how many deliveries have ended in all.
func (m Metrics) Settled() (sum int) {
	for sample, v := range m {
		if strings.HasPrefix(sample, "rollbackd_deliveries_total{") {
			sum += int(v)
		}
	}
	return sum
}
