package rights

import (
	"strings"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// TableRight is one privilege on one table of MySQL. An empty Table means the schema with all its tables.
type TableRight struct {
	Table, Privilege string
	Need
}

// table is what the roles need of one, a list for each of SELECT, INSERT, UPDATE and DELETE.
func table(name string, by ...[]Role) (all []TableRight) {
	for i, privilege := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"}[:len(by)] {
		all = append(all, TableRight{name, privilege, Need{by[i]}})
	}
	return all
}

// MySQL lists what the roles need there, a table's privileges side by side. Retention deletes stories with their rows
// and notes how far it came; a daemon notes how many letters all of them published, the webhook up to which letter it
// told, taking over how far that came, and whoever pauses the fleet that it is paused. The daemon takes the rows of the
// blamed out of a transaction. Migrating drops a view to replace it.
func MySQL(n Names, roles ...Role) []TableRight {
	everybody := []Role{Daemon, Retention, Compensation, Webhook, Pages, CLI, TakeOver} // reads the log
	changing, noting := []Role{Daemon, Compensation, Pages, CLI, TakeOver}, []Role{Daemon, Retention, Webhook, Pages, CLI,
		TakeOver}
	acting, looking, daemon, pages := []Role{Compensation, Pages, CLI}, []Role{Daemon, Pages, CLI}, []Role{Daemon},
		[]Role{Pages}
	var all []TableRight
	for _, privilege := range []string{"SELECT", "INSERT", "CREATE", "ALTER", "INDEX", "CREATE VIEW", "DROP"} {
		all = append(all, TableRight{"", privilege, Need{[]Role{Migrate}}})
	}
	all = append(all, table(n.LogTable, everybody, changing, changing, []Role{Daemon, Retention})...)
	all = append(all, table(n.LogTable+"_event", []Role{Retention, Compensation, Webhook, Pages, CLI}, changing, nil,
		[]Role{Retention})...)
	all = append(all, table("rollbackd_meta", everybody, noting, noting)...)
	all = append(all, table(n.LogTable+"_act", []Role{Daemon, Compensation, Pages, CLI}, acting, acting, daemon)...)
	all = append(all, table(n.LogTable+"_once", []Role{Daemon, Pages}, pages, pages, daemon)...)
	all = append(all, table(n.LogTable+"_minute", []Role{Daemon, Pages}, daemon, daemon, daemon)...)
	all = append(all, table("rollbackd_schema", append(everybody, Relay))...)
	if n.Stock { // a refusal is inserted, with EMPTY_ROLLBACK=refuse; reconcile --adopt locks what it reads
		all = append(all, table("stock", looking, nil, daemon)...)
		all = append(all, table("stock_reservation", looking, daemon, []Role{Daemon, CLI})...)
	}
	if n.Lock {
		all = append(all, Lock(roles...)...)
	}
	all = append(all, Outbox(n.Outbox, roles...)...)
	if n.Classic != "" {
		all = append(all, table(n.Classic, []Role{TakeOver})...)
	}
	return needed(all, roles)
}

// Lock lists what the roles need besides for ROLLBACKD_LOCK=mysql. The doctor takes and releases a lock.
func Lock(roles ...Role) []TableRight {
	locking := []Role{Daemon, CLI}
	return needed(table("rollbackd_lock", []Role{Daemon, Pages, CLI}, locking, locking, locking), roles)
}

// Outbox lists what the roles need on the outbox, the daemon too if the relay works within it and handlers put
// messages. To put is to insert, or to change nothing of what is there; to cancel is to insert and delete.
func Outbox(within bool, roles ...Role) []TableRight {
	producing, relaying := []Role{Producer}, []Role{Producer, Relay}
	if within {
		producing, relaying = append(producing, Daemon), append(relaying, Daemon)
	}
	return needed(table("rollbackd_outbox", relaying, producing, relaying, relaying), roles)
}

// RedisKeys is the pattern of all keys that rollbackd touches.
const RedisKeys = "rollbackd:*"

// Command is a command of Redis that an account must be allowed, for all its subcommands unless one is named as
// command|subcommand.
type Command struct {
	Name string
	For  string // what it is needed for
	Need
	try string
}

// Try is a call that changes nothing but the key, which must be one of RedisKeys; the commands are tried in order. It
// is nil when each connection tries it at its start.
func (c Command) Try(key string) (args []any) {
	for word := range strings.FieldsSeq(c.try) {
		if word == "KEY" {
			word = key
		}
		args = append(args, word)
	}
	return args
}

// Redis lists the commands that the roles need. HELLO and AUTH need no right. A cluster also needs the commands of
// RedisCluster.
func Redis(roles ...Role) []Command {
	lock, cli := Need{[]Role{Daemon, CLI}}, Need{[]Role{CLI}}
	return needed([]Command{
		{"client|setname", "the name in CLIENT LIST", lock, ""},
		{"select", "a database number other than 0", lock, ""},
		{"ping", "doctor, to see whether it is there", cli, "ping"},
		{"set", "locks and done markers", lock, "set KEY try nx px 1000 get"},
		{"get", "what a lock holds, for SET with GET too", lock, "get KEY"},
		{"pttl", "when a lock ends", lock, "pttl KEY"},
		{"pexpire", "renewing locks, inside EVAL", lock, "pexpire KEY 1000"},
		{"eval", "renewing and releasing only what is one's own", lock, "eval return(1) 1 KEY"},
		{"del", "releasing locks, inside EVAL", lock, "del KEY"},
		{"info", "doctor, to show version and memory", cli, "info server"},
	}, roles)
}

// RedisCluster are the commands that a cluster's client needs besides, to find out which node has which key.
func RedisCluster() []string { return []string{"cluster|slots", "command"} }

// Permission is one of the three kinds of RabbitMQ.
type Permission string

// The permissions.
const (
	Configure Permission = "configure"
	Write     Permission = "write"
	Read      Permission = "read"
)

// DefaultExchange is the name under which RabbitMQ asks for rights on the exchange without a name.
const DefaultExchange = "amq.default"

// Resource is a permission on an exchange, a queue, or the retry queues together.
type Resource struct {
	Permission Permission
	Name       string // with the retry queues, that which all their names begin with, and a star
	Need
}

// RabbitMQ lists what the roles need on the vhost. The daemon declares what it needs at its start, as migrate does,
// which compares the arguments of what is there: without configure it only checks that it exists, and warns of that.
// A queue that is declared with a dead-letter exchange wants read on itself and write on that; a binding, write on
// its queue and read on its exchange. Copies, letters and replays go through the default exchange, what is published by
// hand through the other one.
func RabbitMQ(n Names, roles ...Role) []Resource {
	declaring := Need{[]Role{Daemon, Migrate}}
	publishing := []Role{Pages, CLI, Relay}
	if n.Outbox {
		publishing = append(publishing, Daemon)
	}
	dead, backstop, retry := rabbit.DeadQueue(n.Queue), rabbit.BackstopQueue(n.Queue), n.Queue+".retry.*"
	return needed([]Resource{
		{Configure, n.Exchange, declaring},
		{Configure, n.Queue, declaring},
		{Configure, retry, declaring},
		{Configure, dead, declaring},
		{Configure, backstop, declaring},
		{Write, DefaultExchange, Need{[]Role{Daemon, Migrate, Compensation, Pages, CLI}}},
		{Write, n.Queue, declaring},
		{Write, n.Exchange, Need{publishing}},
		{Read, n.Exchange, declaring},
		{Read, n.Queue, declaring},
		{Read, retry, declaring},
		{Read, dead, Need{[]Role{Compensation, Pages, CLI}}},
		{Read, backstop, Need{[]Role{Daemon}}},
	}, roles)
}
