package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/report"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// offered is how many messages a second the latency is measured at; of failEvery of them one fails, where some do.
const (
	offered   = 1000
	failEvery = 20
)

// warmUp is how long a round runs before it is measured, at most and as a part of the round.
const (
	warmUp       = time.Second
	warmUpOfPart = 5
)

// part is what one part of a run has measured. Contestants that are compared with each other are one part: a run that
// goes on after an end never compares a round with one before the end.
type part struct {
	Rounds         []run.Round      `json:"rounds,omitempty"`
	Latency        *run.Latency     `json:"latency,omitempty"`
	LatencyFailing *run.Latency     `json:"latency_failing,omitempty"`
	Starts         *run.Starts      `json:"starts,omitempty"`
	Memory         *run.Memory      `json:"memory,omitempty"`
	LargeBodies    *run.LargeBodies `json:"large_bodies,omitempty"`
	// Missing says of figures why they could not be measured.
	Missing map[string]string `json:"missing,omitempty"`
}

// step makes a part.
type step struct {
	name    string
	figures []string // that are missing if it cannot be measured
	do      func(context.Context, *part) error
}

// measureAll runs the cycles and writes the results after each, so that an interrupted run leaves something to look at.
func measureAll(ctx context.Context, s settings, resume bool) (err error) {
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	versions, err := r.Ground.Versions(ctx)
	if err != nil {
		return err
	}
	m := &measuring{settings: s, rep: report.Report{
		Started: time.Now(), Round: s.round, Servers: ground.Setup(), Missing: map[string]string{},
	}}
	if m.rep.Machine, err = report.LookAround(ctx, versions); err != nil {
		return err
	}
	fmt.Println(m.rep.Machine)
	if m.progress, err = s.resumable("progress.jsonl", r.Ground.Builds, nil, resume); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.progress.close()) }()
	for m.rep.Cycles < s.rounds {
		fmt.Printf("cycle %d of %d, after %v\n", m.rep.Cycles+1, s.rounds, m.took().Round(time.Second))
		if err := m.run(ctx, cycle(s, r, m.rep.Cycles == 0)); err != nil {
			return err
		}
		m.rep.Cycles++
		each := m.took() / time.Duration(m.rep.Cycles)
		fmt.Printf("%v a cycle: all will take about %v\n", each.Round(time.Second),
			(each*time.Duration(s.rounds) + s.ofMemory()).Round(time.Second))
		if err := m.write(); err != nil {
			return err
		}
	}
	if err := m.run(ctx, afterCycles(s, r)); err != nil {
		return err
	}
	missing := m.missing()
	m.rep.Complete = s.complete() && missing == 0
	if err := m.write(); err != nil {
		return err
	}
	fmt.Printf("%s", m.rep.Markdown())
	if missing > 0 {
		return fmt.Errorf("%d rounds could not be measured", missing)
	}
	return nil
}

// measuring is a run of everything.
type measuring struct {
	settings
	progress *progress
	turns    figure.Turns
	rep      report.Report
	before   time.Duration // that runs have taken which this one goes on after
}

func (m *measuring) took() time.Duration { return m.before + time.Since(m.rep.Started) }

// done is a line of the progress.
type done struct {
	Took time.Duration `json:"took_ns"`
	Part part          `json:"part"`
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
		} else {
			began := time.Now()
			if err := s.do(ctx, &d.Part); err != nil {
				if !errors.Is(err, run.ErrNotMeasured) {
					return err
				}
				fmt.Printf("  %v\n", err)
				d.Part = part{Missing: map[string]string{}}
				for _, key := range s.figures {
					d.Part.Missing[key] = err.Error()
				}
			}
			d.Took = time.Since(began)
			if d.Part.missing() == 0 { // what is missing is tried again by a run that goes on
				err = m.progress.put(name, d)
			}
			if err != nil {
				return err
			}
		}
		m.take(d.Part)
	}
	return nil
}

func (m *measuring) take(p part) {
	m.turns.Rounds = append(m.turns.Rounds, p.Rounds...)
	if p.Latency != nil {
		m.rep.Latency = append(m.rep.Latency, *p.Latency)
	}
	if p.LatencyFailing != nil {
		m.rep.LatencyFailing = append(m.rep.LatencyFailing, *p.LatencyFailing)
	}
	if p.Starts != nil {
		m.rep.Starts = append(m.rep.Starts, *p.Starts)
	}
	m.rep.Memory = cmp.Or(p.Memory, m.rep.Memory)
	m.rep.LargeBodies = cmp.Or(p.LargeBodies, m.rep.LargeBodies)
	maps.Copy(m.rep.Missing, p.Missing)
}

// missing is how many rounds could not be measured.
func (m *measuring) missing() int {
	return part{Rounds: m.turns.Rounds, Missing: m.rep.Missing}.missing()
}

func (p part) missing() int {
	n := len(p.Missing)
	for _, r := range p.Rounds {
		if r.NotMeasured != "" {
			n++
		}
	}
	return n
}

// ofMemory is about what the memory rounds take, with their preparations.
func (s settings) ofMemory() (d time.Duration) {
	const preparations = time.Minute
	if slices.Contains(s.only, figure.RSS) {
		d += 3*s.minute + preparations
	}
	if slices.Contains(s.only, figure.LargeRSS) {
		d += s.minute/2 + preparations
	}
	return d
}

func newRunner(ctx context.Context, s settings, o ground.Options) (*run.Runner, error) {
	g, err := ground.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	r := s.runner(g, g.Builds[0], "bench")
	if err := r.Open(ctx); err != nil {
		return nil, errors.Join(err, r.Close(), g.Stop())
	}
	return r, nil
}

// runner runs the rounds of one build.
func (s settings) runner(g *ground.Ground, b ground.Build, schema string) *run.Runner {
	return &run.Runner{
		Ground: g, Build: b, Schema: schema, Length: s.round, Warm: min(warmUp, s.round/warmUpOfPart),
		LogRows: s.logRows, Waiting: s.waiting, Failing: s.failing, Letters: s.letters, Out: os.Stdout,
	}
}

// progressFolder is for the files from which a run that was ended goes on.
const progressFolder = "out"

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
	return openProgress(filepath.Join(progressFolder, name), map[string]any{
		"builds": sums, "of": of, "round": s.round.String(), "rounds": s.rounds, "only": s.only, "log_rows": s.logRows,
		"backlog": s.backlog, "minute": s.minute.String(), "waiting": s.waiting, "failing": s.failing, "letters": s.letters,
	}, resume)
}

// cycle are the parts of a cycle, in which everybody has a turn.
func cycle(s settings, r *run.Runner, first bool) (steps []step) {
	for i, group := range figure.Cycle(s.only, first) {
		steps = append(steps, step{fmt.Sprintf("group %d", i+1), nil, func(ctx context.Context, p *part) error {
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
	steps = append(steps,
		step{"latency", []string{figure.LatencyP50, figure.LatencyP99}, func(ctx context.Context, p *part) error {
			l, err := r.Latency(ctx, offered, 0, "")
			p.Latency = &l
			return err
		}},
		step{"latency among failures", []string{figure.LatencyFailing}, func(ctx context.Context, p *part) error {
			l, err := r.Latency(ctx, offered, failEvery, figure.Delays)
			p.LatencyFailing = &l
			return err
		}},
		step{"starts", []string{figure.StartMS}, func(ctx context.Context, p *part) error {
			starts, err := r.Starts(ctx)
			p.Starts = &starts
			return err
		}})
	return s.wanted(steps)
}

// afterCycles are the parts that are measured once.
func afterCycles(s settings, r *run.Runner) []step {
	return s.wanted([]step{
		{"memory", []string{figure.RSS}, func(ctx context.Context, p *part) error {
			m, err := r.Memory(ctx, s.backlog, s.minute)
			p.Memory = &m
			return err
		}},
		{"large bodies", []string{figure.LargeRSS}, func(ctx context.Context, p *part) error {
			m, err := r.LargeBodies(ctx, s.minute/2)
			p.LargeBodies = &m
			return err
		}},
	})
}

// wanted are the steps that make a figure that is wanted, or rounds.
func (s settings) wanted(steps []step) []step {
	return slices.DeleteFunc(steps, func(one step) bool {
		return len(one.figures) > 0 &&
			!slices.ContainsFunc(one.figures, func(key string) bool { return slices.Contains(s.only, key) })
	})
}

// write computes the figures of what there is so far.
func (m *measuring) write() error {
	rep := &m.rep
	rep.Took = m.took()
	rep.Figures = m.turns.Figures(m.only)
	rep.Figures = append(rep.Figures, figure.LatencyFigures(rep.Latency)...)
	rep.Figures = append(rep.Figures, figure.LatencyFailingFigures(rep.LatencyFailing)...)
	rep.Figures = append(rep.Figures, figure.StartFigures(rep.Starts)...)
	if rep.Memory != nil {
		rep.Figures = append(rep.Figures, figure.MemoryFigure(*rep.Memory))
	}
	if rep.LargeBodies != nil {
		rep.Figures = append(rep.Figures, figure.LargeBodiesFigure(*rep.LargeBodies))
	}
	for _, key := range m.only {
		known := slices.ContainsFunc(rep.Figures, func(f figure.Figure) bool { return f.Key == key })
		if why, ok := rep.Missing[key]; ok && !known {
			rep.Figures = append(rep.Figures, figure.Figure{Key: key, NotMeasured: why})
		}
	}
	rep.Contestants, rep.Curves, rep.Rounds = m.turns.Contestants(), m.turns.Curves(m.only), m.turns.Rounds
	return rep.Write(m.out)
}

// sizing measures what the settings that memory hangs on cost in it.
func sizing(ctx context.Context, s settings) (err error) {
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	table := "| settings | small messages, MiB | large bodies while MySQL is blocked, MiB |\n|---|---|---|\n"
	for _, some := range sizes {
		m, err := r.LargeBodies(ctx, s.minute/6, some...)
		if err != nil {
			return err
		}
		name := "defaults"
		if len(some) > 0 {
			name = "`" + strings.Join(some, "` `") + "`"
		}
		table += fmt.Sprintf("| %s | %.0f | %.0f |\n", name, m.AfterSmall, m.Max)
	}
	fmt.Print(table)
	return nil
}

// sizes are the settings that sizing tries.
var sizes = [][]string{
	nil, {"LANES=1"}, {"LANES=8"}, {"LANES=16"}, {"BATCH_SIZE=100"}, {"BATCH_SIZE=2000"}, {"PREFETCH=8000"},
	{"MEMORY_BUDGET=16MiB"}, {"MEMORY_BUDGET=128MiB"}, {"MEMORY_BUDGET=256MiB"},
}

// profile runs the daemon inside this process, in the round of one of its contestants.
func profile(ctx context.Context, s settings, contestant string) (err error) {
	c, err := figure.Profiled(contestant)
	if err != nil {
		return err
	}
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout, Statements: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	return r.Profile(ctx, c, "out")
}
