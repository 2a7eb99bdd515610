// Package reconcile finds where the servers tell different stories of one message: consumer_log, the dead-letter queue
// and the stock tables. Looking changes nothing, and what is in motion is never reported: whatever disagrees is looked
// at a second time, a moment later, and only what stood still in between counts. So it may run beside daemons and
// replays.
//
// letters.go compares rows with letters, stock.go reservations with rows, mend.go repairs what a machine may repair,
// when asked to, by the same guarded steps as a replay. Memory holds keys, never bodies: 16 MB for 200,000 letters that
// agree, 260 MB for 200,000 that were purged. Every query reads an index.
//
// cure.go says in words what a finding is and what mends it, for the command and the pages; one.go mends one finding
// that was written down, and bounds what a page may ask for.
//
// What does not belong here: how letters are read and sent (package deadletter), and how a report is laid out
// (internal/cli, internal/admin/pages).
package reconcile
