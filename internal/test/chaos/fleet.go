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
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	daemons      = 2
	lanes        = 2
	claimAtOnce  = 200 // the most a lane claims at once
	maxAttempts  = 5
	handlerTime  = 5 * time.Second
	drainTimeout = 10 * time.Second
)

// fleet is two daemons, each with a supervisor that starts it again when it ends.
type fleet struct {
	w     *world
	slots [daemons]*slot
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// slot is the place of one daemon.
type slot struct {
	name string
	w    *world
	log  *logWatch

	mu       sync.Mutex
	environ  []string         // of the next one; guarded by mu
	process  *program.Process // the present one; guarded by mu
	asked    bool             // somebody has asked it to end; guarded by mu
	started  int              // guarded by mu
	stopping bool             // no further one is to be started; guarded by mu
}

func newFleet(w *world) (*fleet, error) {
	f := &fleet{w: w}
	env := w.environ
	if w.o.People {
		// After a look into the queue compensation rests for as long as the brake looks back.
		env = append(slices.Clone(env), "ROLLBACKD_COMPENSATE_AFTER="+coolDown.String(), "ROLLBACKD_MAX_DEAD_RATE=100/1s")
	}
	for i := range f.slots {
		name := fmt.Sprintf("daemon %d", i)
		file, err := os.Create(filepath.Join(w.o.LogDir, fmt.Sprintf("daemon-%d-%s.log", i, w.o.phase())))
		if err != nil {
			return nil, fmt.Errorf("open the log of %s: %w", name, err)
		}
		f.slots[i] = &slot{name: name, w: w, environ: env, log: &logWatch{file: file, said: map[string]int{}}}
	}
	return f, nil
}

func (f *fleet) start(ctx context.Context) {
	ctx, f.stop = context.WithCancel(ctx)
	for _, s := range f.slots {
		f.wg.Go(func() { s.supervise(ctx) })
	}
}

// supervise keeps one daemon running until the slot is stopped. One that ends without being asked to is a violation.
func (s *slot) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		env := s.environ
		s.mu.Unlock()
		p, err := program.Start(program.Options{Path: s.w.o.Binary, Args: []string{"run"}, Env: env, Log: s.log})
		if err != nil {
			s.w.violation("%s could not be started: %v", s.name, err)
			return
		}
		s.mu.Lock()
		s.process, s.asked = p, false
		s.started++
		stopping := s.stopping
		s.mu.Unlock()
		if stopping {
			_ = p.Signal(syscall.SIGTERM) // it has ended if this fails
		}
		select {
		case <-p.Exited():
		case <-ctx.Done():
			_ = p.Kill() // fails only when it has ended
		}
		code, _ := p.Wait(context.WithoutCancel(ctx)) // it has ended
		s.mu.Lock()
		asked, over := s.asked || ctx.Err() != nil, s.stopping
		s.mu.Unlock()
		if !asked && !over && !s.w.schemaBroken() {
			s.w.violation("%s ended by itself with code %d", s.name, code)
		}
		if over {
			return
		}
		_ = wait.For(ctx, 200*time.Millisecond) // the loop looks at ctx
	}
}

// ask marks the present process as one that is going to end, and returns it.
func (s *slot) ask() *program.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = true
	return s.process
}

// present is the process that runs now.
func (s *slot) present() *program.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// consuming waits until both daemons say that they are ready.
func (f *fleet) consuming(ctx context.Context) error {
	for _, s := range f.slots {
		ok := until(ctx, time.Minute, func() bool {
			p := s.present()
			if p == nil {
				return false
			}
			status, _, err := p.Get(ctx, "/readyz")
			return err == nil && status == http.StatusOK
		})
		if !ok {
			return fmt.Errorf("%s is not ready within a minute", s.name)
		}
	}
	return nil
}

// goroutines is the number of goroutines of each daemon, 0 when it does not tell.
func (f *fleet) goroutines(ctx context.Context) (n [daemons]int) {
	for i, s := range f.slots {
		if m, err := s.present().Metrics(ctx); err == nil {
			n[i] = int(m["go_goroutines"])
		}
	}
	return n
}

// drain ends both daemons in good order: nothing disturbs them any more, so they must exit with 0.
func (f *fleet) drain(ctx context.Context) {
	for _, s := range f.slots {
		s.mu.Lock()
		s.stopping = true
		p := s.process
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, drainTimeout+5*time.Second)
		if code, err := p.Stop(ctx); err != nil || code != 0 {
			f.w.violation("%s exited with %d (%v) at the end, want 0", s.name, code, err)
		}
		cancel()
	}
	f.wg.Wait()
}

// kill ends what still runs. After drain there is nothing.
func (f *fleet) kill() {
	f.stop()
	f.wg.Wait()
	for _, s := range f.slots {
		_ = s.log.file.Close() // it was written, or the run has failed anyway
	}
}

func (f *fleet) starts() (n int) {
	for _, s := range f.slots {
		s.mu.Lock()
		n += s.started
		s.mu.Unlock()
	}
	return n
}

// said is how often the daemons have logged this message.
func (f *fleet) said(msg string) (n int) {
	for _, s := range f.slots {
		s.log.mu.Lock()
		n += s.log.said[msg]
		s.log.mu.Unlock()
	}
	return n
}

// logWatch writes a daemon's log into a file and counts what is said in it.
type logWatch struct {
	mu   sync.Mutex
	file *os.File
	said map[string]int // guarded by mu
}

// Write takes one line.
func (l *logWatch) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var entry struct{ Msg string }
	if json.Unmarshal(line, &entry) == nil && entry.Msg != "" {
		l.said[entry.Msg]++
	}
	return l.file.Write(line)
}

func daemonFaults() []fault {
	either := func(p planned) []string { return []string{[]string{onDaemon0, onDaemon1}[p.variant%daemons]} }
	return []fault{
		{name: "daemon kill -9", unit: "deliveries in hand", targets: either, strike: killDaemon},
		{name: "daemon SIGTERM", unit: "deliveries in hand", targets: either, strike: terminateDaemon},
		{name: "daemon frozen", unit: "deliveries in hand", targets: either, least: 8 * time.Second, most: 25 * time.Second,
			strike: freezeDaemon},
		{name: "daemon frozen in mysql", unit: "transactions left open", least: handlerTime + 11*time.Second,
			most: handlerTime + 20*time.Second, strike: freezeInTransaction,
			targets: func(p planned) []string { return append(either(p), onMySQL) }},
	}
}

// catch stops a daemon with SIGSTOP while it has deliveries in hand, and counts them. It may catch it with none after
// all.
func catch(ctx context.Context, w *world, p *program.Process) (held int) {
	until(ctx, 15*time.Second, func() bool {
		if p.Signal(syscall.SIGSTOP) != nil {
			return true // it has ended
		}
		if held = w.inHandsOf(ctx, p); held > 0 {
			return true
		}
		_ = p.Signal(syscall.SIGCONT) // fails only when it has ended
		return false
	})
	return held
}

// inHandsOf counts what a daemon holds; 0 when the broker is down, too, and nobody can tell.
func (w *world) inHandsOf(ctx context.Context, p *program.Process) int {
	n, err := w.broker.inHandsOf(ctx, p.Pid())
	if err != nil {
		w.say("no node says what a daemon holds")
	}
	return n
}

func killDaemon(ctx context.Context, w *world, p planned) (int, error) {
	s := w.fleet.slots[p.variant%daemons]
	process := s.ask()
	held := catch(ctx, w, process)
	w.charge(1)
	return held, process.Kill()
}

// freezeDaemon makes a daemon one that has lost its locks and leases and does not know it.
func freezeDaemon(ctx context.Context, w *world, p planned) (int, error) {
	process := w.fleet.slots[p.variant%daemons].present()
	held := catch(ctx, w, process)
	w.charge(1)
	_ = process.Signal(syscall.SIGSTOP) // catch may have let it go; fails only when it has ended
	_ = wait.For(ctx, p.lasts)
	if err := process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return held, err
	}
	return held, nil
}

// freezeInTransaction makes a daemon stand still inside a transaction that has what others need: a row is locked until
// its lanes wait for it. The server ends its session, and another daemon goes on.
func freezeInTransaction(ctx context.Context, w *world, p planned) (int, error) {
	quiet := w.undisturbed()
	process := w.fleet.slots[p.variant%daemons].present()
	w.charge(1)
	unlock, err := w.lockGood(ctx)
	if err != nil {
		return 0, err
	}
	var n, left int
	every := func() { _ = wait.For(ctx, 200*time.Millisecond) } // who asks more often is told by MariaDB what was
	until(ctx, 15*time.Second, func() bool {                    // lanes of both
		every()
		return w.ask(ctx, &n, waitsForRow, account) == nil && n > lanes
	})
	_ = process.Signal(syscall.SIGSTOP) // it may have ended
	began := time.Now()
	if err := unlock(); err != nil {
		return 0, errors.Join(err, process.Signal(syscall.SIGCONT))
	}
	until(ctx, 4*time.Second, func() bool {
		every()
		return w.ask(ctx, &left, "SELECT COUNT(*) FROM "+stack.Transactions+" JOIN "+stack.Processes+" p ON p.id = conn "+
			"WHERE p.user = ? AND p.command = 'Sleep' AND p.time > 0", account) == nil && left > 0
	})
	found, limit := time.Now(), handlerTime+10*time.Second
	goesOn := until(ctx, limit-time.Since(began), func() bool { return w.appliedSince(ctx, found) })
	if left > 0 && !goesOn && quiet() && ctx.Err() == nil {
		w.violation("nothing was applied for %v beside a daemon that is frozen inside a transaction", limit)
	}
	_ = wait.For(ctx, p.lasts-time.Since(began))
	if err := process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return left, err
	}
	return left, nil
}

// lockGood locks what is in the way of nearly every batch.
func (w *world) lockGood(ctx context.Context) (unlock func() error, err error) {
	tx, err := w.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE stock SET version = version WHERE sku_id = 1"); err != nil {
		return nil, errors.Join(fmt.Errorf("lock a good: %w", err), tx.Rollback())
	}
	return tx.Rollback, nil
}

// terminateDaemon expects the end within DRAIN_TIMEOUT whatever else is going on, and exit code 0 when nothing else
// was.
func terminateDaemon(ctx context.Context, w *world, p planned) (int, error) {
	s := w.fleet.slots[p.variant%daemons]
	process := s.ask()
	held := 0
	until(ctx, 10*time.Second, func() bool { held = w.inHandsOf(ctx, process); return held > 0 })
	calm := w.undisturbed()
	began := time.Now()
	if err := process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return held, err
	}
	const grace = 5 * time.Second // for the machine, after the daemon's own deadline
	limit, cancel := context.WithTimeout(ctx, drainTimeout+grace)
	defer cancel()
	code, err := process.Wait(limit)
	if err != nil {
		w.violation("%s has not ended %v after SIGTERM", s.name, time.Since(began).Round(time.Second))
		return held, process.Kill()
	}
	if code != 0 {
		w.charge(1)
		if calm() {
			w.violation("%s exited with %d after SIGTERM although nothing was wrong, want 0", s.name, code)
		}
	}
	return held, nil
}
