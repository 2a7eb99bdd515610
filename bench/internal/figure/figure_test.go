package figure

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// turns are rounds at these rates, in order; a text says why one could not be measured.
func turns(rates ...any) (t Results) {
	for i := 0; i < len(rates); i += 2 {
		r := run.Round{Contestant: rates[i].(string)}
		switch rate := rates[i+1].(type) {
		case string:
			r.NotMeasured = rate
		case run.Sample:
			r.Sample = rate
		case int:
			r.Rate, r.Applied, r.CPU = float64(rate), float64(rate), run.Sample{"client": 1e6 / float64(rate)}
		}
		t = append(t, r)
	}
	return t
}

func cycleOf(wanted []string, first bool) []run.Contestant {
	return slices.Concat(Cycle(wanted, first)...)
}

func names(all []run.Contestant) (names []string) {
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names
}

// Each round is compared with that of the other side just before it; a rival is the best of its settings by the median.
// Goals are reached or missed by a little.
func TestFiguresAreMadeOfRounds(t *testing.T) {
	classic := []any{Base, 1000, "classic_1", 10, "classic_16", 50, "classic_64", 40, Base, 1000, "classic_1", 10,
		"classic_16", 50, "classic_64", 45, Base, 1000, "classic_1", 10, "classic_16", 20, "classic_64", 90}
	failures := turns(
		Base, 1000, "replay", 300, "all_failing", 160, "classic_16_failing", 60, "classic_64_failing", 80,
		"watermill_16_failing", 90, "watermill_64_failing", 95,
		"failing_0", 900, "failing_1", 720, "failing_5", 495, "mysql_1ms_failing_5", 396, "failing_20", 270,
		Base, 500, "mysql_1ms", 400, "contended_one", 600, "contended", 480,
	)
	for i := range failures { // attempts are counted in one way, good messages in another
		switch r := &failures[i]; r.Contestant {
		case "failing_1", "failing_5", "failing_20", "mysql_1ms_failing_5":
			r.Rate *= 3
		case "all_failing":
			r.Applied = 0
		}
	}
	sample := func(name string, samples ...run.Sample) (t Results) {
		for _, s := range samples {
			t = append(t, turns(name, s)...)
		}
		return t
	}
	type parts = map[string]float64
	for _, c := range []struct {
		key    string
		rounds Results
		want   string // value, rounds, and whether the goal is reached
		parts  parts
	}{
		{"hot_goods", turns(Base, 100, "hot_goods", 90, Base, 50, "hot_goods", 40, Base, 200, "hot_goods", 100),
			"0.8 [0.9 0.8 0.5] yes", parts{Base: 100, "hot_goods": 90}},
		{"hot_goods", turns(Base, 100_000, "hot_goods", 90_909), "0.9091 [0.9091] yes", parts{"hot_goods": 90_910}},
		{"page_ms", Results{{Contestant: Pages, Pages: run.Sample{"log": 20, "acts": 30}},
			{Contestant: Pages, Pages: run.Sample{"log": 40}}}, "35 [30 40] yes", parts{"log": 30, "acts": 30}},
		{"vs_classic", turns(classic...), "20 [20 20 50] yes", parts{"classic_1": 10, "classic_64": 45}},
		{"failing_1", failures, "0.8 [0.8] yes", nil},
		{"failing_5", failures, "0.55 [0.55] yes", nil},
		{"failing_20", failures, "0.3 [0.3] yes", nil},
		{"all_failing", failures, "0.16 [0.16] yes", nil},
		{"classic_failing", failures, "2 [2] yes", parts{"watermill_64_failing": 95, "classic_16_failing": 60}},
		{"replay", failures, "0.3 [0.3] yes", nil},
		{"replay", turns(Base, 1000, "replay", 290),
			"0.29 [0.29] **no**: a letter is published, confirmed and consumed once more, and its row changes twice more", nil},
		{"contended", failures, "0.8 [0.8] yes", nil},
		{"mysql_1ms", failures, "0.8 [0.8] yes", nil},
		{"mysql_1ms_failing_5", failures, "0.8 [0.8] yes", nil},
		{"rss_mib", sample(memory, run.Sample{"max_mib": 150, "last_by_second": 1.1}), "150 [150] yes", nil},
		{"rss_mib", sample(memory, run.Sample{"max_mib": 151, "last_by_second": 1}), "151 [151] **no**", nil},
		{"rss_mib", sample(memory, run.Sample{"max_mib": 120, "last_by_second": 1.11}), "120 [120] **no**", nil},
		{"large_bodies_rss_mib", sample(largeBodies, run.Sample{"at_block_mib": 120, "max_mib": 200}), "200 [200] yes",
			parts{"at_block_mib": 120}},
		{"latency_failing_5_p99_ms", sample(latencyFailing, run.Sample{"p50_ms": 4, "p99_ms": 1},
			run.Sample{"p50_ms": 5, "p99_ms": 30},
			run.Sample{"p50_ms": 6, "p99_ms": 90}), "30 [1 30 90] yes", parts{"p50_ms": 5}},
		{relay, sample(relay, run.Sample{"ratio": 0.6, "messages": 60_000}), "0.6 [0.6] yes", parts{"messages": 60_000}},
		{"latency_p50_ms", sample(Latency, run.Sample{"p50_ms": 6.1, "max_ms": 8}), "6.1 [6.1] **no**: " + oneByOne,
			parts{"max_ms": 8}},
		{"start_ms", sample(starts, run.Sample{"ms": 300, "slowest_ms": 400, "starts": 5}, run.Sample{"ms": 200,
			"slowest_ms": 900}, run.Sample{"ms": 310}), "300 [300 200 310] yes",
			parts{"slowest_ms": 650, "starts": 5}},
		// What could not be measured says so; in one cycle only, the others make the figure. No round is compared with one
		// of an earlier cycle.
		{"hot_goods", turns(Base, 100, "hot_goods", "away"), "0 [] –away", nil},
		{"hot_goods", turns(Base, 100, "hot_goods", "away", Base, 100, "hot_goods", 90, Base, "away", "hot_goods", 50),
			"0.9 [0.9] yes", nil},
	} {
		all := c.rounds.Figures([]string{c.key})
		if len(all) != 1 || all[0].Key != c.key {
			t.Errorf("got %+v, want %s alone", all, c.key)
			continue
		}
		f := all[0]
		assert.Is(t, fmt.Sprint(f.Value, f.Rounds, " ", f.IsReached(), f.NotMeasured), c.want, "%s", c.key)
		for name, want := range c.parts {
			assert.That(t, f.Parts[name] == want, "%s: the parts are %v, want %s %v", c.key, f.Parts, name, want)
		}
	}
	got := turns(Base, 100, "classic_1", 10).Figures([]string{"vs_classic", "poison"})
	assert.That(t, len(got) == 0 && Median(nil) == 0, "without rounds there is %+v, or a median", got)
}

func TestARoundIsQuietIfFixedWorkTookNoLongerThanAroundTheBestQuarter(t *testing.T) {
	all := turns(Base, 100, Base, 90, Base, 80, Base, 80, Base, 80)
	for i, fixed := range []run.Sample{
		{"cpu": 11, "fsync": 5},
		{"cpu": 10, "fsync": 7}, // the disk was slow
		{"cpu": 11.9, "fsync": 6},
		{"cpu": 5, "fsync": 5}, // an accident
		{"cpu": 13, "fsync": 5},
	} {
		all[i].Fixed = fixed
	}
	c := all.Contestants()
	assert.That(t, len(c) == 1 && c[0].Quiet == 3, "got %+v, want three quiet rounds", c)
}

// Everybody whose messages fail has the same delays and, for the product as for its rivals, no brake.
func TestWhoIsComparedOverFailuresHasTheSameRules(t *testing.T) {
	for _, c := range cycleOf([]string{"failing_1", "failing_5", "failing_20", "all_failing", "classic_failing"}, true) {
		if c.Name != Base && (c.Sowing.Delays != Delays || c.Extent != run.ToTheEnd ||
			c.Rival == "" && !slices.Contains(c.Settings, noBrake[0])) {
			t.Errorf("%s works by other rules: %+v", c.Name, c)
		}
	}
}

// The base has no turn where nobody is compared with it.
func TestACycleHasWhomTheWantedFiguresNeed(t *testing.T) {
	for wanted, want := range map[string]string{
		"failing_5":                    "failing_0 failing_5",
		"mysql_1ms_failing_5":          "failing_5 mysql_1ms_failing_5",
		"contended":                    "contended_one contended",
		"contended mysql_1ms":          "rollbackd mysql_1ms contended_one contended",
		"all_failing":                  "rollbackd all_failing",
		"cpu_us_per_message failing_1": "rollbackd failing_0 failing_1",
		"classic_failing": "all_failing classic_16_failing classic_64_failing watermill_16_failing " +
			"watermill_64_failing",
		"latency_p50_ms latency_p99_ms latency_failing_5_p99_ms start_ms rss_mib": "latency latency_failing start " +
			"memory",
	} {
		got := strings.Join(names(cycleOf(strings.Fields(wanted), true)), " ")
		assert.That(t, got == want, "%s: the cycle is %s, want %s", wanted, got, want)
	}
	all := names(cycleOf(Names(), true))
	for _, d := range definitions {
		for _, name := range append(d.made(), d.remarks...) {
			assert.That(t, slices.Contains(all, name), "%s needs %s, who has no turn", d.Key, name)
		}
	}
	turn := map[string]int{}
	for _, name := range all {
		turn[name]++
	}
	for name, n := range turn {
		assert.That(t, n <= 1 || name == Base, "%s has %d turns in a cycle", name, n)
	}
	later := names(cycleOf(Names(), false))
	for name, want := range map[string]bool{
		"batch_1": false, "batch_2000": false, "lanes_8": false, "plain_multiple": false, memory: false, "classic_1": true,
	} {
		assert.Is(t, slices.Contains(later, name), want, "%s has a turn in later cycles", name)
	}
}

func TestCurvesNeedAllTheirPoints(t *testing.T) {
	all := turns(Base, 400, "lanes_1", 100, "lanes_2", 200)
	assert.Is(t, len(all.Curves([]string{"lanes"})), 0, "curves without all points")
	got := append(all, turns("lanes_8", 300)...).Curves([]string{"lanes"})
	assert.That(t, len(got) == 1 && len(got[0].Points) == 4 && got[0].Best().X == 4,
		"got %+v, want four points and the best at 4, the base", got)
}

func TestPairsMakeARatioWithItsInterval(t *testing.T) {
	a := []float64{100, 200, 50}
	b := []float64{100 * math.Exp(0.01), 200 * math.Exp(0.02), 50 * math.Exp(0.03)}
	c := Compare(a, b)
	// The logarithms have the mean 0.02 and the standard deviation 0.01; t is 4.303 with two degrees of freedom.
	for name, x := range map[string][2]float64{
		"a": {c.A, 116.6667}, "ratio": {c.Ratio, 1.020201}, "low": {c.Low, 0.995168}, "high": {c.High, 1.045864},
	} {
		assert.AtMost(t, math.Abs(x[0]-x[1]), 1e-4, "%s is %.6f, want %.6f; it differs by", name, x[0], x[1])
	}
	assert.That(t, c.Pairs == 3, "got %d pairs", c.Pairs)
	same := Compare([]float64{1, 2, 3}, []float64{1, 2, 3})
	assert.That(t, same.Ratio == 1 && same.Low == 1 && same.High == 1, "of the same: got %+v", same)
	one := Compare([]float64{1}, []float64{2})
	assert.That(t, one.Ratio == 2 && one.Low == 0 && math.IsInf(one.High, 1), "one pair bounds nothing: got %+v", one)
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
		assert.That(t, got == c.want, "%+v: %q", c, got)
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
	assert.That(t, len(all) == 2 && slices.Equal(all[0].Keys, []string{"vs_plain", "vs_classic"}), "the base: %+v", all)
	for _, name := range []string{"nobody", "classic_16", "plain_each", "start_ms"} {
		assert.Has(t, fmt.Sprint(must.Catch(func() { Subjects([]string{name}) })), "vs_plain", "instead of %s", name)
	}
}
