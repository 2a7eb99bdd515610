package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Targets. While a fault lasts it has its targets for itself: nobody starts a server that somebody else keeps down.
const (
	onRabbit  = "rabbitmq"
	onMySQL   = "mysql"
	onRedis   = "redis"
	onDaemon0 = "daemon 0"
	onDaemon1 = "daemon 1"
)

// fault is a kind of fault.
type fault struct {
	name        string
	unit        string            // of what it hits
	nodes       int               // 1 or 3 if it needs so many RabbitMQ nodes; 0 is any
	databases   int               // 3 if it needs a database cluster of so many nodes
	replication stack.Replication // of that cluster
	upkeep      bool              // what operators do to a cluster, in a phase of its own
	least, most time.Duration
	short       time.Duration // how long it lasts in a round; 0 means least
	targets     func(p planned) []string
	// strike does it, undoes it, and says how much it hit. An error says that it could not be done or not be undone, which
	// ends the run.
	strike strike
}

func on(targets ...string) func(planned) []string { return func(planned) []string { return targets } }

// faults lists all kinds.
func faults() []fault {
	return slices.Concat(daemonFaults(), rabbitFaults(), mysqlFaults(), redisFaults(), linkFaults(), otherFaults(),
		queueFaults(), clusterFaults(), upkeepFaults(), databaseFaults(), groupFaults(), semiSyncFaults())
}

// strike works the plan off until time is over, then tries what has missed so far once more, alone.
func (w *world) strike(ctx context.Context, plan []planned) error {
	end := time.Now().Add(w.o.Duration)
	var (
		next int
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs [hands]error
	)
	take := func() (planned, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == len(plan) || !w.o.Round && time.Now().After(end) || errors.Join(errs[:]...) != nil {
			return planned{}, false
		}
		next++
		return plan[next-1], true
	}
	for h := range hands {
		wg.Go(func() {
			for ctx.Err() == nil {
				p, ok := take()
				if !ok {
					return
				}
				if err := w.strikeOne(ctx, p); err != nil {
					mu.Lock()
					errs[h] = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for range 2 {
		for _, p := range w.missed(plan) {
			if err := errors.Join(errs[:]...); err != nil || ctx.Err() != nil {
				return errors.Join(err, context.Cause(ctx))
			}
			w.calm(ctx)
			errs[0] = w.strikeOne(ctx, p)
		}
	}
	return errors.Join(errors.Join(errs[:]...), context.Cause(ctx))
}

// calm waits until the daemons consume and the broker can be asked what they hold: after a leader was frozen, channels
// of RabbitMQ answer nobody for up to half a minute.
func (w *world) calm(ctx context.Context) {
	until(ctx, time.Minute, func() bool {
		_, err := w.broker.unackedNow(ctx)
		return err == nil && w.fleet.consuming(ctx) == nil
	})
}

// missed are the first entries of the kinds that were struck and have hit nothing.
func (w *world) missed(plan []planned) (again []planned) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range plan {
		s := w.struck[p.fault.name]
		known := slices.ContainsFunc(again, func(q planned) bool { return q.fault.name == p.fault.name })
		if s != nil && s.Hit == 0 && !known {
			again = append(again, p)
		}
	}
	return again
}

func (w *world) strikeOne(ctx context.Context, p planned) error {
	if err := wait.For(ctx, p.gap); err != nil {
		return nil // the run is cut short; whoever cut it says so
	}
	// in one order, or two hands wait for each other
	for _, target := range slices.Sorted(slices.Values(p.fault.targets(p))) {
		w.targets[target].Lock()
		defer w.targets[target].Unlock()
	}
	w.add(begun)
	began := time.Now()
	hits, err := p.fault.strike(ctx, w, p)
	w.add(ended)
	if err != nil {
		return fmt.Errorf("%s: %w", p.fault.name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.struck[p.fault.name]
	if s == nil {
		s = &Struck{Name: p.fault.name, Unit: p.fault.unit}
		w.struck[p.fault.name] = s
	}
	s.Times++
	s.Hits += hits
	if hits > 0 {
		s.Hit++
	}
	w.say("%-26s %5.1fs, hit %d %s", p.fault.name, time.Since(began).Seconds(), hits, p.fault.unit)
	return nil
}

func (w *world) struckInOrder() (all []Struck) {
	for _, f := range faults() {
		if s := w.struck[f.name]; s != nil {
			all = append(all, *s)
		}
	}
	return all
}

func (w *world) unreached() (names []string) {
	for _, f := range faults() {
		if w.o.wants(f) && w.struck[f.name] == nil {
			names = append(names, f.name)
		}
	}
	return names
}

// until asks every 50 ms until the answer is yes, at most for d.
func until(ctx context.Context, d time.Duration, yes func() bool) bool {
	for deadline := time.Now().Add(d); !yes(); {
		if time.Now().After(deadline) || wait.For(ctx, 50*time.Millisecond) != nil {
			return false
		}
	}
	return true
}
