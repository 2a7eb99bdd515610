package decide

// End is how a transaction of messages ended.
type End uint8

// The ends.
const (
	Committed End = iota + 1 // the effects of all whom nobody blames
	Moved                    // nothing: a row is not as it was read
	Unsure                   // perhaps, or later: the COMMIT has no answer
	Failed                   // nothing: the handler said so, or what a server refused of it
	Met                      // nothing: locks of others were in the way
	Slow                     // nothing: the database was too long at work on a statement, and waited for no lock
	TooLarge                 // nothing: for a statement, or a transaction
	Away                     // nothing: the database, which says nothing of the messages
	Stopped                  // nothing: the engine stops
)

// Told is what is known of the end of a transaction.
type Told struct {
	End
	Blamed map[int]error // left out of what is committed, or who failed
	Late   bool          // the call's time was over: whom the handler names then is whom it was at
	Err    error
}

// Sequel is what follows for a group of messages that are attempted together.
type Sequel uint8

// The sequels.
const (
	Applied     Sequel = iota + 1 // all but the blamed are applied
	LookAtRows                    // who has a row goes its way, the rest is tried again
	GoOnWithout                   // the blamed leave, the rest is tried again
	Halve                         // until the guilty stand alone
	Single                        // each by itself
	GoApart                       // each by itself, and claimed for that
	Charge                        // the message has failed an attempt
	PutOff                        // it comes back later, and no attempt is counted
	LoseLease                     // somebody else has the row: a copy comes back later
)

// Group is what is asked of messages whose attempt is one transaction. Alone is a group of one.
type Group struct {
	Size    int
	Claimed bool // each before, which counts its attempt; else it is counted when it has failed
	Late    bool // in hand for so long that nobody waits for locks of others any more
}

// FewAtOnce is how many messages share a transaction after a wait in vain, and later twice as many with each commit.
const FewAtOnce = 8

// Next says what follows for a group whose transaction ended so.
func (g Group) Next(t Told) Sequel {
	one := g.Size == 1
	switch {
	case t.End == Committed:
		return Applied
	case g.Claimed && one:
		switch t.End {
		case Moved:
			return LoseLease
		case Failed:
			return Charge
		}
		return PutOff
	case t.End == Failed && t.Blamed != nil && !(g.Claimed && t.Late):
		return GoOnWithout
	case g.Claimed:
		return GoApart
	case t.End == Moved, t.End == Unsure:
		return LookAtRows
	case t.End == Met && (one || g.Late):
		return PutOff
	case one && t.End == Failed && !t.Late:
		return Charge
	case one:
		return GoApart
	case t.End == Met && g.Size <= FewAtOnce:
		return Single
	}
	return Halve
}
