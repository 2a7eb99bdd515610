package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// groupFaults hit MySQL's group replication. A primary that comes back is a secondary: another one stays the primary.
func groupFaults() []fault {
	return ofCluster(stack.Group, []fault{
		{name: "group primary kill -9", most: 10 * time.Second, strike: failover(killNode, nil, startNode)},
		{name: "group primary frozen", least: 20 * time.Second, most: 30 * time.Second,
			strike: failover(freezeNode, nil, thawNode)},
		{name: "group primary cut off", least: 20 * time.Second, most: 30 * time.Second,
			strike: failover(cutOffNode, nil, mendNode)},
		{name: "group primary demoted", strike: failover(demote, nil, nothing)},
		{name: "group primary read_only", unit: "times resumed", least: 3 * time.Second, most: 10 * time.Second,
			strike: closed},
		{name: "group all kill -9", most: 5 * time.Second, strike: killAllNodes(foundAgain)},
		{name: "group other frozen", unit: "times resumed", least: 8 * time.Second, most: 20 * time.Second,
			strike: freezeOther},
	})
}

func nothing(context.Context, *world, *stack.Server) error { return nil }

// demote lets another node be the primary, as a person does before a repair.
func demote(ctx context.Context, w *world, _ *stack.Server) error {
	other, err := w.other(ctx)
	if err != nil {
		return err
	}
	db, err := w.openNode(other)
	if err != nil {
		return err
	}
	defer db.Close()
	var said string
	err = db.QueryRowContext(ctx, "SELECT group_replication_set_as_primary(@@server_uuid)").Scan(&said)
	if err != nil {
		return fmt.Errorf("make %s the primary: %w", other.NodeName(), err)
	}
	return nil
}

// closed makes the primary read-only by hand. It stays the primary: nobody may be written to until that is undone.
func closed(ctx context.Context, w *world, p planned) (int, error) {
	at, err := w.primary(ctx)
	if err != nil {
		return 0, err
	}
	node := w.stack.Databases[at]
	w.flowing(ctx)
	w.charge(daemons)
	missed := w.fleet.said(missesMySQL)
	if err := set("super_read_only = ON")(ctx, w, node); err != nil {
		return 0, err
	}
	_ = wait.For(ctx, p.lasts)
	err = errors.Join(set("super_read_only = OFF")(ctx, w, node), set("read_only = OFF")(ctx, w, node))
	since := time.Now()
	if err != nil {
		return 0, err
	}
	hits := w.resumed(ctx, p.fault.name, since)
	if w.fleet.said(missesMySQL) == missed {
		w.say("%s: no daemon missed its database", p.fault.name)
		hits = 0
	}
	return hits, w.rejoined(ctx, node)
}

// joinGroup makes a node one of the group again. One that was away for too long finds that out when it hears of the
// others again, and joins by itself. One that was started, or gave up, is told to.
func joinGroup(ctx context.Context, w *world, node *stack.Server) error {
	const patience = 60 * time.Second
	state := ""
	var err error
	online := func() bool { state, err = w.stateInGroup(ctx, node); return state == "ONLINE" }
	known := func() bool { return online() || state == "OFFLINE" || state == "ERROR" }
	if until(ctx, patience, known) && state == "ONLINE" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if state != "OFFLINE" {
		w.say("%s does not come back to its group (%s, %v), and is started again", node.NodeName(), state, err)
		if err := errors.Join(node.Kill(), node.Start()); err != nil {
			return err
		}
	}
	return w.stack.Join(ctx, w.stack.Index(node))
}

// stateInGroup is what a node says of itself.
func (w *world) stateInGroup(ctx context.Context, node *stack.Server) (state string, err error) {
	db, err := w.openNode(node)
	if err != nil {
		return "", err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = db.QueryRowContext(ctx, "SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE "+
		"MEMBER_ID = @@server_uuid OR MEMBER_ID = ''").Scan(&state)
	return state, err
}

// foundAgain is what a person does when all nodes of a group were away: the one that has most founds the group again.
func foundAgain(ctx context.Context, w *world, _ int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	at, err := w.stack.HasMost(ctx)
	if err != nil {
		return err
	}
	return w.stack.Found(ctx, at)
}
