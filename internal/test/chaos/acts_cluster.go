package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// leads is the index of the node that leads the main queue, -1 while nobody knows one. without is a node not to ask.
func (w *world) leads(without int) int {
	for i, node := range w.stack.Nodes {
		if i == without {
			continue
		}
		text, err := ask(w.ctx, node, lookUp(queue)+`, case
			ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q))) of {_, N} -> N; _ -> none end`)
		named := func(n *stack.Server) bool { return strings.Contains(text, n.NodeName()) }
		if at := slices.IndexFunc(w.stack.Nodes, named); err == nil && at >= 0 {
			return at
		}
	}
	return -1
}

// leader waits for the queue to have a leader, which is the strike's node from now on.
func leader(s *strike) {
	s.until(20*time.Second, func() bool { s.at = s.leads(-1); return s.at >= 0 })
	s.at = max(s.at, 0)
	s.node = s.stack.Nodes[s.at]
}

// moved is 1 when another node than the strike's leads the queue.
func moved(s *strike) int { return min(1, max(0, s.leads(s.at)+1)) } // the strike's node is not asked

// busiest is the node, other than without, that most of the daemons' connections go to.
func (w *world) busiest(without int) (busy int) {
	busy = -1
	for i, l := range w.links[onRabbit] {
		if i != without && (busy < 0 || l.Links() > w.links[onRabbit][busy].Links()) {
			busy = i
		}
	}
	return busy
}

// follower chooses the busiest node of those that do not lead the queue. The others can do everything but what needs
// all nodes to agree, so the daemons must be at work again before it is thawed.
func follower(s *strike) {
	leader(s)
	s.node = s.stack.Nodes[s.busiest(s.at)]
}

// appliedLate counts what is applied in the last part of the time, when all timeouts are over.
func appliedLate(s *strike) int {
	n := s.applied()
	if s.began.IsZero() || time.Since(s.began) < s.lasts-5*time.Second {
		s.before = n
	}
	return n - s.before
}

// cutNode takes the busiest node away from the daemons.
func cutNode(s *strike) {
	s.at = s.busiest(-1)
	s.before = s.linksElsewhere()
	s.links[onRabbit][s.at].Refuse(true)
	s.links[onRabbit][s.at].Cut()
}

func mendLinks(s *strike) { s.links[onRabbit][s.at].Refuse(false) }

func (s *strike) linksElsewhere() (n int) {
	for i, l := range s.links[onRabbit] {
		if i != s.at {
			n += l.Links()
		}
	}
	return n
}

// elsewhere counts the daemons' connections that came to be at another node.
func elsewhere(s *strike) int { return s.linksElsewhere() - s.before }

// others runs an Erlang expression about the strike's node in all others, also when the run is cut short.
func (s *strike) others(expression string) (answers []string) {
	var errs []error
	for _, other := range s.stack.Nodes {
		if other != s.node {
			answer, err := ask(context.WithoutCancel(s.ctx), other, fmt.Sprintf(expression, s.node.NodeName()))
			answers, errs = append(answers, answer), append(errs, err)
		}
	}
	must.OK(errors.Join(errs...))
	return answers
}

// partition cuts the links between the leader and the other nodes: they change the cookie they have for it, so that no
// link comes back, and end the ones there are. The leader is the minority and pauses; the daemons still reach all
// nodes.
func partition(s *strike) {
	leader(s)
	s.others("N = '%s', erlang:set_cookie(N, cut), erlang:disconnect_node(N)")
}

func healPartition(s *strike) {
	err := must.Catch(func() {
		if slices.Contains(s.others("lists:member('%s', nodes())"), "true") {
			s.say("the links between the nodes came back by themselves")
			s.hits = 0
		}
	})
	must.OK(errors.Join(err, must.Catch(func() { s.others("erlang:set_cookie('%s', erlang:get_cookie())") })))
	s.wait(2*time.Minute, "the node has not come back to its peers", func() error {
		running, err := ask(s.ctx, s.node, "rabbit:is_running() andalso length(rabbit_nodes:all_running())")
		if err == nil && running != fmt.Sprint(len(s.stack.Nodes)) {
			err = errors.New(running)
		}
		return err
	})
}

// onQueues runs an Erlang expression with each of our queues as Q, on the node, also when the run is cut short.
func (w *world) onQueues(node *stack.Server, expression string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Minute)
	defer cancel()
	return must.Get(node.Eval(ctx, fmt.Sprintf(`[begin {resource, _, _, Name} = amqqueue:get_name(Q), %s end ||
		Q <- rabbit_amqqueue:list(<<"/">>)]`, expression)))
}

// moveLeader hands the lead of every queue from one node to the next, as rabbitmq-queues does when it rebalances, which
// moves no queue where the leads are even already.
func moveLeader(s *strike) {
	for began := time.Now(); s.ctx.Err() == nil; {
		leader(s)
		next := s.stack.Nodes[(s.at+1)%len(s.stack.Nodes)]
		// A node that has not caught up is refused, and the leader stays.
		s.onQueues(s.node, fmt.Sprintf("catch rabbit_quorum_queue:transfer_leadership(Q, '%s')", next.NodeName()))
		if s.until(10*time.Second, func() bool { return moved(s) > 0 }) {
			s.hits++
		}
		if time.Since(began) > s.lasts {
			break
		}
		_ = s.pass(time.Second)
	}
	s.lasts = 0
}

// policy gives a policy to the queues that match a pattern, also when the run is cut short.
func (w *world) policy(name, pattern, definition string) {
	must.Get(w.eval(fmt.Sprintf(`ok = rabbit_policy:set(<<"/">>, <<"%s">>, <<"%s">>, [%s], 0, <<"queues">>, <<"chaos">>)`,
		name, pattern, definition)))
}

func dropPolicy(name string) act {
	return func(s *strike) {
		must.Get(s.eval(fmt.Sprintf(`ok = rabbit_policy:delete(<<"/">>, <<"%s">>, <<"chaos">>)`, name)))
	}
}

// changePolicies gives all queues one policy after the other, none of which may take a message away.
func changePolicies(s *strike) {
	definitions := []string{
		`{<<"max-length">>, 1000000}, {<<"overflow">>, <<"reject-publish">>}`,
		`{<<"delivery-limit">>, 500}`,
		`{<<"max-length-bytes">>, 1000000000}, {<<"overflow">>, <<"reject-publish">>}`,
		`{<<"message-ttl">>, 3600000}`,
	}
	for began := time.Now(); s.hits < len(definitions) || time.Since(began) < s.lasts; s.hits++ {
		s.policy("upkeep", "^stock[.]", definitions[s.hits%len(definitions)])
		if s.pass(500*time.Millisecond) != nil {
			break
		}
	}
	s.lasts = 0
}

// restartInTurn ends each node in good order and starts it again, and goes on when it is back in all queues: as a
// cluster is upgraded.
func restartInTurn(s *strike) {
	for _, node := range s.stack.Nodes {
		if s.ctx.Err() != nil {
			break
		}
		must.OK(node.Stop())
		_ = s.pass(s.lasts)
		must.OK(node.Start())
		s.backInCluster(node)
		s.hits++
	}
	s.lasts = 0
}

// backInCluster waits until a node runs, sees all the others, and every queue has all its members.
func (w *world) backInCluster(node *stack.Server) {
	w.wait(2*time.Minute, node.NodeName()+" is not back with its queues", func() error {
		text, err := ask(w.ctx, node, `case rabbit:is_running() of true -> {length(rabbit_nodes:all_running()),
			lists:min([length([N || N <- rabbit_quorum_queue:get_replicas(Q),
			is_pid(rpc:call(N, erlang, whereis, [element(1, amqqueue:get_pid(Q))], 2000))]) ||
			Q <- rabbit_amqqueue:list(<<"/">>)])}; false -> no end`)
		if err == nil && text != fmt.Sprintf("{%d, %[1]d}", len(w.stack.Nodes)) {
			err = errors.New(text)
		}
		return err
	})
}

// replaceNode takes a node that does not lead the main queue out of all queues and out of the cluster, empties it, lets
// it join again, and gives it its share of the queues.
func replaceNode(s *strike) {
	leader(s)
	all, lead := s.stack.Nodes, s.node
	node := all[(s.at+1+s.variant%(len(all)-1))%len(all)]
	member := func(do string) {
		text := s.onQueues(lead, fmt.Sprintf("{Name, catch rabbit_quorum_queue:"+do+"}", node.NodeName()))
		if strings.Contains(text, "error") {
			s.say("%s: %s", do, text)
		}
	}
	member("delete_member(<<\"/\">>, Name, '%s')")
	must.Get(node.Ctl("stop_app"))
	must.Get(node.Ctl("reset")) // which leaves the cluster
	pause(s)
	must.Get(node.Ctl("join_cluster", lead.NodeName()))
	must.Get(node.Ctl("start_app"))
	member("add_member(<<\"/\">>, Name, '%s', 60000)")
	s.hits = 1
	s.backInCluster(node)
}
