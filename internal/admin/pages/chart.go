package pages

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// series is one small chart of the last hour: in words, and as a line over an area, with gaps where nobody knows.
type series struct {
	Name, Now, Most string // Most is "" when none is known
	Age             string // of the last value, where that is not of the last ten seconds
	Line, Area      string
}

// The size of a chart in its own units, as its template has it, and the span that it shows.
const (
	chartWide, chartHigh = 360.0, 56.0
	chartSpan            = time.Hour
)

// chart draws values, NaN where nobody knows.
func chart(name string, show func(float64) string, times []time.Time, values []float64) series {
	s := series{Name: name, Now: unknown}
	most := math.SmallestNonzeroFloat64
	if known := slices.DeleteFunc(slices.Clone(values), math.IsNaN); len(known) > 0 {
		s.Most, most = show(slices.Max(known)), max(most, slices.Max(known))
	}
	var known []string // the places of a stretch without a gap
	var first, last float64
	end := func() {
		if len(known) > 0 {
			path := "M" + strings.Join(known, " L")
			s.Line += path
			s.Area += fmt.Sprintf("%s L%.1f %.1f L%.1f %.1f Z", path, last, chartHigh, first, chartHigh)
			known = nil
		}
	}
	for i, v := range values {
		s.Now = show(v)
		x := chartWide * (1 - float64(times[len(times)-1].Sub(times[i]))/float64(chartSpan))
		if x < 0 || math.IsNaN(v) {
			end()
			continue
		}
		if last = x; len(known) == 0 {
			first = x
		}
		known = append(known, fmt.Sprintf("%.1f %.1f", x, chartHigh-1-(chartHigh-4)*v/most))
	}
	end()
	return s
}

// charts are those of the overview. The last figure of the dead letters is the one that the overview says elsewhere.
func charts(h view.Hour, dead view.Aged[int]) []series {
	var times []time.Time
	for _, s := range h.Samples {
		times = append(times, s.At)
	}
	values := func(of func(view.Sample) *float64) (all []float64) {
		for _, s := range h.Samples {
			v := math.NaN()
			if known := of(s); known != nil {
				v = *known
			}
			all = append(all, v)
		}
		return all
	}
	waiting := func(kind string) []float64 {
		return values(func(s view.Sample) *float64 {
			if n, known := s.Ready[kind]; known {
				return &n
			}
			return nil
		})
	}
	rates := values(func(s view.Sample) *float64 { r := s.Rate(); return &r })
	if len(rates) > 0 {
		rates[0] = math.NaN() // nobody knows since when its deliveries came
	}
	letters, counts := values(func(s view.Sample) *float64 { return s.Dead }), times
	if n := len(letters); !dead.At.IsZero() {
		letters, counts = append(letters, float64(dead.Value)), append(slices.Clone(times), time.Now())
	} else if n > 0 {
		letters[n-1] = math.NaN()
	}
	all := []series{
		chart("Deliveries a second", rate, times, rates),
		chart("Lag, 99th percentile", seconds, times, values(func(s view.Sample) *float64 { return s.Lag })),
		chart("Waiting in the main queue", figure, times, waiting("main")),
		chart("Waiting for a retry", figure, times, waiting("retry")),
		chart("Dead letters", figure, counts, letters),
	}
	if !dead.At.IsZero() {
		all[len(all)-1].Age = counted(dead)
	}
	return all
}
