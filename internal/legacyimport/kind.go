package legacyimport

// Kind says what became of a row, or what is odd about it. A row has one fate and any number of oddities.
type Kind string

// class is what a kind means for whoever reads a report.
type class int

const (
	fate        class = iota // what became of a row
	contradicts              // a fate that a person must look at: two logs disagree about an effect
	refused                  // the fate of a row that rollbackd can have none of
	odd                      // of a row that was taken over
)

// Told is a kind with its words for a person.
type Told struct {
	Kind  Kind
	Means string
	class class
}

// Odd reports whether the kind is no fate.
func (t Told) Odd() bool { return t.class == odd }

// Kinds are all of them, in the order of a report.
var Kinds []Told

func kind(name Kind, c class, means string) Kind {
	Kinds = append(Kinds, Told{name, means, c})
	return name
}

// MaxTimes is how often the classic consumer tries at most.
const MaxTimes = 5

// The fates.
var (
	Success = kind("success", fate, "success there, success here: a later delivery is a duplicate")
	Open    = kind("open", fate, "left open there (status 0 or 2): filed as dead, effect_unknown")
	Settled = kind("settled", fate, "filed as dead by an earlier pass, success there by now: success")
	Renewed = kind("renewed", fate, "filed as dead by an earlier pass, moved there since, still open: remark and times "+
		"renewed")
	There       = kind("there", fate, "as an earlier pass took it over")
	Merged      = kind("merged", fate, "has the identity of another old row, by the names that were given: success wins")
	Ours        = kind("ours", fate, "rollbackd, or a person, has moved its row: that decides")
	OtherName   = kind("other_name", fate, "of other groups: left alone")
	BothApplied = kind("both_applied", contradicts, "success there, and applied by rollbackd too: the effect may be "+
		"there twice. Look")
	UnderWay = kind("under_way", contradicts, "success there, and rollbackd has it under way, or dead: discard it, or "+
		"the effect comes twice")
	WentBack = kind("went_back", contradicts, "was success there at an earlier pass, and is not any more: it stays "+
		"success here. Look")
	NullName = kind("null_name", refused, "refused: group, tag or key is NULL. No delivery can have such a name")
	TooLong  = kind("too_long", refused, "refused: group, tag or key is too long. Such a delivery is unidentified, and "+
		"has no effect")
	Unusable = kind("unusable", refused, "refused: an empty name, no UTF-8, a control character. Such a delivery is "+
		"unidentified")
	ReservedTag = kind("reserved_tag", refused, "refused: tags that begin with rollbackd. are its own. Such a delivery "+
		"is unidentified")
)

// The oddities.
var (
	StatusNull  = kind("status_null", odd, "no status: taken for left open")
	StatusOther = kind("status_other", odd, "a status that is none of 0, 1 and 2: taken for left open")
	OddTimes    = kind("odd_times", odd, "no number of times, or a negative one: 0, for a success 1")
	ManyTimes   = kind("many_times", odd, "tried more than 5 times: taken over as it is")
	NoTime      = kind("no_time", odd, "no time: as of now")
	FutureTime  = kind("future_time", odd, "a time in the future: as of now")
	OtherZone   = kind("other_zone", odd, "a time up to 26 hours in the future: as of now. Is --time-zone right?")
	Outlived    = kind("outlived", odd, "older than ROLLBACKD_LOG_RETENTION: the daemon deletes it, and then a copy is "+
		"new")
	NoBody = kind("no_body", odd, "no body: no hash, so a delivery with any body is a copy")
	// DoubtfulBody is of a column that may not hold all bytes.
	DoubtfulBody = kind("doubtful_body", odd, "a body that may be cut or changed: no hash, so a delivery with any body "+
		"is a copy")
	CutBody = kind("cut_body", odd, "left open, with a body over 256 KiB: the log keeps its beginning; it cannot be sent "+
		"from here")
	NoMessage = kind("no_message", odd, "left open, and no message with its identity can be made of it: it cannot be "+
		"sent from here")
)

func (k Kind) is(c class) bool {
	for _, t := range Kinds {
		if t.Kind == k {
			return t.class == c
		}
	}
	return false
}

// named reports whether a report names each row of this kind.
func (k Kind) named() bool { return k.is(contradicts) || k.is(refused) || k == Merged }
