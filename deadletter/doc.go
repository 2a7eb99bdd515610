// Package deadletter puts dead letters back to work, or ends them by a person's will, so that none is lost and none
// takes effect twice: a letter leaves the dead-letter queue only after its message is confirmed in the main queue under
// a row that this very replay reopened, after its row says discarded, or because its identity has ended already.
//
// Each letter goes the same way. It is read from the queue and identified by what it says of itself; its row in
// consumer_log is reopened by a compare-and-set that carries a name no other replay has, and that is committed; its
// message is published to the main queue by name, confirmed and routed; only then is the letter acked. Whatever goes
// wrong before the ack leaves the letter where it was, for the next run: a row that was reopened and whose message was
// never published is simply reopened again. This protocol is model-checked; whoever changes it changes the model in
// docs/model first.
//
// A run takes the letters that were in the queue when it began, or the rows that were dead when its set was frozen, and
// none that arrived or came back since. What it does not take of the queue goes back to its place when the run ends:
// RabbitMQ counts that as a delivery, of which the dead-letter queue allows a million, so reading drops nothing.
//
// There is one way to act: a Selection (select.go) says which letters and where they are, and Replay or Discard
// (replay.go) brings them to their end. Sources are the queue (from_queue.go), the lines of an export (from_file.go),
// and rows of the log (from_rows.go, kept.go): those of a set that is frozen at a moment, of which judge.go says
// beforehand what would become of each, and those whose copies are gone. What an export or rows leave stale in the
// queue a walk of its own drops (walk.go). In between, identity.go finds the row that a letter belongs to, verdict.go
// says without touching a server what a row means for its letter, watch.go says how many may go and looks what becomes
// of them, change.go changes rows whose answers may be lost, settle.go acks, tally.go counts.
//
// Beside that, list.go reads consumer_log for a person, walk.go reads the queue and moves nothing, compensate.go
// replays by itself what is due, and notify.go notifies a [Notifier] of new letters, of which a webhook is one.
//
// The package knows MySQL only through package dedup and AMQP only through internal/rabbit. It knows nothing of
// handlers or environment variables, and HTTP only as the sender of a webhook.
package deadletter
