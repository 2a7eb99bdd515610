package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const (
	daemons      = 2
	lanes        = 2
	claimAtOnce  = 200 // the most a lane claims at once
	maxAttempts  = 5
	handlerTime  = 5 * time.Second
	drainTimeout = 10 * time.Second
	drainGrace   = 5 * time.Second // for the machine, after the daemon's own deadline
)

// fleet is two daemons, two relays before them, and a listener behind them, each with a supervisor that starts it again
// when it ends.
type fleet struct {
	w             *world
	all           []*slot // in the order in which they end: who comes later has nothing left to do
	slots, relays []*slot // the daemons, and the relays
	listener      *slot
	stop          context.CancelFunc
	wg            sync.WaitGroup
}

// slot is the place of one process, and its log: it counts what is said there.
type slot struct {
	name, command string
	w             *world
	file          *os.File

	mu       sync.Mutex
	environ  []string         // of the next one; guarded by mu, as all below
	process  *program.Process // the present one
	asked    bool             // somebody has asked it to end
	started  int
	stopping bool // no further one is to be started
	said     map[string]int
}

// startFleet starts all, and lets what has started end with the world when another one cannot be started.
func (w *world) startFleet() {
	f, env := &fleet{w: w}, w.environ
	if w.o.Phase.people {
		// After a look into the queue compensation rests for as long as the brake looks back.
		env = append(slices.Clone(env), "ROLLBACKD_COMPENSATE_AFTER=1s", "ROLLBACKD_MAX_DEAD_RATE=100/1s")
	}
	ctx, stop := context.WithCancel(w.ctx)
	f.stop = stop
	w.closes = append(w.closes, f.kill)
	launch := func(name, command string, env []string) {
		s := &slot{name: name, command: command, w: w, environ: env, said: map[string]int{}}
		file := strings.ReplaceAll(name, " ", "-") + "-phase-" + w.o.Phase.Name + ".log"
		s.file = must.Get(os.Create(filepath.Join(w.o.LogDir, file)))
		f.wg.Go(func() { s.supervise(ctx) })
		f.all = append(f.all, s)
	}
	for i := range daemons {
		launch(fmt.Sprint("daemon ", i), "run", env)
	}
	for i := range relays {
		launch(fmt.Sprint("relay ", i), "relay", w.chain.relays)
	}
	launch(listener, "run", w.chain.listens)
	f.slots, f.relays, f.listener = f.all[:daemons], f.all[daemons:daemons+relays], f.all[daemons+relays]
	w.fleet = f
}

// supervise keeps one process running until the slot is stopped. One that ends without being asked to is a violation.
func (s *slot) supervise(ctx context.Context) {
	for over := false; !over && ctx.Err() == nil; {
		s.mu.Lock()
		p, err := program.Start(program.Options{Path: s.w.o.Binary, Args: []string{s.command}, Env: s.environ, Log: s})
		if err != nil {
			s.mu.Unlock()
			s.w.violation("%s could not be started: %v", s.name, err)
			return
		}
		s.process, s.asked = p, false
		s.started++
		if s.stopping {
			_ = p.Signal(syscall.SIGTERM) // it has ended if this fails
		}
		s.mu.Unlock()
		select {
		case <-p.Exited():
		case <-ctx.Done():
			_ = p.Kill() // fails only when it has ended
		}
		code, _ := p.Wait(context.WithoutCancel(ctx)) // it has ended
		s.mu.Lock()
		asked := s.asked || ctx.Err() != nil
		over = s.stopping
		s.mu.Unlock()
		if !asked && !over && !s.w.broken.Load() { // one that starts may refuse a broken schema
			s.w.violation("%s ended by itself with code %d", s.name, code)
		}
		_ = s.w.pass(200 * time.Millisecond)
	}
}

// Write takes one line of the daemon's log.
func (s *slot) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var entry struct{ Msg string }
	if json.Unmarshal(line, &entry) == nil && entry.Msg != "" {
		s.said[entry.Msg]++
	}
	return s.file.Write(line)
}

// present is the process that runs now; with asked it is marked as one that is going to end.
func (s *slot) present(asked bool) *program.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = s.asked || asked
	return s.process
}

// consuming waits until all say that they are ready. A run that is cut short meanwhile stops: one may have no process.
func (f *fleet) consuming() {
	for _, s := range f.all {
		f.w.wait(time.Minute, s.name+" is not ready", func() error {
			p := s.present(false)
			if p == nil {
				return errors.New("it was not started yet")
			}
			status, body, err := p.Get(f.w.ctx, "/readyz")
			if err == nil && status != http.StatusOK {
				err = errors.New(body)
			}
			return err
		})
	}
	must.OK(context.Cause(f.w.ctx))
}

// metric is a metric of each daemon, 0 of one that does not tell.
func (f *fleet) metric(name string) (all [daemons]int) {
	for i, s := range f.slots {
		if m, err := s.present(false).Metrics(f.w.ctx); err == nil {
			all[i] = int(m[name])
		}
	}
	return all
}

// published counts the copies of a kind that ended with a result at the daemons that run now.
func (f *fleet) published(kind, result string) (n int) {
	for _, of := range f.metric(fmt.Sprintf(`rollbackd_publishes_total{kind=%q,result=%q}`, kind, result)) {
		n += of
	}
	return n
}

// end asks a daemon to end, which it must do in good order: nothing disturbs it any more.
func (s *slot) end(when string) {
	ctx, cancel := context.WithTimeout(s.w.ctx, drainTimeout+drainGrace)
	defer cancel()
	if code, err := s.present(true).Stop(ctx); err != nil || code != 0 {
		s.w.violation("%s exited with %d (%v) %s, want 0", s.name, code, err, when)
	}
}

// restart gives the daemons other settings, one after the other.
func (f *fleet) restart(environ []string) {
	for _, s := range f.slots {
		s.mu.Lock()
		s.environ = environ
		s.mu.Unlock()
		s.end("when it was restarted")
		f.w.should("after a restart", f.consuming)
	}
}

// drain ends all for good.
func (f *fleet) drain() {
	for _, s := range f.all {
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
		s.end("at the end")
	}
	f.wg.Wait()
}

// kill ends what still runs. After drain there is nothing.
func (f *fleet) kill() (err error) {
	f.stop()
	f.wg.Wait()
	for _, s := range f.all {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// sum adds something up for some of them.
func sum(slots []*slot, of func(*slot) int) (n int) {
	for _, s := range slots {
		s.mu.Lock()
		n += of(s)
		s.mu.Unlock()
	}
	return n
}

// said is how often the daemons have logged this message.
func (f *fleet) said(msg string) int { return sum(f.slots, func(s *slot) int { return s.said[msg] }) }

// catch stops a process with SIGSTOP while it has something in hand, and counts that. It may have nothing after all.
func (s *strike) catch() {
	s.until(15*time.Second, func() bool {
		stopped := time.Now()
		if s.process.Signal(syscall.SIGSTOP) != nil {
			return true // it has ended
		}
		if s.slot.command == "relay" {
			s.hits = s.claims(stopped)
		} else {
			s.hits = s.inHandsOf(s.process.Pid())
		}
		if s.hits > 0 {
			return true
		}
		_ = s.process.Signal(syscall.SIGCONT) // fails only when it has ended
		return false
	})
}

func killProcess(s *strike) {
	s.process = s.slot.present(true)
	s.catch()
	must.OK(s.process.Kill())
}

// freezeProcess makes a process one that has lost its locks, leases and claims and does not know it.
func freezeProcess(s *strike) {
	s.process = s.slot.present(false)
	s.catch()
	_ = s.process.Signal(syscall.SIGSTOP) // catch may have let it go; fails only when it has ended
}

func thawProcess(s *strike) {
	if err := s.process.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
		must.OK(err)
	}
}

// freezeInTransaction makes a daemon stand still inside a transaction that has what others need: all rows of the stock
// are locked until its lanes wait for them. The server ends its session, and another daemon goes on.
func freezeInTransaction(s *strike) {
	quiet := s.undisturbed()
	s.process = s.slot.present(false)
	s.lock("ROLLBACK", "BEGIN", "UPDATE stock SET version = version") // one row alone stops only batches that are large
	sees := func(patience time.Duration, n *int, least int, query string) {
		s.until(patience, func() bool {
			_ = s.pass(200 * time.Millisecond) // who asks more often is told by MariaDB what was
			return s.ask(n, query, user) == nil && *n >= least
		})
	}
	n := 0
	sees(15*time.Second, &n, lanes+1, waitsForRow) // lanes of both
	_ = s.process.Signal(syscall.SIGSTOP)          // it may have ended
	began := time.Now()
	undo(s)
	sees(4*time.Second, &s.hits, 1, "SELECT COUNT(*) FROM "+stack.Transactions+" JOIN "+stack.Processes+
		" p ON p.id = conn WHERE p.user = ? AND p.command = 'Sleep' AND p.time > 0")
	found, limit := time.Now(), handlerTime+10*time.Second
	goesOn := s.until(limit-time.Since(began), func() bool { return s.appliedSince(found) })
	if s.hits > 0 && !goesOn && quiet() && s.ctx.Err() == nil {
		s.violation("nothing was applied for %v beside a daemon that is frozen inside a transaction", limit)
	}
	s.lasts -= time.Since(began)
}

// terminateDaemon expects the end within DRAIN_TIMEOUT whatever else is going on, and exit code 0 when nothing else
// was.
func terminateDaemon(s *strike) {
	s.process = s.slot.present(true)
	s.until(10*time.Second, func() bool { s.hits = s.inHandsOf(s.process.Pid()); return s.hits > 0 })
	calm := s.undisturbed()
	began := time.Now()
	if err := s.process.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		must.OK(err)
	}
	limit, cancel := context.WithTimeout(s.ctx, drainTimeout+drainGrace)
	defer cancel()
	code, err := s.process.Wait(limit)
	if err != nil {
		s.violation("%s has not ended %v after SIGTERM", s.slot.name, time.Since(began).Round(time.Second))
		must.OK(s.process.Kill())
	} else if code != 0 {
		s.charged.Add(1)
		if calm() {
			s.violation("%s exited with %d after SIGTERM although nothing was wrong, want 0", s.slot.name, code)
		}
	}
}
