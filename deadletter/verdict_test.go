package deadletter

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
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

func TestTheOutcomeOfAReplayedLetterFollowsItsRow(t *testing.T) {
	for name, tc := range map[string]struct {
		version dedup.Version
		want    fate
	}{
		"waits":                       {dedup.Version{Status: dedup.Failed, Replays: 2}, noneYet},
		"first attempt":               {dedup.Version{Status: dedup.Processing, Attempts: 1, Replays: 2}, noneYet},
		"applied":                     {dedup.Version{Status: dedup.Success, Attempts: 1, Replays: 2}, applied},
		"an attempt failed":           {dedup.Version{Status: dedup.Failed, Attempts: 1, Replays: 2}, failedAgain},
		"second attempt":              {dedup.Version{Status: dedup.Processing, Attempts: 2, Replays: 2}, failedAgain},
		"dead again":                  {dedup.Version{Status: dedup.Dead, Attempts: 3, Replays: 2}, failedAgain},
		"dead, never attempted":       {dedup.Version{Status: dedup.Dead, Replays: 2}, failedAgain},
		"discarded":                   {dedup.Version{Status: dedup.Discarded, Replays: 2}, elsewhere},
		"replayed by another run":     {dedup.Version{Status: dedup.Failed, Replays: 3}, elsewhere},
		"dead after another's":        {dedup.Version{Status: dedup.Dead, Replays: 3}, elsewhere},
		"applied after another's":     {dedup.Version{Status: dedup.Success, Replays: 3}, elsewhere},
		"pruned":                      {dedup.Version{Status: dedup.Absent}, elsewhere},
		"a status of another version": {dedup.Version{Status: 9, Replays: 2}, elsewhere},
	} {
		assert.Is(t, outcomeOf(dedup.Row{Version: tc.version}, 2), tc.want, "%s", name)
	}
}

func TestALetterIsDroppedOnlyWhenItsMessageIsElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		status                dedup.Status
		row, letter, sentWith int // replays
		want                  bool
	}{
		"applied":                           {dedup.Success, 3, 2, 3, true},
		"its body was mended":               {dedup.Discarded, 0, 0, 0, true},
		"waits in the main queue":           {dedup.Failed, 3, 2, 3, true},
		"is attempted":                      {dedup.Processing, 3, 2, 3, true},
		"made since, its row not yet dead":  {dedup.Failed, 3, 3, 3, false},
		"made since, while it is attempted": {dedup.Processing, 3, 3, 3, false},
		"dead again":                        {dedup.Dead, 3, 2, 3, false},
		"reopened by another run":           {dedup.Failed, 4, 2, 3, false},
		"not published by this run":         {dedup.Failed, 3, 2, 0, false},
		"no row":                            {dedup.Absent, 0, 0, 0, false},
	} {
		row := dedup.Row{Version: dedup.Version{Status: tc.status, Replays: tc.row}}
		assert.Is(t, isSuperseded(row, tc.letter, tc.sentWith), tc.want, "%s", name)
	}
}
