package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Cost is what messages cost each process at one speed, with one daemon and all settings at their defaults.
type Cost struct {
	Offered int     // messages a second that the shop publishes
	Rate    float64 // messages a second that were applied
	// Cores is how many processors each process keeps busy; bench is the shop, which publishes.
	Cores map[string]float64
	// Written is how many bytes each process hands to the disk for a message.
	Written map[string]float64
	// Commits are MySQL's a second, all of them; Redo is how many bytes of its log a message takes.
	Commits, Redo float64
	// Connections are the daemon's to each server, and RowBytes what a row takes on disk with its indexes, by table.
	Connections map[string]int
	RowBytes    map[string]float64
}

// Spent is what a message cost each process, in µs of CPU.
func (c Cost) Spent() map[string]float64 {
	spent := map[string]float64{}
	for _, process := range working {
		spent[process] = 1e6 * c.Cores[process] / c.Rate
	}
	return spent
}

// Cost offers messages evenly to one daemon and reads what everybody spends on them.
func (r *Runner) Cost(ctx context.Context, perSecond int) (c Cost, err error) {
	err = r.repeated(ctx, fmt.Sprintf("%d messages a second", perSecond), func() (err error) {
		c, err = r.cost(ctx, perSecond)
		return err
	})
	return c, err
}

func (r *Runner) cost(ctx context.Context, perSecond int) (c Cost, err error) {
	f := r.empty
	total := int64(float64(perSecond) * (r.Warm + r.Length).Seconds())
	if err := f.Sow(ctx, ground.Sowing{Orders: total, Goods: ManyGoods, NoBacklog: true}, r.seed()); err != nil {
		return c, fmt.Errorf("prepare the round of %d messages a second: %w", perSecond, err)
	}
	if err := r.untilCalm(ctx); err != nil {
		return c, err
	}
	without, err := r.Ground.Connections(ctx, f)
	if err != nil {
		return c, err
	}
	log := &tail{}
	all, err := (Contestant{Name: "rollbackd"}).start(f, r.Ground, log)
	if err != nil {
		return c, err
	}
	defer func() {
		if err = errors.Join(err, kill(all)); err != nil {
			err = fmt.Errorf("%d messages a second: %w\nlast lines of the daemon:\n%s", perSecond, err, log)
		}
	}()
	if err := untilReady(ctx, all[0]); err != nil {
		return c, err
	}
	p, err := f.Producer()
	if err != nil {
		return c, err
	}
	watching, stopOffering := context.WithCancel(ctx)
	offered := make(chan error, 1)
	go func() { // joined below
		offered <- evenly(watching, total, perSecond, func(n int64) error { return p.Publish(watching, n) })
	}()
	c, err = r.spent(ctx, func(ctx context.Context) (expense, error) { return readExpense(ctx, f, all, r.watch(all)) })
	c.Offered = perSecond
	if err == nil {
		c.Connections, err = r.Ground.Connections(ctx, f)
	}
	if err != nil {
		stopOffering()
	}
	err = errors.Join(err, <-offered, p.Close(context.WithoutCancel(ctx)))
	stopOffering()
	if err != nil {
		return c, err
	}
	for server, n := range without {
		c.Connections[server] -= n
	}
	c.Connections["rabbitmq"]-- // the shop's
	if err := untilApplied(ctx, all[0], total); err != nil {
		return c, err
	}
	if _, err := stop(ctx, all); err != nil {
		return c, err
	}
	if _, err := f.Check(ctx); err != nil {
		return c, err
	}
	c.RowBytes, err = f.RowBytes(ctx)
	return c, err
}

// expense is what was spent until one moment.
type expense struct {
	reading
	written map[string]int64
	status  map[string]int64 // of MySQL
}

// What MySQL counts, and MariaDB by the same names.
const (
	comCommit   = "Com_commit"
	redoWritten = "Innodb_os_log_written"
)

func readExpense(ctx context.Context, f *ground.Field, all []*program.Process, w watched) (e expense, err error) {
	if e.status, err = f.Status(ctx, comCommit, redoWritten); err != nil {
		return e, err
	}
	if e.written, err = w.written(); err != nil {
		return e, err
	}
	e.reading, err = read(ctx, all, w)
	return e, err
}

// spent warms up, and reads twice.
func (r *Runner) spent(ctx context.Context, now func(context.Context) (expense, error)) (c Cost, err error) {
	if err := wait.For(ctx, r.Warm); err != nil {
		return c, err
	}
	from, err := now(ctx)
	if err != nil {
		return c, err
	}
	// The shop must go on until after the last reading, or the end of the time would be an idle one.
	if err := wait.For(ctx, r.Length*9/10); err != nil {
		return c, err
	}
	to, err := now(ctx)
	if err != nil {
		return c, err
	}
	seconds, messages := to.at.Sub(from.at).Seconds(), float64(to.fresh-from.fresh)
	if messages == 0 {
		return c, errors.New("no message was applied")
	}
	c = Cost{
		Rate: messages / seconds, Cores: map[string]float64{}, Written: map[string]float64{},
		Commits: float64(to.status[comCommit]-from.status[comCommit]) / seconds,
		Redo:    float64(to.status[redoWritten]-from.status[redoWritten]) / messages,
	}
	for name, cpu := range to.cpu.since(from.cpu) {
		c.Cores[name] = cpu.Seconds() / seconds
		c.Written[name] = float64(to.written[name]-from.written[name]) / messages
	}
	return c, nil
}

// evenly calls do for each number, so many of them a second.
func evenly(ctx context.Context, total int64, perSecond int, do func(n int64) error) error {
	began := time.Now()
	for n := range total {
		nap(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := do(n); err != nil {
			return err
		}
	}
	return nil
}

// written is how many bytes the processes have handed to the disk so far: write_bytes of /proc/PID/io, which counts
// what goes to the storage layer and not what a later write takes back (man 5 proc_pid_io).
func (w watched) written() (map[string]int64, error) {
	bytes := map[string]int64{}
	for name, pids := range w {
		for _, pid := range pids {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
			if err != nil {
				return nil, fmt.Errorf("read what process %d has written: %w", pid, err)
			}
			_, rest, _ := strings.Cut(string(text), "\nwrite_bytes: ")
			number, _, _ := strings.Cut(rest, "\n")
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read what process %d has written: %w", pid, err)
			}
			bytes[name] += n
		}
	}
	return bytes, nil
}
