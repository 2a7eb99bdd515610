package rights

import (
	"regexp"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

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
	By         []Role
	pattern    string
}

// RabbitMQ lists what the roles need on the vhost. The daemon declares what it needs at its start, as migrate does,
// which compares the arguments of what is there: without configure it only checks that it exists, and warns of that.
// A queue that is declared with a dead-letter exchange wants read on itself and write on that; a binding, write on
// its queue and read on its exchange.
func RabbitMQ(n Names, roles ...Role) []Resource {
	declaring := []Role{Daemon, Migrate}
	dead, backstop, retry := rabbit.DeadQueue(n.Queue), rabbit.BackstopQueue(n.Queue), n.Queue+".retry."
	one := func(p Permission, name string, by ...Role) Resource {
		return Resource{p, name, by, regexp.QuoteMeta(name)}
	}
	retries := func(p Permission, by ...Role) Resource {
		return Resource{p, retry + "*", by, regexp.QuoteMeta(retry) + "[0-9a-z.]+"}
	}
	all := []Resource{
		one(Configure, n.Exchange, declaring...),
		one(Configure, n.Queue, declaring...),
		retries(Configure, declaring...),
		one(Configure, dead, declaring...),
		one(Configure, backstop, declaring...),
		one(Write, DefaultExchange, Daemon, Migrate, Compensation, Pages, CLI), // copies, letters, replays go through it
		one(Write, n.Queue, declaring...),
		one(Write, n.Exchange, Pages, CLI), // consumer publish
		one(Read, n.Exchange, declaring...),
		one(Read, n.Queue, declaring...),
		retries(Read, declaring...),
		one(Read, dead, Compensation, Pages, CLI),
		one(Read, backstop, Daemon),
	}
	return slices.DeleteFunc(all, func(r Resource) bool { return !needed(r.By, roles) })
}

// Pattern is the regular expression for one kind of permission, as `rabbitmqctl set_permissions` takes it; it matches
// nothing when there is nothing.
func Pattern(resources []Resource, p Permission) string {
	var names []string
	for _, r := range resources {
		if r.Permission == p {
			names = append(names, r.pattern)
		}
	}
	if len(names) == 0 {
		return "^$"
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
