package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// processes are a contestant's, as long as they run.
type processes []*program.Process

func (c Contestant) start(f *ground.Field, g *ground.Ground, log io.Writer) (all processes, err error) {
	o := program.Options{Path: f.Build.Binary, Args: []string{"run"}, Env: f.Environ(c.Settings...), Log: log}
	if c.Rival != "" {
		o.Path, o.Args = g.Self, []string{"rival", c.Rival, fmt.Sprint(c.Workers)}
	}
	for range max(1, c.Daemons) {
		p, err := program.Start(o)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// beside starts a contestant, runs do, stops the processes in good order (what they have in hand they finish), and
// checks what they have done.
func (r *Runner) beside(ctx context.Context, f *ground.Field, c Contestant, do func(processes) error) (
	h ground.Harvest, err error,
) {
	log := &tail{}
	all, err := c.start(f, r.Ground, log)
	defer func() {
		for _, p := range all {
			err = errors.Join(err, p.Kill())
		}
		if err != nil {
			err = fmt.Errorf("%s: %w\nlast lines:\n%s", c.Name, err, log)
		}
	}()
	if err == nil {
		err = do(all)
	}
	if err != nil {
		return h, err
	}
	stopping, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	for _, p := range all {
		if code, stopped := p.Stop(stopping); stopped != nil || code != 0 {
			err = errors.Join(err, fmt.Errorf("process %d ended with code %d: %v", p.Pid(), code, stopped))
		}
	}
	if err != nil {
		return h, err
	}
	return f.Check(ctx)
}

// alone sows, runs before, if it is not nil, and then do beside one daemon of the product.
func (r *Runner) alone(ctx context.Context, f *ground.Field, name string, s ground.Sowing, before func() error,
	do func(*daemon) error, settings ...string) (h ground.Harvest, err error) {
	s.Goods = ManyGoods
	err = f.Sow(ctx, s, r.seed())
	if err == nil && before != nil {
		err = before()
	}
	if err != nil {
		return h, fmt.Errorf("prepare %s: %w", name, err)
	}
	return r.beside(ctx, f, Contestant{Name: name, Settings: settings}, func(all processes) error {
		return do(&daemon{all[0], all})
	})
}

// daemon is one process of the product.
type daemon struct {
	*program.Process
	all processes
}

// outcomes of deliveries, as the metrics call them.
const (
	applied = "applied"
	dead    = "dead_lettered"
	retried = "retried"
)

// done are the outcomes that count as done work. The product's others (retried, in_progress) leave a copy behind.
var done = []string{applied, "duplicate", "duplicate_of_dead", dead}

// reading is what all processes of a contestant have done so far.
type reading struct {
	at           time.Time
	ended, fresh int64              // deliveries; of them applied
	again, dead  int64              // failed attempts with another to come; and those that made a dead letter
	cpu          map[string]float64 // seconds
}

func (all processes) read(ctx context.Context, w watched) (r reading, err error) {
	for _, p := range all {
		m, err := p.Metrics(ctx)
		if err != nil {
			return r, err
		}
		for _, outcome := range done {
			r.ended += int64(m.Deliveries(outcome))
		}
		r.fresh += int64(m.Deliveries(applied))
		r.again += int64(m.Deliveries(retried))
		r.dead += int64(m.Deliveries(dead))
	}
	r.at = time.Now()
	r.cpu, err = w.sum(cpu)
	return r, err
}

// begun waits for the first deliveries to end, and then a while.
func (all processes) begun(ctx context.Context, warm time.Duration) error {
	if _, err := all.until(ctx, "a delivery has ended", 30*time.Second, func(r reading) bool {
		return r.ended+r.again > 0
	}); err != nil {
		return err
	}
	return wait.For(ctx, warm)
}

func (all processes) until(ctx context.Context, what string, most time.Duration, there func(reading) bool) (r reading,
	err error) {
	return r, ground.Until(ctx, what, most, func() (_ bool, err error) {
		r, err = all.read(ctx, nil)
		return there(r), err
	})
}

func (d *daemon) untilReady(ctx context.Context) error {
	return ground.Until(ctx, "the daemon is ready", time.Minute, func() (bool, error) {
		status, _, err := d.Get(ctx, "/readyz")
		return status == 200, err
	})
}

func (d *daemon) untilApplied(ctx context.Context, n int64) error {
	_, err := d.all.until(ctx, fmt.Sprintf("%d messages are applied", n), 3*time.Minute, func(r reading) bool {
		return r.fresh >= n
	})
	return err
}

// watched are the processes for which a round accounts, by what they are.
type watched map[string][]int

func (r *Runner) watch(all processes) watched {
	s := r.Ground.Stack
	w := watched{
		"mysql": {s.MySQL.Pid()}, "rabbitmq": {s.RabbitMQ.Pid()}, "redis": {s.Redis.Pid()}, "bench": {os.Getpid()},
	}
	for _, p := range all {
		w["client"] = append(w["client"], p.Pid())
	}
	return w
}

// sum adds up what /proc tells of each process.
func (w watched) sum(of func(procfs.Proc) (float64, error)) (map[string]float64, error) {
	all := map[string]float64{}
	for name, pids := range w {
		for _, pid := range pids {
			p, err := procfs.NewProc(pid)
			if err != nil {
				return nil, fmt.Errorf("look at process %d: %w", pid, err)
			}
			x, err := of(p)
			if err != nil {
				return nil, fmt.Errorf("look at process %d: %w", pid, err)
			}
			all[name] += x
		}
	}
	return all, nil
}

// cpu is the time that a process's threads have spent, in user and system mode, in seconds.
func cpu(p procfs.Proc) (float64, error) {
	s, err := p.Stat()
	return s.CPUTime(), err
}

// written is how many bytes a process has handed to the storage layer; what a later write takes back is counted too.
func written(p procfs.Proc) (float64, error) {
	io, err := p.IO()
	return float64(io.WriteBytes), err
}

// memory is what the daemon has resident, and the most that it has had, in MiB.
func (d *daemon) memory() (now, peak float64, err error) {
	p, err := procfs.NewProc(d.Pid())
	if err != nil {
		return 0, 0, fmt.Errorf("look at the daemon: %w", err)
	}
	s, err := p.NewStatus()
	return float64(s.VmRSS) / (1 << 20), float64(s.VmHWM) / (1 << 20), err
}

// peak notes the most memory that the daemon has had, unless what was done before failed.
func (d *daemon) peak(into *float64, err error) error {
	if err == nil {
		_, *into, err = d.memory()
	}
	return err
}

// since is what was added from before to now.
func since(now, before map[string]float64) map[string]float64 {
	d := map[string]float64{}
	for name := range now {
		d[name] = now[name] - before[name]
	}
	return d
}

// tail keeps the last of what a process writes.
type tail struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	const most = 4 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - most; over > 0 {
		_, rest, _ := bytes.Cut(t.text[over:], []byte("\n"))
		t.text = bytes.Clone(rest)
	}
	return len(p), nil
}

// String is the last of it, from the beginning of a line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
