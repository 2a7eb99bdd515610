package chaos

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// told is what of a schedule does not depend on functions' addresses.
func told(plan []planned) (lines []string) {
	for _, p := range plan {
		lines = append(lines, fmt.Sprint(p.name, p.gap, p.lasts, p.variant))
	}
	return lines
}

func TestSeedRepeatsTheSchedule(t *testing.T) {
	o := Options{Seed: 7, Phase: Phases()[0], Duration: time.Minute}
	first, again := told(o.schedule()), told(o.schedule())
	assert.That(t, slices.Equal(first, again), "the same seed gave two schedules")
	o.Seed = 8
	assert.That(t, !slices.Equal(first, told(o.schedule())), "two seeds gave the same schedule")
}

// Given a figure by the minute, then it grows too fast only where that is beyond doubt.
func TestASoakFailsOnWhatGrowsBeyondDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		looks                  int
		hourly, noise, warming float64
		grows                  bool
	}{
		"a leak":                   {60, 20, 1, 0, true},
		"a leak that noise hides":  {8, 20, 30, 0, false},
		"a leak among noise, long": {600, 20, 30, 0, true},
		"what may be":              {60, 7, 1, 0, false},
		"what a warm-up takes":     {60, 0, 1, 50, false},
		"too few looks to say so":  {3, 1000, 1, 0, false},
	} {
		w := &world{o: Options{Out: t.Output(), Soak: filepath.Join(t.TempDir(), "soak")}}
		w.soak = &soak{w: w}
		for i := range c.looks {
			value := 100 + c.hourly*float64(i)/60 + c.noise*float64(i%2)
			if i < c.looks/warmUp {
				value -= c.warming
			}
			w.soak.looked = w.start.Add(time.Duration(i) * time.Minute)
			w.soak.add("figure", 8, value)
		}
		w.soak.judge()
		assert.Is(t, len(w.violations) > 0, c.grows, "%s: %v: a violation", name, w.violations)
		err := xml.Unmarshal(must.Get(os.ReadFile(w.o.Soak+".svg")), &struct{}{})
		assert.That(t, err == nil, "%s: the chart is no XML: %v", name, err)
	}
}

// Given any phase, then a schedule deals every kind of it once before any comes again, for a time within its bounds.
func TestScheduleDealsEveryKindBeforeAnyComesAgain(t *testing.T) {
	for _, phase := range Phases() {
		o := Options{Seed: 1, Duration: time.Hour, Phase: phase}
		seen := map[string]bool{}
		wanted := slices.DeleteFunc(kinds(), func(k kind) bool { return !o.wants(k) })
		for _, p := range o.schedule()[:len(wanted)] {
			seen[p.name] = true
			assert.That(t, p.lasts >= seconds(p.least) && p.lasts <= seconds(max(p.least, p.most)),
				"%s lasts %v, want %d to %d seconds", p.name, p.lasts, p.least, p.most)
		}
		assert.Is(t, len(seen), len(wanted), "kinds in the first deal of phase %s", phase.Name)
	}
}

// Given the rounds of all phases, then each kind is in exactly one, but for those that leave work for people.
func TestRoundsHaveEachKindOnce(t *testing.T) {
	seen := map[string]int{}
	for _, phase := range Phases() {
		for _, p := range (Options{Seed: 1, Round: true, Phase: phase}).schedule() {
			seen[p.name]++
		}
	}
	for _, k := range kinds() {
		want := 1
		if k.work {
			want = 2
		}
		assert.Is(t, seen[k.name], want, "rounds with %s", k.name)
	}
}

func TestRunFailsWhenAFaultNeverHitOrAnythingIsWrong(t *testing.T) {
	good := func() *world {
		return &world{report: &oracle.Report{}, tallies: []*tally{{name: "a", times: 2, hit: 1, hits: 3}, {name: "not run"}}}
	}
	assert.OK(t, good().verdict(), "a good run fails:")
	for want, spoil := range map[string]func(*world){
		"b never hit anything": func(w *world) { w.tallies = append(w.tallies, &tally{name: "b", times: 5}) },
		"nobody replayed": func(w *world) {
			w.tallies = []*tally{{name: "a job", job: true, last: errors.New("nobody replayed")}}
		},
		"it leaked":       func(w *world) { w.violations = []string{"it leaked"} },
		"lost: a message": func(w *world) { w.report.Findings = []string{"lost: a message"} },
	} {
		w := good()
		spoil(w)
		assert.Has(t, fmt.Sprint(w.verdict()), want, "the verdict")
	}
}
