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
		return "–"
	}
	return s.Show(s.Values[len(s.Values)-1])
}

// Most is the largest value in words; "" when none is known.
func (s series) Most() string {
	most := math.NaN()
	for _, v := range s.Values {
		if math.IsNaN(most) || v > most {
			most = v
		}
	}
	if math.IsNaN(most) {
		return ""
	}
	return s.Show(most)
}

// The size of a chart in its own units, and the span that it shows.
const (
	chartWide, chartHigh = 360.0, 56.0
	chartSpan            = time.Hour
)

// chart draws a series as a line over an area. What it says stands beside it in words, so it is hidden from readers.
func chart(s series) template.HTML {
	most := 0.0
	for _, v := range s.Values {
		if v > most {
			most = v
		}
	}
	var line, area strings.Builder
	var now time.Time
	if n := len(s.Times); n > 0 {
		now = s.Times[n-1]
	}
	open, first, last := false, 0.0, 0.0
	flush := func() {
		if open {
			fmt.Fprintf(&area, "L%.1f %.1f L%.1f %.1f Z", last, chartHigh, first, chartHigh)
		}
		open = false
	}
	for i, v := range s.Values {
		x := chartWide * (1 - float64(now.Sub(s.Times[i]))/float64(chartSpan))
		if math.IsNaN(v) || x < 0 {
			flush()
			continue
		}
		y := chartHigh - 1
		if most > 0 {
			y -= (chartHigh - 4) * v / most
		}
		step := "L"
		if !open {
			open, first, step = true, x, "M"
		}
		last = x
		fmt.Fprintf(&line, "%s%.1f %.1f ", step, x, y)
		fmt.Fprintf(&area, "%s%.1f %.1f ", step, x, y)
	}
	flush()
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
		values := []float64{s.Rate(), s.Lag, known(s.Ready, "main"), known(s.Ready, "retry"), s.Dead}
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

func known(m map[string]float64, name string) float64 {
	if v, ok := m[name]; ok {
		return v
	}
	return math.NaN()
}
