package pages

import (
	"bytes"
	"fmt"
	"html/template"
	"math"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a daemon that has just begun, then no server is said to be away before it was in trouble.
func TestAServerThatWasNotAskedIsNotAway(t *testing.T) {
	h := view.Hour{Samples: []view.Sample{{Up: map[string]bool{"mysql": false, "rabbitmq": true, "redis": false}}},
		Troubles: []view.Trouble{{What: "redis"}}}
	for i, want := range []string{"unknown", "answers", "away"} {
		assert.Is(t, parts(h)[i].State, want, "server %d", i)
	}
}

// Given 50 deliveries a second for twenty seconds and then none, then the hour had a thousand, which is no rate.
func TestInTheHourIsACount(t *testing.T) {
	began := time.Now()
	h := view.Hour{}
	for i, r := range []float64{0, 50, 50, 0, 0} {
		h.Samples = append(h.Samples, view.Sample{
			At: began.Add(time.Duration(i) * 10 * time.Second), Rates: map[string]float64{"applied": r, "retried": 0},
		})
	}
	assert.Is(t, fmt.Sprint(outcomes(h)), "[{applied 0 1000}]", "outcomes")
}

// Given a day of a fleet with a bad piece, one of which nobody knows anything, and one without lag, then these are its
// charts.
func TestTheChartsOfADay(t *testing.T) {
	until := time.Date(2026, 11, 27, 10, 7, 0, 0, time.UTC)
	c := view.Charts{Span: "day", From: until.Add(-24 * time.Hour), Until: until, Step: 900}
	p50, p99, worst := .004, .02, 310.0
	for i := range 8 {
		p := view.Piece{At: c.From.Truncate(15 * time.Minute).Add(time.Duration(i) * 12 * 15 * time.Minute), P50: &p50,
			P99: &p99, WorstP99: &p99, Applied: view.Range{Least: 90, Mean: 100, Most: 120},
			Waiting: &view.Range{Mean: 5, Most: 12345}}
		switch i {
		case 3:
			p.WorstP99, p.Applied.Least, p.Retried = &worst, 0, view.Range{Mean: .25, Most: 3}
			p.Dead = map[dedup.Reason]int64{dedup.ReasonExhausted: 2, dedup.ReasonMalformed: 5}
		case 5:
			continue
		case 6:
			p.P50, p.P99, p.WorstP99, p.Waiting = nil, nil, nil, nil
		}
		c.Pieces = append(c.Pieces, p)
		p.At = p.At.Add(15 * time.Minute)
		c.Pieces = append(c.Pieces, p)
	}
	drawn := template.Must(template.New("").Funcs((&Pages{}).words()).ParseFS(templateFiles, "templates/*.html"))
	var b bytes.Buffer
	require.OK(t, drawn.ExecuteTemplate(&b, "charts", charts(c)))
	golden.Is(t, "testdata/charts.html", b.String())
}

// Given any largest value, then the axis is as high as that at least, and has its half.
func TestAnAxisEndsAtARoundNumber(t *testing.T) {
	for x, want := range map[float64]float64{0: 1, .03: .04, 1: 1, 1.2: 2, 5: 6, 7: 8, 9: 10, 99: 100, 12345: 20000} {
		got := round(x)
		assert.That(t, math.Abs(got-want) <= 1e-9, "the axis of %v ends at %v, want %v", x, got, want)
	}
}

// Given a large number of messages, then it is short.
func TestALargeNumberIsShort(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", .5: "0.5", 2.22: "2", 9999: "9,999", 10000: "10k", 12345: "12.3k", 2.5e6: "2.5M",
	} {
		assert.Is(t, short(x), want, "%v", x)
	}
}

// Given two texts, then what differs is shown from the first line that does to the last one, with two lines around it.
func TestADifferenceIsShownWithWhatStandsAroundIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		was, is string
		want    []line
	}{
		"nothing": {"a\nb", "a\nb", nil},
		"a line in the middle": {"1\n2\n3\nx\n5\n6\n7", "1\n2\n3\ny\n5\n6\n7",
			[]line{{" ", "2"}, {" ", "3"}, {"-", "x"}, {"+", "y"}, {" ", "5"}, {" ", "6"}}},
		"a line more, which another one is like": {"a\na", "a\na\na", []line{{" ", "a"}, {" ", "a"}, {"+", "a"}}},
		"all":                                    {"a", "b", []line{{"-", "a"}, {"+", "b"}}},
		"the end is gone":                        {"a\nb", "a", []line{{" ", "a"}, {"-", "b"}}},
	} {
		assert.Equal(t, difference(tc.was, tc.is), tc.want, "%s", name)
	}
}
