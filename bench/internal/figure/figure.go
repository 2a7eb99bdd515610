package figure

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// Results is what a run, or a part of it, has measured. The rounds stand in the order they were run.
type Results struct {
	Rounds []run.Round `json:"rounds,omitempty"`
	// Samples are the other measurements, by the name that they have in results.json.
	Samples map[string][]run.Sample `json:"samples,omitempty"`
	// Missing says of figures why they could not be measured.
	Missing map[string]string `json:"not_measured,omitempty"`
}

// Add takes what another part has measured.
func (t *Results) Add(p Results) {
	t.Rounds = append(t.Rounds, p.Rounds...)
	if t.Samples == nil {
		t.Samples, t.Missing = map[string][]run.Sample{}, map[string]string{}
	}
	for name, some := range p.Samples {
		t.Samples[name] = append(t.Samples[name], some...)
	}
	maps.Copy(t.Missing, p.Missing)
}

// NotMeasured is how many rounds could not be measured.
func (t *Results) NotMeasured() int {
	n := len(t.Missing)
	for _, r := range t.Rounds {
		if r.NotMeasured != "" {
			n++
		}
	}
	return n
}

// Figure is one figure with how it came about.
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

// goal is a bound; the zero value is none.
type goal struct {
	sign  string // "≥" or "≤"
	bound float64
}

func atLeast(x float64) goal { return goal{"≥", x} }
func atMost(x float64) goal  { return goal{"≤", x} }

func (g goal) String() string {
	if g.sign == "" {
		return "reported"
	}
	return fmt.Sprintf("%s %v", g.sign, g.bound)
}

func (g goal) reached(value float64) *bool {
	if g.sign == "" {
		return nil
	}
	ok := g.sign == "≥" && value >= g.bound || g.sign == "≤" && value <= g.bound
	return &ok
}

// Figures are those of the wanted ones that there are results for, and those of which a result is missing that could
// not be measured.
func (t *Results) Figures(wanted []string) (all []Figure) {
	for _, d := range definitions {
		if !slices.Contains(wanted, d.key) {
			continue
		}
		f := Figure{
			Key: d.key, What: d.what, Unit: cmp.Or(d.unit, "ratio"), Goal: d.goal.String() + d.second, Note: d.note,
		}
		var rounds []float64
		if !slices.ContainsFunc(d.made(), func(name string) bool { return len(t.of(name)) == 0 }) {
			rounds, f.Parts = d.values(t)
		}
		if len(rounds) == 0 {
			f.NotMeasured = cmp.Or(t.Missing[d.key], t.whyNot(d.made()))
			if f.NotMeasured != "" {
				all = append(all, f)
			}
			continue
		}
		middle := Median(rounds)
		f.Value, f.Spread, f.Rounds, f.Reached = round(middle), spread(rounds), rounded(rounds), d.goal.reached(middle)
		for name, x := range f.Parts {
			if most, bounded := d.most[name]; bounded {
				*f.Reached = *f.Reached && x <= most
			}
			f.Parts[name] = round(x)
		}
		if f.Reached != nil && !*f.Reached {
			f.Cause = d.cause
		}
		all = append(all, f)
	}
	return all
}

// whyNot says why a round of these contestants is missing; it is empty where none is.
func (t *Results) whyNot(names []string) (why string) {
	for _, r := range t.Rounds {
		if slices.Contains(names, r.Contestant) {
			why = cmp.Or(r.NotMeasured, why)
		}
	}
	return why
}

// values are the figure's own, one a cycle, and its parts.
func (d definition) values(t *Results) (own []float64, parts map[string]float64) {
	value := d.value
	if value == nil {
		value = deliveries
	}
	switch {
	case d.make != nil:
		return d.make(t)
	case d.samples != "":
		return d.sampled(t.Samples[d.samples])
	case len(d.rivals) == 0:
		return t.ratios(d.of, d.by, value)
	}
	// The best is the one with the highest median of all rounds; the parts show the others too.
	best := slices.MaxFunc(d.rivals, func(a, b string) int { return cmp.Compare(t.rate(a), t.rate(b)) })
	own, parts = t.ratios(best, d.of, value)
	for i := range own {
		own[i] = 1 / own[i]
	}
	for _, name := range slices.Concat(d.rivals, d.remarks) {
		if len(t.of(name)) > 0 {
			parts[name] = t.rate(name)
		}
	}
	return own, parts
}

// sampled are the values of one kind of measurement; its parts are medians, but for those whose name says more.
func (d definition) sampled(all []run.Sample) (own []float64, parts map[string]float64) {
	parts = map[string]float64{}
	of := func(name string) []float64 { return pick(all, func(s run.Sample) float64 { return s[name] }) }
	for _, name := range d.parts {
		switch values := of(name); {
		case len(values) == 0:
		case name == "fastest_ms":
			parts[name] = slices.Min(values)
		case name == "slowest_ms":
			parts[name] = slices.Max(values)
		case name == "starts":
			parts[name] = values[0] * float64(len(values))
		default:
			parts[name] = Median(values)
		}
	}
	return of(d.field), parts
}

// ratios divides each round of a contestant by the last one of another before it.
func (t *Results) ratios(name, other string, value func(run.Round) float64) (all []float64, parts map[string]float64) {
	var others []float64
	for i, r := range t.Rounds {
		if o, ok := last(t.Rounds[:i], other); ok && r.Contestant == name && r.NotMeasured == "" {
			all = append(all, value(r)/value(o))
			others = append(others, value(o))
		}
	}
	return all, map[string]float64{name: Median(pick(t.of(name), value)), other: Median(others)}
}

// besideBoth divides each round with somebody at the pages by the mean of the rounds without before and after it: what
// differs between two rounds of the same is more than what such a figure is about.
func besideBoth(t *Results) (all []float64, parts map[string]float64) {
	for i, r := range t.Rounds {
		before, ok1 := last(t.Rounds[:i], fullLog)
		rest := slices.Clone(t.Rounds[i:])
		slices.Reverse(rest)
		after, ok2 := last(rest, fullLog)
		if r.Contestant == "pages" && r.NotMeasured == "" && ok1 && ok2 {
			all = append(all, 2*r.Rate/(before.Rate+after.Rate))
		}
	}
	return all, map[string]float64{"pages": t.rate("pages"), fullLog: t.rate(fullLog)}
}

// beaten says that another rival of the same figure was so much faster that this one will not be the best.
func (t *Results) beaten(name string) bool {
	const clearly = 0.9
	return slices.ContainsFunc(definitions, func(d definition) bool {
		return slices.Contains(d.rivals, name) && len(t.of(name)) > 0 &&
			t.rate(name) < clearly*slices.Max(pick(d.rivals, t.rate))
	})
}

// slowestPages are the slowest answers of each round; the parts are the pages.
func slowestPages(t *Results) (slowest []float64, parts map[string]float64) {
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

func cpuOfBase(t *Results) ([]float64, map[string]float64) {
	return pick(t.of(Base), func(r run.Round) float64 { return r.CPU["client"] }), t.cpu(Base)
}

// cpu is what a delivery of a contestant cost each process.
func (t *Results) cpu(name string) map[string]float64 {
	parts := map[string]float64{}
	for _, process := range Processes {
		parts[process] = round(Median(pick(t.of(name), func(r run.Round) float64 { return r.CPU[process] })))
	}
	return parts
}

// of are the rounds of one contestant that could be measured.
func (t *Results) of(name string) (rounds []run.Round) {
	for _, r := range t.Rounds {
		if r.Contestant == name && r.NotMeasured == "" {
			rounds = append(rounds, r)
		}
	}
	return rounds
}

// rate is the median of a contestant's deliveries/s.
func (t *Results) rate(name string) float64 { return Median(pick(t.of(name), deliveries)) }

// last is a contestant's last round of these, if it could be measured.
func last(rounds []run.Round, name string) (r run.Round, ok bool) {
	for _, r := range slices.Backward(rounds) {
		if r.Contestant == name {
			return r, r.NotMeasured == ""
		}
	}
	return r, false
}

// Curve is throughput over a setting.
type Curve struct {
	Key     string  `json:"-"`
	Title   string  `json:"title"`
	XLabel  string  `json:"x"`
	YLabel  string  `json:"y"`
	Default int     `json:"default"`
	Points  []Point `json:"points"`
}

// Point is one setting's rounds.
type Point struct {
	X      int       `json:"x"`
	Median float64   `json:"median"`
	Spread Spread    `json:"spread"`
	Rounds []float64 `json:"rounds"`
}

// Best is the setting with the highest median.
func (c Curve) Best() Point {
	return slices.MaxFunc(c.Points, func(a, b Point) int { return cmp.Compare(a.Median, b.Median) })
}

// Curves are those of the wanted ones that have all their points.
func (t *Results) Curves(wanted []string) (all []Curve) {
	for _, d := range curves {
		c := Curve{Key: d.key, Title: d.title, XLabel: "ROLLBACKD_" + d.setting, YLabel: "messages/s", Default: d.def}
		for i, name := range d.names() {
			if rates := pick(t.of(name), deliveries); len(rates) > 0 {
				c.Points = append(c.Points, Point{d.points[i], round(Median(rates)), spread(rates), rounded(rates)})
			}
		}
		if slices.Contains(wanted, d.key) && len(c.Points) == len(d.points) {
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
func (t *Results) Contestants() (all []Contestant) {
	for _, r := range t.Rounds {
		rounds := t.of(r.Contestant)
		known := slices.ContainsFunc(all, func(c Contestant) bool { return c.Name == r.Contestant })
		if known || len(rounds) == 0 {
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
func (t *Results) quiet(rounds []run.Round) (n int) {
	const most = 1.2
	all := map[string][]float64{}
	for _, r := range t.Rounds {
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
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-3)
	if unit >= 1 {
		return math.Round(x/unit) * unit
	}
	per := math.Round(1 / unit) // a division by a power of ten prints short
	return math.Round(x*per) / per
}

func rounded(values []float64) []float64 { return pick(values, round) }
