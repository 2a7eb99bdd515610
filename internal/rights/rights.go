// Package rights is the one list of what rollbackd must be allowed to do on MySQL, Redis and RabbitMQ, and for what.
// The documentation, the checks of doctor and a test that runs everything under exactly these rights are made from
// it.
//
// What lives here: the list (list.go). What must not: asking a server (internal/doctor), its forms as commands for an
// administrator (internal/test/grants), and the documents (internal/test/repo).
package rights

import "slices"

// Role is a part of rollbackd that needs rights. One account may have several.
type Role string

// The roles.
const (
	Daemon       Role = "daemon"       // rollbackd run
	Retention    Role = "retention"    // rollbackd run with LOG_RETENTION, which is the default; rollbackd log prune
	Compensation Role = "compensation" // rollbackd run with COMPENSATE_AFTER
	Webhook      Role = "webhook"      // rollbackd run with DEAD_LETTER_WEBHOOK
	Pages        Role = "pages"        // rollbackd run with HTTP_ADDR, which is the default: what persons do there
	CLI          Role = "cli"          // rollbackd dlq, log, reconcile, publish, move, doctor
	Migrate      Role = "migrate"      // rollbackd migrate
	TakeOver     Role = "take over"    // rollbackd migrate --from
	Producer     Role = "producer"     // a service that puts messages into an outbox
	Relay        Role = "relay"        // rollbackd relay
)

// Roles returns all of them.
func Roles() []Role {
	return []Role{Daemon, Retention, Compensation, Webhook, Pages, CLI, Migrate, TakeOver, Producer, Relay}
}

// Names are the names on the servers, as the settings have them.
type Names struct {
	LogTable, Exchange, Queue string
	Stock                     bool // the built-in handler with its tables is in use
	Lock                      bool // the lock is in MySQL
	Outbox                    bool // the relay works within the daemon
	// Classic is the table of the classic algorithm that is taken over, in the same schema; "": none is.
	Classic string
}

// Need says who needs something.
type Need struct{ By []Role }

func (n Need) of(roles []Role) bool {
	return slices.ContainsFunc(roles, func(r Role) bool { return slices.Contains(n.By, r) })
}

// needed is what one of the roles needs.
func needed[R interface{ of(roles []Role) bool }](all []R, roles []Role) []R {
	return slices.DeleteFunc(all, func(r R) bool { return !r.of(roles) })
}
