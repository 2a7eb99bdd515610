package pages

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// series is one small chart of the last hour.
type series struct {
	Name   string
	Values []float64 // NaN where nobody knows
	Times  []time.Time
	Show   func(float64) string
	Age    string // of the last value, where that is not of the last ten seconds
}

// Now is the last value in words.
func (s series) Now() string {
	if len(s.Values) == 0 {
		return unknown
	}
	return s.Show(s.Values[len(s.Values)-1])
}

// most is the largest value; NaN when none is known.
func (s series) most() float64 {
	most := math.NaN()
	for _, v := range s.Values {
		if !(v <= most) && !math.IsNaN(v) {
			most = v
		}
	}
	return most
}

// Most is the largest value in words; "" when none is known.
func (s series) Most() string {
	if most := s.most(); !math.IsNaN(most) {
		return s.Show(most)
	}
	return ""
}

// The size of a chart in its own units, and the span that it shows.
const (
	chartWide, chartHigh = 360.0, 56.0
	chartSpan            = time.Hour
)

// chart draws a series as a line over an area, with gaps where nobody knows. What it says stands beside it in words, so
// it is hidden from readers.
func chart(s series) template.HTML {
	var line, area strings.Builder
	var known []string // the places of a stretch without a gap
	var first, last float64
	most := max(s.most(), math.SmallestNonzeroFloat64)
	for i, v := range append(s.Values, math.NaN()) {
		x := math.NaN()
		if i < len(s.Values) {
			x = chartWide * (1 - float64(s.Times[len(s.Times)-1].Sub(s.Times[i]))/float64(chartSpan))
		}
		if x >= 0 && !math.IsNaN(v) {
			if last = x; len(known) == 0 {
				first = x
			}
			known = append(known, fmt.Sprintf("%.1f %.1f", x, chartHigh-1-(chartHigh-4)*v/most))
		} else if len(known) > 0 {
			path := "M" + strings.Join(known, " L")
			line.WriteString(path)
			fmt.Fprintf(&area, "%s L%.1f %.1f L%.1f %.1f Z", path, last, chartHigh, first, chartHigh)
			known = nil
		}
	}
	return template.HTML(fmt.Sprintf(`<svg class="chart" viewBox="0 0 %.0f %.0f" preserveAspectRatio="none" `+
		`aria-hidden="true" focusable="false"><path class="area" d="%s"/><path class="line" d="%s"/></svg>`,
		chartWide, chartHigh, area.String(), line.String())) // numbers only
}

// charts are those of the overview. The last figure of the dead letters is the one that the overview says elsewhere.
func charts(h view.Hour, dead view.Aged[int]) []series {
	all := []series{
		{Name: "Deliveries a second", Show: rate}, {Name: "Lag, 99th percentile", Show: seconds},
		{Name: "Waiting in the main queue", Show: figure}, {Name: "Waiting for a retry", Show: figure},
		{Name: "Dead letters", Show: figure},
	}
	for i, s := range h.Samples {
		values := []float64{s.Rate(), known(s.Lag), waiting(s, "main"), waiting(s, "retry"), known(s.Dead)}
		if i == 0 {
			values[0] = math.NaN()
		}
		for n := range all {
			all[n].Values = append(all[n].Values, values[n])
			all[n].Times = append(all[n].Times, s.At)
		}
	}
	if last := &all[len(all)-1]; !dead.At.IsZero() {
		last.Values, last.Times = append(last.Values, float64(dead.Value)), append(last.Times, time.Now())
		last.Age = counted(dead)
	} else if n := len(last.Values); n > 0 {
		last.Values[n-1] = math.NaN()
	}
	return all
}

func waiting(s view.Sample, kind string) float64 {
	if n, ok := s.Ready[kind]; ok {
		return n
	}
	return math.NaN()
}

func known(x *float64) float64 {
	if x == nil {
		return math.NaN()
	}
	return *x
}
