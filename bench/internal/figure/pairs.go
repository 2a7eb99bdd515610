package figure

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

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
	n := float64(len(a))
	c := Comparison{Pairs: len(a), High: math.Inf(1)}
	mean, squares := 0.0, 0.0
	for i := range a {
		c.A += a[i] / n
		c.B += b[i] / n
		mean += math.Log(b[i]/a[i]) / n
	}
	c.Ratio = math.Exp(mean)
	if len(a) < 2 {
		return c
	}
	for i := range a {
		squares += math.Pow(math.Log(b[i]/a[i])-mean, 2)
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

// Subjects are what these names mean: figures, contestants of the product's, latency and pages. A figure is its
// product's side alone: who is compared with it is the same for both builds. So some figures mean the same subject.
func Subjects(names []string) (all []Subject) {
	whole := map[string]run.Contestant{Latency: {}, Pages: {}}
	for _, c := range slices.Concat(Cycle(Names(), &Results{})...) {
		if c.Rival == "" && c.Name != Pages {
			whole[c.Name] = wholeOf(c)
		}
	}
	meant := map[string]string{LatencyP50: Latency, LatencyP99: Latency}
	known := []string{Base, Latency}
	for _, d := range definitions {
		if d.of != "" {
			meant[d.key] = d.of
			known = append(known, d.key)
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
			i, all = len(all), append(all, Subject{Name: of, Contestant: c})
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

// Profiled is a contestant whose daemon can be profiled: one daemon, on a field of its own, with MySQL beside it.
func Profiled(name string) run.Contestant {
	names := []string{}
	for _, c := range slices.Concat(Cycle(Names(), &Results{})...) {
		if c.Rival != "" || c.Daemons > 1 || c.FullLog || c.Extent == run.Replayed || c.MySQLDelay != 0 || c.Lock != "" {
			continue
		}
		if c.Name == name {
			c.Guess *= 1.5 // it must not end before the profile does
			return c
		}
		names = append(names, c.Name)
	}
	must.OK(fmt.Errorf("there is no %q to profile; there are %s", name, strings.Join(names, ", ")))
	return run.Contestant{}
}
