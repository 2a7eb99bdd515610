// Package relay publishes what package outbox has put: it claims rows that are due, publishes them with confirms and
// mandatory, and deletes what RabbitMQ has confirmed. Several relays share the work, in any number of processes.
//
// Read relay.go from top to bottom: look (look.go) finds where the next due row is, claim (claim.go) takes rows in a
// short transaction under a lease, deliver publishes them while no lock is held, and settle (settle.go) deletes or puts
// off. A relay that dies between any two lines leaves rows that come due again when the lease ends: they are published
// twice at worst.
//
// What lives here: the way of a row to RabbitMQ. What must not: the consumer's side, and what people do with rows.
package relay
