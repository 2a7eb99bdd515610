// Package figure says what is measured and what it shall come to: the contestants, the order in which they take turns,
// the figures with their goals, and how a figure is made of rounds. It runs nothing itself.
package figure

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchmath"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Results are the rounds of a run, or of a part of it, in the order they were run.
type Results []run.Round

// NotMeasured is how many rounds could not be measured.
func (t Results) NotMeasured() (n int) {
	for _, r := range t {
		if r.NotMeasured != "" {
			n++
		}
	}
	return n
}

// Figure is one figure with how it came about. Most are a ratio of rounds: of's by those of another, or by those of the
// best of some rivals.
type Figure struct {
	Key     string             `json:"-"`
	What    string             `json:"what"`
	Unit    string             `json:"unit"`
	Value   float64            `json:"value"`
	Goal    string             `json:"goal"`
	Reached *bool              `json:"reached"` // null: there is no goal, the figure is reported
	Spread  Spread             `json:"spread"`  // of the rounds' own values
	Rounds  []float64          `json:"rounds"`
	Parts   map[string]float64 `json:"parts"` // what the value is made of: medians
	Note    string             `json:"note,omitempty"`
	Cause   string             `json:"cause,omitempty"` // why the goal is not reached
	// NotMeasured, if not empty, says why there is no value.
	NotMeasured string `json:"not_measured,omitempty"`

	of      string   // a contestant; empty: the one that is named as the figure
	by      string   // round by round, each by the last one of this contestant before it; empty: the base
	rivals  []string // of's last round before it by each round of the best of these
	remarks []string // contestants that stand in the table beside the rivals, and are measured in the first cycle only
	value   func(run.Round) float64
	// own, if not nil, is what a round of of's says by itself: a value, and parts.
	own  func(run.Round) (float64, run.Sample)
	most map[string]float64 // bounds parts too
	once bool               // it is measured in the first cycle only
}

// IsReached says whether the goal is, or – if there is none.
func (f Figure) IsReached() string {
	switch {
	case f.Reached == nil:
		return "–"
	case *f.Reached:
		return "yes"
	}
	return strings.TrimSuffix("**no**: "+f.Cause, ": ")
}

// Spread is the smallest and the largest of some values.
type Spread struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// reached says whether a goal is, such as "≥ 0.8" or "≤ 150, last minute …"; nil: there is none.
func reached(goal string, value float64) *bool {
	var sign string
	var bound float64
	if n, _ := fmt.Sscan(strings.Split(goal, ",")[0], &sign, &bound); n < 2 {
		return nil
	}
	ok := sign == "≥" && value >= bound || sign == "≤" && value <= bound
	return &ok
}

// Figures are those of the wanted ones that there are results for, and those of which a result is missing that could
// not be measured.
func (t Results) Figures(wanted []string) (all []Figure) {
	for _, f := range definitions {
		if !slices.Contains(wanted, f.Key) {
			continue
		}
		var rounds []float64
		if !slices.ContainsFunc(f.made(), func(name string) bool { return len(t.of(name)) == 0 }) {
			rounds, f.Parts = f.values(t)
		}
		if len(rounds) == 0 {
			f.Cause = ""
			for _, r := range t {
				if slices.Contains(f.made(), r.Contestant) {
					f.NotMeasured = cmp.Or(r.NotMeasured, f.NotMeasured)
				}
			}
			if f.NotMeasured != "" {
				all = append(all, f)
			}
			continue
		}
		middle := Median(rounds)
		f.Value, f.Spread, f.Rounds, f.Reached = round(middle), spread(rounds), rounded(rounds), reached(f.Goal, middle)
		for name, x := range f.Parts {
			if most, bounded := f.most[name]; bounded {
				*f.Reached = *f.Reached && x <= most
			}
			f.Parts[name] = round(x)
		}
		if f.Reached == nil || *f.Reached {
			f.Cause = ""
		}
		all = append(all, f)
	}
	return all
}

// values are the figure's own, one a cycle, and its parts.
func (f Figure) values(t Results) (own []float64, parts map[string]float64) {
	value := f.value
	if value == nil {
		value = deliveries
	}
	if f.own != nil {
		var samples []run.Sample
		for _, r := range t.of(f.of) {
			x, sample := f.own(r)
			own, samples = append(own, x), append(samples, sample)
		}
		return own, medians(samples)
	}
	if len(f.rivals) == 0 {
		return t.ratios(f.of, f.by, value)
	}
	// The best is the one with the highest median of all rounds; the parts show the others too.
	best := slices.MaxFunc(f.rivals, func(a, b string) int { return cmp.Compare(t.rate(a), t.rate(b)) })
	own, parts = t.ratios(best, f.of, value)
	for i := range own {
		own[i] = 1 / own[i]
	}
	for _, name := range slices.Concat(f.rivals, f.remarks) {
		if len(t.of(name)) > 0 {
			parts[name] = t.rate(name)
		}
	}
	return own, parts
}

// ratios divides each round of a contestant by the last one of another before it.
func (t Results) ratios(name, other string, value func(run.Round) float64) (all []float64, parts map[string]float64) {
	var others []float64
	var before run.Round
	for _, r := range t {
		if r.Contestant == name && r.NotMeasured == "" && before.Contestant != "" && before.NotMeasured == "" {
			all = append(all, value(r)/value(before))
			others = append(others, value(before))
		}
		if r.Contestant == other {
			before = r
		}
	}
	return all, map[string]float64{name: Median(pick(t.of(name), value)), other: Median(others)}
}

// slowestPage is the slowest answer of a round; the parts are the pages.
func slowestPage(r run.Round) (float64, run.Sample) {
	return slices.Max(slices.Collect(maps.Values(r.Pages))), r.Pages
}

func ownCPU(r run.Round) (float64, run.Sample) { return r.CPU["client"], r.CPU }

// sampled is what a round that is special has measured under this name; all that it has measured are the parts.
func sampled(name string) func(run.Round) (float64, run.Sample) {
	return func(r run.Round) (float64, run.Sample) { return r.Sample[name], r.Sample }
}

// medians are those of what the samples have under each name.
func medians(samples []run.Sample) map[string]float64 {
	middle := map[string]float64{}
	for name, values := range byName(samples) {
		middle[name] = round(Median(values))
	}
	return middle
}

func byName(samples []run.Sample) map[string][]float64 {
	all := map[string][]float64{}
	for _, s := range samples {
		for name, x := range s {
			all[name] = append(all[name], x)
		}
	}
	return all
}

// of are the rounds of one contestant that could be measured.
func (t Results) of(name string) (rounds Results) {
	for _, r := range t {
		if r.Contestant == name && r.NotMeasured == "" {
			rounds = append(rounds, r)
		}
	}
	return rounds
}

// rate is the median of a contestant's deliveries/s.
func (t Results) rate(name string) float64 { return Median(pick(t.of(name), deliveries)) }

// Curve is throughput, in messages a second, over a setting; the base is the point at the default.
type Curve struct {
	Key     string  `json:"-"`
	Title   string  `json:"title"`
	XLabel  string  `json:"x"`
	Default int     `json:"default"`
	Points  []Point `json:"points"`

	format string // of the contestants' names
	values []int
	guess  float64 // deliveries a second for each of the setting
}

// Point is what was done with one setting.
type Point struct {
	X int `json:"x"`
	Contestant
}

// Best is the setting with the highest median.
func (c Curve) Best() Point {
	return slices.MaxFunc(c.Points, func(a, b Point) int { return cmp.Compare(a.Rate, b.Rate) })
}

// Curves are those of the wanted ones that have all their points.
func (t Results) Curves(wanted []string) (all []Curve) {
	for _, c := range curves {
		for i, name := range c.names() {
			for _, one := range t.Contestants() {
				if one.Name == name {
					c.Points = append(c.Points, Point{c.values[i], one})
				}
			}
		}
		if slices.Contains(wanted, c.Key) && len(c.Points) == len(c.values) {
			all = append(all, c)
		}
	}
	return all
}

// Contestant is what everybody did, for the table of the parts.
type Contestant struct {
	Name   string             `json:"name"`
	Rate   float64            `json:"per_second"`
	Spread Spread             `json:"spread"`
	Rounds []float64          `json:"rounds"`
	CPU    map[string]float64 `json:"cpu_us_per_delivery"`
	Busy   float64            `json:"cores_busy"`
	Quiet  int                `json:"quiet_rounds"` // of Rounds
}

// Contestants are all, in the order of their first round.
func (t Results) Contestants() (all []Contestant) {
	for _, r := range t {
		rounds := t.of(r.Contestant)
		known := slices.ContainsFunc(all, func(c Contestant) bool { return c.Name == r.Contestant })
		if known || len(rounds) == 0 || rounds[0].CPU == nil {
			continue
		}
		rates := pick(rounds, deliveries)
		all = append(all, Contestant{
			Name: r.Contestant, Rate: round(Median(rates)), Spread: spread(rates), Rounds: rounded(rates),
			CPU:   medians(pick(rounds, func(r run.Round) run.Sample { return r.CPU })),
			Busy:  round(Median(pick(rounds, func(r run.Round) float64 { return r.Busy }))),
			Quiet: t.quiet(rounds),
		})
	}
	return all
}

// quiet is how many of these rounds were on a quiet machine: no piece of fixed work took more than 1.2 times as long
// before or after them as around the best quarter of the run's rounds. The best one alone may be an accident.
func (t Results) quiet(rounds Results) (n int) {
	const most = 1.2
	all := byName(pick(t, func(r run.Round) run.Sample { return r.Fixed }))
	for _, r := range rounds {
		loud := false
		for name, took := range r.Fixed {
			sorted := slices.Sorted(slices.Values(all[name]))
			loud = loud || took > most*sorted[(len(sorted)-1)/4]
		}
		if !loud {
			n++
		}
	}
	return n
}

func pick[T, V any](rounds []T, value func(T) V) (all []V) {
	for _, r := range rounds {
		all = append(all, value(r))
	}
	return all
}

// Median is the middle value, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	sorted, n := slices.Sorted(slices.Values(values)), len(values)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func spread(values []float64) Spread {
	return Spread{round(slices.Min(values)), round(slices.Max(values))}
}

// round keeps four digits, which is more than a round tells.
func round(x float64) float64 {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return 0
	}
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64) // what was formatted can be parsed
	return x
}

func rounded(values []float64) []float64 { return pick(values, round) }

// Comparison is what pairs of rounds of two builds, a and b, tell of their costs.
type Comparison struct {
	Pairs int
	A, B  float64 // the mean costs
	// Ratio is b's cost by a's: the geometric mean of the pairs'. Low and High bound it with a confidence of 95 %; one
	// pair alone bounds nothing.
	Ratio, Low, High float64
}

// Compare takes the costs of the pairs, in order. The interval is Student's of the logarithms of the pairs' ratios:
// what changes the machine from pair to pair weighs on both sides of one.
func Compare(a, b []float64) Comparison {
	c := Comparison{Pairs: len(a)}
	logs := make([]float64, len(a))
	for i := range a {
		c.A += a[i] / float64(len(a))
		c.B += b[i] / float64(len(a))
		logs[i] = math.Log(b[i] / a[i])
	}
	s := benchmath.AssumeNormal.Summary(benchmath.NewSample(logs, &benchmath.DefaultThresholds), 0.95)
	c.Ratio, c.Low, c.High = math.Exp(s.Center), math.Exp(s.Lo), math.Exp(s.Hi)
	return c
}

// NotBelow is the verdict that later changes are held to.
const NotBelow = "not below"

// Verdict says whether b is not below a: whether its cost is, with that confidence, above a's by no more than so many
// percent.
func (c Comparison) Verdict(allowed float64) string {
	bound := 1 + allowed/100
	switch {
	case c.High <= bound && c.High < 1:
		return fmt.Sprintf("%s: cheaper by %.1f %%", NotBelow, 100*(1-c.Ratio))
	case c.High <= bound:
		return NotBelow
	case c.Low > bound:
		return fmt.Sprintf("dearer by %.1f %%", 100*(c.Ratio-1))
	}
	return "undecided"
}

// Subject is what two builds are compared in.
type Subject struct {
	run.Contestant
	Keys []string // the names it was asked for by
}

// Subjects are what these names mean: figures, contestants of the product's, latency and pages. A figure is its
// product's side alone: who is compared with it is the same for both builds. So some figures mean the same subject.
func Subjects(names []string) (all []Subject) {
	whole := map[string]run.Contestant{}
	for _, c := range slices.Concat(Cycle(Names(), true)...) {
		if c.Rival == "" && c.Special == nil {
			whole[c.Name] = wholeOf(c)
		}
	}
	whole[Latency] = run.Contestant{Name: Latency, Extent: run.Evenly, Guess: Offered}
	whole[Pages] = run.Contestant{Name: Pages, Extent: run.Looked, Sowing: ground.Sowing{FullLog: true}}
	meant := map[string]string{}
	known := []string{Base, Latency}
	for _, d := range definitions {
		if _, ok := whole[d.of]; ok {
			meant[d.Key] = d.of
			known = append(known, d.Key)
		}
	}
	for _, name := range names {
		of := cmp.Or(meant[name], name)
		c, ok := whole[of]
		if !ok {
			must.OK(fmt.Errorf("there is no %q to compare; there are %s", name, strings.Join(known, ", ")))
		}
		i := slices.IndexFunc(all, func(other Subject) bool { return other.Name == of })
		if i < 0 {
			i, all = len(all), append(all, Subject{Contestant: c})
		}
		all[i].Keys = append(all[i].Keys, name)
	}
	return all
}

// wholeOf lets a contestant do the same work in each round: so many messages until each has ended.
func wholeOf(c run.Contestant) run.Contestant {
	if c.Extent != run.Replayed {
		c.Extent = run.Whole
	}
	if c.Sowing.PoisonEvery != 0 && c.Sowing.Delays == "" {
		c.Sowing.Delays, c.Settings = Delays, append(slices.Clip(c.Settings), noBrake...)
	}
	return c
}
