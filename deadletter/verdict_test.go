package deadletter

import (
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
	const month = 720 * time.Hour
	for name, tc := range map[string]struct {
		row  dedup.Row
		s    situation
		want verdict
		why  Why
	}{
		"dead before the run": {row(dedup.Dead, time.Minute), situation{elapsed: time.Second}, act, ""},
		"dead since":          {row(dedup.Dead, time.Millisecond), situation{elapsed: time.Second}, later, ""},
		"failed since":        {row(dedup.Failed, time.Millisecond), situation{elapsed: time.Second}, later, ""},
		"claimed since": {row(dedup.Processing, time.Millisecond), situation{elapsed: time.Second}, leave,
			WhyInProgress},
		"reopened by this run":    {own, situation{elapsed: time.Second, token: "replay/me/"}, act, ""},
		"reopened by another run": {own, situation{elapsed: time.Second, token: "replay/you/"}, later, ""},
		"reopened, failed since":  {claimedOwn, situation{elapsed: time.Second, token: "replay/me/"}, later, ""},
		"success since":           {row(dedup.Success, 0), situation{elapsed: time.Second}, drop, ""},
		"live lease":              {live, situation{}, leave, WhyInProgress},
		"live lease, forced":      {live, situation{force: true, discarded: true}, leave, WhyInProgress},
		"discarded":               {row(dedup.Discarded, time.Minute), situation{}, drop, ""},
		"discarded, wanted":       {row(dedup.Discarded, time.Minute), situation{discarded: true}, act, ""},
		"discarded, discard": {row(dedup.Discarded, time.Minute), situation{discard: true, discarded: true}, drop,
			""},
		"replayed often":           {often, situation{most: 2}, leave, WhyParked},
		"replayed often, forced":   {often, situation{most: 2, force: true}, act, ""},
		"replayed often, discard":  {often, situation{most: 2, discard: true}, act, ""},
		"replayed less often":      {often, situation{most: 3}, act, ""},
		"replayed often, no limit": {often, situation{}, act, ""},
		"replayed often, since":    {row(dedup.Dead, 0), situation{most: 2, elapsed: time.Second}, later, ""},
		"replayed often, failed":   {oftenFailed, situation{most: 2}, act, ""},
		"unknown status":           {row(7, time.Minute), situation{force: true}, leave, WhyNewerStatus},
		"absent, young": {row(dedup.Absent, 0), situation{
			dated: true, age: month - 25*time.Hour, retention: month, elapsed: time.Second,
		}, act, ""},
		"absent, within the slack": {row(dedup.Absent, 0), situation{
			dated: true, age: month - 23*time.Hour, retention: month,
		}, leave, WhyTooOld},
		"absent, undated":          {row(dedup.Absent, 0), situation{retention: month}, leave, WhyTooOld},
		"absent, undated, discard": {row(dedup.Absent, 0), situation{retention: month, discard: true}, act, ""},
		"absent, old, forced": {row(dedup.Absent, 0), situation{
			dated: true, age: 2 * month, retention: month, force: true,
		}, act, ""},
		"absent, old, kept for ever":  {row(dedup.Absent, 0), situation{dated: true, age: 20 * month}, act, ""},
		"absent, undated, for ever":   {row(dedup.Absent, 0), situation{}, act, ""},
		"absent, key taken":           {row(dedup.Absent, 0), situation{keyTaken: true}, leave, WhyKeyTaken},
		"absent, key taken, forced":   {row(dedup.Absent, 0), situation{keyTaken: true, force: true}, act, ""},
		"absent, key taken, discards": {row(dedup.Absent, 0), situation{keyTaken: true, discard: true}, act, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := decide(tc.row, tc.s); got != tc.want || why != tc.why {
				t.Errorf("verdict %d, why %q; want %d, %q", got, why, tc.want, tc.why)
			}
		})
	}
}
