package figure

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/run"
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
	// make, if not nil, makes the figure's own values, one a cycle, and its parts otherwise.
	make func(Results) (rounds []float64, parts map[string]float64)
	// field, if not empty, is what of the samples makes the figure's values.
	field string
	parts []string
	most  map[string]float64 // bounds parts too
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
	switch {
	case f.make != nil:
		return f.make(t)
	case f.field != "":
		return f.sampled(t.of(f.of))
	case len(f.rivals) == 0:
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

// sampled are the values of one kind of measurement; its parts are medians, but for those whose name says more.
func (f Figure) sampled(all []run.Round) (own []float64, parts map[string]float64) {
	parts = map[string]float64{}
	of := func(name string) []float64 { return pick(all, func(r run.Round) float64 { return r.Sample[name] }) }
	for _, name := range f.parts {
		switch values := of(name); name {
		case "fastest_ms":
			parts[name] = slices.Min(values)
		case "slowest_ms":
			parts[name] = slices.Max(values)
		case "starts":
			parts[name] = values[0] * float64(len(values))
		default:
			parts[name] = Median(values)
		}
	}
	return of(f.field), parts
}

// ratios divides each round of a contestant by the last one of another before it.
func (t Results) ratios(name, other string, value func(run.Round) float64) (all []float64, parts map[string]float64) {
	var others []float64
	for i, r := range t {
		if o, ok := last(t[:i], other); ok && r.Contestant == name && r.NotMeasured == "" {
			all = append(all, value(r)/value(o))
			others = append(others, value(o))
		}
	}
	return all, map[string]float64{name: Median(pick(t.of(name), value)), other: Median(others)}
}

// besideBoth divides each round with somebody at the pages by the mean of the rounds without before and after it: what
// differs between two rounds of the same is more than what such a figure is about.
func besideBoth(t Results) (all []float64, parts map[string]float64) {
	for i, r := range t {
		before, ok1 := last(t[:i], fullLog)
		rest := slices.Clone(t[i:])
		slices.Reverse(rest)
		after, ok2 := last(rest, fullLog)
		if r.Contestant == "pages" && r.NotMeasured == "" && ok1 && ok2 {
			all = append(all, 2*r.Rate/(before.Rate+after.Rate))
		}
	}
	return all, map[string]float64{"pages": t.rate("pages"), fullLog: t.rate(fullLog)}
}

// beaten says that another rival of the same figure was so much faster that this one will not be the best.
func (t Results) beaten(name string) bool {
	const clearly = 0.9
	return slices.ContainsFunc(definitions, func(f Figure) bool {
		return slices.Contains(f.rivals, name) && len(t.of(name)) > 0 &&
			t.rate(name) < clearly*slices.Max(pick(f.rivals, t.rate))
	})
}

// slowestPages are the slowest answers of each round; the parts are the pages.
func slowestPages(t Results) (slowest []float64, parts map[string]float64) {
	parts = map[string]float64{}
	for _, r := range t.of("pages") {
		for name, ms := range r.Pages {
			parts[name] = max(parts[name], ms)
		}
		if len(r.Pages) > 0 {
			slowest = append(slowest, slices.Max(slices.Collect(maps.Values(r.Pages))))
		}
	}
	return slowest, parts
}

// Processes are those whose CPU is accounted for.
var Processes = append(slices.Clip(run.Working), "bench")

func cpuOfBase(t Results) ([]float64, map[string]float64) {
	return pick(t.of(Base), func(r run.Round) float64 { return r.CPU["client"] }), t.cpu(Base)
}

// cpu is what a delivery of a contestant cost each process.
func (t Results) cpu(name string) map[string]float64 {
	parts := map[string]float64{}
	for _, process := range Processes {
		parts[process] = round(Median(pick(t.of(name), func(r run.Round) float64 { return r.CPU[process] })))
	}
	return parts
}

// of are the rounds of one contestant that could be measured.
func (t Results) of(name string) (rounds []run.Round) {
	for _, r := range t {
		if r.Contestant == name && r.NotMeasured == "" {
			rounds = append(rounds, r)
		}
	}
	return rounds
}

// rate is the median of a contestant's deliveries/s.
func (t Results) rate(name string) float64 { return Median(pick(t.of(name), deliveries)) }

// last is a contestant's last round of these, if it could be measured.
func last(rounds []run.Round, name string) (r run.Round, ok bool) {
	for _, r := range slices.Backward(rounds) {
		if r.Contestant == name {
			return r, r.NotMeasured == ""
		}
	}
	return r, false
}

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
			CPU: t.cpu(r.Contestant), Busy: round(Median(pick(rounds, func(r run.Round) float64 { return r.Busy }))),
			Quiet: t.quiet(rounds),
		})
	}
	return all
}

// quiet is how many of these rounds were on a quiet machine: fixed work took no more than 1.2 times as long before and
// after them as it did around the best quarter of the run's rounds. The best one alone may be an accident.
func (t Results) quiet(rounds []run.Round) (n int) {
	const most = 1.2
	all := map[string][]float64{}
	for _, r := range t {
		for name, took := range r.Fixed {
			all[name] = append(all[name], took)
		}
	}
	for _, took := range all {
		slices.Sort(took)
	}
	for _, r := range rounds {
		loud := len(r.Fixed) == 0
		for name, took := range r.Fixed {
			loud = loud || took > most*all[name][(len(all[name])-1)/4]
		}
		if !loud {
			n++
		}
	}
	return n
}

func pick[T any](rounds []T, value func(T) float64) (all []float64) {
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
