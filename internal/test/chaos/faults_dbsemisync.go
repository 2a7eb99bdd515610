package chaos

import (
	"context"
	"errors"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// notices is how long whoever looks after a source waits before it is taken for gone, after it stopped answering.
const notices = 2 * time.Second

// semiSyncFaults hit a source and its semi-synchronous replicas. Here the harness is whoever looks after them.
func semiSyncFaults() []fault {
	return ofCluster(stack.SemiSync, []fault{
		{name: "source kill -9", most: 10 * time.Second, strike: failover(killNode, promote, startNode)},
		{name: "source frozen", least: 5 * time.Second, most: 15 * time.Second,
			strike: failover(freezeNode, promote, startNode)},
		{name: "source cut off", least: 5 * time.Second, most: 15 * time.Second,
			strike: failover(cutOffNode, promote, mendAndStart)},
		{name: "source read_only", strike: failover(set("super_read_only = ON"), switchOver, nothing)},
		{name: "source and replicas kill -9", most: 5 * time.Second, strike: killAllNodes(reopen)},
		{name: "replicas cut off", unit: "times resumed", least: 8 * time.Second, most: 20 * time.Second,
			strike: cutOffReplicas},
		{name: "replica frozen", unit: "times resumed", least: 8 * time.Second, most: 20 * time.Second,
			strike: freezeOther},
	})
}

// promote waits until the source counts as gone, fences it, and makes a replica the source.
func promote(ctx context.Context, w *world, old *stack.Server) error {
	_ = wait.For(ctx, notices)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute) // what was begun is ended too
	defer cancel()
	if err := old.Kill(); err != nil { // a frozen one, or one that is cut off, might go on
		return err
	}
	at, err := w.stack.Promote(ctx, w.stack.Index(old))
	if err == nil {
		w.say("%s is the source now", w.stack.Databases[at].NodeName())
	}
	return err
}

// switchOver makes another node the source, as a person does before a repair.
func switchOver(ctx context.Context, w *world, old *stack.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	_, err := w.stack.SwitchOver(ctx, w.stack.Index(old))
	return err
}

func mendAndStart(ctx context.Context, w *world, node *stack.Server) error {
	return errors.Join(mendNode(ctx, w, node), node.Start())
}

// followSource makes a node that was the source a replica: with a copy of the data of the source, because it may have
// committed what no replica has received.
func followSource(ctx context.Context, w *world, node *stack.Server) error {
	at, err := w.primary(ctx)
	if err != nil {
		return err
	}
	i := w.stack.Index(node)
	if i == at {
		return nil
	}
	follows, err := w.stack.Follows(ctx, i)
	if err != nil || follows {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	stray, err := w.stack.Rebuild(ctx, i, at)
	if err != nil {
		return err
	}
	if stray != "" {
		w.say("%s had committed by itself what the source does not know: %s", node.NodeName(), stray)
		w.add(strays)
	}
	return nil
}

// reopen gives the source its clients again when its replicas have what it has.
func reopen(ctx context.Context, w *world, source int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	return w.stack.Reopen(ctx, source)
}

func levelReplicas(ctx context.Context, w *world) error {
	at, err := w.primary(ctx)
	if err != nil {
		return err
	}
	return w.stack.Level(ctx, at)
}

// cutOffReplicas leaves the source alone: each COMMIT waits, is visible to nobody meanwhile, and is decided long after
// the daemon has hung up.
func cutOffReplicas(ctx context.Context, w *world, p planned) (int, error) {
	at, err := w.primary(ctx)
	if err != nil {
		return 0, err
	}
	w.flowing(ctx)
	w.charge(daemons)
	source := w.stack.Databases[at]
	if err := cutOffNode(ctx, w, source); err != nil {
		return 0, err
	}
	_ = wait.For(ctx, p.lasts)
	since := time.Now()
	if err := mendNode(ctx, w, source); err != nil {
		return 0, err
	}
	hits := w.resumed(ctx, p.fault.name, since)
	return hits, w.rejoined(ctx, source)
}
