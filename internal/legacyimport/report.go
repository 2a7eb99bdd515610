package legacyimport

const (
	// maxNames is how many pairs of old group and tag a report counts.
	maxNames = 40
	// MaxNamed is how many rows a report names one by one.
	MaxNamed = 10_000
)

// Report says what a pass did, or would do. The names of its JSON form are stable.
type Report struct {
	From     string `json:"from"` // the old table
	LastPass bool   `json:"last_pass"`
	DryRun   bool   `json:"dry_run"`
	// Resumed: the pass went on where a former run was cut off. Counts are of both; Named is of this one.
	Resumed  bool `json:"resumed"`
	Finished bool `json:"finished"` // the last row was seen
	Sums
	Named   []Named  `json:"named"` // the rows of kinds that a person may want to look at
	Unnamed int      `json:"unnamed"`
	Notes   []string `json:"notes"` // what is to be known of the table
	// Late counts the rows that somebody wrote, changed or deleted during a last pass: there must be none.
	Late int `json:"late"`
	// NotLast is why a last pass that came to the last row was none after all; empty: it was, or was not to be.
	NotLast string `json:"not_last,omitempty"`
}

// Sums are what a pass has counted, in its report and in the note with which it goes on.
type Sums struct {
	Rows   int          `json:"rows"` // that were read
	Counts map[Kind]int `json:"counts"`
	Names  []Name       `json:"names"` // the first forty pairs of old group and tag
}

// Name is a pair of old group and tag, with the names under which its rows are taken over; these are empty when they
// are not.
type Name struct {
	OldGroup string `json:"old_group"`
	OldTag   string `json:"old_tag"`
	Group    string `json:"group,omitempty"`
	Tag      string `json:"tag,omitempty"`
	Rows     int    `json:"rows"`
}

// Named is one row of the old table. What is NULL there is empty.
type Named struct {
	Kind  Kind   `json:"kind"`
	Group string `json:"group"`
	Tag   string `json:"tag"`
	Key   string `json:"key"`
	Why   string `json:"why,omitempty"`
}

// Contradictions counts the rows about whose effect the two logs disagree.
func (r *Report) Contradictions() (n int) {
	for k, count := range r.Counts {
		if k.is(contradicts) {
			n += count
		}
	}
	return n
}

// Chosen counts the rows that are of a group that was asked for.
func (r *Report) Chosen() int { return r.Rows - r.Counts[OtherName] }

func (r *Report) name(more []Named) {
	room := MaxNamed - len(r.Named)
	n := min(room, len(more))
	r.Named = append(r.Named, more[:n]...)
	r.Unnamed += len(more) - n
}

// close fills in what a pass knows; no field is nil, for JSON.
func (r *Report) close(p *pass) {
	r.From, r.LastPass, r.DryRun, r.Sums, r.Late = p.shape.name(), p.LastPass, p.DryRun,
		p.state.clone().Sums, p.state.Late
	r.Notes, r.Named = append([]string{}, p.shape.notes...), append([]Named{}, r.Named...)
}
