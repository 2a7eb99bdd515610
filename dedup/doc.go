// Package dedup keeps the one fact that makes an effect happen once: at most one row per identity in consumer_log, and
// every change of that row a single conditional statement which either affects exactly one row or says that somebody
// else was faster.
//
// For users, who set a log up and look at it: [Open] makes a database handle with the settings without which the log is
// not safe. [Migrate], [MigrationStatus] and [CheckSchema] keep the tables, also those that a handler brings as a
// [MigrationSet]. [Identity] is a message's identity, [NewLog] makes a [Log]; [Log.Read], [Log.LookUp], [Log.List] and
// [Log.Events] say what became of messages, each as a [Row] in a [Status].
//
// For the engine and the tools of this module, who move rows; a program that calls these beside them must keep their
// rules: all methods that take a [Claim], a from [Row] or an [Entry] ([Log.InsertSuccess], [Log.Claim],
// [Log.SuccessAll], [Log.FailAll], [Log.UnclaimAll], [Log.Exhaust], [Log.CondemnAll], [Log.Dead], [Log.Reopen],
// [Log.Discard] and their likes), [Log.Prune], which forgets what ended long ago, [Log.Campaign], which elects the
// process that does, [Log.EventFeed] with its bookmark, and [Log.TakeOver] with its [Waypoint], which writes rows as
// another log has them.
// states.go holds the table of all transitions, from which the diagram in ARCHITECTURE.md is made and by which every
// statement gets its guards.
//
// What may live here: identities, the tables of the log, every statement on them, and what a row is by itself. What
// must not: AMQP, locks, handlers, a handler's tables, and what a row means for a delivery, which is the engine's
// verdict. Pools, session settings and error numbers are those of internal/mysqldb.
package dedup
