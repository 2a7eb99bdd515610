// Package deadletter puts dead letters back to work, or ends them by a person's will, so that none is lost and none takes
// effect twice: a letter leaves the dead-letter queue only after its message is confirmed in the main queue under a row
// that this very replay reopened, after its row says discarded, or because its identity has ended already.
//
// Each letter goes the same way. It is read from the queue and identified by what it says of itself; its row in
// consumer_log is reopened by a compare-and-set that carries a name no other replay has, and that is committed; its
// message is published to the main queue by name, confirmed and routed; only then is the letter acked. Whatever goes wrong
// before the ack leaves the letter where it was, for the next run: a row that was reopened and whose message was never
// published is simply reopened again. This protocol is model-checked; whoever changes it changes the model in docs/model
// first.
//
// A run takes the letters that were in the queue when it began, and none that arrived or came back since. What it does not
// take goes back to its place when the run ends: RabbitMQ counts that as a delivery, of which the dead-letter queue allows
// a million, so reading drops nothing.
//
// The parts: letters.go opens, list.go, show.go and line.go read consumer_log for a person, run.go is the way of the letters
// through a run, file.go that of letters from an export, watch.go looks what becomes of them,
// identity.go finds the row that a letter belongs to, verdict.go says without touching a server what a row means for its
// letter, queue.go reads the queue. compensate.go replays by itself what is due, tell.go tells a [Compensator] of new letters,
// webhook.go is one.
//
// The package knows MySQL only through package dedup and AMQP only through internal/rabbit. It knows nothing of handlers
// or environment variables, and HTTP only as the sender of a webhook.
package deadletter
