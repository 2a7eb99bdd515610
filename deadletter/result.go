package deadletter

import (
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
)

// Result is what a run did. The names of its JSON form are stable.
type Result struct {
	DryRun bool `json:"dry_run"` // nothing was changed: the numbers say what would have been
	Found  int  `json:"found"`   // letters in the queue when the run began, or rows, or lines
	Seen   int  `json:"seen"`    // letters that were read
	Others int  `json:"others"`  // readers of the queue beside the run when it began: what they held it did not see

	Replayed  int `json:"replayed"`  // reopened, published, acked
	Mended    int `json:"mended"`    // of them, those with another body than their rows had
	Discarded int `json:"discarded"` // ended and acked
	Stale     int `json:"stale"`     // acked: their identity had ended already
	// acked: further letters of a message that the run has just replayed or discarded
	Duplicates  int `json:"duplicates"`
	NotSelected int `json:"not_selected"` // stay: the filter or the limit left them out
	Later       int `json:"later"`        // stay: they came, or died again, after the run began
	Unseen      int `json:"unseen"`       // stay: the run ended before it came to them

	// What became of the replayed letters until the end of the run, as far as it watched them.
	Applied     int `json:"applied"`      // their effect is committed
	FailedAgain int `json:"failed_again"` // an attempt failed: they are tried again, or dead again
	DeadAgain   int `json:"dead_again"`   // of them, those that are dead letters again
	Unsettled   int `json:"unsettled"`    // nothing yet

	// Parked counts the letters of Left that were replayed as often as is allowed. They are marked in their rows.
	Parked int `json:"parked"`
	// NotFound are the keys of the filter that no letter has which fulfils all of it. Empty while letters are unseen.
	NotFound []string `json:"not_found"`

	ByReason map[dedup.Reason]int `json:"by_reason"` // of those replayed or discarded; "unknown" where nothing tells
	Left     []Left               `json:"left"`      // chosen, but they stay in the queue; of a [Set] the first

	// ByRows: the letters were found by their rows, see [Filter.ByRows]; those in the queue are stale.
	ByRows bool        `json:"-"`
	LeftBy map[Why]int `json:"-"` // all that were chosen and stay
	// Confirmed: of a [Set], everything that was ever reopened for it is published and confirmed.
	Confirmed bool `json:"-"`
}

// and is r with what another run did of the same kind, as far as compensation tells of it.
func (r Result) and(o Result) Result {
	if r.ByReason == nil {
		return o
	}
	r.Found, r.Seen, r.Replayed, r.Parked = r.Found+o.Found, r.Seen+o.Seen, r.Replayed+o.Replayed, r.Parked+o.Parked
	r.NotSelected, r.Left = r.NotSelected+o.NotSelected, append(r.Left, o.Left...)
	for reason, n := range o.ByReason {
		r.ByReason[reason] += n
	}
	return r
}

// LeftCount is how many letters were chosen and stay.
func (r Result) LeftCount() (all int) {
	for _, n := range r.LeftBy {
		all += n
	}
	return all
}

// Left is a letter that was chosen and stays in the queue.
type Left struct {
	Tag    string       `json:"tag"`
	Key    string       `json:"key"`
	Reason dedup.Reason `json:"reason"`
	Why    Why          `json:"why"`
	Error  string       `json:"error,omitempty"`
}

func (l Left) String() string {
	text := fmt.Sprintf("%s/%q: %s", l.Tag, l.Key, l.Why)
	if l.Error != "" {
		text += ": " + l.Error
	}
	return text
}
