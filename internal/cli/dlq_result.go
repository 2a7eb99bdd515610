package cli

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rollbackd/rollbackd/deadletter"
)

func resultTable(res deadletter.Result) table {
	t := table{header: []string{"LETTERS", "OUTCOME"}}
	add := func(n int, outcome string) {
		if n > 0 {
			t.add(n, outcome)
		}
	}
	replayed, discarded := "replayed", "discarded"
	if res.DryRun {
		replayed, discarded = "would be replayed", "would be discarded"
	}
	t.add(res.Found, "found")
	add(res.Replayed, replayed)
	add(res.Mended, "  of them with a mended body")
	add(res.Applied, "  of them applied by now")
	add(res.FailedAgain, "  of them failed again")
	add(res.DeadAgain, "    and are dead again")
	add(res.Unsettled, "  of them not processed yet")
	add(res.Discarded, discarded)
	for _, reason := range slices.Sorted(maps.Keys(res.ByReason)) {
		add(res.ByReason[reason], "  of them "+string(reason))
	}
	add(res.Duplicates, "dropped: other copies of these messages")
	add(res.Stale, "dropped: their messages had ended already")
	add(res.NotSelected, "not chosen")
	add(res.Later, "came after the beginning")
	add(len(res.Left), "chosen, but stay")
	add(res.Parked, "  of them parked")
	add(res.Unseen, "not looked at: the run ended before")
	if res.DryRun {
		t.add("-", "this was a dry run: nothing was changed")
	}
	return t
}

// whatNext says what to do about letters that stay.
var whatNext = map[deadletter.Why]string{
	deadletter.WhyInProgress:  "a worker has them right now: try again later",
	deadletter.WhyMoved:       "somebody changed the row at the same moment: try again",
	deadletter.WhyUnknown:     "the database's answer was lost: try again",
	deadletter.WhyUnpublished: "the main queue did not confirm the message: try again",
	deadletter.WhyOldRow: "published, but the row of the former identity could not be ended: try again, it is " +
		"only dropped then",
	deadletter.WhyUnacked: "done, but the ack was lost: the next replay drops them",
	deadletter.WhyTooOld: "the row is gone and they are older than ROLLBACKD_LOG_RETENTION, so they may have had " +
		"their effect: make sure that they had not, then use --force",
	deadletter.WhyKeyTaken: "another body had the key and its row is gone: make sure that this one may take effect " +
		"too, then use --force",
	deadletter.WhyParked: "they were replayed ROLLBACKD_MAX_REPLAYS times in vain: mend the cause, then use " +
		"--force; or discard them",
	deadletter.WhyCut: "the log keeps only a part of the message: replay it from the queue, or complete the " +
		"line; --force if only headers are missing and nobody needs them",
	deadletter.WhyBadLine: "mend the line",
	deadletter.WhyOtherIdentity: "the line's message is another one: discard the letter and publish the message, or " +
		"undo what changed its key",
	deadletter.WhyNewerStatus: "a newer version wrote the row: use that version",
	deadletter.WhyFailed:      "see the error",
}

// maxShown is how many letters or keys of a kind are named on a screen.
const maxShown = 10

// explainLeft says on stderr why letters stay, with some of their keys.
func (a *app) explainLeft(left []deadletter.Left) {
	groups := map[deadletter.Why][]deadletter.Left{}
	for _, l := range left {
		groups[l.Why] = append(groups[l.Why], l)
	}
	for _, why := range slices.Sorted(maps.Keys(groups)) {
		a.say("%d stay (%s), %s", len(groups[why]), why, whatNext[why])
		for _, l := range groups[why][:min(maxShown, len(groups[why]))] {
			fmt.Fprintf(a.stderr, "  %s %s %s\n", printable(l.Tag), printable(l.Key), printable(l.Error))
		}
		if n := len(groups[why]) - maxShown; n > 0 {
			fmt.Fprintf(a.stderr, "  and %d more; -o json lists all\n", n)
		}
	}
}
