package pages

import (
	"bytes"
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

// Given a day of a fleet with a bad piece, one of which nobody knows anything, and one without lag, then these are its
// charts.
func TestTheChartsOfADay(t *testing.T) {
	until := time.Date(2026, 11, 27, 10, 7, 0, 0, time.UTC)
	c := view.Charts{Span: "day", From: until.Add(-24 * time.Hour), Until: until, Step: 900}
	p50, p99, worst := .004, .02, 310.0
	for i := range 8 {
		p := view.Piece{
			At: c.From.Truncate(15 * time.Minute).Add(time.Duration(i) * 12 * 15 * time.Minute), P50: &p50, P99: &p99,
			WorstP99: &p99, Applied: view.Range{Least: 90, Mean: 100, Most: 120}, Waiting: &view.Range{Mean: 5, Most: 12345},
		}
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
		if got := round(x); math.Abs(got-want) > 1e-9 {
			t.Errorf("the axis of %v ends at %v, want %v", x, got, want)
		}
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
