package chaos

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

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
	for i, l := range w.links[rabbitmq] {
		if i != without && (busy < 0 || l.Links() > w.links[rabbitmq][busy].Links()) {
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
	s.links[rabbitmq][s.at].Refuse(true)
	s.links[rabbitmq][s.at].Cut()
}

func mendLinks(s *strike) { s.links[rabbitmq][s.at].Refuse(false) }

func (s *strike) linksElsewhere() (n int) {
	for i, l := range s.links[rabbitmq] {
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
	s.answers(s.node, "rabbit:is_running() andalso length(rabbit_nodes:all_running())", fmt.Sprint(len(s.stack.Nodes)),
		"the node has not come back to its peers")
}

// answers waits until an Erlang expression has this value in a node.
func (w *world) answers(node *stack.Server, expression, want, otherwise string) {
	w.wait(2*time.Minute, otherwise, func() error {
		text, err := ask(w.ctx, node, expression)
		if err == nil && text != want {
			err = errors.New(text)
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
	for began := time.Now(); s.ctx.Err() == nil && time.Since(began) <= s.lasts; _ = s.pass(time.Second) {
		leader(s)
		next := s.stack.Nodes[(s.at+1)%len(s.stack.Nodes)]
		// A node that has not caught up is refused, and the leader stays.
		s.onQueues(s.node, fmt.Sprintf("catch rabbit_quorum_queue:transfer_leadership(Q, '%s')", next.NodeName()))
		if s.until(10*time.Second, func() bool { return moved(s) > 0 }) {
			s.hits++
		}
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
	w.answers(node, `case rabbit:is_running() of true -> {length(rabbit_nodes:all_running()),
		lists:min([length([N || N <- rabbit_quorum_queue:get_replicas(Q),
		is_pid(rpc:call(N, erlang, whereis, [element(1, amqqueue:get_pid(Q))], 2000))]) ||
		Q <- rabbit_amqqueue:list(<<"/">>)])}; false -> no end`,
		fmt.Sprintf("{%d, %[1]d}", len(w.stack.Nodes)), node.NodeName()+" is not back with its queues")
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

// databaseNodes is how many nodes a database cluster has.
const databaseNodes = 3

// cluster is what differs between the kinds of database clusters.
type cluster struct {
	name        string
	replication stack.Replication
	node        string            // what a node says of its name, in SQL
	causal      map[string]string // the settings of a session that reads what the cluster has committed
	sees        string            // asks a node of how many it knows that they are well
	preferred   bool              // whether everybody is sent to the first node again when all are well
	back        act               // makes a node that runs one of the cluster again
	replicas    bool              // they must be waited for, to hold what the source does
	kinds       []kind
}

// losing is the cluster whose failover loses commits.
const losing = "losing"

// clusters are those there are. The primary is the node that the proxy before one sends everybody to. One of group
// replication that comes back is a secondary: another one stays the primary. For a source and its replicas the harness
// is whoever looks after them.
func clusters() []*cluster {
	const ofMySQL = "CONCAT('node', @@GLOBAL.server_id)"
	return []*cluster{
		{name: "galera", replication: stack.Galera, node: "@@GLOBAL.wsrep_node_name", preferred: true,
			causal: map[string]string{"wsrep_sync_wait": "1"}, back: awaitNode,
			sees: "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'WSREP_CLUSTER_SIZE'",
			kinds: []kind{
				{name: "database kill -9", most: 10, begin: primary(kill, mark), end: back(start)},
				{name: "database frozen", least: 15, most: 25, begin: primary(freeze, mark), end: back(thaw)},
				{name: "database cut off", least: 15, most: 25, end: back(global("wsrep_provider_options = 'gmcast.isolate=0'")),
					begin: primary(global("wsrep_provider_options = 'gmcast.isolate=1'"), mark)},
				{name: "database read_only", least: 3, most: 10, begin: primary(global("read_only = ON"), mark),
					end: back(global("read_only = OFF"))},
				{name: "database refuses queries", least: 3, most: 10, begin: primary(global("wsrep_reject_queries = ALL"), mark),
					end: back(global("wsrep_reject_queries = NONE"))},
				{name: "all databases kill -9", most: 5, begin: primary(killAll, mark, pause, startAll), end: rejoin},
				{name: "other database frozen", unit: "times resumed", least: 8, most: 20, begin: other(freeze, mark),
					end: both(thaw, rejoin)},
				{name: "database conflicts", unit: "transactions of daemons undone", alone: true, least: 8, most: 15,
					begin: conflicts, hit: undone},
				{name: "other database lags", unit: "write sets behind", alone: true, least: 6, most: 12, begin: lag, end: rejoin},
			}},
		{name: "group", replication: stack.Group, node: ofMySQL, back: joinGroup,
			causal: map[string]string{"group_replication_consistency": "'BEFORE'"},
			sees:   "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'",
			kinds: []kind{
				{name: "group primary kill -9", most: 10, begin: primary(kill, mark), end: back(start)},
				{name: "group primary frozen", least: 20, most: 30, begin: primary(freeze, mark), end: back(thaw)},
				{name: "group primary cut off", least: 20, most: 30, begin: primary(cutLine, mark), end: back(mendLine)},
				{name: "group primary demoted", begin: primary(demote, mark), end: back()},
				// By hand. It stays the primary: nobody may be written to until that is undone.
				{name: "group primary read_only", unit: "times resumed", least: 3, most: 10, end: both(sawMisses, rejoin),
					begin: primary(countMisses, global("super_read_only = ON"), pause, global("super_read_only = OFF"),
						global("read_only = OFF"), mark)},
				{name: "group all kill -9", most: 5, begin: primary(killAll, mark, pause, startAll, foundAgain), end: rejoin},
				{name: "group other frozen", unit: "times resumed", least: 8, most: 20, begin: other(freeze, mark),
					end: both(thaw, rejoin)},
			}},
		// The source counts its replicas and itself, and a replica the threads that work for it.
		{name: "semisync", replication: stack.SemiSync, node: ofMySQL, replicas: true, back: followSource,
			sees: "SELECT CASE WHEN @@GLOBAL.read_only THEN 1 + (SELECT COUNT(*) FROM performance_schema." +
				"replication_connection_status WHERE SERVICE_STATE = 'ON') + (SELECT COUNT(*) FROM performance_schema." +
				"replication_applier_status WHERE SERVICE_STATE = 'ON') ELSE 1 + (SELECT VARIABLE_VALUE FROM " +
				"performance_schema.global_status WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_clients') END",
			kinds: []kind{
				{name: "source kill -9", most: 10, begin: primary(kill, mark, promote), end: back(start)},
				{name: "source frozen", least: 5, most: 15, begin: primary(freeze, mark, promote), end: back(start)},
				{name: "source cut off", least: 5, most: 15, begin: primary(cutLine, mark, promote), end: back(mendLine, start)},
				{name: "source read_only", begin: primary(global("super_read_only = ON"), mark, switchOver), end: back()},
				{name: "source and replicas kill -9", most: 5, begin: primary(killAll, mark, pause, startAll, reopen), end: rejoin},
				// Each COMMIT waits, is visible to nobody meanwhile, and is decided long after the daemon has hung up.
				{name: "replicas cut off", unit: "times resumed", least: 8, most: 20,
					begin: primary(cutLine, pause, mendLine, mark), end: rejoin},
				{name: "replica frozen", unit: "times resumed", least: 8, most: 20, begin: other(freeze, mark),
					end: both(thaw, rejoin)},
			}},
		{name: losing, replication: stack.Async, node: ofMySQL, replicas: true},
	}
}

// databaseKinds hit a database cluster.
func databaseKinds() (all []kind) {
	for _, c := range clusters() {
		for _, k := range c.kinds {
			k.in, k.unit = c.name, cmp.Or(k.unit, "primaries lost")
			if !k.alone {
				k.on, k.cost, k.hit, k.patience = mysqld, daemons, resumed, 120
			}
			all = append(all, k)
		}
	}
	return all
}

// within bounds what somebody does to a cluster, also when the run is cut short.
func within(d time.Duration, do func(ctx context.Context, s *strike)) act {
	return func(s *strike) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), d)
		defer cancel()
		do(ctx, s)
	}
}

func cutLine(s *strike)  { must.OK(s.stack.CutOff(context.WithoutCancel(s.ctx), s.node)) }
func mendLine(s *strike) { must.OK(s.stack.Mend(context.WithoutCancel(s.ctx), s.node)) }

// global sets a global variable of the strike's node.
func global(variable string) act {
	return within(30*time.Second, func(ctx context.Context, s *strike) {
		s.onNode(s.node, func(db *sql.DB) { must.Exec(ctx, db, "SET GLOBAL "+variable) })
	})
}

// onNode opens the shop on one node, past the proxy. Reading there waits for what the cluster has committed.
func (w *world) onNode(node *stack.Server, do func(*sql.DB)) {
	config := must.Get(mysql.ParseDSN(node.URL()))
	config.DBName, config.Params = database, w.o.Phase.cluster.causal
	db := stack.OpenMySQL(config)
	defer db.Close()
	must.OK(must.Catch(func() { do(db) }), node.NodeName())
}

// askNode asks one node for one value, for a second at most.
func (w *world) askNode(node *stack.Server, into any, query string) error {
	ctx, cancel := context.WithTimeout(w.ctx, time.Second)
	defer cancel()
	return must.Catch(func() { w.onNode(node, func(db *sql.DB) { must.OK(db.QueryRowContext(ctx, query).Scan(into)) }) })
}

// primary does something when messages are applied, and what it begins with befalls the primary.
func primary(acts ...act) act {
	return func(s *strike) {
		s.at = must.Get(s.primary())
		s.node = s.stack.Databases[s.at]
		s.befall(acts)
	}
}

// other does something to the node that takes the primary's place last.
func other(acts ...act) act {
	return func(s *strike) {
		s.node = s.other()
		s.befall(acts)
	}
}

// befall waits until messages are applied, so that a fault meets some, and its pause is its own.
func (s *strike) befall(acts []act) {
	began := time.Now()
	s.until(time.Minute, func() bool { return s.appliedSince(began) })
	for _, a := range acts {
		a(s)
	}
}

// mark is the moment from which others have to get over it.
func mark(s *strike) { s.since = time.Now() }

// back gives the strike's node back to the cluster. It has hit when another one has its place.
func back(acts ...act) act {
	return both(append([]act{func(s *strike) {
		if at := must.Get(s.primary()); s.node != nil && at == s.at {
			s.say("%s: the proxy still sends everybody to %s", s.name, s.node.NodeName())
			s.hits = 0
		}
	}}, append(acts, rejoin)...)...)
}

// rejoin waits until the strike's node is one of the cluster again, and everybody is sent to the first node if that is
// always so when all are well. A node that was frozen takes itself for one of the cluster until it hears of the others.
func rejoin(s *strike) {
	if s.node == nil {
		return
	}
	c := s.o.Phase.cluster
	c.back(s)
	s.wait(90*time.Second, "the database cluster is not whole", func() error {
		at, err := s.primary()
		if err == nil && at != 0 && c.preferred {
			err = fmt.Errorf("the primary is node %d", at+1)
		}
		for _, node := range s.stack.Databases {
			seen := 0
			if err == nil {
				err = s.askNode(node, &seen, c.sees)
			}
			if err == nil && seen < databaseNodes {
				err = fmt.Errorf("%s sees %d nodes", node.NodeName(), seen)
			}
		}
		return err
	})
}

// awaitNode waits until a node of Galera may be written to. One may end by itself when it finds that it cannot be one
// of the cluster.
func awaitNode(s *strike) {
	err := s.node.Await()
	if err != nil && s.node.Pid() == 0 {
		s.say("%s has ended by itself, and is started again", s.node.NodeName())
		err = s.node.Start()
	}
	must.OK(err)
}

// appliedSince says whether a message was applied by a transaction of later than that. The clocks of the servers are
// ours: they run on this machine.
func (w *world) appliedSince(since time.Time) bool {
	var one int
	return w.ask(&one, "SELECT 1 FROM consumer_log WHERE consumer_status = 1 AND consumer_timestamp > ? LIMIT 1",
		since.UTC().Format("2006-01-02 15:04:05.000000")) == nil
}

// primary waits until the proxy leads to a node, and says to which.
func (w *world) primary() (at int, err error) {
	const patience = time.Minute
	if !w.until(patience, func() bool {
		var name string
		err = w.ask(&name, "SELECT "+w.o.Phase.cluster.node)
		at = slices.IndexFunc(w.stack.Databases, func(node *stack.Server) bool { return node.NodeName() == name })
		return err == nil && at >= 0
	}) {
		return -1, fmt.Errorf("the proxy has led to no node of the database cluster for %v: %w", patience,
			errors.Join(err, context.Cause(w.ctx)))
	}
	return at, nil
}

// other is the node that takes the primary's place last.
func (w *world) other() *stack.Server {
	if last := len(w.stack.Databases) - 1; must.Get(w.primary()) != last {
		return w.stack.Databases[last]
	}
	return w.stack.Databases[0]
}

// resumed is 1 when a message was applied after a fault, and notes how long that took.
func resumed(s *strike) int {
	took := time.Since(s.since)
	switch {
	case s.began.IsZero() || s.hits > 0 || s.ctx.Err() != nil:
	case s.appliedSince(s.since):
		s.say("%s: the first message was applied after %.1fs", s.name, took.Seconds())
		s.mu.Lock()
		defer s.mu.Unlock()
		t := s.tally(s.name)
		t.pauses = append(t.pauses, took.Round(100*time.Millisecond))
		return 1
	case time.Since(s.began) > s.lasts+seconds(s.patience):
		s.violation("%s: no message was applied for %v", s.name, took)
	}
	return 0
}

// killAll is a power cut that takes all nodes at once, but leaves what they have written.
func killAll(s *strike) {
	for _, node := range s.stack.Databases {
		must.OK(node.Kill())
	}
}

// startAll starts all nodes side by side: those of Galera find each other by what they remember of their last cluster;
// for the others somebody has to do something.
func startAll(s *strike) {
	must.Side(databaseNodes, func(i int) { must.OK(s.stack.Databases[i].Start()) })
	s.node = s.stack.Databases[0]
}

// conflicts is a colleague who writes the goods of the daemons' messages on another node. Whose write set the cluster
// orders later is undone there, if need be at COMMIT: that is the daemons' bad luck, and none of their messages' fault.
func conflicts(s *strike) {
	const several = 10
	written := 0
	node := s.other()
	s.onNode(node, func(db *sql.DB) {
		for end, i := time.Now().Add(s.lasts), s.variant; time.Now().Before(end) && s.ctx.Err() == nil; i++ {
			goods := make([]any, several)
			for j := range goods {
				goods[j] = (i+j*skus/several)%skus + 1
			}
			if must.Catch(func() { writeGoods(s.ctx, db, goods) }) == nil { // else it lost against a daemon
				written++
			}
			_ = s.pass(20 * time.Millisecond)
		}
	})
	s.say("%s: %d transactions on %s", s.name, written, node.NodeName())
	s.lasts = 0
}

// writeGoods changes rows and changes them back, in one transaction: the sums stay what they are.
func writeGoods(ctx context.Context, db *sql.DB, goods []any) {
	tx := must.Get(db.BeginTx(ctx, nil))
	defer func() { _ = tx.Rollback() }() // it has ended, or is of no use
	for _, change := range []string{"+ 1", "- 1"} {
		must.Get(tx.ExecContext(ctx, "UPDATE stock SET amount = amount "+change+" WHERE sku_id IN (?"+
			strings.Repeat(",?", len(goods)-1)+")", goods...))
	}
	must.OK(tx.Commit())
}

// undone counts the transactions that the primary has undone for those of other nodes.
var undone = since(func(s *strike) (n int) {
	must.OK(s.ask(&n, "SELECT CAST(SUM(VARIABLE_VALUE) AS SIGNED) FROM information_schema.GLOBAL_STATUS WHERE "+
		"VARIABLE_NAME IN ('WSREP_LOCAL_CERT_FAILURES', 'WSREP_LOCAL_BF_ABORTS')"), "count what was undone")
	return n
})

// lag makes a node that nobody is sent to fall behind, as a backup does that takes the global read lock.
func lag(s *strike) {
	s.node = s.other()
	s.onNode(s.node, func(db *sql.DB) {
		conn := must.Get(db.Conn(s.ctx))
		defer conn.Close()
		must.Exec(s.ctx, conn, "SET SESSION wsrep_sync_wait = 0", "FLUSH TABLES WITH READ LOCK") // not for itself
		defer must.Exec(context.WithoutCancel(s.ctx), conn, "UNLOCK TABLES")
		pause(s)
		s.hits = must.Value[int](s.ctx, conn, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE "+
			"VARIABLE_NAME = 'WSREP_LOCAL_RECV_QUEUE'")
	})
}

// agree looks whether all nodes of a database cluster hold the same.
func (w *world) agree() {
	c := w.o.Phase.cluster
	if c == nil {
		return
	}
	if c.replicas {
		w.stack.Level(w.ctx, must.Get(w.primary()))
	}
	for _, table := range tables {
		held := map[string][]string{} // nodes, by what they hold
		for _, node := range w.stack.Databases {
			w.onNode(node, func(db *sql.DB) {
				rows := must.Value[int](w.ctx, db, "SELECT COUNT(*) FROM "+table) // which waits for what the cluster has committed
				var name, sum string
				must.OK(db.QueryRowContext(w.ctx, "CHECKSUM TABLE "+table).Scan(&name, &sum))
				what := fmt.Sprintf("%d rows, checksum %s", rows, sum)
				held[what] = append(held[what], node.NodeName())
			})
		}
		if len(held) > 1 {
			w.violation("the nodes of the database cluster hold different rows of %s: %v", table, held)
		}
	}
}

// demote lets another node of a group be the primary, as a person does before a repair.
var demote = within(time.Minute, func(ctx context.Context, s *strike) {
	s.onNode(s.other(), func(db *sql.DB) {
		must.Value[string](ctx, db, "SELECT group_replication_set_as_primary(@@server_uuid)")
	})
})

func countMisses(s *strike) { s.before = s.fleet.said(missesMySQL) }

func sawMisses(s *strike) {
	if s.fleet.said(missesMySQL) == s.before {
		s.say("%s: no daemon missed its database", s.name)
		s.hits = 0
	}
}

// joinGroup makes a node one of the group again. One that was away for too long finds that out when it hears of the
// others again, and joins by itself. One that was started, or gave up, is told to.
func joinGroup(s *strike) {
	const patience = 60 * time.Second
	var state string
	var err error
	s.until(patience, func() bool {
		err = s.askNode(s.node, &state, "SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE "+
			"MEMBER_ID = @@server_uuid OR MEMBER_ID = ''")
		return err == nil && slices.Contains([]string{"ONLINE", "OFFLINE", "ERROR"}, state)
	})
	if state == "ONLINE" {
		return
	}
	if state != "OFFLINE" {
		s.say("%s does not come back to its group (%s, %v), and is started again", s.node.NodeName(), state, err)
		must.OK(errors.Join(s.node.Kill(), s.node.Start()))
	}
	within(patience, func(ctx context.Context, s *strike) { must.OK(s.stack.Join(ctx, s.stack.Index(s.node))) })(s)
}

// foundAgain is what a person does when all nodes of a group were away: the one that has most founds the group again.
var foundAgain = within(2*time.Minute, func(ctx context.Context, s *strike) {
	s.stack.Found(ctx, s.stack.HasMost(ctx))
})

// promote waits until the source counts as gone, fences it, and makes a replica the source.
var promote = within(2*time.Minute, func(ctx context.Context, s *strike) {
	_ = s.pass(2 * time.Second)
	must.OK(s.node.Kill()) // a frozen one, or one that is cut off, might go on
	at := s.stack.Promote(ctx, s.at)
	s.say("%s is the source now", s.stack.Databases[at].NodeName())
})

// switchOver makes another node the source, as a person does before a repair.
var switchOver = within(2*time.Minute, func(ctx context.Context, s *strike) { s.stack.SwitchOver(ctx, s.at) })

// followSource makes a node that was the source a replica: with a copy of the data of the source, because it may have
// committed what no replica has received.
var followSource = within(3*time.Minute, func(ctx context.Context, s *strike) {
	at, i := must.Get(s.primary()), s.stack.Index(s.node)
	if i == at || s.stack.Follows(ctx, i) {
		return
	}
	if stray := s.stack.Rebuild(ctx, i, at); stray != "" {
		s.say("%s had committed by itself what the source does not know: %s", s.node.NodeName(), stray)
		s.strays.Add(1)
	}
})

// reopen gives the source its clients again when its replicas have what it has.
var reopen = within(2*time.Minute, func(ctx context.Context, s *strike) { s.stack.Reopen(ctx, s.at) })
