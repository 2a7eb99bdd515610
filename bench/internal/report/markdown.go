package report

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
)

// Markdown is RESULTS.md.
func (r Report) Markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- written by make bench; do not edit -->\n# Results\n\n")
	if !r.Complete {
		fmt.Fprintf(&b, "**A trial run: some figures are missing, or the rounds were too short or too few to mean "+
			"anything.**\n\n")
	}
	fmt.Fprintf(&b, "%s, in %v. %d cycles, in which everybody had a turn of %v; medians, and beside them the smallest "+
		"and the largest round.\n\n",
		r.Started.UTC().Format("2006-01-02"), r.Took.Round(time.Minute), r.Cycles, r.Round)
	fmt.Fprintf(&b, "Machine: %s.\n\n", r.Machine)
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(r.Machine.Versions)) {
		versions = append(versions, name+" "+r.Machine.Versions[name])
	}
	fmt.Fprintf(&b, "Versions: %s.\n\nServers, private and on the same machine: %s.\n\n", strings.Join(versions, ", "),
		strings.Join(r.Servers, "; "))
	r.figures(&b)
	r.contestants(&b)
	r.bounds(&b)
	for _, c := range r.Curves {
		curve(&b, c)
	}
	return b.Bytes()
}

func (r Report) figures(b *bytes.Buffer) {
	fmt.Fprintf(b, "## Figures\n\n| figure | | value | goal | reached | spread | made of "+
		"|\n|---|---|---|---|---|---|---|\n")
	for _, f := range r.Figures {
		if f.NotMeasured != "" {
			fmt.Fprintf(b, "| `%s` | %s | **not measured** | %s | – | – | %s |\n", f.Key, f.What, f.Goal, cell(f.NotMeasured))
			continue
		}
		reached := "–"
		if f.Reached != nil {
			reached = map[bool]string{true: "yes", false: "**no**"}[*f.Reached]
		}
		unit := f.Unit
		if unit == "ratio" {
			unit = ""
		}
		what := f.What
		if f.Note != "" {
			what += " (" + f.Note + ")"
		}
		fmt.Fprintf(b, "| `%s` | %s | **%s**%s | %s | %s | %s to %s | %s |\n", f.Key, what, number(f.Value),
			strings.TrimRight(" "+unit, " "),
			f.Goal, reached, number(f.Spread.Min), number(f.Spread.Max), parts(f.Parts))
	}
	fmt.Fprintln(b)
	for _, f := range r.Figures {
		if f.NotMeasured == "" && strings.HasPrefix(f.Key, "vs_") && f.Key != "vs_plain" && f.Value < 1 {
			fmt.Fprintf(b, "**The rival wins in `%s`.**\n\n", f.Key)
		}
	}
}

// cell fits the beginning of a text of several lines into a table.
func cell(text string) string {
	return strings.NewReplacer("\n", " ", "|", "\\|").Replace(fmt.Sprintf("%.300s", strings.TrimSpace(text)))
}

func parts(all map[string]float64) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		texts = append(texts, fmt.Sprintf("%s %s", name, number(all[name])))
	}
	return strings.Join(texts, ", ")
}

func (r Report) contestants(b *bytes.Buffer) {
	if len(r.Rounds) == 0 && len(r.Contestants) == 0 {
		return
	}
	fmt.Fprintf(b, "## Everybody\n\nDeliveries a second, and what one delivery costs each process in µs of CPU (user "+
		"and system, from /proc). Where messages fail, an attempt that failed counts as a delivery.\n\n")
	fmt.Fprintf(b, "| contestant | deliveries/s | spread | rounds | its own CPU | mysql | rabbitmq | redis | cores busy "+
		"|\n|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range r.Contestants {
		fmt.Fprintf(b, "| %s | %s | %s to %s | %d |", c.Name, number(c.Rate), number(c.Spread.Min), number(c.Spread.Max),
			len(c.Rounds))
		for _, process := range []string{"client", "mysql", "rabbitmq", "redis"} {
			fmt.Fprintf(b, " %s |", number(c.CPU[process]))
		}
		fmt.Fprintf(b, " %s of %d |\n", number(c.Busy), r.Machine.Cores)
	}
	for _, round := range r.Rounds {
		if round.NotMeasured != "" {
			fmt.Fprintf(b, "| %s | **not measured** | %s | – | – | – | – | – | – |\n", round.Contestant, cell(round.NotMeasured))
		}
	}
	fmt.Fprintln(b)
}

// mostlyBusy is the share of all cores from which on the processors bound the figure.
const mostlyBusy = 0.9

// bounds says what bounds the base, from its own rounds.
func (r Report) bounds(b *bytes.Buffer) {
	i := slices.IndexFunc(r.Contestants, func(c figure.Contestant) bool { return c.Name == figure.Base })
	if i < 0 {
		return
	}
	c := r.Contestants[i]
	sum, largest := 0.0, "client"
	for _, process := range figure.Processes {
		sum += c.CPU[process]
		if c.CPU[process] > c.CPU[largest] {
			largest = process
		}
	}
	if sum == 0 {
		return
	}
	what := "What is left is waiting: for the disk, for locks or for each other."
	if c.Busy >= mostlyBusy*float64(r.Machine.Cores) {
		what = "The processors bound it."
	}
	fmt.Fprintf(b, "## What bounds it\n\nA message costs %s µs of CPU in all, most of it in %s (%.0f %%). While "+
		"rollbackd works, %s of %d cores are busy. %s Two cores could not do more than %s messages/s at this price.\n\n",
		number(sum), strings.Replace(largest, "client", "rollbackd itself", 1), 100*c.CPU[largest]/sum, number(c.Busy),
		r.Machine.Cores, what, number(math.Round(float64(r.Machine.Cores)*1e6/sum)))
}

func curve(b *bytes.Buffer, c figure.Curve) {
	fmt.Fprintf(b, "## %s\n\n![%s](%s.svg)\n\n| %s | %s | spread |\n|---|---|---|\n", c.Title, c.Title, c.Key, c.XLabel,
		c.YLabel)
	for _, p := range c.Points {
		fmt.Fprintf(b, "| %d | %s | %s to %s |\n", p.X, number(p.Median), number(p.Spread.Min), number(p.Spread.Max))
	}
	best := c.Best()
	fmt.Fprintf(b, "\nBest at %d; the default is %d.\n\n", best.X, c.Default)
}

// number writes thousands with commas and small values with what is known of them.
func number(x float64) string {
	if math.Abs(x) < 1000 {
		return strconv.FormatFloat(x, 'g', 4, 64)
	}
	text := strconv.FormatFloat(math.Abs(math.Round(x)), 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	if x < 0 {
		return "-" + text
	}
	return text
}
