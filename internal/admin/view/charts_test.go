package view

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// minuteAt is a minute in which so many were applied, each with a lag of 10 to 25 ms.
func minuteAt(hour, minute int, applied int64) dedup.Minute {
	m := dedup.Minute{At: time.Date(2026, 11, 27, hour, minute, 0, 0, time.UTC), Applied: applied}
	m.Lag[4] = applied
	return m
}

// Given a day in which one minute was bad, then its piece shows that: the least and the most, the worst lag, and who
// died. A minute in which nobody wrote counts as one of nothing, but a piece of such minutes is not there.
func TestAMinuteShowsInADay(t *testing.T) {
	var all []dedup.Minute
	for minute := range 60 {
		if minute == 20 || minute >= 30 && minute < 45 {
			continue // nobody writes
		}
		all = append(all, minuteAt(10, minute, 600))
	}
	bad := &all[5]
	bad.Applied, bad.Lag = 60, [19]int64{16: 60}
	bad.Dead, bad.Retried = map[dedup.Reason]int64{dedup.ReasonCrashed: 3}, 120
	bad.Waiting, all[6].Waiting = sql.Null[int64]{V: 5000, Valid: true}, sql.Null[int64]{V: 1000, Valid: true}
	got := pieces(all, 15*time.Minute)
	assert.Is(t, len(got), 3, "pieces, of which the third has no minute:")
	first, second := got[0], got[1]
	assert.That(t, first.Applied.Least == 1 && first.Applied.Most == 10 && first.Retried.Most == 2 &&
		first.Dead["crashed"] == 3, "the piece with the bad minute: %+v", first)
	assert.That(t, *first.WorstP99 >= 300 && *first.P50 <= .025 && *first.Waiting == (Range{1000, 3000, 5000}) &&
		first.Retrying == nil, "its lags are %v, %v, at worst %v; it has waiting %v and %v", *first.P50, *first.P99,
		*first.WorstP99, first.Waiting, first.Retrying)
	assert.That(t, second.Applied.Least == 0 && fmt.Sprintf("%.2f", second.Applied.Mean) == "9.33" &&
		second.Applied.Most == 10, "the piece with a silent minute: %+v", second.Applied)
	assert.Is(t, got[2].At.Minute(), 45, "the last piece begins at minute")

	late := pieces([]dedup.Minute{minuteAt(10, 14, 600), minuteAt(10, 15, 600)}, 15*time.Minute)
	assert.That(t, late[0].Applied == (Range{10, 10, 10}) && late[1].Applied == (Range{10, 10, 10}),
		"minutes before the first one and after the last one count: %+v", late)
	assert.Is(t, len(pieces(nil, time.Minute)), 0, "pieces of nothing")
}

// Given lags that were counted in buckets, then a percentile lies within its bucket, evenly, and never beyond the last
// bound.
func TestPercentilesLieWithinTheirBucket(t *testing.T) {
	for _, c := range []struct {
		counts [19]int64
		q      float64
		want   string
	}{
		{[19]int64{}, .5, "none"},
		{[19]int64{0: 10}, .5, "0.0005"},
		{[19]int64{3: 4, 9: 4}, .5, "0.01"},
		{[19]int64{3: 4, 9: 4}, .75, "0.75"},
		{[19]int64{4: 99, 18: 1}, .99, "0.025"},
		{[19]int64{18: 5}, .99, "7200"},
	} {
		got := "none"
		if x := quantileOf(c.q, c.counts[:]); x != nil {
			got = fmt.Sprintf("%.4g", *x)
		}
		assert.Is(t, got, c.want, "percentile %v of %v", c.q, c.counts)
	}
}
