// Package consumertest tries a handler of package consumer in a unit test: without servers, in milliseconds.
//
// [New] makes a [Trial]. What becomes of a message in it is decided by the engine itself, whose log of messages and
// queues are in memory: attempts, duplicates, blame, failures for good, what is put off, dead letters and replays are
// what they are in production. Time goes on by [Trial.Advance] alone.
//
// The handler's statements go into a database that the test gives, SQLite for example, or are kept and answered as the
// test says. What it puts into the outbox is never sent: [Trial.Puts] has it once it is committed. An [Outbox] alone is
// for who puts messages and handles none.
//
// What only a server can show is not tried: locks and deadlocks, whether MySQL takes a statement, what becomes of a
// process that dies. [Suite] does so, on servers of the test's own.
//
// No rule of the engine may be written a second time here: a trial runs the engine's code.
package consumertest
