package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// processes are a contestant's, as long as they run.
type processes struct {
	all []*program.Process
	r   *Runner
	log *program.Log
}

func (p *processes) start(f *ground.Field, c Contestant) *program.Process {
	o := program.Options{
		Path: f.Build.Binary, Args: []string{cmp.Or(c.Command, "run")}, Env: f.Environ(c.Settings...), Log: p.log,
	}
	if c.Rival != "" {
		o.Path, o.Args = p.r.Ground.Self, []string{"rival", c.Rival, fmt.Sprint(c.Workers)}
	}
	one := must.Get(program.Start(o))
	if c.Quota > 0 {
		limit(c.Quota, one.Pid())
	}
	return one
}

// stop stops a process in good order: what it has in hand it finishes.
func (p *processes) stop(one *program.Process) {
	stopping, cancel := context.WithTimeout(p.r.Ground.Ctx, 40*time.Second)
	defer cancel()
	if code, err := one.Stop(stopping); err != nil || code != 0 {
		must.OK(fmt.Errorf("process %d ended with code %d: %w", one.Pid(), code, err))
	}
}

// beside starts a contestant, runs do, stops the processes, and checks what they have done.
func (r *Runner) beside(f *ground.Field, c Contestant, do func(*processes)) (h ground.Harvest) {
	p := &processes{r: r, log: &program.Log{}}
	err := must.Catch(func() {
		if c.Quota > 0 {
			s := r.Ground.Stack
			servers := []int{s.MySQL.Pid(), s.RabbitMQ.Pid(), s.Redis.Pid()}
			limit(c.ServersQuota, servers...)
			defer free(servers...)
		}
		for range max(1, c.Daemons) {
			p.all = append(p.all, p.start(f, c))
		}
		do(p)
		for _, one := range p.all {
			p.stop(one)
		}
		h = f.Check()
	})
	for _, one := range p.all {
		err = errors.Join(err, one.Kill())
		free(one.Pid())
	}
	must.OK(err, p.log.Tail(20), "\n", c.Name)
	return h
}

// alone sows, runs before, if it is not nil, and then do beside one daemon of the product.
func (r *Runner) alone(f *ground.Field, s ground.Sowing, before func(), do func(*processes),
	settings ...string) ground.Harvest {
	f.Sow(r.seeded(s))
	if before != nil {
		before()
	}
	return r.beside(f, Contestant{Settings: settings}, do)
}

// cgroups is where the kernel's control groups of version 1 are that divide processors.
const cgroups = "/sys/fs/cgroup/cpu"

func group(pid int) string { return filepath.Join(cgroups, fmt.Sprintf("rollbackd-bench-%d", pid)) }

func toGroup(group, file string, value int) error {
	return os.WriteFile(filepath.Join(group, file), fmt.Append(nil, value), 0o644)
}

// limit lets processes together take so much of a core, whoever else wants it. A period is so long that its part of it
// is not too short for the kernel.
func limit(cores float64, pids ...int) {
	const period = 40_000 // µs
	g := group(pids[0])
	must.OK(os.Mkdir(g, 0o755), "a quota needs root and control groups of version 1")
	must.OK(errors.Join(toGroup(g, "cpu.cfs_period_us", period), toGroup(g, "cpu.cfs_quota_us", int(cores*period)),
		toGroup(g, "cpu.shares", 16*1024)))
	for _, pid := range pids {
		must.OK(toGroup(g, "cgroup.procs", pid))
	}
}

// free undoes limit, if there was one; a process may have ended.
func free(pids ...int) {
	for _, pid := range pids {
		_ = toGroup(cgroups, "cgroup.procs", pid)
	}
	_ = os.Remove(group(pids[0]))
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
	cpu          map[string]float64 // seconds, of what is watched
	counts       map[string]float64 // what else was spent, if somebody asks
}

// read has the CPU times too.
func (p *processes) read() reading {
	r := p.counted(p.all)
	r.cpu = p.sum(cpu)
	return r
}

// counted are the deliveries so far of some of them.
func (p *processes) counted(some []*program.Process) (r reading) {
	for _, one := range some {
		m := must.Get(one.Metrics(p.r.Ground.Ctx))
		for _, outcome := range done {
			r.ended += int64(m.Deliveries(outcome))
		}
		r.fresh += int64(m.Deliveries(applied))
		r.again += int64(m.Deliveries(retried))
		r.dead += int64(m.Deliveries(dead))
	}
	r.at = time.Now()
	return r
}

// begun waits for the first deliveries of each process to end, and then a while.
func (p *processes) begun(warm time.Duration) reading {
	for i := range p.all {
		p.r.Ground.Until("a delivery has ended", 30*time.Second, func() bool {
			r := p.counted(p.all[i : i+1])
			return r.ended+r.again > 0
		})
	}
	p.r.Ground.Rest(warm)
	return p.read()
}

func (p *processes) untilReady(one *program.Process) {
	p.r.Ground.Until("the daemon is ready", time.Minute, func() bool {
		status, _, err := one.Get(p.r.Ground.Ctx, "/readyz")
		must.OK(err)
		return status == 200
	})
}

// sum adds up what /proc tells of each process for which a round accounts, by what they are.
func (p *processes) sum(of func(procfs.Proc) (float64, error)) map[string]float64 {
	s := p.r.Ground.Stack
	watched := map[string][]int{
		"mysql": {s.MySQL.Pid()}, "rabbitmq": {s.RabbitMQ.Pid()}, "redis": {s.Redis.Pid()}, "bench": {os.Getpid()},
	}
	for _, one := range p.all {
		watched["client"] = append(watched["client"], one.Pid())
	}
	all := map[string]float64{}
	for name, pids := range watched {
		for _, pid := range pids {
			all[name] += must.Get(of(must.Get(procfs.NewProc(pid))))
		}
	}
	return all
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
func (p *processes) memory() (now, peak float64) {
	proc := must.Get(procfs.NewProc(p.all[0].Pid()))
	s := must.Get(proc.NewStatus())
	return float64(s.VmRSS) / (1 << 20), float64(s.VmHWM) / (1 << 20)
}

// since is what was added from before to now, divided by something.
func since(now, before map[string]float64, by float64) map[string]float64 {
	d := map[string]float64{}
	for name := range now {
		d[name] = (now[name] - before[name]) / by
	}
	return d
}

// viewEvery is about as fast as three people click.
const viewEvery = 600 * time.Millisecond

// live is the overview's path whose answer goes on until somebody hangs up.
const live = "/?live=1"

// pages are the paths by what they show. The letter is one of those that [ground.Field.FillLog] files.
func pages() map[string]string {
	const key, order, cause, reason = "letter-4242", "dead-4242", "shelf k of order dead-4242 is locked", "exhausted"
	at := deadletter.Fingerprint(cause)
	return map[string]string{
		"overview":          "/",
		"letters":           "/letters",
		"letters by key":    "/letters?key=" + key,
		"letters by error":  "/letters?error=" + url.QueryEscape(cause),
		"group":             "/letters/groups/" + view.GroupID(reason, at),
		"preview of one":    "/letters/act?act=replay&key=" + key,
		"preview of all":    "/letters/act?act=replay&all=1",
		"preview of a kind": "/letters/act?act=replay&reason=" + reason + "&fingerprint=" + url.QueryEscape(at),
		"acts":              "/acts",
		"log":               "/log",
		"log by key":        "/log?key=" + key,
		"log by status":     "/log?status=dead",
		"message":           "/message?tag=" + ground.RoutingKey + "&key=" + key,
		"order":             "/order?sn=" + order,
	}
}

// view opens a page as a browser does, on a connection that is kept, and reads it. What answers but 200 is an error.
func (p *processes) view(ctx context.Context, path string) (text []byte) {
	address := must.Get(p.all[0].Addr(ctx))
	request := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody))
	response := must.Get(http.DefaultClient.Do(request))
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		must.OK(fmt.Errorf("%s answers %d", path, response.StatusCode))
	}
	return must.Get(io.ReadAll(response.Body))
}

// viewed does something while somebody looks at a daemon's pages as people do: the overview stays open and is kept
// live, and every viewEvery another page is opened, each in turn. It says how long each took at most, in milliseconds.
func (p *processes) viewed(do func()) Sample {
	defer http.DefaultClient.CloseIdleConnections()
	ctx, cancel := context.WithCancel(p.r.Ground.Ctx)
	took := Sample{}
	must.Together(func() { p.look(ctx, took) }, func() {
		_ = must.Catch(func() { p.view(ctx, live) }) // it ends when we hang up
	}, func() {
		defer cancel()
		do()
	})
	return took
}

// look opens pages until ctx ends, and notes how long each took at most.
func (p *processes) look(ctx context.Context, took Sample) {
	for {
		for name, path := range pages() {
			began := time.Now()
			err := must.Catch(func() { p.view(ctx, path) })
			if ctx.Err() != nil {
				return
			}
			must.OK(err, "the page of ", name)
			took[name] = max(took[name], ms(time.Since(began)))
			if wait.For(ctx, viewEvery) != nil {
				return
			}
		}
	}
}

// looks is how often each page is opened: CPU times come in hundredths of a second.
const looks = 40

// lookAt opens the pages of a daemon that has nothing else to do; the readings count the looks.
func (p *processes) lookAt() (from, to reading) {
	defer http.DefaultClient.CloseIdleConnections()
	p.untilReady(p.all[0])
	from = p.read()
	for _, path := range pages() {
		for range looks {
			p.view(p.r.Ground.Ctx, path)
		}
	}
	to = p.read()
	to.ended = from.ended + int64(looks*len(pages()))
	return from, to
}

// mostProfiled is how long the daemon's pages answer at most, with room.
const mostProfiled = 25 * time.Second

// profiled does something and writes what the daemon's pages tell meanwhile: cpu.prof and allocs.prof, for go tool
// pprof. And it tells the database's time by statement, for which the ground must have been started with Statements.
func (p *processes) profiled(f *ground.Field, do func()) {
	ctx, seconds := p.r.Ground.Ctx, max(1, min(p.r.Length, mostProfiled).Seconds())
	must.OK(os.MkdirAll(p.r.Profiles, 0o755))
	f.ForgetStatements()
	profile := func(name, page string) {
		p.begun(p.r.Warm)
		text := p.view(ctx, fmt.Sprintf("/debug/pprof/%s?seconds=%.0f", page, seconds))
		must.OK(os.WriteFile(filepath.Join(p.r.Profiles, name+".prof"), text, 0o644))
	}
	must.Together(do, func() { profile("cpu", "profile") }, func() { profile("allocs", "allocs") })
	now := p.read()
	n := float64(now.fresh + now.again + now.dead)
	w := tabwriter.NewWriter(p.r.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "of %.0f messages applied or failed\nµs a message\tcount\tms each\tstatement\n", n)
	f.Statements(func(text string, count, seconds float64) {
		fmt.Fprintf(w, "%.2f\t%.0f\t%.2f\t%.150s\n", seconds*1e6/n, count, seconds*1e3/count, text)
	})
	must.OK(w.Flush())
}
