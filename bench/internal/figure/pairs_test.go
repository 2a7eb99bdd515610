package figure

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

func TestPairsMakeARatioWithItsInterval(t *testing.T) {
	a := []float64{100, 200, 50}
	b := []float64{100 * math.Exp(0.01), 200 * math.Exp(0.02), 50 * math.Exp(0.03)}
	c := Compare(a, b)
	// The logarithms have the mean 0.02 and the standard deviation 0.01; t is 4.303 with two degrees of freedom.
	for name, x := range map[string][2]float64{
		"a": {c.A, 116.6667}, "ratio": {c.Ratio, 1.020201}, "low": {c.Low, 0.995168}, "high": {c.High, 1.045864},
	} {
		if math.Abs(x[0]-x[1]) > 1e-4 {
			t.Errorf("%s is %.6f, want %.6f", name, x[0], x[1])
		}
	}
	if c.Pairs != 3 {
		t.Errorf("got %d pairs", c.Pairs)
	}
	same := Compare([]float64{1, 2, 3}, []float64{1, 2, 3})
	if same.Ratio != 1 || same.Low != 1 || same.High != 1 {
		t.Errorf("of the same: got %+v", same)
	}
	if one := Compare([]float64{1}, []float64{2}); one.Ratio != 2 || one.Low != 0 || !math.IsInf(one.High, 1) {
		t.Errorf("one pair bounds nothing: got %+v", one)
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		ratio, low, high float64
		want             string
	}{
		{1, 0.98, 1.02, NotBelow},
		{1.01, 1.005, 1.03, NotBelow}, // dearer, but no more than is allowed
		{0.9, 0.88, 0.92, NotBelow + ": cheaper by 10.0 %"},
		{1.08, 1.05, 1.11, "dearer by 8.0 %"},
		{1.03, 1.01, 1.05, "undecided"},
		{1, 0.9, 1.1, "undecided"},
		{1, 0, math.Inf(1), "undecided"},
	} {
		got := Comparison{Pairs: 5, Ratio: c.ratio, Low: c.low, High: c.high}.Verdict(3)
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestAFigureIsComparedByItsProductsSide(t *testing.T) {
	for key, want := range map[string]string{
		"vs_plain": Base, "vs_classic": Base, "duplicates_50": "duplicates", "failing_5": "failing_5",
		"all_failing": "all_failing", "classic_failing": "all_failing", "handler_http": "handler_http",
		"mysql_1ms_failing_5": "mysql_1ms_failing_5", "contended": "contended",
		"latency": Latency, "latency_p99_ms": Latency, "pages": Pages, "page_ms": Pages, "batch_10": "batch_10",
		"replay": "replay", "cpu_us_per_message": Base,
	} {
		all := Subjects([]string{key})
		if len(all) != 1 || all[0].Name != want {
			t.Errorf("%s: %+v; want %s", key, all, want)
			continue
		}
		c := all[0].Contestant
		if want == Latency && c.Extent == run.Evenly || want == Pages && c.Extent == run.Looked {
			continue
		}
		if c.Name != want || c.Rival != "" || c.Extent != run.Whole && c.Extent != run.Replayed ||
			c.Sowing.PoisonEvery != 0 && c.Sowing.Delays == "" {
			t.Errorf("%s: %+v does not do the same work in each round", key, c)
		}
	}
	all := Subjects([]string{"vs_plain", "failing_5", "vs_classic"})
	if len(all) != 2 || !slices.Equal(all[0].Keys, []string{"vs_plain", "vs_classic"}) {
		t.Errorf("got %+v: want the base once", all)
	}
	for _, name := range []string{"nobody", "classic_16", "plain_each", "start_ms"} {
		if err := must.Catch(func() { Subjects([]string{name}) }); err == nil || !strings.Contains(err.Error(), "vs_plain") {
			t.Errorf("%s: %v, want an error that says what there is", name, err)
		}
	}
}
