package chaos

import (
	"cmp"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Targets. While a fault lasts it has its targets for itself; those of one kind stand in one string, the first is where
// it begins.
const (
	rabbitmq = "rabbitmq"
	mysqld   = "mysql"
	redisd   = "redis"
	daemon   = "daemon" // one of them
	relay    = "relay"  // likewise
	outbox   = "outbox" // the relays' links
	orders   = "shop"   // the order service's
)

var everything = []string{"daemon 0", "daemon 1", "relay 0", "relay 1", mysqld, rabbitmq, redisd, outbox, orders}

const diskFull = "mysql disk full"

// kinds lists all kinds of faults.
func kinds() []kind {
	all := []kind{
		{name: "daemon kill -9", unit: "deliveries in hand", on: daemon, cost: 1, beside: true, work: true,
			begin: killProcess},
		{name: "daemon SIGTERM", unit: "deliveries in hand", on: daemon, beside: true, begin: terminateDaemon},
		{name: "daemon frozen", unit: "deliveries in hand", on: daemon, least: 8, most: 25, cost: 1, beside: true,
			begin: freezeProcess, end: thawProcess},
		{name: "daemon frozen in mysql", unit: "transactions left open", on: daemon + " " + mysqld, least: 16,
			most: 25, cost: 1, begin: freezeInTransaction, end: thawProcess},

		{name: "relay kill -9", unit: "messages claimed", on: outbox + " " + relay, beside: true, begin: slowly(killProcess)},
		// Longer than what it has claimed is its own.
		{name: "relay frozen", unit: "messages claimed", on: outbox + " " + relay, least: 32, most: 40, beside: true,
			begin: slowly(freezeProcess), end: thawProcess},
		{name: "event queue unbound", unit: "messages refused", in: "1", on: rabbitmq, least: 4, most: 10,
			begin: unbindEvents, end: undo, hit: refusedEvents},
		{name: "event queue full", unit: "messages refused", in: "1", on: rabbitmq, least: 4, most: 10, begin: fullEvents,
			end: both(thawProcess, undo), hit: refusedEvents},

		{name: "rabbitmq kill -9", unit: "connections cut", in: "1", on: rabbitmq, most: 5, begin: both(linked, kill),
			end: start},
		{name: "rabbitmq frozen", unit: "times missed by a daemon", in: "1", on: rabbitmq, least: 20, short: 9,
			cost: daemons, begin: freeze, end: thaw, hit: said("waiting for rabbitmq")},
		{name: "rabbitmq stop_app", unit: "connections cut", in: "1", on: rabbitmq, most: 5,
			begin: both(linked, ctl("stop_app")), end: ctl("start_app")},
		// The alarm that RabbitMQ raises when memory runs low: whoever publishes is blocked.
		{name: "rabbitmq memory alarm", unit: "connections blocked", on: rabbitmq, least: 4, most: 10, hit: blockedNow,
			begin: eval("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})"),
			end:   eval("rabbit_alarm:clear_alarm({resource_limit, memory, node()})")},
		// It asks for more free disk than any machine has, so RabbitMQ's own monitor raises the alarm.
		{name: "rabbitmq disk alarm", unit: "connections blocked", on: rabbitmq, least: 4, most: 10, hit: blockedNow,
			begin: eval(`rabbit_disk_monitor:set_disk_free_limit("1000000GB")`),
			end:   eval(`rabbit_disk_monitor:set_disk_free_limit("50MB")`)},
		{name: "rabbitmq disconnects", unit: "deliveries in hand", on: rabbitmq, work: true, begin: disconnect},

		{name: "mysql kill -9", unit: "connections cut", on: mysqld, most: 5, begin: both(linked, kill), end: start},
		{name: "mysql frozen", unit: "times missed by a daemon", on: mysqld, least: 20, short: 12, cost: daemons,
			begin: freeze, end: thaw, hit: missed},
		{name: "mysql KILL", unit: "connections killed", on: mysqld, work: true, begin: killConnections},
		{name: "mysql read_only", unit: "times missed by a daemon", on: mysqld, least: 3, most: 8,
			begin: statement("SET GLOBAL read_only = ON"), end: statement("SET GLOBAL read_only = OFF"), hit: missed},
		{name: "mysql right revoked", unit: "times missed by a daemon", on: mysqld, least: 3, most: 8, hit: missed,
			begin: statement("REVOKE INSERT, UPDATE ON {} FROM "+account, written...), end: statement(grant, written...)},
		{name: "mysql table gone", unit: "times missed by a daemon", on: mysqld, least: 3, most: 8, hit: missed,
			begin: both(breaksSchema, statement("RENAME TABLE {} TO {}_away", "stock", "consumer_log")),
			end:   statement("RENAME TABLE {}_away TO {}", "stock", "consumer_log")},
		{name: "mysql too many connections", unit: "times missed by a daemon", on: mysqld, least: 3, most: 6, hit: missed,
			begin: both(statement("ALTER USER "+account+" WITH MAX_USER_CONNECTIONS 1"), killConnections),
			end:   statement("ALTER USER " + account + " WITH MAX_USER_CONNECTIONS 0")},
		// First InnoDB uses up what its tables have set aside. A server that dies of it is started again.
		{name: diskFull, unit: "times missed by a daemon", on: mysqld, least: 3, most: 10, patience: 60, hit: missed,
			begin: server((*stack.Server).FillDisk), end: server((*stack.Server).FreeDisk)},

		{name: "redis kill -9", unit: "connections cut", on: redisd, most: 5, beside: true, begin: both(linked, kill),
			end: start},
		// It has hit when daemons were connected: going on without the lock is no news to anybody.
		{name: "redis frozen", unit: "links held", on: redisd, least: 20, short: 6, begin: both(linked, freeze), end: thaw},
		{name: "redis FLUSHALL", unit: "keys gone", on: redisd, work: true, begin: flush},

		{name: "mysql lost COMMIT reply", unit: "replies lost", on: mysqld, beside: true, work: true,
			begin: dropReply("COMMIT")},
		{name: "mysql lost COMMIT", unit: "requests lost", on: mysqld, beside: true, begin: dropRequest("COMMIT")},
		{name: "redis lost SET reply", unit: "replies lost", on: redisd, begin: dropReply("$3\r\nset\r\n")},
		// The connection is cut before the broker gets an ack: everything it held comes again.
		{name: "rabbitmq lost ack", unit: "acks lost", on: rabbitmq, begin: dropRequest(basicAck)},
		// The one that publishes copies is cut when the broker answers: it has the copy and the daemon does not know.
		{name: "rabbitmq lost confirm", unit: "confirms lost", on: rabbitmq, work: true, begin: dropReply(basicPublish)},
		{name: "relay lost confirm", unit: "confirms lost", on: outbox, begin: dropReply(basicPublish)},
		{name: "relay lost COMMIT reply", unit: "replies lost", on: outbox, beside: true, begin: dropReply("COMMIT")},
		// The order service cannot know whether its messages are in the outbox, and puts them again.
		{name: "shop lost COMMIT reply", unit: "replies lost", on: orders, beside: true, begin: dropReply("COMMIT")},
		{name: "shop lost COMMIT", unit: "requests lost", on: orders, beside: true, begin: dropRequest("COMMIT")},
	}
	for _, on := range []string{rabbitmq, mysqld, redisd, outbox, orders} {
		to, atMySQL := on+" link ", on == mysqld
		all = append(all,
			kind{name: to + "slow", unit: "bytes carried", on: on, least: 4, most: 10, hit: carried,
				begin: slow(100 * time.Millisecond), end: slow(0)},
			kind{name: to + "narrow", unit: "bytes carried", on: on, least: 4, most: 10, hit: carried, begin: narrow(32 << 10),
				end: narrow(0)},
			kind{name: to + "resets", unit: "connections cut", on: on, least: 3, most: 8, beside: atMySQL, begin: resets},
			// A network that drops every packet: nobody gets an error, everybody must notice by a timeout of their own.
			kind{name: to + "silent", unit: "links held", on: on, least: 8, most: 20, cost: daemons, beside: atMySQL,
				begin: both(linked, silent(true)), end: silent(false)},
		)
	}
	return slices.Concat(all, calmKinds(), clusterKinds(), databaseKinds())
}

// calmKinds are what a producer, an operator and a colleague do without meaning harm, and queues that take no copies.
// None of it may cost an attempt or a letter too many, or stop the messages that have nothing to do with it.
func calmKinds() []kind {
	all := []kind{
		{name: "unreadable headers", unit: "letters", noPeople: true, // one that they purge can never be sent again
			begin: unreadable},
		{name: "mysql LOCK TABLES", unit: "daemons' connections waiting", least: 12, most: 20, short: 10, begin: lockTables,
			end: undo, hit: waiting(waitsForTable)},
		{name: "mysql ALTER waits", unit: "daemons' connections waiting", least: 12, most: 20, short: 6, begin: alterTable,
			end: undo, hit: waiting(waitsForTable)},
		{name: "mysql row locks in turn", unit: "daemons' connections waiting", least: 18, most: 25, short: 9,
			begin: rowLocks, end: undo, hit: waiting(waitsForRow)},

		{name: "dead-letter queue full", unit: "letters refused", least: 4, most: 8, short: 3, begin: fullDead,
			end: takesAgain, hit: refused("letter")},
		{name: "retry queue full", unit: "copies refused", least: 4, most: 8, short: 3, begin: fullRetry,
			end: takesAgain, hit: refused("retry")},
		{name: "retry queue deleted", unit: "copies refused", least: 3, most: 6, short: 2, begin: goneRetry,
			end: takesAgain, hit: refused("retry"), noPeople: true}, // they replay what fails: the queue is never empty
	}
	for i := range all {
		all[i].in, all[i].alone = "1", true
	}
	return all
}

// clusterKinds hit a cluster of RabbitMQ. Those of the phase upkeep are what operators do to it: no fault of anybody.
func clusterKinds() []kind {
	all := []kind{
		{name: "leader kill -9", unit: "leaders lost", least: 3, most: 10, begin: both(leader, kill), end: start, hit: moved},
		// Less than Erlang's net tick, a minute, after which the other nodes take a frozen one for gone.
		{name: "leader frozen", unit: "leaders lost", least: 30, short: 20, patience: 15,
			begin: both(leader, freeze), end: thaw, hit: moved},
		{name: "follower frozen", unit: "messages applied meanwhile", least: 30, short: 25, patience: 15,
			begin: both(follower, freeze), end: thaw, hit: appliedLate},
		{name: "daemons' node cut off", unit: "links moved", least: 8, most: 15, begin: cutNode, end: mendLinks,
			hit: elsewhere},
		{name: "leader cut from its peers", unit: "leaders lost", least: 8, most: 20, patience: 45, begin: partition,
			end: healPartition, hit: moved},

		{name: "leader moved", unit: "leaders moved", in: "upkeep", least: 4, most: 10, begin: moveLeader},
		{name: "policies changed", unit: "changes", in: "upkeep", least: 5, most: 15, begin: changePolicies,
			end: dropPolicy("upkeep")},
		{name: "brokers restarted in turn", unit: "nodes restarted", in: "upkeep", least: 1, most: 5, begin: restartInTurn},
		{name: "node removed and added", unit: "nodes joined anew", in: "upkeep", least: 3, most: 10, begin: replaceNode},
	}
	for i := range all {
		all[i].on, all[i].in = rabbitmq, cmp.Or(all[i].in, "3")
	}
	return all
}
