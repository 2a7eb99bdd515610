package figure

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// Comparison is what pairs of rounds of two builds, a and b, tell of their costs.
type Comparison struct {
	Pairs int     `json:"pairs"`
	A     float64 `json:"a"` // the mean cost
	B     float64 `json:"b"`
	// Ratio is b's cost by a's: the geometric mean of the pairs'. Low and High bound it with a confidence of 95 %; one
	// pair alone bounds nothing.
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Compare takes the costs of the pairs, in order. The interval is Student's of the logarithms of the pairs' ratios:
// what changes the machine from pair to pair weighs on both sides of one.
func Compare(a, b []float64) Comparison {
	n := float64(len(a))
	c := Comparison{Pairs: len(a), Low: 0, High: math.Inf(1)}
	logs, mean := make([]float64, len(a)), 0.0
	for i := range a {
		logs[i] = math.Log(b[i] / a[i])
		mean += logs[i] / n
		c.A += a[i] / n
		c.B += b[i] / n
	}
	c.Ratio = math.Exp(mean)
	if len(a) < 2 {
		return c
	}
	squares := 0.0
	for _, x := range logs {
		squares += (x - mean) * (x - mean)
	}
	half := student(len(a)-1) * math.Sqrt(squares/(n-1)/n)
	c.Low, c.High = math.Exp(mean-half), math.Exp(mean+half)
	return c
}

// students are the 97.5 % points of Student's distribution, beginning with one degree of freedom.
var students = []float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

// student is for so many degrees of freedom; beyond the table it is a little too large, never too small.
func student(freedom int) float64 { return students[min(freedom, len(students))-1] }

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

// The subjects that are no contestants.
const (
	Latency = "latency"
	Pages   = "pages"
)

// Subject is what two builds are compared in.
type Subject struct {
	Name string
	Keys []string // the names it was asked for by
	// Contestant does a whole round, but for latency and pages.
	Contestant run.Contestant
}

// Subjects are what these names mean: figures, contestants and latency. A figure is its product's side alone: who is
// compared with it is the same for both builds. So some figures mean the same subject.
func Subjects(names []string) (all []Subject, err error) {
	for _, name := range names {
		s := Subject{Name: Latency}
		switch {
		case name == Pages || name == "page_ms":
			s.Name = Pages
		case !slices.Contains([]string{Latency, LatencyP50, LatencyP99}, name):
			if s, err = subject(name); err != nil {
				return nil, err
			}
		}
		i := slices.IndexFunc(all, func(other Subject) bool { return other.Name == s.Name })
		if i < 0 {
			i, all = len(all), append(all, s)
		}
		all[i].Keys = append(all[i].Keys, name)
	}
	return all, nil
}

// subject finds a contestant of the product's by its name or by that of its figure.
func subject(name string) (Subject, error) {
	ours := map[string]run.Contestant{}
	for _, c := range slices.Concat(Cycle(Names(), true)...) {
		if c.Rival == "" {
			ours[c.Name] = whole(c)
		}
	}
	known := []string{Base, Latency, Pages}
	for _, d := range definitions {
		of := Base
		for _, other := range d.others {
			if _, ok := ours[other]; ok {
				of = other // the last one is the figure's own
			}
		}
		if d.key == name {
			return Subject{Name: of, Contestant: ours[of]}, nil
		}
		known = append(known, d.key)
	}
	if c, ok := ours[name]; ok {
		return Subject{Name: name, Contestant: c}, nil
	}
	return Subject{}, fmt.Errorf("there is no %q to compare; there are %s", name, strings.Join(known, ", "))
}

// whole lets a contestant do the same work in each round: so many messages until each has ended.
func whole(c run.Contestant) run.Contestant {
	c.ToTheEnd, c.Whole = !c.Replay, !c.Replay
	if c.Sowing.PoisonEvery != 0 && c.Sowing.Delays == "" {
		c.Sowing.Delays, c.Settings = Delays, append(slices.Clip(c.Settings), noBrake)
	}
	return c
}
