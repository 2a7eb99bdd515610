package pages

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// The size of a chart and the place of its plot in it, in its own units, which are a phone's pixels. Above the plot
// stands what the pointer is on. Its template has the same numbers.
const (
	chartWide, chartHigh = 360.0, 170.0
	plotLeft, plotRight  = 42.0, 352.0
	plotTop, plotBottom  = 22.0, 150.0
	// hintLong is how many characters of a hint fit above the plot.
	hintLong = 58
)

// chart is one figure of the fleet over a span of time.
type chart struct {
	Name, Now string
	Words     string // for who sees no picture
	Rows      []mark // heights that have a number
	Times     []mark
	Areas     []path // from the least to the most of each piece
	Lines     []path
	Bars      []bar
	Legend    []named
	Hints     []hint
}

type (
	mark struct {
		At   float64
		Text string
	}
	path struct{ Class, D string }
	bar  struct {
		Class         string
		X, Y, W, High float64
	}
	named struct{ Class, Text string }
	// hint is a piece that the pointer may be on.
	hint struct {
		X, W float64
		Text string
	}
)

// plot is a chart in the making.
type plot struct {
	view.Charts
	chart

	most float64
}

// x is where a time is.
func (p *plot) x(at time.Time) float64 {
	part := float64(at.Sub(p.From)) / float64(p.Until.Sub(p.From))
	return plotLeft + (plotRight-plotLeft)*min(1, max(0, part))
}

func (p *plot) y(value float64) float64 { return plotBottom - (plotBottom-plotTop)*value/p.most }

func (p *plot) step() time.Duration { return time.Duration(p.Step) * time.Second }

// plotOf begins a chart that is as high as most.
func plotOf(c view.Charts, name string, most float64, show func(float64) string) *plot {
	p := &plot{Charts: c, chart: chart{Name: name, Now: unknown}, most: most}
	for i := range 3 {
		v := p.most * float64(i) / 2
		p.Rows = append(p.Rows, mark{p.y(v), show(v)})
	}
	every, form := 15*time.Minute, "15:04"
	switch long := p.Until.Sub(p.From); {
	case long > 24*time.Hour:
		every, form = 24*time.Hour, "Mon 2"
	case long > time.Hour:
		every = 6 * time.Hour
	}
	for at := p.From.Truncate(every).Add(every); at.Before(p.Until); at = at.Add(every) {
		if x := p.x(at); x > plotLeft+12 && x < plotRight-14 { // else its text sticks out
			p.Times = append(p.Times, mark{x, at.Format(form)})
		}
	}
	return p
}

// round is the next number up that is good for an axis, whose half is good too: 1, 2, 4, 6, 8 or 10 times a power of
// ten; 1 of nothing.
func round(x float64) float64 {
	if x <= 0 {
		return 1
	}
	ten := math.Pow(10, math.Floor(math.Log10(x)))
	for _, n := range []float64{1, 2, 4, 6, 8} {
		if x <= n*ten {
			return n * ten
		}
	}
	return 10 * ten
}

// hinted adds what is said of each piece.
func (p *plot) hinted(say func(view.Piece) string) {
	for _, piece := range p.Pieces {
		from, to := p.x(piece.At), p.x(piece.At.Add(p.step()))
		p.Hints = append(p.Hints, hint{from, to - from, screen.Shorten(p.when(piece.At)+"  "+say(piece), hintLong)})
	}
}

// when is the time of a piece as its span needs it.
func (p *plot) when(at time.Time) string {
	if p.Until.Sub(p.From) > 24*time.Hour {
		return at.Format("Mon 15:04")
	}
	return at.Format("15:04")
}

// drawn adds a line of what is known, with gaps where nothing is, and an area below or around it.
func (p *plot) drawn(class string, of func(view.Piece) *view.Range) {
	var line, area strings.Builder
	stretch := func(pieces []view.Piece) {
		var back []string
		for i, piece := range pieces {
			r, from, to := of(piece), p.x(piece.At), p.x(piece.At.Add(p.step()))
			letter := "L"
			if i == 0 {
				letter = "M"
			}
			// A piece is as long as it lasts, so that one alone is seen too.
			fmt.Fprintf(&line, "%s%.1f %.1fL%.1f %.1f", letter, from, p.y(r.Mean), to, p.y(r.Mean))
			fmt.Fprintf(&area, "%s%.1f %.1fL%.1f %.1f", letter, from, p.y(r.Most), to, p.y(r.Most))
			back = append(back, fmt.Sprintf("L%.1f %.1fL%.1f %.1f", to, p.y(r.Least), from, p.y(r.Least)))
		}
		slices.Reverse(back)
		area.WriteString(strings.Join(back, "") + "Z")
	}
	known := p.Pieces[:0:0]
	for _, piece := range p.Pieces {
		if of(piece) == nil {
			continue
		}
		if n := len(known); n > 0 && piece.At.Sub(known[n-1].At) > p.step() {
			stretch(known)
			known = nil
		}
		known = append(known, piece)
	}
	if len(known) > 0 {
		stretch(known)
		p.Lines = append(p.Lines, path{class, line.String()})
		p.Areas = append(p.Areas, path{class, area.String()})
	}
}

// ranged is the chart of one or two figures that have a mean, a least and a most.
func ranged(
	c view.Charts, name string, show func(float64) string, of func(view.Piece) *view.Range,
) chart {
	most, worst := 0.0, time.Time{}
	for _, piece := range c.Pieces {
		if r := of(piece); r != nil && r.Most > most {
			most, worst = r.Most, piece.At
		}
	}
	p := plotOf(c, name, round(most), show)
	p.drawn("main", of)
	p.hinted(func(piece view.Piece) string { return between(of(piece), show) })
	if n := len(c.Pieces); n > 0 && of(c.Pieces[n-1]) != nil {
		p.Now = show(of(c.Pieces[n-1]).Mean)
	}
	p.Words = fmt.Sprintf("%s: %s at the end of the %s", name, p.Now, c.Span)
	if !worst.IsZero() {
		at := fmt.Sprintf("at most %s, %s", show(most), p.when(worst))
		p.Words += ", " + at
		p.Legend = append(p.Legend, named{"", at})
	}
	return p.chart
}

// between is a range in words; where all minutes are alike, one number.
func between(r *view.Range, show func(float64) string) string {
	switch {
	case r == nil:
		return unknown
	case show(r.Least) == show(r.Most):
		return show(r.Mean)
	}
	return fmt.Sprintf("%s (%s to %s)", show(r.Mean), show(r.Least), show(r.Most))
}

// deaths is the chart of the letters of each piece, one reason upon the other.
func deaths(c view.Charts) chart {
	most, sums := 0.0, map[dedup.Reason]int64{}
	for _, piece := range c.Pieces {
		most = max(most, float64(died(piece)))
		for r, n := range piece.Dead {
			sums[r] += n
		}
	}
	p := plotOf(c, "Dead, by reason", round(most), short)
	var all int64
	for i, r := range dedup.Reasons() {
		if sums[r] > 0 {
			all += sums[r]
			p.Legend = append(p.Legend, named{fmt.Sprint("r", i), fmt.Sprintf("%s %s", r, count(int(sums[r])))})
		}
	}
	for _, piece := range c.Pieces {
		from, to, below := p.x(piece.At), p.x(piece.At.Add(p.step())), int64(0)
		for i, r := range dedup.Reasons() {
			if n := piece.Dead[r]; n > 0 {
				top, bottom := p.y(float64(below+n)), p.y(float64(below))
				below += n
				p.Bars = append(p.Bars, bar{fmt.Sprint("r", i), from, top, max(2, to-from-.4), bottom - top})
			}
		}
	}
	p.hinted(func(piece view.Piece) string { return byReason(piece) })
	p.Now = count(int(all)) + " in all"
	p.Words = fmt.Sprintf("Dead in the %s: %s", c.Span, p.Now)
	for _, l := range p.Legend {
		p.Words += ", " + l.Text
	}
	return p.chart
}

// died is how many letters a piece has.
func died(p view.Piece) (all int64) {
	for _, n := range p.Dead {
		all += n
	}
	return all
}

// byReason are the letters of a piece in words.
func byReason(p view.Piece) string {
	text := fmt.Sprintf("%d dead", died(p))
	separator := ": "
	for _, r := range dedup.Reasons() {
		if n := p.Dead[r]; n > 0 {
			text += fmt.Sprintf("%s%d %s", separator, n, r)
			separator = ", "
		}
	}
	return text
}

// lags is the chart of two percentiles. The area reaches to that of the worst minute.
func lags(c view.Charts) chart {
	most := 0.0
	for _, piece := range c.Pieces {
		if piece.WorstP99 != nil {
			most = max(most, *piece.WorstP99)
		}
	}
	unit := 1.0 // of the axis
	for _, more := range []float64{60, 3600} {
		if most > more {
			unit = more
		}
	}
	p := plotOf(c, "Lag", round(most/unit)*unit, seconds)
	p.drawn("main", func(piece view.Piece) *view.Range {
		if piece.P99 == nil {
			return nil
		}
		return &view.Range{Least: *piece.P99, Mean: *piece.P99, Most: *piece.WorstP99}
	})
	p.drawn("second", func(piece view.Piece) *view.Range {
		if piece.P50 == nil {
			return nil
		}
		return &view.Range{Least: *piece.P50, Mean: *piece.P50, Most: *piece.P50}
	})
	p.hinted(func(piece view.Piece) string { return lagOf(piece) })
	p.Legend = []named{{"main", "99th percentile"}, {"second", "50th percentile"}}
	if n := len(c.Pieces); n > 0 && c.Pieces[n-1].P99 != nil {
		p.Now = seconds(*c.Pieces[n-1].P99)
	}
	p.Words = fmt.Sprintf("Lag: 99th percentile %s at the end of the %s, %s at most", p.Now, c.Span, seconds(most))
	return p.chart
}

func lagOf(p view.Piece) string {
	if p.P50 == nil {
		return unknown
	}
	text := fmt.Sprintf("p50 %s, p99 %s", seconds(*p.P50), seconds(*p.P99))
	if *p.WorstP99 > *p.P99 {
		text += fmt.Sprintf(", worst minute %s", seconds(*p.WorstP99))
	}
	return text
}

// charts are those of the overview.
func charts(c view.Charts) []chart {
	return []chart{
		ranged(c, "Applied a second", rate, func(p view.Piece) *view.Range { return &p.Applied }),
		ranged(c, "Retried a second", rate, func(p view.Piece) *view.Range { return &p.Retried }),
		deaths(c),
		ranged(c, "Waiting in the main queue", short, func(p view.Piece) *view.Range { return p.Waiting }),
		ranged(c, "Waiting for a retry", short, func(p view.Piece) *view.Range { return p.Retrying }),
		lags(c),
	}
}

// short is a number of messages in few characters.
func short(x float64) string {
	switch {
	case x >= 1e6:
		return rate(x/1e6) + "M"
	case x >= 1e4:
		return rate(x/1e3) + "k"
	case x >= 1:
		return figure(x)
	}
	return rate(x)
}
