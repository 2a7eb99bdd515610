package legacyimport

// Kind says what became of a row, or what is odd about it. A row has one of the first and any number of the second.
type Kind string

// What became of a row.
const (
	Success   Kind = "success"    // taken over as success
	Open      Kind = "open"       // left open: filed as dead, its effect unknown
	Settled   Kind = "settled"    // filed as dead by an earlier pass; the old log says success by now
	Renewed   Kind = "renewed"    // filed as dead by an earlier pass, and moved since, but still open
	There     Kind = "there"      // as an earlier pass took it over
	Merged    Kind = "merged"     // another old row has the same identity, by the names that were given; success wins
	OtherName Kind = "other_name" // of a group that was not asked for: left alone
	Ours      Kind = "ours"       // rollbackd has a row of its own, which decides

	// Contradictions, for a person: the old log says success, and rollbackd's own row …
	BothApplied Kind = "both_applied" // … says so too: the effect may be there twice
	UnderWay    Kind = "under_way"    // … is not at its end, or dead: an effect of rollbackd's would be the second
	WentBack    Kind = "went_back"    // was success at an earlier pass, and is not any more: it stays success here

	// Refused: rollbackd can have no such row.
	NullName    Kind = "null_name"    // group, tag or key is NULL
	TooLong     Kind = "too_long"     // group, tag or key is longer than the log's column
	Unusable    Kind = "unusable"     // it is empty, no UTF-8, or has a control character
	ReservedTag Kind = "reserved_tag" // its tag begins with rollbackd.
)

// What is odd about a row that was taken over.
const (
	StatusNull   Kind = "status_null"   // no status: left open
	StatusOther  Kind = "status_other"  // a status that is none of 0, 1 and 2: left open
	OddTimes     Kind = "odd_times"     // no number of times, or a negative one: 0, for a success 1
	ManyTimes    Kind = "many_times"    // more than MaxTimes: as it is
	NoTime       Kind = "no_time"       // no time: that of the pass
	FutureTime   Kind = "future_time"   // a time in the future: that of the pass
	OtherZone    Kind = "other_zone"    // hours in the future, as by a wrong zone: that of the pass
	Outlived     Kind = "outlived"      // a success that is older than the log keeps one
	NoBody       Kind = "no_body"       // no body: no hash
	DoubtfulBody Kind = "doubtful_body" // the column may not hold all bytes of the body: no hash
	CutBody      Kind = "cut_body"      // left open, and longer than the log keeps a body
	NoMessage    Kind = "no_message"    // left open, and no message can be made of it that has its identity
)

// MaxTimes is how often the classic consumer tries at most.
const MaxTimes = 5

// Contradicts reports whether a person must look at rows of this kind: two logs disagree about an effect.
func (k Kind) Contradicts() bool { return k == BothApplied || k == UnderWay || k == WentBack }

// Refused reports whether a row of this kind is not taken over, because rollbackd can have no such row.
func (k Kind) Refused() bool {
	return k == NullName || k == TooLong || k == Unusable || k == ReservedTag
}

// named reports whether a report names each row of this kind.
func (k Kind) named() bool { return k.Contradicts() || k.Refused() || k == Merged }
