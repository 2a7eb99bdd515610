package figure

import (
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// turns are rounds at these rates, in order.
func turns(rates ...any) *Results {
	t := &Results{}
	for i := 0; i < len(rates); i += 2 {
		rate := float64(rates[i+1].(int))
		t.Rounds = append(t.Rounds, run.Round{
			Contestant: rates[i].(string), Rate: rate, Applied: rate, CPU: map[string]float64{"client": 1e6 / rate},
		})
	}
	return t
}

func cycleOf(wanted []string, before ...any) []run.Contestant {
	return slices.Concat(Cycle(wanted, turns(before...))...)
}

func only(t *testing.T, key string, figures []Figure) Figure {
	t.Helper()
	i := slices.IndexFunc(figures, func(f Figure) bool { return f.Key == key })
	if i < 0 || len(figures) != 1 {
		t.Fatalf("got %d figures, want %s alone", len(figures), key)
	}
	return figures[i]
}

func TestEachRoundIsComparedWithTheBaseJustBefore(t *testing.T) {
	all := turns(Base, 100, "hot_goods", 90, Base, 50, "hot_goods", 40, Base, 200, "hot_goods", 100)
	f := only(t, "hot_goods", all.Figures([]string{"hot_goods"}))
	if !slices.Equal(f.Rounds, []float64{0.9, 0.8, 0.5}) || f.Value != 0.8 || f.Spread != (Spread{0.5, 0.9}) {
		t.Errorf("got %+v", f)
	}
	if f.Reached == nil || !*f.Reached {
		t.Errorf("0.8 reaches %s", f.Goal)
	}
	if f.Parts[Base] != 100 || f.Parts["hot_goods"] != 90 {
		t.Errorf("parts are %v, want the medians", f.Parts)
	}
}

func TestPagesAreComparedWithTheRoundsBeforeAndAfter(t *testing.T) {
	all := turns(fullLog, 100, "pages", 90, fullLog, 80, fullLog, 200, "pages", 150, fullLog, 100, "pages", 7)
	f := only(t, "pages", all.Figures([]string{"pages"}))
	if !slices.Equal(f.Rounds, []float64{1, 1}) {
		t.Errorf("got %+v, want what drifts to weigh on neither side, and no figure of a round without a next one", f)
	}
}

func TestRivalIsTheBestOfItsSettingsByTheMedian(t *testing.T) {
	all := turns(Base, 1000, "classic_1", 10, "classic_16", 50, "classic_64", 40, Base, 1000, "classic_1", 10,
		"classic_16", 50, "classic_64", 45,
		Base, 1000, "classic_1", 10, "classic_16", 20, "classic_64", 90)
	f := only(t, "vs_classic", all.Figures([]string{"vs_classic"}))
	if !slices.Equal(f.Rounds, []float64{20, 20, 50}) || f.Value != 20 {
		t.Errorf("got %+v, want the rounds of classic_16, whose median is the highest", f)
	}
	if f.Parts["classic_1"] != 10 || f.Parts["classic_64"] != 45 {
		t.Errorf("parts are %v, want those that were not the best too", f.Parts)
	}
}

func TestARoundIsQuietIfFixedWorkTookNoLongerThanAroundTheBestQuarter(t *testing.T) {
	all := turns(Base, 100, Base, 90, Base, 80, Base, 80, Base, 80, "hot_goods", 50)
	all.Rounds[0].Fixed = run.Fixed{"cpu": 11, "fsync": 5}
	all.Rounds[1].Fixed = run.Fixed{"cpu": 10, "fsync": 7} // the disk was slow
	all.Rounds[2].Fixed = run.Fixed{"cpu": 11.9, "fsync": 6}
	all.Rounds[3].Fixed = run.Fixed{"cpu": 5, "fsync": 5} // an accident
	all.Rounds[4].Fixed = run.Fixed{"cpu": 13, "fsync": 5}
	for i, want := range []int{3, 0} { // nobody knows of a round without it
		if c := all.Contestants()[i]; c.Quiet != want {
			t.Errorf("%s has %d quiet rounds of %d, want %d", c.Name, c.Quiet, len(c.Rounds), want)
		}
	}
}

func TestFigureWithoutItsRoundsIsLeftOut(t *testing.T) {
	if got := turns(Base, 100, "classic_1", 10).Figures([]string{"vs_classic", "poison"}); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

func TestWhatCouldNotBeMeasuredIsAFigureThatSaysSo(t *testing.T) {
	const why = "classic_16 could not be measured"
	missing := run.Round{Contestant: "hot_goods", NotMeasured: why}
	all := turns(Base, 100)
	all.Rounds = append(all.Rounds, missing)
	f := only(t, "hot_goods", all.Figures([]string{"hot_goods", "poison"}))
	if f.NotMeasured != why || f.Value != 0 || f.Reached != nil || f.Goal != "≥ 0.8" || f.What == "" {
		t.Errorf("got %+v", f)
	}
	if c := all.Contestants(); len(c) != 1 || c[0].Name != Base {
		t.Errorf("the contestants are %+v, want those that were measured", c)
	}
	// In one cycle only: the others make the figure. And no round is compared with one of an earlier cycle.
	all.Rounds = append(all.Rounds, turns(Base, 100, "hot_goods", 90).Rounds...)
	all.Rounds = append(all.Rounds, run.Round{Contestant: Base, NotMeasured: why})
	all.Rounds = append(all.Rounds, turns("hot_goods", 50).Rounds...)
	f = only(t, "hot_goods", all.Figures([]string{"hot_goods"}))
	if f.NotMeasured != "" || !slices.Equal(f.Rounds, []float64{0.9}) {
		t.Errorf("got %+v, want the one round that has its base", f)
	}
}

// Figures that are no ratios, a little at their goals and a little beyond.
func TestTheOtherFiguresHaveTheirGoals(t *testing.T) {
	for _, c := range []struct {
		key, samples string
		all          []run.Sample
		value        float64
		reached      bool
		parts        map[string]float64
	}{
		{RSS, MemoryRounds, []run.Sample{{"max_mib": 150, "last_by_second": 1.1}}, 150, true, nil},
		{RSS, MemoryRounds, []run.Sample{{"max_mib": 151, "last_by_second": 1}}, 151, false, nil},
		{RSS, MemoryRounds, []run.Sample{{"max_mib": 120, "last_by_second": 1.11}}, 120, false, nil},
		{LargeRSS, LargeRounds, []run.Sample{{"at_block_mib": 120, "max_mib": 200}}, 200, true,
			map[string]float64{"at_block_mib": 120}},
		{LargeRSS, LargeRounds, []run.Sample{{"max_mib": 201}}, 201, false, nil},
		{LatencyFailing, FailingRounds, []run.Sample{{"p50_ms": 4, "p99_ms": 1}, {"p50_ms": 5, "p99_ms": 30},
			{"p50_ms": 6, "p99_ms": 90}}, 30, true, map[string]float64{"p50_ms": 5}},
		{LatencyP50, LatencyRounds, []run.Sample{{"p50_ms": 6.1, "max_ms": 8}}, 6.1, false, map[string]float64{"max_ms": 8}},
		{StartMS, StartRounds, []run.Sample{{"ms": 300, "slowest_ms": 400, "starts": 5}, {"ms": 200, "slowest_ms": 900},
			{"ms": 310}}, 300, true, map[string]float64{"slowest_ms": 900, "starts": 15, "fastest_ms": 0}},
		{StartMS, StartRounds, []run.Sample{{"ms": 301}}, 301, false, nil},
	} {
		results := Results{Samples: map[string][]run.Sample{c.samples: c.all}}
		f := only(t, c.key, results.Figures([]string{c.key}))
		if f.Value != c.value || *f.Reached != c.reached {
			t.Errorf("%s: got %+v, want %v, reached %v", c.key, f, c.value, c.reached)
		}
		for name, want := range c.parts {
			if f.Parts[name] != want {
				t.Errorf("%s: the parts are %v, want %s %v", c.key, f.Parts, name, want)
			}
		}
	}
}

func TestFiguresOfFailuresAreMadeOfTheirOwnRounds(t *testing.T) {
	all := turns(
		Base, 1000, "replay", 300, "all_failing", 160, "classic_16_failing", 60, "classic_64_failing", 80,
		"watermill_16_failing", 90, "watermill_64_failing", 95,
		"failing_0", 900, "failing_1", 720, "failing_5", 495, "mysql_1ms_failing_5", 396, "failing_20", 270,
		Base, 500, "mysql_1ms", 400, "contended_one", 600, "contended", 480,
	)
	// Attempts are counted in one way, good messages in another.
	for i := range all.Rounds {
		switch name := all.Rounds[i].Contestant; name {
		case "failing_1", "failing_5", "failing_20", "mysql_1ms_failing_5":
			all.Rounds[i].Rate *= 3
		case "all_failing":
			all.Rounds[i].Applied = 0
		}
	}
	for key, want := range map[string]float64{
		"failing_1": 0.8, "failing_5": 0.55, "failing_20": 0.3, "all_failing": 0.16, "classic_failing": 2, "replay": 0.3,
		"contended": 0.8, "mysql_1ms": 0.8, "mysql_1ms_failing_5": 0.8,
	} {
		f := only(t, key, all.Figures([]string{key}))
		if f.Value != want || f.Reached == nil || !*f.Reached {
			t.Errorf("%s is %v (%s, reached: %v), want %v", key, f.Value, f.Goal, f.Reached, want)
		}
		if key == "classic_failing" && (f.Parts["watermill_64_failing"] != 95 || f.Parts["classic_16_failing"] != 60) {
			t.Errorf("%s: the parts are %v, want Watermill's too, and the slower workers'", key, f.Parts)
		}
	}
}

func TestAGoalThatIsNotReachedHasItsCause(t *testing.T) {
	for speed, want := range map[int]string{290: "**no**: a letter is published", 300: "yes"} {
		rounds := turns(Base, 1000, "replay", speed)
		if f := only(t, "replay", rounds.Figures([]string{"replay"})); !strings.HasPrefix(f.IsReached(), want) {
			t.Errorf("replay of %v letters/s by 1,000 messages/s: %s, want %s", speed, f.IsReached(), want)
		}
	}
}

// Everybody whose messages fail has the same delays and, for the product as for its rivals, no brake.
func TestWhoIsComparedOverFailuresHasTheSameRules(t *testing.T) {
	for _, c := range cycleOf([]string{"failing_1", "failing_5", "failing_20", "all_failing", "classic_failing"}) {
		if c.Name == Base {
			continue
		}
		if c.Sowing.Delays != Delays || c.Extent != run.ToTheEnd ||
			c.Rival == "" && !slices.Contains(c.Settings, noBrake[0]) {
			t.Errorf("%s works by other rules: %+v", c.Name, c)
		}
	}
}

func TestTheBaseHasNoTurnWhereNobodyIsComparedWithIt(t *testing.T) {
	for _, c := range []struct {
		wanted []string
		want   []string
	}{
		{[]string{"failing_5"}, []string{"failing_0", "failing_5"}},
		{[]string{"mysql_1ms_failing_5"}, []string{"failing_5", "mysql_1ms_failing_5"}},
		{[]string{"contended"}, []string{"contended_one", "contended"}},
		{[]string{"contended", "mysql_1ms"}, []string{Base, "mysql_1ms", "contended_one", "contended"}},
		{[]string{"all_failing"}, []string{Base, "all_failing"}},
		{[]string{"cpu_us_per_message", "failing_1"}, []string{Base, "failing_0", "failing_1"}},
		{[]string{"classic_failing"}, []string{"all_failing", "classic_16_failing", "classic_64_failing",
			"watermill_16_failing", "watermill_64_failing"}},
	} {
		var got []string
		for _, contestant := range cycleOf(c.wanted) {
			got = append(got, contestant.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: the cycle is %v, want %v", c.wanted, got, c.want)
		}
	}
}

func TestOnlyADaemonAloneCanBeProfiled(t *testing.T) {
	for name, want := range map[string]bool{
		Base: true, "all_failing": true, "failing_5": true, "batch_10": true, "replay": false, "classic_16": false,
		"two_daemons": false, "mysql_1ms": false, "nobody": false,
	} {
		if err := must.Catch(func() { Profiled(name) }); (err == nil) != want {
			t.Errorf("%s: %v; want one: %v", name, err, want)
		}
	}
}

func TestEveryFigureHasItsContestants(t *testing.T) {
	for _, key := range []string{"vs_plain", "vs_classic", "vs_watermill", "duplicates_50", "log_5m", "poison",
		"hot_goods", "redis_off", "lock_redlock", "lock_zookeeper", "lock_mysql",
		"two_daemons", "all_failing", "replay", "mysql_1ms"} {
		c := cycleOf([]string{key})
		if len(c) < 2 || c[0].Name != Base {
			t.Errorf("%s: the cycle is %+v, want the base and somebody else", key, c)
		}
	}
	for _, key := range []string{LatencyP50, LatencyP99, LatencyFailing, StartMS, RSS, LargeRSS} {
		if !slices.Contains(Names(), key) || len(cycleOf([]string{key})) > 0 {
			t.Errorf("%s must be a figure without rounds of the cycle", key)
		}
	}
	names := map[string]int{}
	for _, c := range cycleOf(Names()) {
		names[c.Name]++
	}
	for name, n := range names {
		if want := map[string]int{fullLog: 2}[name]; n != max(1, want) && name != Base {
			t.Errorf("%s has %d turns in a cycle", name, n)
		}
	}
	later := cycleOf(Names(), "classic_1", 10, "classic_16", 89, "classic_64", 100, "pool_64", 91, "pool_128", 100)
	for _, c := range later {
		names[c.Name] = 0
	}
	for _, name := range []string{"batch_1", "batch_2000", "lanes_8", "plain_multiple", "classic_16"} {
		if names[name] != 1 {
			t.Errorf("%s has a turn in each cycle, want the first only", name)
		}
	}
	for _, name := range []string{"classic_64", "pool_64", "pool_128", "watermill_16"} {
		if names[name] != 0 {
			t.Errorf("%s has no turn in later cycles, but may be the best", name)
		}
	}
}

func TestCurvesNeedAllTheirPoints(t *testing.T) {
	all := turns(Base, 400, "lanes_1", 100, "lanes_2", 200)
	if got := all.Curves([]string{Lanes}); len(got) > 0 {
		t.Errorf("got a curve of %d points", len(got[0].Points))
	}
	all.Rounds = append(all.Rounds, turns("lanes_8", 300).Rounds...)
	got := all.Curves([]string{Lanes})
	if len(got) != 1 || len(got[0].Points) != 4 || got[0].Best().X != 4 {
		t.Errorf("got %+v, want four points and the best at 4, the base", got)
	}
}

func TestMedianAndRounding(t *testing.T) {
	if Median(nil) != 0 || Median([]float64{3, 1, 2}) != 2 || Median([]float64{4, 1, 2, 3}) != 2.5 {
		t.Error("median")
	}
	for in, want := range map[float64]float64{43217.4: 43220, 0.123456: 0.1235, 5: 5, 0: 0, 1.00004: 1, -2.34567: -2.346} {
		if got := round(in); got != want {
			t.Errorf("round(%v) is %v, want %v", in, got, want)
		}
	}
}
