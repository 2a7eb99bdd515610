// Package rabbit speaks AMQP 0-9-1 with RabbitMQ 3.10 and later so that nothing is lost on the way: a publish reports
// success only when the broker confirmed the message and routed it to a queue, and an acknowledgement can only ever
// settle the delivery that it was meant for.
//
// A [Conn] is one connection and dies once: it is never reopened in place, because the client library's own recovery
// restarts delivery tags at 1, and a late ack of an old tag would then delete a new, unprocessed message. Whoever owns
// a Conn dials anew. A [Subscription] is a consumer on a channel of its own. A [Publisher] owns a connection of its
// own, because a broker that is low on memory or disk stops reading from every connection that has published, its acks
// included.
//
// Where what stands: conn.go is a connection, its URL and how it is asked, socket.go its way. subscription.go takes
// deliveries, which came through walk.go, with their headers (headers.go, unreadable.go) and their room in memory
// (ledger.go, budget.go). publisher.go publishes on sessions (session.go) what sendable.go lets through, and knows what
// came back. topology.go is the table of what must be there; declare.go makes, compares and lists it, and tries what a
// user may do; taken.go looks at a main queue of somebody else's.
//
// What may live here: dialling, channels, consuming, confirmed publishing, the topology, and everything that imports
// the AMQP client. What must not: consumer log, identities, the meaning of a header, retries.
package rabbit
