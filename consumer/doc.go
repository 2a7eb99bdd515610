// Package consumer makes the effect of every message happen exactly once, although RabbitMQ delivers it at least once:
// the row of consumer_log that says success and what the handler writes are committed in one MySQL transaction, and a
// delivery is acked only after its outcome is durable or a confirmed copy carries it on.
//
// The conditions: consumer_log and the handler's tables share one transactional schema and MySQL keeps what it
// committed; a message's key names what it asks for and a re-send is byte-equal; rows of consumer_log outlive every
// copy of their message; no policy with TTL, max-length or expiry stands on the main queue or the dead-letter queue. A
// handler that acts outside the transaction gets at-least-once. Order is not promised.
//
// To use it: give [Run] the servers, a queue's name and a [Handler]. Its example is a whole program, and
// docs/library.md begins with a producer, a handler and their test; what [Config] leaves zero takes a default. [Open]
// is for who asks for [Consumer.State], [OpenAll] for several queues, and [New] for a pool of your own. `rollbackd dlq`
// and `rollbackd log explain` work for it when ROLLBACKD_GROUP, QUEUE, LOG_TABLE, KEY_FROM, RETRY_DELAYS and
// MAX_ATTEMPTS say what its Config says; its Group is the queue's name unless it says another one.
//
// The front door is in open.go, consumer.go, consumers.go and config.go, and what is done beside the engines in
// beside.go; what the engine's parts share is in engine.go. The way of one delivery reads from top to bottom:
// [Consumer.Run] keeps a session (session.go), a session has workers (worker.go), one for each lane of the Config, and
// a worker takes batches through process (life.go). What a row and the end of an attempt mean for a message is decided
// in internal/decide, without touching a server; whether a message may be tried now is asked in admission.go; attempts
// are in attempt.go, and transactions around the handler in effect.go. A duplicate is told in duplicate.go, a failed
// attempt is counted in failed_attempt.go, an ack is decided in ack.go, and a drain begins in drain.go. rehearsal.go
// is the engine without servers, for package consumertest.
//
// The package knows MySQL only through package dedup and AMQP only through internal/rabbit; what one process of a group
// does beside the messages is in internal/operator. It knows nothing of stock, HTTP or environment variables.
package consumer
