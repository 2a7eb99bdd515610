// Package lock keeps two workers off one message at a time. It only saves work: whatever it says, or does not say, a
// row of the consumer log decides, and everything holds with a lock that forgets, lies, stands still or is away.
//
// [Locker] is what the engine needs of a lock, and all of it. [Redis] is the one over Redis 7.0 or later, or Valkey,
// whose client [OpenRedis] makes; [NewRedlock] makes the one over several masters; [None] is no lock at all. Another
// one (over etcd, GET_LOCK of MySQL) is a [Store], of which [Over] makes a Locker, and passes the suite of package
// locktest; it need know nothing of engine, log or broker.
//
// What may live here: the interface, the names of what is locked, and backends with all that is particular to their
// servers. What must not: identities, rows, handlers, messages, and any decision about what a lock's answer means for a
// message. So the package imports nothing of this module that knows any of these; names are made of plain text, by
// [NameOf].
package lock
