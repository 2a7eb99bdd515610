package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// upkeepFaults are what operators of a cluster do to it under load. Nothing of it is a fault of anybody.
func upkeepFaults() []fault {
	work := func(name, unit string, short, least, most int, do strike) fault {
		return fault{
			name: name, unit: unit, nodes: 3, upkeep: true, targets: on(onRabbit), short: time.Duration(short) * time.Second,
			least: time.Duration(least) * time.Second, most: time.Duration(most) * time.Second, strike: do,
		}
	}
	return []fault{
		work("leader moved", "leaders moved", 4, 4, 10, moveLeader),
		work("policies changed", "changes", 5, 5, 15, changePolicies),
		work("brokers restarted in turn", "nodes restarted", 1, 1, 5, restartInTurn),
		work("node removed and added", "nodes joined anew", 3, 3, 10, replaceNode),
	}
}

// onQueues runs an Erlang expression with each of our queues as Q, on the node.
func onQueues(ctx context.Context, node *stack.Server, expression string) (string, error) {
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return node.Eval(ask, fmt.Sprintf(`[begin {resource, _, _, Name} = amqqueue:get_name(Q), %s end ||
		Q <- rabbit_amqqueue:list(<<"/">>)]`, expression))
}

// moveLeader hands the lead of every queue from one node to the next, as rabbitmq-queues does when it rebalances, which
// moves no queue where the leads are even already.
func moveLeader(ctx context.Context, w *world, p planned) (hits int, err error) {
	for began := time.Now(); ctx.Err() == nil; {
		leader := w.leader(ctx)
		next := w.stack.Nodes[(leader+1)%len(w.stack.Nodes)]
		// A node that has not caught up is refused, and the leader stays.
		if _, err := onQueues(ctx, w.stack.Nodes[leader], fmt.Sprintf(
			"catch rabbit_quorum_queue:transfer_leadership(Q, '%s')", next.NodeName())); err != nil {
			return hits, err
		}
		hits += w.moved(ctx, leader, 10*time.Second)
		if time.Since(began) > p.lasts {
			break
		}
		_ = wait.For(ctx, time.Second)
	}
	return hits, nil
}

// changePolicies gives all queues one policy after the other, none of which may take a message away, and takes the last
// one away.
func changePolicies(ctx context.Context, w *world, p planned) (hits int, err error) {
	ask := func(expression string) error {
		_, err := w.broker.eval(context.WithoutCancel(ctx), expression)
		return err
	}
	definitions := []string{
		`{<<"max-length">>, 1000000}, {<<"overflow">>, <<"reject-publish">>}`,
		`{<<"delivery-limit">>, 500}`,
		`{<<"max-length-bytes">>, 1000000000}, {<<"overflow">>, <<"reject-publish">>}`,
		`{<<"message-ttl">>, 3600000}`,
	}
	for began := time.Now(); ctx.Err() == nil; {
		err = ask(fmt.Sprintf(`ok = rabbit_policy:set(<<"/">>, <<"upkeep">>, <<"^stock[.]">>, [%s], 0, <<"queues">>,
			<<"chaos">>)`, definitions[hits%len(definitions)]))
		if err != nil {
			break
		}
		hits++
		if hits >= len(definitions) && time.Since(began) > p.lasts {
			break
		}
		_ = wait.For(ctx, 500*time.Millisecond)
	}
	return hits, errors.Join(err, ask(`ok = rabbit_policy:delete(<<"/">>, <<"upkeep">>, <<"chaos">>)`))
}

// restartInTurn ends each node in good order and starts it again, and goes on when it is back in all queues: as a
// cluster is upgraded.
func restartInTurn(ctx context.Context, w *world, p planned) (hits int, err error) {
	for _, node := range w.stack.Nodes {
		if ctx.Err() != nil {
			return hits, nil
		}
		if err := node.Stop(); err != nil {
			return hits, err
		}
		_ = wait.For(ctx, p.lasts)
		if err := node.Start(); err != nil {
			return hits, err
		}
		if err := w.backInCluster(ctx, node); err != nil {
			return hits, err
		}
		hits++
	}
	return hits, nil
}

// backInCluster waits until a node runs, sees all the others, and every queue has all its members.
func (w *world) backInCluster(ctx context.Context, node *stack.Server) error {
	var last string
	back := until(ctx, 2*time.Minute, func() bool {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		text, err := node.Eval(ask, `case rabbit:is_running() of true -> {length(rabbit_nodes:all_running()),
			lists:min([length([N || N <- rabbit_quorum_queue:get_replicas(Q),
			is_pid(rpc:call(N, erlang, whereis, [element(1, amqqueue:get_pid(Q))], 2000))]) ||
			Q <- rabbit_amqqueue:list(<<"/">>)])}; false -> no end`)
		last = fmt.Sprint(text, err)
		return err == nil && text == fmt.Sprintf("{%d, %[1]d}", len(w.stack.Nodes))
	})
	if !back && ctx.Err() == nil {
		return fmt.Errorf("node %s is not back with its queues after two minutes: %s", node.NodeName(), last)
	}
	return nil
}

// replaceNode takes a node that does not lead the main queue out of all queues and out of the cluster, empties it, lets
// it join again, and gives it its share of the queues.
func replaceNode(ctx context.Context, w *world, p planned) (int, error) {
	leader := w.leader(ctx)
	at := (leader + 1 + int(p.variant)%(len(w.stack.Nodes)-1)) % len(w.stack.Nodes)
	node, other := w.stack.Nodes[at], w.stack.Nodes[leader]
	member := func(do string) error {
		text, err := onQueues(ctx, other, fmt.Sprintf("{Name, catch rabbit_quorum_queue:"+do+"}", node.NodeName()))
		if err == nil && strings.Contains(text, "error") {
			w.say("%s: %s", do, text)
		}
		return err
	}
	if err := member("delete_member(<<\"/\">>, Name, '%s')"); err != nil {
		return 0, err
	}
	for _, step := range [][]string{
		{"stop_app"}, {"reset"}, // which leaves the cluster
	} {
		if _, err := node.Ctl(step...); err != nil {
			return 0, err
		}
	}
	_ = wait.For(ctx, p.lasts)
	for _, step := range [][]string{{"join_cluster", other.NodeName()}, {"start_app"}} {
		if _, err := node.Ctl(step...); err != nil {
			return 0, err
		}
	}
	if err := member("add_member(<<\"/\">>, Name, '%s', 60000)"); err != nil {
		return 0, err
	}
	return 1, w.backInCluster(ctx, node)
}
