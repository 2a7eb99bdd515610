package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/report"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// measuring is a run of everything.
type measuring struct {
	settings
	progress *progress[figure.Results]
	try      func(run.Contestant) run.Round
	rep      report.Report
}

// measure runs the cycles and writes the results after each, so that an interrupted run leaves something to look at.
func measure(s settings, r *run.Runner, resume bool) {
	m := &measuring{
		settings: s, try: tries(r.Round), progress: resumable[figure.Results]("progress.json", r.Ground.Builds, s, resume),
		rep: report.Report{Started: time.Now(), Round: s.Length, Machine: report.LookAround(r.Ground.Versions())},
	}
	for range s.Rounds {
		fmt.Printf("cycle %d of %d, after %v\n", m.rep.Cycles+1, s.Rounds, m.progress.Took.Round(time.Second))
		m.cycle(figure.Cycle(s.Only, m.rep.Cycles == 0))
	}
	m.rep.Remember(m.to)
	fmt.Printf("%s", m.rep.Markdown())
	if n := m.rep.Results.NotMeasured(); n > 0 {
		must.OK(fmt.Errorf("%d rounds could not be measured", n))
	}
}

// tries makes of a round that could not be measured one that says so, and lets the run go on.
func tries(round func(run.Contestant) run.Round) func(run.Contestant) run.Round {
	return func(c run.Contestant) (got run.Round) {
		err := must.Catch(func() { got = round(c) })
		if errors.Is(err, run.ErrNotMeasured) {
			fmt.Println(" ", err)
			return run.Round{Contestant: c.Name, NotMeasured: err.Error()}
		}
		must.OK(err)
		return got
	}
}

// cycle measures the groups that are not there yet, takes them all, and writes the figures of what there is so far.
// Contestants that are compared with each other are one part: a run that goes on after an end never compares a round
// with one before the end.
func (m *measuring) cycle(groups [][]run.Contestant) {
	rep := &m.rep
	rep.Cycles++
	for i, group := range groups {
		name := fmt.Sprintf("cycle %d: group %d", rep.Cycles, i+1)
		if m.progress.Done[name].NotMeasured() > 0 { // by the run before
			delete(m.progress.Done, name)
		}
		rounds := m.progress.part(name, func() (all figure.Results) {
			for _, c := range group {
				all = append(all, m.try(c))
			}
			return all
		})
		rep.Results = append(rep.Results, rounds...)
	}
	rep.Took, rep.Complete = m.progress.Took, m.complete && rep.Cycles == int(m.Rounds) && rep.Results.NotMeasured() == 0
	rep.Figures, rep.Curves = rep.Results.Figures(m.Only), rep.Results.Curves(m.Only)
	rep.Contestants = rep.Results.Contestants()
	rep.Write(m.to)
}

// progress is a file with what each part of a run has measured, so that a run that was ended can go on. It says what
// is measured: only the same goes on.
type progress[T any] struct {
	What string
	Took time.Duration // all parts
	Done map[string]T

	path string
}

// resumable opens the progress of a run over these builds with these settings.
func resumable[T any](name string, builds []ground.Build, s settings, resume bool) *progress[T] {
	what := string(must.Get(json.Marshal(s)))
	for _, b := range builds {
		what += " " + b.Sum()
	}
	return openProgress[T](filepath.Join("out", name), what, resume)
}

// openProgress begins a file anew or, to resume, reads what is there.
func openProgress[T any](path, what string, resume bool) *progress[T] {
	p := &progress[T]{What: what, Done: map[string]T{}, path: path}
	before, err := os.ReadFile(path)
	if resume && !errors.Is(err, fs.ErrNotExist) {
		must.OK(err)
		must.OK(json.Unmarshal(before, p))
		if p.What != what {
			must.OK(fmt.Errorf("it is of another run: %s\nand not of %s; without -resume it is begun anew", p.What, what))
		}
	}
	return p
}

// part measures one, if that is not done, and notes it. An end in the middle leaves the file before.
func (p *progress[T]) part(name string, measure func() T) T {
	if done, ok := p.Done[name]; ok {
		return done
	}
	began := time.Now()
	p.Done[name] = measure()
	p.Took += time.Since(began)
	must.OK(os.MkdirAll(filepath.Dir(p.path), 0o755))
	must.OK(os.WriteFile(p.path+".new", must.Get(json.Marshal(p)), 0o644))
	must.OK(os.Rename(p.path+".new", p.path))
	return p.Done[name]
}
