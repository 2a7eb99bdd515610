package figure

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
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
