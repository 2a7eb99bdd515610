package consumer

// group is messages that are attempted together. Alone is a group of one.
type group struct {
	items []*item
	tries int  // how often it may meet others, or time that runs out, before it is split
	trial bool // whether the lock of others is gone that it would meet
}

// sequel is what follows for a group.
type sequel uint8

const (
	endApplied  sequel = iota + 1 // all but the blamed are applied
	lookAtRows                    // who has a row goes its way, the rest is tried again
	goOnWithout                   // the blamed leave, the rest is tried again
	halve                         // until the guilty stand alone
	single                        // each by itself
	goApart                       // each by itself, and claimed for that
	charge                        // the message has failed an attempt
	putOff                        // it comes back later, and no attempt is counted
	loseLease                     // somebody else has the row: a copy comes back later
)

// next says what follows for a group whose transaction ended so; late: its batch is in hand for so long that nobody
// waits for locks of others any more.
func (g group) next(t told, claimed, late bool) sequel {
	one := len(g.items) == 1
	switch {
	case t.finish == committed:
		return endApplied
	case claimed && one:
		switch t.finish {
		case moved:
			return loseLease
		case failed:
			return charge
		}
		return putOff
	case t.finish == failed && t.blamed != nil && !(claimed && t.late):
		return goOnWithout
	case claimed:
		return goApart
	case t.finish == moved, t.finish == unsure:
		return lookAtRows
	case t.finish == met && (one || late):
		return putOff
	case one && t.finish == failed && !t.late:
		return charge
	case one:
		return goApart
	case t.finish == met && len(g.items) <= fewAtOnce:
		return single
	}
	return halve
}

// halves are the two halves, the first one last, as it is taken next. What has cost its time already gets one try: the
// lane must not stand still for as long again at each of the ten halvings that find one message among a thousand.
func (g group) halves(slow bool) []group {
	if slow {
		g.tries = 1
	}
	half := len(g.items) / 2
	return []group{{items: g.items[half:], tries: g.tries}, {items: g.items[:half:half], tries: g.tries}}
}

// single is each of the group by itself.
func (g group) single() []group {
	all := make([]group, len(g.items))
	for i := range g.items {
		all[len(all)-1-i] = group{items: g.items[i : i+1 : i+1], tries: g.tries}
	}
	return all
}
