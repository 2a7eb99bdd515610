// Package dedup keeps the one fact that makes an effect happen once: at most one row per identity in consumer_log, and
// every change of that row a single conditional statement which either affects exactly one row or says that somebody else
// was faster.
//
// Its parts: [Key] is a message's identity. [Log] is the consumer log; states.go holds the table of all transitions, from
// which the diagram in ARCHITECTURE.md is made and by which every statement gets its guards. [Open] makes a database
// handle with the settings without which the log is not safe. [Migrate] and [CheckSchema] keep the tables. [Log.Prune] forgets
// what ended long ago, [Log.Lead] elects the process that does. [Locker] is the lock in Redis, which only saves work.
//
// The package knows MySQL, MariaDB and Redis. It knows nothing of AMQP, of handlers or of stock, and it never decides
// what a row means for a delivery: that is the engine's verdict.
package dedup
