package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

// EnvTree names a folder with a whole system tree, as scripts/server-tree.sh makes it: the servers are its programs
// then, and run with it as their root. So they are of another release than the machine's. The folder of temporary files
// must be in the tree at the same path, and the process root's.
const EnvTree = "ROLLBACKD_TEST_TREE"

// errNotInstalled says that a server's program is not on this machine; no other port will change that.
var errNotInstalled = errors.New("not installed: run scripts/install-servers.sh")

// searchPath is where programs are looked for: servers live in the sbin folders, which a normal user's PATH often
// lacks.
func searchPath() string {
	return os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
}

// executable is a program of the machine, or of the tree that [EnvTree] names.
type executable struct {
	path string // seen from the root that it runs with
	tree string // that root; empty: the machine's
	room *room  // in which it runs; nil: in none
}

// findOnMachine finds a program that is no server under test, and therefore the machine's own with a tree too.
func findOnMachine(names ...string) executable { return must.Get(findIn("", names...)) }

// findProgram returns the first of names that is an executable file: a name with a slash is a pattern for a path,
// another is looked for in the search path.
func findProgram(names ...string) executable { return must.Get(findIn(os.Getenv(EnvTree), names...)) }

func findIn(tree string, names ...string) (executable, error) {
	for _, name := range names {
		dirs := filepath.SplitList(searchPath())
		if filepath.Base(name) != name {
			dirs = []string{"/"}
		}
		for _, dir := range dirs {
			// the only error is a malformed pattern, and ours are constants
			found, _ := filepath.Glob(filepath.Join(tree, dir, name))
			for _, file := range found {
				if isProgram(file, tree) {
					return executable{path: strings.TrimPrefix(file, tree), tree: tree}, nil
				}
			}
		}
	}
	where := ""
	if tree != "" {
		where = " in " + tree
	}
	return executable{}, fmt.Errorf("find %s%s: %w", names[0], where, errNotInstalled)
}

// isProgram follows links as the tree's own programs would: an absolute one begins at the tree's root.
func isProgram(file, tree string) bool {
	const most = 10 // links; a loop has no end
	for range most {
		target, err := os.Readlink(file)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(strings.TrimPrefix(filepath.Dir(file), tree), target)
		}
		file = filepath.Join(tree, target)
	}
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// needs stops who asks unless a file stands beside the program.
func (p executable) needs(file string) {
	if _, err := os.Stat(filepath.Join(p.tree, file)); err != nil {
		must.OK(errNotInstalled, "find "+file)
	}
}

// name is the last part of the path.
func (p executable) name() string { return filepath.Base(p.path) }

// command runs the program in a folder, with an environment that has nothing of the caller's that could change its
// behaviour. It is killed when ctx ends.
func (p executable) command(ctx context.Context, dir string, more []string, args ...string) *exec.Cmd {
	words, root := append([]string{p.path}, args...), p.tree
	if p.room != nil {
		if root != "" { // is entered last: whoever enters a room sees the machine's
			words, root = append([]string{findOnMachine("chroot").path, root}, words...), ""
		}
		words = append(p.room.enter(), words...)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	// os/exec has looked for the path outside the tree, and may have missed it there.
	cmd.Path, cmd.Err = words[0], nil
	cmd.Dir, cmd.Env = dir, environment(dir, more...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	return cmd
}

func environment(home string, more ...string) []string {
	return append([]string{"PATH=" + searchPath(), "HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8"}, more...)
}

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
