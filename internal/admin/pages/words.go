package pages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// words are what templates may call.
func (p *Pages) words() template.FuncMap {
	return template.FuncMap{
		"list":      func(all ...string) []string { return all },
		"link":      p.link,
		"query":     p.query,
		"verdict":   verdictText,
		"static":    func(name string) (template.URL, error) { return p.link("/static/"+name, "v", p.version) },
		"moment":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
		"iso":       func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"ago":       func(t time.Time) string { return ago(time.Since(t)) },
		"length":    length,
		"perSecond": func(r view.Range) string { return between(&r, rate) },
		"waiting":   func(r *view.Range) string { return between(r, short) },
		"byReason":  byReason, "lagOf": lagOf,
		"failure": failure, "partName": partName,
		"kindName": kindName,
		"seconds":  func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) },
		"span":     ago,
		"count":    count, "figure": figure, "rate": rate,
		"printable": screen.Printable, "shorten": screen.Shorten, "pretty": pretty, "plural": plural,
		"current": func(here, path string) bool {
			return here == path || path != "/" && strings.HasPrefix(here, path)
		},
	}
}

// ago is a span in one unit, or two where one says too little.
func ago(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days"
}

// length is a span as a person chooses it.
func length(d time.Duration) string {
	if d < time.Hour {
		return fmt.Sprintf("%d minutes", int(d.Minutes()))
	}
	return fmt.Sprintf("%d %s", int(d.Hours()), plural(int(d.Hours()), "hour", "hours"))
}

// kindName is the name of a kind of finding in words: it has _ where a command would want a blank quoted.
func kindName(kind operator.FindingKind) string { return strings.ReplaceAll(string(kind), "_", " ") }

// count is a whole number with commas between thousands.
func count(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// unknown is written for a figure that nobody knows, which is not a number.
const unknown = "–"

// figure is a number of messages.
func figure(x float64) string {
	if math.IsNaN(x) {
		return unknown
	}
	return count(int(math.Round(x)))
}

// rate is a number a second, as exact as it need be: 50 and not 50.0.
func rate(x float64) string {
	if math.IsNaN(x) || x >= 100 {
		return figure(x)
	}
	decimals := 2
	if x >= 10 {
		decimals = 1
	}
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(x, 'f', decimals, 64), "0"), ".")
}

// seconds is a span that may be short.
func seconds(x float64) string {
	switch {
	case math.IsNaN(x):
		return unknown
	case x < 1:
		return strconv.FormatFloat(x*1000, 'g', 3, 64) + " ms"
	case x < 60:
		return strconv.FormatFloat(x, 'g', 3, 64) + " s"
	}
	return ago(time.Duration(x * float64(time.Second)))
}

// pretty is JSON with a line for each value, and anything else as it is, without what would turn the writing round.
func pretty(text string) string {
	var b bytes.Buffer
	if len(text) > maxPretty || json.Indent(&b, []byte(text), "", "  ") != nil {
		b.Reset()
		b.WriteString(screen.Shorten(text, maxPretty))
	}
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = screen.Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// maxPretty is how many characters of a body are shown.
const maxPretty = 20_000

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
