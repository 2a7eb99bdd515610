package consumer

// stage is how far an item is on its way to its ack. Until stageEnded an item is in one of the lists of its batch,
// where docs/model/rollbackd.pml has its worker look, claim, attempt, commit and record; then come dead (its letter and
// its row) or back (its copy to a retry queue), and ack.
type stage uint8

const (
	stageOpen      stage = iota // nothing may be told to the broker: given back now, it comes again
	stageEnded                  // what the broker will be told is known
	stageWeighed                // and the brake has taken it into account
	stagePublished              // the copy that it asks for is confirmed
	stageDurable                // nothing is missing but the ack
	stageAcked
)

// leadsTo are the legal moves. An item whose row turns out to be somebody else's ends anew, even behind a confirmed
// letter, and one whose letter the brake holds back is open again.
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

// end says how a delivery ends: outcome 0 is that it is open again.
func (it *item) end(o Outcome, s settlement) {
	it.outcome, it.settle = o, s
	if o == 0 {
		it.move(stageOpen)
	} else {
		it.move(stageEnded)
	}
}

// awaitsCopy reports whether the copy that its settlement asks for is not out yet, nor refused.
func (it *item) awaitsCopy() bool {
	_, plain := it.settle.(ack)
	return it.outcome != 0 && !plain && it.stage < stagePublished && it.copy.refused == nil
}

// fate is how an item ends.
type fate struct {
	stage   stage
	outcome Outcome    // 0 while open
	settle  settlement // what the broker will be told; nil while open
}

// publication is what became of the copy that a settlement asks for, before it was confirmed.
type publication struct {
	refused error // why a queue does not take it; nil else
	unsure  error // why nobody knows whether it arrived; nil else
	tried   bool  // a try has failed
}
