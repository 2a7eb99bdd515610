package pages

import (
	"fmt"
	"math"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// The place of the plot in a chart, in its own units, which are a phone's pixels. Above it stands what the pointer is
// on. Its template has the same numbers.
const (
	plotLeft, plotRight = 42.0, 352.0
	plotTop, plotBottom = 22.0, 150.0
	// hintLong is how many characters of a hint fit above the plot.
	hintLong = 58
)

// chart is one figure of the fleet over a span of time.
type chart struct {
	view.Charts

	Name, Now   string
	Words       string  // for who sees no picture
	Rows, Times []shape // lines of the grid, with what is written beside them
	Areas       []shape // from the least to the most of each piece
	Lines       []shape
	Bars        []shape
	Legend      []shape
	Hints       []shape // pieces that the pointer may be on

	most float64 // the end of its axis
}

// shape is what is drawn or written: of these each has what it needs.
type shape struct {
	Class, Text, Path string
	X, Y, W, High     float64
}

// x is where a time is.
func (c *chart) x(at time.Time) float64 {
	part := float64(at.Sub(c.From)) / float64(c.Until.Sub(c.From))
	return plotLeft + (plotRight-plotLeft)*min(1, max(0, part))
}

func (c *chart) y(value float64) float64 { return plotBottom - (plotBottom-plotTop)*value/c.most }

// place is where a piece begins and ends: it is as long as it lasts, so that one alone is seen too.
func (c *chart) place(p view.Piece) (from, to float64) { return c.x(p.At), c.x(c.end(p)) }

func (c *chart) end(p view.Piece) time.Time { return p.At.Add(time.Duration(c.Step) * time.Second) }

// when is the time of a piece as its span needs it.
func (c *chart) when(at time.Time) string {
	if c.Until.Sub(c.From) > 24*time.Hour {
		return at.Format("Mon 15:04")
	}
	return at.Format("15:04")
}

// chartOf begins a chart that is as high as most, with what is said of each piece.
func chartOf(
	of view.Charts, name string, most float64, show func(float64) string, say func(view.Piece) string,
) *chart {
	c := &chart{Charts: of, Name: name, Now: unknown, most: most}
	for _, v := range []float64{0, most / 2, most} {
		c.Rows = append(c.Rows, shape{Y: c.y(v), Text: show(v)})
	}
	every, form := 15*time.Minute, "15:04"
	switch long := c.Until.Sub(c.From); {
	case long > 24*time.Hour:
		every, form = 24*time.Hour, "Mon 2"
	case long > time.Hour:
		every = 6 * time.Hour
	}
	for at := c.From.Truncate(every).Add(every); at.Before(c.Until); at = at.Add(every) {
		if x := c.x(at); x > plotLeft+12 && x < plotRight-14 { // else its text sticks out
			c.Times = append(c.Times, shape{X: x, Text: at.Format(form)})
		}
	}
	for _, p := range c.Pieces {
		from, to := c.place(p)
		text := screen.Shorten(c.when(p.At)+"  "+say(p), hintLong)
		c.Hints = append(c.Hints, shape{X: from, W: to - from, Text: text})
	}
	return c
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

// roundTime is that of seconds: of minutes and hours, where they are so many.
func roundTime(x float64) float64 {
	switch {
	case x > 3600:
		return round(x/3600) * 3600
	case x > 60:
		return round(x/60) * 60
	}
	return round(x)
}

// draw adds a line of what is known, with gaps where nothing is, and an area below or around it.
func (c *chart) draw(class string, of func(view.Piece) *view.Range) {
	var line, area, back string // back is the lower edge of an area, which is drawn from its end
	var end time.Time
	for _, p := range c.Pieces {
		r := of(p)
		if r == nil {
			continue
		}
		from, to := c.place(p)
		letter := "L"
		if p.At.After(end) {
			letter = "M"
			area, back = area+back, "Z"
		}
		line += fmt.Sprintf("%s%.1f %.1fL%.1f %.1f", letter, from, c.y(r.Mean), to, c.y(r.Mean))
		area += fmt.Sprintf("%s%.1f %.1fL%.1f %.1f", letter, from, c.y(r.Most), to, c.y(r.Most))
		back = fmt.Sprintf("L%.1f %.1fL%.1f %.1f", to, c.y(r.Least), from, c.y(r.Least)) + back
		end = c.end(p)
	}
	if line != "" {
		c.Lines = append(c.Lines, shape{Class: class, Path: line})
		c.Areas = append(c.Areas, shape{Class: class, Path: area + back})
	}
}

// worst is the piece with the most; it has none where all are nothing.
func worst(all []view.Piece, of func(view.Piece) *view.Range) (most float64, at time.Time) {
	for _, p := range all {
		if r := of(p); r != nil && r.Most > most {
			most, at = r.Most, p.At
		}
	}
	return most, at
}

// last is the mean of the last piece in words.
func (c *chart) last(of func(view.Piece) *view.Range, show func(float64) string) string {
	if n := len(c.Pieces); n > 0 && of(c.Pieces[n-1]) != nil {
		return show(of(c.Pieces[n-1]).Mean)
	}
	return unknown
}

// ranged is the chart of a figure that has a mean, a least and a most.
func ranged(
	of view.Charts, name string, show func(float64) string, figure func(view.Piece) *view.Range,
) *chart {
	most, at := worst(of.Pieces, figure)
	c := chartOf(of, name, round(most), show, func(p view.Piece) string { return between(figure(p), show) })
	c.draw("main", figure)
	c.Now = c.last(figure, show)
	c.Words = fmt.Sprintf("%s: %s at the end of the %s", name, c.Now, c.Span)
	if !at.IsZero() {
		text := fmt.Sprintf("at most %s, %s", show(most), c.when(at))
		c.Words += ", " + text
		c.Legend = append(c.Legend, shape{Text: text})
	}
	return c
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
func deaths(of view.Charts) *chart {
	most, all, sums := int64(0), int64(0), map[dedup.Reason]int64{}
	for _, p := range of.Pieces {
		for r, n := range p.Dead {
			sums[r] += n
		}
		n := died(p)
		most, all = max(most, n), all+n
	}
	c := chartOf(of, "Dead, by reason", round(float64(most)), short, byReason)
	c.Now = count(int(all)) + " in all"
	c.Words = fmt.Sprintf("Dead in the %s: %s", c.Span, c.Now)
	for i, r := range dedup.Reasons() {
		if sums[r] > 0 {
			text := fmt.Sprintf("%s %s", r, count(int(sums[r])))
			c.Legend = append(c.Legend, shape{Class: fmt.Sprint("r", i), Text: text})
			c.Words += ", " + text
		}
	}
	for _, p := range c.Pieces {
		from, to := c.place(p)
		bottom := plotBottom
		for i, r := range dedup.Reasons() {
			if n := p.Dead[r]; n > 0 {
				high := plotBottom - c.y(float64(n))
				bottom -= high
				c.Bars = append(c.Bars, shape{Class: fmt.Sprint("r", i), X: from, Y: bottom, W: max(2, to-from-.4), High: high})
			}
		}
	}
	return c
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
func lags(of view.Charts) *chart {
	upTo := func(x, most *float64) *view.Range {
		if x == nil {
			return nil
		}
		return &view.Range{Least: *x, Mean: *x, Most: *most}
	}
	p99 := func(p view.Piece) *view.Range { return upTo(p.P99, p.WorstP99) }
	most, _ := worst(of.Pieces, p99)
	c := chartOf(of, "Lag", roundTime(most), seconds, lagOf)
	c.draw("main", p99)
	c.draw("second", func(p view.Piece) *view.Range { return upTo(p.P50, p.P50) })
	c.Legend = []shape{{Class: "main", Text: "99th percentile"}, {Class: "second", Text: "50th percentile"}}
	c.Now = c.last(p99, seconds)
	c.Words = fmt.Sprintf("Lag: 99th percentile %s at the end of the %s, %s at most", c.Now, c.Span, seconds(most))
	return c
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
func charts(of view.Charts) []*chart {
	return []*chart{
		ranged(of, "Applied a second", rate, func(p view.Piece) *view.Range { return &p.Applied }),
		ranged(of, "Retried a second", rate, func(p view.Piece) *view.Range { return &p.Retried }),
		deaths(of),
		ranged(of, "Waiting in the main queue", short, func(p view.Piece) *view.Range { return p.Waiting }),
		ranged(of, "Waiting for a retry", short, func(p view.Piece) *view.Range { return p.Retrying }),
		lags(of),
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
