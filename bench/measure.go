package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/report"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

const (
	// offered is how many messages a second the latency is measured at; of failEvery of them one fails, where some do.
	offered, failEvery = 1000, 20
	// A round warms up for so long, at most and as a part of its length.
	warmUp, warmUpOfPart = time.Second, 5
)

// step makes a part of the results. Contestants that are compared with each other are one part: a run that goes on
// after an end never compares a round with one before the end.
type step struct {
	name    string
	figures []string // that are missing if it cannot be measured
	do      func() figure.Results
}

func measureAll(s settings, r *run.Runner) { measure(s, r, false) }
func resume(s settings, r *run.Runner)     { measure(s, r, true) }

// measure runs the cycles and writes the results after each, so that an interrupted run leaves something to look at.
func measure(s settings, r *run.Runner, resume bool) {
	m := &measuring{settings: s, rep: report.Report{
		Started: time.Now(), Round: s.Round, Servers: ground.Setup(), Complete: s.complete,
		Machine: report.LookAround(r.Ground.Versions()),
	}}
	fmt.Println(m.rep.Machine)
	m.progress = s.resumable("progress.jsonl", r.Ground.Builds, nil, resume)
	defer m.progress.close()
	for range s.Rounds {
		fmt.Printf("cycle %d of %d, after %v\n", m.rep.Cycles+1, s.Rounds, m.took().Round(time.Second))
		m.run(cycle(s, r, &m.rep.Results))
		m.rep.Cycles++
		fmt.Printf("%v a cycle\n", (m.took() / time.Duration(m.rep.Cycles)).Round(time.Second))
		m.write()
	}
	m.run(afterCycles(s, r))
	m.write()
	m.rep.Remember(m.out)
	fmt.Printf("%s", m.rep.Markdown())
	if n := m.rep.Results.NotMeasured(); n > 0 {
		must.OK(fmt.Errorf("%d rounds could not be measured", n))
	}
}

// measuring is a run of everything.
type measuring struct {
	settings
	progress *progress
	rep      report.Report
	before   time.Duration // that runs have taken which this one goes on after
}

func (m *measuring) took() time.Duration { return m.before + time.Since(m.rep.Started) }

// done is a line of the progress.
type done struct {
	Took time.Duration  `json:"took_ns"`
	Part figure.Results `json:"part"`
}

// run makes the parts that are not there yet, and takes them all. A part that cannot be measured is one that says so.
func (m *measuring) run(steps []step) {
	for _, s := range steps {
		name := fmt.Sprintf("cycle %d: %s", m.rep.Cycles+1, s.name)
		var d done
		if m.progress.get(name, &d) {
			m.before += d.Took
			fmt.Printf("  %s: measured before\n", name)
		} else if d = s.make(); d.Part.NotMeasured() == 0 { // what is missing is tried again by a run that goes on
			m.progress.put(name, d)
		}
		m.rep.Results.Add(d.Part)
	}
}

func (s step) make() (d done) {
	began := time.Now()
	if why := measured(func() { d.Part = s.do() }); why != "" {
		d.Part = figure.Results{Missing: map[string]string{}}
		for _, key := range s.figures {
			d.Part.Missing[key] = why
		}
	}
	d.Took = time.Since(began)
	return d
}

// measured does a step and says why it could not be measured, if that is so.
func measured(do func()) (why string) {
	err := must.Catch(do)
	if !errors.Is(err, run.ErrNotMeasured) {
		must.OK(err)
		return ""
	}
	fmt.Printf("  %v\n", err)
	return err.Error()
}

// resumable opens the file of a run over these builds and whatever else tells it from others.
func (s settings) resumable(name string, builds []ground.Build, of any, resume bool) *progress {
	var sums []string
	for _, b := range builds {
		sums = append(sums, b.Sum())
	}
	return openProgress(filepath.Join("out", name), map[string]any{"builds": sums, "of": of, "settings": s}, resume)
}

// cycle are the parts of a cycle, in which everybody has a turn.
func cycle(s settings, r *run.Runner, before *figure.Results) (steps []step) {
	for i, group := range figure.Cycle(s.Only, before) {
		steps = append(steps, step{fmt.Sprintf("group %d", i+1), nil, func() (p figure.Results) {
			for _, c := range group {
				round := run.Round{Contestant: c.Name}
				round.NotMeasured = measured(func() { round = r.Round(c) })
				p.Rounds = append(p.Rounds, round)
			}
			return p
		}})
	}
	latency := func() run.Sample { return r.Latency(offered, 0, "") }
	failing := func() run.Sample { return r.Latency(offered, failEvery, figure.Delays) }
	return append(steps, s.wanted(
		sample("latency", figure.LatencyRounds, latency, figure.LatencyP50, figure.LatencyP99),
		sample("latency among failures", figure.FailingRounds, failing, figure.LatencyFailing),
		sample("starts", figure.StartRounds, r.Starts, figure.StartMS),
		sample("relay", figure.RelayRounds, r.Relay, figure.Relay),
	)...)
}

// afterCycles are the parts that are measured once.
func afterCycles(s settings, r *run.Runner) []step {
	memory := func() run.Sample { return r.Memory(s.Backlog, s.Minute) }
	large := func() run.Sample { return r.LargeBodies(s.Minute / 2) }
	return s.wanted(sample("memory", figure.MemoryRounds, memory, figure.RSS),
		sample("large bodies", figure.LargeRounds, large, figure.LargeRSS))
}

// sample is the step that measures one thing, of which these figures are made.
func sample(name, rounds string, measure func() run.Sample, figures ...string) step {
	return step{name, figures, func() figure.Results {
		return figure.Results{Samples: map[string][]run.Sample{rounds: {measure()}}}
	}}
}

// wanted are the steps that make a figure that is wanted.
func (s settings) wanted(steps ...step) []step {
	return slices.DeleteFunc(steps, func(one step) bool {
		return !slices.ContainsFunc(one.figures, func(key string) bool { return slices.Contains(s.Only, key) })
	})
}

// write computes the figures of what there is so far.
func (m *measuring) write() {
	rep := &m.rep
	rep.Took = m.took()
	rep.Complete = m.complete && rep.Cycles == int(m.Rounds) && rep.Results.NotMeasured() == 0
	rep.Figures, rep.Curves = rep.Results.Figures(m.Only), rep.Results.Curves(m.Only)
	rep.Contestants = rep.Results.Contestants()
	rep.Write(m.out)
}
