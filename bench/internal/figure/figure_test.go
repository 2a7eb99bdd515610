package figure

import (
	"slices"
	"testing"

	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// turns are rounds at these rates, in order.
func turns(rates ...any) *Turns {
	t := &Turns{}
	for i := 0; i < len(rates); i += 2 {
		rate := float64(rates[i+1].(int))
		t.Rounds = append(t.Rounds, run.Round{Contestant: rates[i].(string), Rate: rate, Applied: rate, CPU: map[string]float64{"client": 1e6 / rate}})
	}
	return t
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

func TestRivalIsTheBestOfItsSettingsByTheMedian(t *testing.T) {
	all := turns(Base, 1000, "classic_1", 10, "classic_16", 50, "classic_64", 40, Base, 1000, "classic_1", 10, "classic_16", 50, "classic_64", 45,
		Base, 1000, "classic_1", 10, "classic_16", 20, "classic_64", 90)
	f := only(t, "vs_classic", all.Figures([]string{"vs_classic"}))
	if !slices.Equal(f.Rounds, []float64{20, 20, 50}) || f.Value != 20 {
		t.Errorf("got %+v, want the rounds of classic_16, whose median is the highest", f)
	}
	if f.Parts["classic_1"] != 10 || f.Parts["classic_64"] != 45 {
		t.Errorf("parts are %v, want those that were not the best too", f.Parts)
	}
}

func TestFigureWithoutItsRoundsIsLeftOut(t *testing.T) {
	if got := turns(Base, 100, "classic_1", 10).Figures([]string{"vs_classic", "poison"}); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

func TestGoals(t *testing.T) {
	for _, c := range []struct {
		goal  goal
		value float64
		want  bool
	}{{atLeast(0.5), 0.5, true}, {atLeast(0.5), 0.49999, false}, {atMost(6), 6, true}, {atMost(6), 6.001, false}} {
		if got := c.goal.reached(c.value); got == nil || *got != c.want {
			t.Errorf("%v reaches %s: %v, want %v", c.value, c.goal, got, c.want)
		}
	}
	if (goal{}).reached(1) != nil {
		t.Error("without a goal nothing is reached")
	}
}

func TestMemoryGoalHasTwoBounds(t *testing.T) {
	for _, c := range []struct {
		m    run.Memory
		want bool
	}{
		{run.Memory{Max: 150, SecondMinute: 100, LastMinute: 110}, true},
		{run.Memory{Max: 151, SecondMinute: 100, LastMinute: 100}, false},
		{run.Memory{Max: 120, SecondMinute: 100, LastMinute: 111}, false},
	} {
		if f := MemoryFigure(c.m); *f.Reached != c.want {
			t.Errorf("%+v is reached: %v, want %v", c.m, *f.Reached, c.want)
		}
	}
}

func TestEveryFigureOfTheIssueHasItsContestants(t *testing.T) {
	for _, key := range []string{"vs_plain", "vs_classic", "vs_watermill", "duplicates_50", "log_5m", "poison", "hot_goods", "redis_off", "two_daemons"} {
		c := Cycle([]string{key}, true)
		if len(c) < 2 || c[0].Name != Base {
			t.Errorf("%s: the cycle is %+v, want the base and somebody else", key, c)
		}
	}
	for _, key := range []string{LatencyP50, LatencyP99, RSS} {
		if !slices.Contains(Names(), key) || len(Cycle([]string{key}, true)) > 0 {
			t.Errorf("%s must be a figure without rounds of the cycle", key)
		}
	}
	names := map[string]int{}
	for _, c := range Cycle(Names(), true) {
		names[c.Name]++
	}
	for name, n := range names {
		if n != 1 && name != Base {
			t.Errorf("%s has %d turns in a cycle", name, n)
		}
	}
	later := Cycle(Names(), false)
	for _, c := range later {
		names[c.Name] = 0
	}
	for _, name := range []string{"batch_1", "batch_2000", "lanes_8", "plain_multiple"} {
		if names[name] != 1 {
			t.Errorf("%s has a turn in each cycle, want the first only", name)
		}
	}
	if names["classic_16"] != 0 || len(later) == 0 {
		t.Error("classic_16 has no turn in later cycles")
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
