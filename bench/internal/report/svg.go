package report

import (
	"bytes"
	"fmt"
	"html"
	"math"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
)

// The measures of a curve, in pixels.
const (
	width, height            = 760, 420
	left, right, top, bottom = 80, 30, 60, 70
	plotWidth                = width - left - right
	plotHeight               = height - top - bottom
)

// SVG draws a curve: the medians joined, a bar from the smallest to the largest round at each. The settings stand side
// by side at equal distances, since each is about twice the one before; the other axis begins at zero.
func SVG(c figure.Curve) []byte {
	highest := 0.0
	for _, p := range c.Points {
		highest = max(highest, p.Spread.Max)
	}
	highest *= 1.08 // room for the labels
	step := niceStep(highest)
	ceiling := step * math.Ceil(highest/step)
	x := func(i int) float64 {
		if len(c.Points) == 1 {
			return left + plotWidth/2
		}
		const inset = 30
		return left + inset + float64(i)*(plotWidth-2*inset)/float64(len(c.Points)-1)
	}
	y := func(value float64) float64 { return top + plotHeight*(1-value/ceiling) }

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
		`font-family="sans-serif" font-size="13" fill="#222">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", html.EscapeString(c.Title),
		width, height)
	fmt.Fprintf(&b, `<text x="%d" y="28" font-size="16" font-weight="bold">%s</text>`+"\n", left,
		html.EscapeString(c.Title))
	fmt.Fprintf(&b, `<text x="%d" y="46" fill="#666">median of %d rounds or more, bars from the smallest to the `+
		`largest; the default is %d</text>`+"\n", left, len(c.Points[0].Rounds), c.Default)
	for value := 0.0; value <= ceiling; value += step {
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`+"\n", left, y(value), left+plotWidth,
			y(value))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-8, y(value)+4, number(value))
	}
	line := ""
	for i, p := range c.Points {
		line += fmt.Sprintf("%.1f,%.1f ", x(i), y(p.Median))
	}
	fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#1f5fa8" stroke-width="2"/>`+"\n", line[:len(line)-1])
	for i, p := range c.Points {
		point(&b, c, p, x(i), y)
	}
	fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#222"/>`+"\n", left, top+plotHeight, left+plotWidth,
		top+plotHeight)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", left+plotWidth/2, height-18,
		html.EscapeString(c.XLabel))
	fmt.Fprintf(&b, `<text transform="translate(18 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n</svg>\n",
		top+plotHeight/2, html.EscapeString(c.YLabel))
	return b.Bytes()
}

func point(b *bytes.Buffer, c figure.Curve, p figure.Point, x float64, y func(float64) float64) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#1f5fa8" stroke-width="5" `+
		`stroke-opacity="0.35"/>`+"\n", x, y(p.Spread.Min), x, y(p.Spread.Max))
	fill := "#1f5fa8"
	if p.X == c.Default {
		fill = "#c2410c"
	}
	fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="5" fill="%s"><title>%d: %s</title></circle>`+"\n", x, y(p.Median), fill,
		p.X, number(p.Median))
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle" stroke="#fff" stroke-width="4" `+
		`paint-order="stroke">%s</text>`+"\n", x, y(p.Spread.Max)-10, number(p.Median))
	fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x, top+plotHeight+20, p.X)
}

// niceStep divides an axis up to highest into four to eight steps of 1, 2 or 5 times a power of ten.
func niceStep(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(highest)))
	switch lead := highest / power; {
	case lead <= 1.6:
		return power / 5
	case lead <= 4:
		return power / 2
	case lead <= 8:
		return power
	}
	return 2 * power
}
