// Package operator is how a fleet is looked at and acted on, without saying who asks and how.
//
// Acts (act.go): pausing and resuming, runs over dead letters, comparisons and mends, which outlive the process and the
// browser that began them. Each is one row under one id: who, why, on what, with what outcome; what is asked for twice
// under one name is done once. An act is committed before anything is told of it. It is taken up by whichever daemon of
// the fleet is free, under a lease; when that one dies, another goes on. Two that work on one by mistake do nothing
// twice, because every step that moves a row or a message is package deadletter's, compared and counted.
//
// Lookups (lookup.go): what is known of one message, or of all messages of one order, and what could not be seen: a
// bounded look never passes for a whole one. explain.go says it in words, the same ones to a terminal and to a page.
//
// Reconciliation (reconcile.go): where rows, letters and reservations tell different stories, and what mends that
// (mend.go), by the same guarded steps as a replay. What a user's SELECT says should have come is looked for in log and
// outbox, and put there if it is missing (expected.go).
//
// Maintenance (maintenance.go): what one process of a group is enough for: it deletes rows that have outlived their
// retention, replays letters by itself, notifies of new ones, and says once an hour what waits longest; and the figures
// of the log.
//
// What must not live here: HTTP, pages, sign-in and rights of persons (internal/admin), how a letter is read, sent and
// ended (deadletter), rows of the log (dedup), and whatever a delivery needs to end (consumer).
package operator
