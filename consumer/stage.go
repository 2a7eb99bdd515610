package consumer

import (
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
)

// stage is how far an item is on its way to its ack. Until stageEnded an item is in one of the lists of its batch,
// where docs/model/rollbackd.pml has its worker look, claim, attempt, commit and record; then come dead (its letter and
// its row) or back (its copy to a retry queue), and ack.
type stage uint8

const (
	stageOpen      stage = iota // nothing may be told to the broker: given back now, it comes again
	stageEnded                  // what the broker will be told is known
	stageWeighed                // and the breaker has taken it into account
	stagePublished              // the copy that it asks for is confirmed
	stageDurable                // nothing is missing but the ack
	stageAcked
)

// leadsTo are the legal moves. An item whose row turns out to be somebody else's ends anew, even behind a confirmed
// letter, and one whose letter the breaker holds back is open again.
func (s stage) leadsTo(to stage) bool {
	switch s {
	case stageOpen:
		return to == stageEnded
	case stageEnded, stageWeighed:
		return to == stageOpen || to == stageEnded || to > s && to < stageAcked
	case stagePublished:
		return to == stageEnded || to == stageDurable
	case stageDurable:
		return to == stageAcked
	}
	return false
}

// illegalMove is an error in tests.
var illegalMove = func(*item, stage) {}

// move takes an item to another stage.
func (it *item) move(to stage) {
	if !it.stage.leadsTo(to) {
		illegalMove(it, to)
	}
	it.stage = to
}

// fate is how an item ends.
type fate struct {
	stage   stage
	outcome Outcome // 0 while open
	settlement
}

// settlement is what the broker will be told of a delivery, and of what its copy speaks.
type settlement struct {
	by     means
	delay  time.Duration // of the retry queue
	reason dedup.Reason  // of the letter
	cause  string
}

// means is how a delivery is settled.
type means uint8

const (
	byNothing    means = iota // it is open: it comes again
	byAck                     // the outcome is durable
	byRetry                   // a confirmed copy in a retry queue, then ack
	byMove                    // a confirmed copy in the dead-letter queue, where the row's letter was already, then ack
	byDeadLetter              // a confirmed copy in the dead-letter queue, then its row, as it is now, says dead, then ack
)

// end says how a delivery ends.
func (it *item) end(o Outcome, s settlement) {
	it.outcome, it.settlement = o, s
	it.move(stageEnded)
}

// ack ends a delivery whose outcome is durable.
func (it *item) ack(o Outcome) { it.end(o, settlement{by: byAck}) }

// bury ends a message that gets no attempt any more.
func (it *item) bury(reason dedup.Reason, cause string) {
	it.end(DeadLettered, settlement{by: byDeadLetter, reason: reason, cause: cause})
}

// reopen takes its end back.
func (it *item) reopen() {
	it.outcome, it.settlement = 0, settlement{}
	it.move(stageOpen)
}

// awaitsCopy reports whether the copy that its settlement asks for is not out yet, nor refused.
func (it *item) awaitsCopy() bool {
	return it.by > byAck && it.stage < stagePublished && it.copy.refused == nil
}

// publication is what became of the copy that a settlement asks for, before it was confirmed.
type publication struct {
	refused  error     // why a queue does not take it; nil else
	unsure   error     // why nobody knows whether it arrived; nil else
	tried    time.Time // when a try failed last; zero: none has
	unloaded bool      // its body is in memory no more: it must come again to be published
}

func (w *worker) leaseLost(items ...*item) {
	for _, it := range items {
		it.copy = publication{unloaded: it.copy.unloaded} // that was another copy
		w.retry(it, LeaseLost, w.c.cfg.RetryDelays[0], "")
	}
}

// applied ends items whose effect is committed.
func (w *worker) applied(items []*item) {
	w.c.commits.Add(1)
	now := time.Now()
	for _, it := range items {
		it.ack(Applied)
		if !it.msg.PublishedAt.IsZero() {
			w.c.metrics.lag.Observe(now.Sub(it.msg.PublishedAt).Seconds())
		}
	}
}

// retry ends a delivery whose message comes again from the retry queue of delay.
func (w *worker) retry(it *item, o Outcome, delay time.Duration, cause string) {
	it.end(o, settlement{by: byRetry, delay: delay, cause: cause})
}

// comeBack has a message come again about when wait is over.
func (w *worker) comeBack(it *item, wait time.Duration) {
	w.retry(it, InProgress, decide.Fit(w.c.cfg.RetryDelays, wait), "")
}

// lastWords are what the letter of a row says that gets no further attempt. Of a call that never came back nobody knows
// what the service did.
func (w *worker) lastWords(row dedup.Row) string {
	if w.c.service != nil && row.Reason == dedup.ReasonCrashed {
		return "perhaps applied: " + row.Remark
	}
	return row.Remark
}
