package deadletter

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

func TestTheVerdictFollowsRowAndSituation(t *testing.T) {
	row := func(s dedup.Status, age time.Duration) dedup.Row {
		return dedup.Row{Version: dedup.Version{Status: s, Attempts: 3, Owner: "host/1"}, Age: age}
	}
	live := row(dedup.Processing, time.Minute)
	live.LeaseLive = true
	own := row(dedup.Failed, 0)
	own.Attempts, own.Owner = 0, "replay/me/17"
	claimedOwn := row(dedup.Failed, 0)
	claimedOwn.Owner = "replay/me/17"
	often := row(dedup.Dead, time.Minute)
	often.Replays = 2
	oftenFailed := row(dedup.Failed, time.Minute)
	oftenFailed.Replays = 2
	edited := row(dedup.Discarded, time.Minute)
	long := strings.Repeat("\u00ad", 120)
	edited.Remark = string([]rune("discarded by " + long + ": " + SentAnew(long, long))[:dedup.MaxRemark])
	const month = 720 * time.Hour
	was, is := time.Minute, time.Millisecond // before the run began, and since
	run := situation{elapsed: time.Second}
	me, you := run, run
	me.token, you.token = "replay/me/", "replay/you/"
	aged := func(age time.Duration, force bool) situation {
		return situation{dated: true, age: age, retention: month, elapsed: time.Second, force: force}
	}
	for name, tc := range map[string]struct {
		row  dedup.Row
		s    situation
		want verdict
		why  Why
	}{
		"dead before the run":         {row(dedup.Dead, was), run, act, ""},
		"dead since":                  {row(dedup.Dead, is), run, later, ""},
		"failed since":                {row(dedup.Failed, is), run, later, ""},
		"claimed since":               {row(dedup.Processing, is), run, leave, WhyInProgress},
		"reopened by this run":        {own, me, act, ""},
		"reopened by another run":     {own, you, later, ""},
		"reopened, failed since":      {claimedOwn, me, later, ""},
		"success since":               {row(dedup.Success, 0), run, drop, ""},
		"live lease":                  {live, situation{}, leave, WhyInProgress},
		"live lease, forced":          {live, situation{force: true, discarded: true}, leave, WhyInProgress},
		"discarded":                   {row(dedup.Discarded, was), situation{}, drop, ""},
		"discarded, wanted":           {row(dedup.Discarded, was), situation{discarded: true}, act, ""},
		"edited, its remark cut":      {edited, situation{discarded: true, force: true}, drop, ""},
		"discarded, discard":          {row(dedup.Discarded, was), situation{discard: true, discarded: true}, drop, ""},
		"replayed often":              {often, situation{most: 2}, leave, WhyParked},
		"replayed often, forced":      {often, situation{most: 2, force: true}, act, ""},
		"replayed often, discard":     {often, situation{most: 2, discard: true}, act, ""},
		"replayed less often":         {often, situation{most: 3}, act, ""},
		"replayed often, no limit":    {often, situation{}, act, ""},
		"replayed often, since":       {row(dedup.Dead, 0), situation{most: 2, elapsed: time.Second}, later, ""},
		"replayed often, failed":      {oftenFailed, situation{most: 2}, act, ""},
		"unknown status":              {row(7, was), situation{force: true}, leave, WhyNewerStatus},
		"absent, young":               {row(dedup.Absent, 0), aged(month-25*time.Hour, false), act, ""},
		"absent, within the slack":    {row(dedup.Absent, 0), aged(month-23*time.Hour, false), leave, WhyTooOld},
		"absent, old, forced":         {row(dedup.Absent, 0), aged(2*month, true), act, ""},
		"absent, undated":             {row(dedup.Absent, 0), situation{retention: month}, leave, WhyTooOld},
		"absent, undated, discard":    {row(dedup.Absent, 0), situation{retention: month, discard: true}, act, ""},
		"absent, old, kept for ever":  {row(dedup.Absent, 0), situation{dated: true, age: 20 * month}, act, ""},
		"absent, undated, for ever":   {row(dedup.Absent, 0), situation{}, act, ""},
		"absent, key taken":           {row(dedup.Absent, 0), situation{keyTaken: true}, leave, WhyKeyTaken},
		"absent, key taken, forced":   {row(dedup.Absent, 0), situation{keyTaken: true, force: true}, act, ""},
		"absent, key taken, discards": {row(dedup.Absent, 0), situation{keyTaken: true, discard: true}, act, ""},
	} {
		if got, why := decide(tc.row, tc.s); got != tc.want || why != tc.why {
			t.Errorf("%s: verdict %d, why %q; want %d, %q", name, got, why, tc.want, tc.why)
		}
	}
}
