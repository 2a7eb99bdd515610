package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

func clusterFaults() []fault {
	return []fault{
		{name: "leader kill -9", unit: "leaders lost", nodes: 3, targets: on(onRabbit), least: 3 * time.Second,
			most: 10 * time.Second, strike: killLeader},
		{name: "leader frozen", unit: "leaders lost", nodes: 3, targets: on(onRabbit), least: 30 * time.Second,
			most: 30 * time.Second, short: 20 * time.Second, strike: freezeLeader},
		{name: "follower frozen", unit: "messages applied meanwhile", nodes: 3, targets: on(onRabbit),
			least: 30 * time.Second, most: 30 * time.Second, short: 25 * time.Second, strike: freezeFollower},
		{name: "daemons' node cut off", unit: "links moved", nodes: 3, targets: on(onRabbit), least: 8 * time.Second,
			most: 15 * time.Second, strike: cutNode},
		{name: "leader cut from its peers", unit: "leaders lost", nodes: 3, targets: on(onRabbit), least: 8 * time.Second,
			most: 20 * time.Second, strike: partition},
	}
}

// frozenAtMost must be less than Erlang's net tick (a minute), after which the other nodes take a frozen one for gone.
const frozenAtMost = 45 * time.Second

// leader waits for the queue to have one.
func (w *world) leader(ctx context.Context) int {
	leader := -1
	until(ctx, 20*time.Second, func() bool { leader = w.broker.leader(ctx, -1); return leader >= 0 })
	return max(leader, 0)
}

// moved waits until another node than lost leads the queue.
func (w *world) moved(ctx context.Context, lost int, within time.Duration) (hits int) {
	until(ctx, within, func() bool {
		if now := w.broker.leader(ctx, lost); now >= 0 && now != lost {
			hits = 1
		}
		return hits == 1
	})
	return hits
}

func killLeader(ctx context.Context, w *world, p planned) (int, error) {
	leader := w.leader(ctx)
	node := w.stack.Nodes[leader]
	if err := node.Kill(); err != nil {
		return 0, err
	}
	began := time.Now()
	hits := w.moved(ctx, leader, 30*time.Second)
	_ = wait.For(ctx, p.lasts-time.Since(began))
	return hits, node.Start()
}

// freezeLeader lasts until another node leads, however slow the machine is.
func freezeLeader(ctx context.Context, w *world, p planned) (int, error) {
	leader := w.leader(ctx)
	node := w.stack.Nodes[leader]
	if err := node.Freeze(); err != nil {
		return 0, err
	}
	began := time.Now()
	hits := w.moved(ctx, leader, frozenAtMost)
	_ = wait.For(ctx, p.lasts-time.Since(began))
	return hits, node.Thaw()
}

// freezeFollower freezes the node that most of the daemons' connections go to, of those that do not lead the queue. The
// others can do everything but what needs all nodes to agree, so the daemons must be at work again before it is thawed.
func freezeFollower(ctx context.Context, w *world, p planned) (int, error) {
	leader, busy := w.leader(ctx), -1
	for i, l := range w.amqp {
		if i != leader && (busy < 0 || l.Links() > w.amqp[busy].Links()) {
			busy = i
		}
	}
	if err := w.stack.Nodes[busy].Freeze(); err != nil {
		return 0, err
	}
	const late = 5 * time.Second // the last part, when all timeouts are over
	_ = wait.For(ctx, p.lasts-late)
	before := w.applied(ctx)
	_ = wait.For(ctx, late)
	hits := 0
	until(ctx, frozenAtMost-p.lasts, func() bool { hits = w.applied(ctx) - before; return hits > 0 })
	return hits, w.stack.Nodes[busy].Thaw()
}

// applied is the number of success rows.
func (w *world) applied(ctx context.Context) (n int) {
	if err := w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1").Scan(
		&n); err != nil {
		w.say("cannot count what is applied: %v", err) // a database that another fault has hit
	}
	return n
}

// cutNode takes the node away that most of the daemons' connections go to, and counts those that came to be elsewhere.
func cutNode(ctx context.Context, w *world, p planned) (int, error) {
	busy := 0
	for i, l := range w.amqp {
		if l.Links() > w.amqp[busy].Links() {
			busy = i
		}
	}
	elsewhere := func() (n int) {
		for i, l := range w.amqp {
			if i != busy {
				n += l.Links()
			}
		}
		return n
	}
	before := elsewhere()
	w.amqp[busy].Refuse(true)
	w.amqp[busy].Cut()
	_ = wait.For(ctx, p.lasts)
	hits := 0
	until(ctx, 30*time.Second, func() bool { hits = elsewhere() - before; return hits > 0 })
	w.amqp[busy].Refuse(false)
	return max(0, hits), nil
}

// partition cuts the links between the leader and the other nodes: they change the cookie they have for it, so that no
// link comes back, and end the ones there are. The leader is the minority and pauses; the daemons still reach all
// nodes.
func partition(ctx context.Context, w *world, p planned) (int, error) {
	leader := w.leader(ctx)
	node := w.stack.Nodes[leader]
	others := func(expression string) (answers []string, err error) {
		for i, other := range w.stack.Nodes {
			if i != leader {
				ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
				answer, failed := other.Eval(ask, fmt.Sprintf(expression, node.NodeName()))
				answers, err = append(answers, answer), errors.Join(err, failed)
				cancel()
			}
		}
		return answers, err
	}
	const restore = "erlang:set_cookie('%s', erlang:get_cookie())"
	if _, err := others("N = '%s', erlang:set_cookie(N, cut), erlang:disconnect_node(N)"); err != nil {
		_, healed := others(restore)
		return 0, errors.Join(err, healed)
	}
	began := time.Now()
	hits := w.moved(ctx, leader, frozenAtMost)
	_ = wait.For(ctx, p.lasts-time.Since(began))
	linked, err := others("lists:member('%s', nodes())")
	if slices.Contains(linked, "true") {
		w.say("the links between the nodes came back by themselves")
		hits = 0
	}
	if _, healed := others(restore); err != nil || healed != nil {
		return hits, errors.Join(err, healed)
	}
	back := until(ctx, 2*time.Minute, func() bool {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		running, err := node.Eval(ask, "rabbit:is_running() andalso length(rabbit_nodes:all_running())")
		return err == nil && running == fmt.Sprint(len(w.stack.Nodes))
	})
	if !back && ctx.Err() == nil {
		return hits, errors.New("the node has not come back to its peers within two minutes")
	}
	return hits, nil
}
