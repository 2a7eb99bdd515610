// Package consumer makes the effect of every message happen exactly once, although RabbitMQ delivers it at least once:
// the row of consumer_log that says success and what the handler writes are committed in one MySQL transaction, and a
// delivery is acked only after its outcome is durable or a confirmed copy carries it on.
//
// The conditions: consumer_log and the handler's tables share one transactional schema and MySQL keeps what it
// committed; a message's key names what it asks for and a re-send is byte-equal; rows of consumer_log outlive every copy
// of their message; no policy with TTL, max-length or expiry stands on the main queue or the dead-letter queue. A handler
// that acts outside the transaction gets at-least-once. Order is not promised.
//
// To use it: open the database with [dedup.Open], make the log's tables with [dedup.Migrate] and the log with
// [dedup.NewLog], give both to [New] with a [Handler], and call [Consumer.Run], which makes the exchange and the queues.
// The example of New is a whole program. `consumer dlq` and `consumer log explain` work for it when ROLLBACKD_GROUP, QUEUE,
// LOG_TABLE, KEY_FROM, RETRY_DELAYS and MAX_ATTEMPTS say what its Config says.
//
// The way of one delivery is in life.go and reads from top to bottom: [Consumer.Run] keeps a session (session.go), a
// session has lanes (lane.go), and a lane takes batches through process (life.go). What a row or an error means is
// decided in verdict.go without touching a server; transactions around the handler are in effect.go; what the broker is
// told is in settle.go.
//
// The package knows MySQL only through package dedup and AMQP only through internal/rabbit; it knows nothing of stock,
// HTTP or environment variables.
package consumer
