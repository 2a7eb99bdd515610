package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// told is what of a schedule does not depend on functions' addresses.
func told(plan []planned) (lines []string) {
	for _, p := range plan {
		lines = append(lines, fmt.Sprint(p.fault.name, p.gap, p.lasts, p.variant))
	}
	return lines
}

// phases are one of each.
func phases() []Options {
	all := []Options{{Nodes: 1}, {Nodes: 3}, {Nodes: 3, Upkeep: true}}
	for _, replication := range []stack.Replication{stack.Galera, stack.Group, stack.SemiSync} {
		all = append(all, Options{Nodes: 1, Databases: databaseNodes, Replication: replication})
	}
	return all
}

func TestSeedRepeatsTheSchedule(t *testing.T) {
	o := Options{Seed: 7, Nodes: 1, Duration: time.Minute}
	first, again := told(o.schedule()), told(o.schedule())
	if !slices.Equal(first, again) {
		t.Error("the same seed gave two schedules")
	}
	o.Seed = 8
	if slices.Equal(first, told(o.schedule())) {
		t.Error("two seeds gave the same schedule")
	}
}

func TestScheduleDealsEveryKindBeforeAnyComesAgain(t *testing.T) {
	for _, o := range phases() {
		o.Seed, o.Duration = 1, time.Hour
		plan := o.schedule()
		kinds := map[string]int{}
		for _, f := range faults() {
			if o.wants(f) {
				kinds[f.name] = 0
			}
		}
		for _, p := range plan[:len(kinds)] {
			kinds[p.fault.name]++
			if p.lasts < p.fault.least || p.lasts > p.fault.most {
				t.Errorf("%s lasts %v, want %v to %v", p.fault.name, p.lasts, p.fault.least, p.fault.most)
			}
		}
		for name, n := range kinds {
			if n != 1 {
				t.Errorf("in %s %s comes %d times in the first deal, want once", o.phase(), name, n)
			}
		}
	}
}

func TestRoundHasEachKindOnce(t *testing.T) {
	seen := map[string]int{}
	for _, o := range phases() {
		o.Seed, o.Round = 1, true
		plan := told(o.schedule())
		slices.Sort(plan)
		if len(slices.Compact(plan)) != len(plan) {
			t.Errorf("the round of %s has a kind twice: %v", o.phase(), plan)
		}
		for _, p := range o.schedule() {
			seen[p.fault.name]++
		}
	}
	for _, f := range faults() {
		if seen[f.name] != 1 {
			t.Errorf("%s is in %d rounds, want one", f.name, seen[f.name])
		}
	}
}

func TestRoundWithPeopleHasSomeKinds(t *testing.T) {
	var kinds []string
	for _, p := range (Options{Seed: 1, Nodes: 1, People: true, Round: true}).schedule() {
		kinds = append(kinds, p.fault.name)
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, slices.Sorted(slices.Values(leaveWork))) {
		t.Errorf("the kinds are %v, want %v", kinds, leaveWork)
	}
}

func TestRunFailsWhenAFaultNeverHitOrAnythingIsWrong(t *testing.T) {
	good := func() *Result {
		return &Result{Report: &oracle.Report{}, Struck: []Struck{{Name: "a", Times: 2, Hit: 1, Hits: 3}}}
	}
	if err := good().Err(); err != nil {
		t.Errorf("a good run fails: %v", err)
	}
	for want, spoil := range map[string]func(*Result){
		"b never hit anything": func(r *Result) { r.Struck = append(r.Struck, Struck{Name: "b", Times: 5}) },
		"nobody replayed":      func(r *Result) { r.Done = []Struck{{Name: "nobody", Last: errors.New("nobody replayed")}} },
		"it leaked":            func(r *Result) { r.Violations = []string{"it leaked"} },
		"lost: a message":      func(r *Result) { r.Report.Findings = []string{"lost: a message"} },
	} {
		r := good()
		spoil(r)
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Err = %v, want something of %q", err, want)
		}
	}
}
