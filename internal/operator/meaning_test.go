package operator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/lock"
)

func TestEveryStateOfARowHasAMeaning(t *testing.T) {
	names := operator.Names{Queue: "q", MaxAttempts: 5, Program: "rollbackd"}
	row := func(status dedup.Status, attempts int) dedup.Row {
		return dedup.Row{
			Identity: dedup.Identity{Group: "g", Tag: "t", Key: "it's"}, Version: dedup.Version{Status: status,
				Attempts: attempts},
			Wait: 3 * time.Second,
		}
	}
	live, due, reopened := row(dedup.Processing, 2), row(dedup.Failed, 2), row(dedup.Failed, 0)
	putOff, asked := row(dedup.Failed, 0), row(dedup.Failed, 1)
	putOff.Remark, asked.Remark, asked.Wait, asked.Due = "put off: closed", "put off: 429", 0, true
	live.LeaseLive, due.Due, reopened.Replays = true, true, 1
	for name, tc := range map[string]struct {
		row         dedup.Row
		means, next string
	}{
		"success":        {row(dedup.Success, 1), "is committed", "Nothing."},
		"discarded":      {row(dedup.Discarded, 1), "A person ended it", "Nothing."},
		"live":           {live, "attempt 2 right now; its lease ends in 3s", "Wait."},
		"expired":        {row(dedup.Processing, 2), "The next copy takes it over", "daemon running?"},
		"expired, spent": {row(dedup.Processing, 5), "the last one, ended without a result", "daemon running?"},
		"waiting": {row(dedup.Failed, 2), "Attempt 2 of 5 failed, see remark; the next one is due in 3s",
			"mend the cause"},
		"put off":  {putOff, "has put it off, see remark. No attempt is counted; it comes again in 3s", "Wait"},
		"asked":    {asked, "again and again, or is away", "longest retry delay"},
		"due":      {due, "the next one is due.", "daemon running?"},
		"spent":    {row(dedup.Failed, 5), "No attempt is left", "daemon running?"},
		"reopened": {reopened, "waits in q", "still in q.dead: `rollbackd dlq replay --tag t --key 'it'\\''s'`"},
		"dead": {row(dedup.Dead, 5), "confirmed in q.dead, and it had no effect: all 5 attempts failed",
			"then `rollbackd dlq replay --tag t --key 'it'\\''s'`"},
		"unknown": {row(9, 1), "does not know the status", "Use the version that wrote it."},
	} {
		t.Run(name, func(t *testing.T) {
			means, next := operator.Meaning(tc.row, names)
			if !strings.Contains(means, tc.means) || !strings.Contains(next, tc.next) {
				t.Errorf("means %q, next %q; want %q, %q in them", means, next, tc.means, tc.next)
			}
		})
	}
}

func TestEveryReasonHasAMeaningOfItsOwn(t *testing.T) {
	seen := map[string]dedup.Reason{}
	for _, reason := range dedup.Reasons() {
		means, _ := operator.Meaning(dedup.Row{Version: dedup.Version{Status: dedup.Dead, Attempts: 5}, Reason: reason},
			operator.Names{Queue: "q", Program: "rollbackd"})
		if other, ok := seen[means]; ok {
			t.Errorf("%s means the same as %s: %q", reason, other, means)
		}
		seen[means] = reason
	}
}

func TestLocksAreToldInWords(t *testing.T) {
	for want, s := range map[string]lock.State{
		"free":                          {},
		"done marker, for another 4m":   {Hold: lock.DoneMarker, TTL: 4 * time.Minute},
		"done marker, without an end: ": {Hold: lock.DoneMarker, TTL: -1},
		"a value that is not":           {Hold: lock.Foreign, TTL: time.Second},
		"held by me, for another 5s":    {Hold: lock.HeldByOther, Token: "me", TTL: 5 * time.Second},
		"held by me, without an end: ":  {Hold: lock.HeldByOther, Token: "me", TTL: -1},
	} {
		if got := operator.LockText(s); !strings.HasPrefix(got, want) {
			t.Errorf("lock %+v is told as %q, want %q", s, got, want)
		}
	}
}
