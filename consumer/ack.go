package consumer

import (
	"fmt"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// acker acks deliveries: the worker's subscription, but in a rehearsal.
type acker interface{ AckAll(tags []uint64) error }

// acknowledge acks whatever is durable: what nothing older holds up all at once, and one by one what is behind that,
// unless the rest will be durable soon.
func (w *worker) acknowledge(b *batch) error {
	for _, it := range b.all {
		it.carryFollowers()
	}
	behind := false
	var done []*item
	for _, it := range b.all {
		behind = behind || it.stage < stageDurable
		// a copy that comes back beside its original makes two messages of one
		if it.stage == stageDurable && !(behind && it.by == byAck && b.waits()) {
			done = append(done, it)
		}
	}
	if len(done) == 0 {
		return nil
	}
	if err := w.acks.AckAll(eachOf(done, func(it *item) uint64 { return it.delivery.Tag })); err != nil {
		return fmt.Errorf("ack %d deliveries from %v: %w", len(done), done[0].id.Identity, err)
	}
	for _, it := range done {
		w.acked(it)
	}
	w.c.at(PointAcked)
	return nil
}

// carryFollowers makes an item durable whose settlement is complete, and its followers with it: the leader's effect or
// its confirmed copy carries them.
func (it *item) carryFollowers() {
	if it.by == byAck && it.stage < stageDurable || it.by != byDeadLetter && it.stage == stagePublished {
		it.move(stageDurable)
	}
	if it.stage < stageDurable {
		return
	}
	for _, f := range it.followers {
		if f.stage == stageOpen {
			f.ack(it.outcome.ofFollower())
			f.move(stageDurable)
		}
	}
}

func (w *worker) acked(it *item) {
	if it.stage != stageAcked {
		it.move(stageAcked)
		w.c.ended(it, it.outcome)
		it.unload() // the budget counts it no more
	}
}

// unload lets go of the message itself, but for what names it.
func (it *item) unload() {
	it.delivery.Message = rabbit.Message{MessageID: it.delivery.MessageID}
	it.msg.Body, it.msg.Headers = nil, nil
}

// abandon counts what a failed batch leaves to the broker. What is durable keeps its outcome, although its ack was lost
// and it comes again.
func (w *worker) abandon(b *batch) {
	for _, it := range b.all {
		if it.stage >= stageDurable {
			w.acked(it)
		} else {
			w.c.ended(it, Abandoned)
		}
	}
}
