package deadletter

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
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

// Given a rate so small, or so large, that no clock holds the time between two letters, then a small one is as slow as
// can be and not without any limit, and a large one is fast.
func TestARateThatNoClockHoldsIsKeptAllTheSame(t *testing.T) {
	for _, c := range []struct {
		rate  float64
		waits bool
	}{{math.SmallestNonzeroFloat64, true}, {1e-12, true}, {1e300, false}, {math.MaxFloat64, false}} {
		synctest.Test(t, func(t *testing.T) {
			p := newRun(&Letters{}, Filter{All: true}, ReplayOptions{Rate: c.rate}).watch
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			n, err := p.turn(ctx, 10)
			require.That(t, err == nil && n >= 1, "at %v the first turn is of %d letters, %v", c.rate, n, err)
			n, err = p.turn(ctx, 10)
			if waited := errors.Is(err, context.DeadlineExceeded); waited != c.waits || !waited && n != 10 {
				t.Errorf("at %v the second turn is of %d letters, %v; want it to wait: %v", c.rate, n, err, c.waits)
			}
		})
	}
}

// Given letters that came, then more and more are taken together while they are small, as many as go in a minute with a
// low rate, and a window of them where a limit, a rate or the daemon bounds how many may go.
func TestAHandfulGrowsWithTheSmallLettersThatCame(t *testing.T) {
	for name, c := range map[string]struct {
		of         Filter
		o          ReplayOptions
		came, each int // letters, and the bytes of a body
		seconds    int // since the run began
		want       int // letters
	}{
		"at first":      {Filter{All: true}, ReplayOptions{}, 0, 0, 1, 500},
		"some":          {Filter{All: true}, ReplayOptions{}, 1000, 100, 1, 500},
		"many":          {Filter{All: true}, ReplayOptions{}, 3000, 100, 1, 1500},
		"very many":     {Filter{All: true}, ReplayOptions{}, 100_000, 100, 1, 4000},
		"of 4 KiB":      {Filter{All: true}, ReplayOptions{}, 100_000, 4 << 10, 1, 1024},
		"slow":          {Filter{All: true}, ReplayOptions{}, 110_000, 100, 1000, 1099},
		"very slow":     {Filter{All: true}, ReplayOptions{}, 100_000, 100, 100_000, 500},
		"large":         {Filter{All: true}, ReplayOptions{}, 100_000, 256 << 10, 1, 500},
		"empty":         {Filter{All: true}, ReplayOptions{}, 3000, 0, 1, 1500},
		"a limit":       {Filter{All: true, Limit: 50_000}, ReplayOptions{}, 3000, 100, 1, 500},
		"a rate":        {Filter{All: true}, ReplayOptions{Rate: 100}, 3000, 100, 1, 500},
		"a low rate":    {Filter{All: true}, ReplayOptions{Rate: 0.1}, 3000, 100, 1, 6},
		"looked after":  {Filter{All: true}, ReplayOptions{Window: 500}, 3000, 100, 1, 500},
		"by themselves": {Filter{All: true, due: func(dedup.Row) bool { return true }}, ReplayOptions{}, 3000, 100, 1, 500},
		"a dry run":     {Filter{All: true}, ReplayOptions{DryRun: true}, 3000, 100, 1, 1500},
	} {
		r := newRun(&Letters{}, c.of, c.o)
		r.choose(c.of)
		r.began = time.Now().Add(-time.Duration(c.seconds) * time.Second)
		r.queue, r.tally.Seen = &queue{read: c.came, bytes: c.came * c.each}, c.came
		assert.Is(t, (&queueSource{run: r}).handful(), c.want, "%s: letters that are taken together", name)
	}
}

func TestErrorsOfOneKindHaveOneFingerprint(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"shelf is locked":                "shelf is locked",
		"sku 1001: 7 is more than 3":     "sku #: # is more than #",
		"order 20261121-0001 is shipped": "order # is shipped",
		`key "A-17" has another body`:    `key "…" has another body`,
		"Duplicate entry 'x-1' for key 'PRIMARY'":                  `Duplicate entry "…" for key "…"`,
		"the service didn't answer, it can't":                      "the service didn't answer, it can't",
		"order 0199a2b3-beef-7abc-8def-0123456789ab unknown":       "order # unknown",
		"order 0199a2b3-beef-dead-cafe-0123456789ab unknown":       "order # unknown",
		"at 2026-11-22T21:50:01.123Z from 10.0.0.17:5672":          "at # from #",
		"hash deadbeef01 of 0x1F":                                  "hash # of #",
		"column `a``b` is utf8mb4":                                 `column "…""…" is utf#mb#`,
		"two  spaces\nand a line":                                  "two spaces and a line",
		"parked after 10 replays of at most 10: shelf 4 is locked": "shelf # is locked",
		"an open \" quote":                                         "an open \" quote",
		"größe 5 von »x«":                                          "größe # von »x«",
		"feedface has no digit":                                    "feedface has no digit",
	} {
		assert.Is(t, Fingerprint(text), want, "%q", text)
	}
}

func FuzzFingerprint(f *testing.F) {
	for _, s := range []string{"a 'b' 1", "0199a2b3-beef-7abc-8def-0123456789ab", "\xff\"", "#-#", "-#T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Fingerprint(s)
		assert.That(t, utf8.ValidString(got), "%q: %q is not UTF-8", s, got)
		assert.AtMost(t, len(got), 4*len(s)+4, "%q: %q is longer", s, got)
	})
}

// Given any error, then the fixed word of its fingerprint stands in it: a search for it leaves none of a kind out.
func TestTheFixedWordOfAFingerprintStandsInItsErrors(t *testing.T) {
	pieces := []string{
		"shelf", "sku7", "7sku", "0xff", "deadbeef", "12", "2026-11-22T09:42:04Z", "T", "Z", "-", ":", ".", "_", "/", "+",
		"#", `"`, `'`, "`", "…", " ", "\t", "\n", "  ", "3f2a-abcd-99", "it's", `"a b"`, "ä", "\u00a0", "名",
		"parked after 3: ", "a1b2",
	}
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 20_000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		text := b.String() + strings.Repeat("x", r.IntN(2)*400)
		word := fixed(Fingerprint(text))
		require.That(t, strings.Contains(text, word), "%q: its fingerprint %q has the fixed word %q", text,
			Fingerprint(text), word)
		if word != "" {
			found++
		}
	}
	assert.AtLeast(t, found, 10_000, "have a fixed word")
	assert.Is(t, fixed("shelf # of order dead-# is locked"), "locked", "the longest word")
}
