package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/report"
	"github.com/rollbackd/rollbackd/bench/internal/run"
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
	do      func(context.Context, *figure.Results) error
}

func measureAll(ctx context.Context, s settings) error { return measure(ctx, s, false) }
func resume(ctx context.Context, s settings) error     { return measure(ctx, s, true) }

// measure runs the cycles and writes the results after each, so that an interrupted run leaves something to look at.
func measure(ctx context.Context, s settings, resume bool) error {
	return withRunner(ctx, s, ground.Options{}, func(r *run.Runner) (err error) {
		m := &measuring{settings: s, rep: report.Report{
			Started: time.Now(), Round: s.Round, Servers: ground.Setup(), Complete: s.complete,
		}}
		versions, err := r.Ground.Versions(ctx)
		if err != nil {
			return err
		}
		if m.rep.Machine, err = report.LookAround(versions); err != nil {
			return err
		}
		fmt.Println(m.rep.Machine)
		if m.progress, err = s.resumable("progress.jsonl", r.Ground.Builds, nil, resume); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.progress.close()) }()
		for range s.Rounds {
			fmt.Printf("cycle %d of %d, after %v\n", m.rep.Cycles+1, s.Rounds, m.took().Round(time.Second))
			if err := m.run(ctx, cycle(s, r, m.rep.Cycles == 0)); err != nil {
				return err
			}
			m.rep.Cycles++
			fmt.Printf("%v a cycle\n", (m.took() / time.Duration(m.rep.Cycles)).Round(time.Second))
			if err := m.write(); err != nil {
				return err
			}
		}
		if err := m.run(ctx, afterCycles(s, r)); err != nil {
			return err
		}
		if err := m.write(); err != nil {
			return err
		}
		fmt.Printf("%s", m.rep.Markdown())
		if n := m.rep.Results.NotMeasured(); n > 0 {
			return fmt.Errorf("%d rounds could not be measured", n)
		}
		return nil
	})
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
func (m *measuring) run(ctx context.Context, steps []step) error {
	for _, s := range steps {
		name := fmt.Sprintf("cycle %d: %s", m.rep.Cycles+1, s.name)
		var d done
		there, err := m.progress.get(name, &d)
		if err != nil {
			return err
		}
		if there {
			m.before += d.Took
			fmt.Printf("  %s: measured before\n", name)
		} else if d, err = s.make(ctx); err != nil {
			return err
		} else if d.Part.NotMeasured() == 0 { // what is missing is tried again by a run that goes on
			if err := m.progress.put(name, d); err != nil {
				return err
			}
		}
		m.rep.Results.Add(d.Part)
	}
	return nil
}

func (s step) make(ctx context.Context) (d done, err error) {
	began := time.Now()
	err = s.do(ctx, &d.Part)
	if errors.Is(err, run.ErrNotMeasured) {
		fmt.Printf("  %v\n", err)
		d.Part = figure.Results{Missing: map[string]string{}}
		for _, key := range s.figures {
			d.Part.Missing[key] = err.Error()
		}
		err = nil
	}
	d.Took = time.Since(began)
	return d, err
}

// withRunner does something with a runner of the ground's first build.
func withRunner(ctx context.Context, s settings, o ground.Options, do func(*run.Runner) error) (err error) {
	o.Log = os.Stdout
	g, err := ground.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Stop()) }()
	r, err := s.runner(ctx, g, g.Builds[0], "bench")
	if err != nil {
		return err
	}
	return errors.Join(do(r), r.Close())
}

// runner runs the rounds of one build.
func (s settings) runner(ctx context.Context, g *ground.Ground, b ground.Build, schema string) (*run.Runner, error) {
	r := &run.Runner{
		Ground: g, Build: b, Schema: schema, Length: s.Round, Warm: min(warmUp, s.Round/warmUpOfPart),
		LogRows: s.LogRows, Waiting: s.Waiting, Failing: s.Failing, Letters: s.Letters, Out: os.Stdout,
	}
	return r, r.Open(ctx)
}

// resumable opens the file of a run over these builds and whatever else tells it from others.
func (s settings) resumable(name string, builds []ground.Build, of any, resume bool) (*progress, error) {
	var sums []string
	for _, b := range builds {
		sum, err := b.Sum()
		if err != nil {
			return nil, err
		}
		sums = append(sums, sum)
	}
	return openProgress(filepath.Join("out", name), map[string]any{"builds": sums, "of": of, "settings": s}, resume)
}

// cycle are the parts of a cycle, in which everybody has a turn.
func cycle(s settings, r *run.Runner, first bool) (steps []step) {
	for i, group := range figure.Cycle(s.Only, first) {
		steps = append(steps, step{fmt.Sprintf("group %d", i+1), nil, func(ctx context.Context, p *figure.Results) error {
			for _, c := range group {
				round, err := r.Round(ctx, c)
				if errors.Is(err, run.ErrNotMeasured) {
					fmt.Printf("  %v\n", err)
					round, err = run.Round{Contestant: c.Name, NotMeasured: err.Error()}, nil
				}
				if err != nil {
					return err
				}
				p.Rounds = append(p.Rounds, round)
			}
			return nil
		}})
	}
	latency := func(failEvery int64, delays string) func(context.Context) (run.Latency, error) {
		return func(ctx context.Context) (run.Latency, error) { return r.Latency(ctx, offered, failEvery, delays) }
	}
	return append(steps, s.wanted(
		only("latency", latency(0, ""), func(p *figure.Results, l run.Latency) { p.Latency = []run.Latency{l} },
			figure.LatencyP50, figure.LatencyP99),
		only("latency among failures", latency(failEvery, figure.Delays),
			func(p *figure.Results, l run.Latency) { p.LatencyFailing = []run.Latency{l} }, figure.LatencyFailing),
		only("starts", r.Starts, func(p *figure.Results, one run.Starts) { p.Starts = []run.Starts{one} }, figure.StartMS),
	)...)
}

// afterCycles are the parts that are measured once.
func afterCycles(s settings, r *run.Runner) []step {
	return s.wanted(
		only("memory", func(ctx context.Context) (run.Memory, error) { return r.Memory(ctx, s.Backlog, s.Minute) },
			func(p *figure.Results, m run.Memory) { p.Memory = &m }, figure.RSS),
		only("large bodies",
			func(ctx context.Context) (run.LargeBodies, error) { return r.LargeBodies(ctx, s.Minute/2) },
			func(p *figure.Results, m run.LargeBodies) { p.LargeBodies = &m }, figure.LargeRSS),
	)
}

// only is the step that measures one thing, of which these figures are made, and puts it into the results.
func only[T any](name string, measure func(context.Context) (T, error), put func(*figure.Results, T),
	figures ...string) step {
	return step{name, figures, func(ctx context.Context, p *figure.Results) error {
		one, err := measure(ctx)
		put(p, one)
		return err
	}}
}

// wanted are the steps that make a figure that is wanted.
func (s settings) wanted(steps ...step) []step {
	return slices.DeleteFunc(steps, func(one step) bool {
		return !slices.ContainsFunc(one.figures, func(key string) bool { return slices.Contains(s.Only, key) })
	})
}

// write computes the figures of what there is so far.
func (m *measuring) write() error {
	rep := &m.rep
	rep.Took = m.took()
	rep.Complete = m.complete && rep.Cycles == int(m.Rounds) && rep.Results.NotMeasured() == 0
	rep.Figures, rep.Curves = rep.Results.Figures(m.Only), rep.Results.Curves(m.Only)
	rep.Contestants = rep.Results.Contestants()
	return rep.Write(m.out)
}
