package main

import (
	"fmt"
	"io"
	"os"
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
	progress *progress
	try      func(run.Contestant) run.Round
	out      io.Writer
	rep      report.Report
	before   time.Duration // that runs have taken which this one goes on after
}

// measure runs the cycles and writes the results after each, so that an interrupted run leaves something to look at.
func measure(s settings, r *run.Runner, resume bool) {
	m := &measuring{settings: s, try: r.Try, out: os.Stdout, rep: report.Report{
		Started: time.Now(), Round: s.Length, Servers: ground.Setup(), Machine: report.LookAround(r.Ground.Versions()),
	}}
	fmt.Println(m.rep.Machine)
	m.progress = s.resumable("progress.json", r.Ground.Builds, nil, resume)
	for range s.Rounds {
		fmt.Printf("cycle %d of %d, after %v\n", m.rep.Cycles+1, s.Rounds, m.took().Round(time.Second))
		m.groups(figure.Cycle(s.Only, m.rep.Results, false))
		m.rep.Cycles++
		m.write()
	}
	m.groups(figure.Cycle(s.Only, m.rep.Results, true))
	m.write()
	m.rep.Remember(m.to)
	fmt.Printf("%s", m.rep.Markdown())
	if n := m.rep.Results.NotMeasured(); n > 0 {
		must.OK(fmt.Errorf("%d rounds could not be measured", n))
	}
}

func (m *measuring) took() time.Duration { return m.before + time.Since(m.rep.Started) }

// done is a part of the progress.
type done struct {
	Took   time.Duration  `json:"took_ns"`
	Rounds figure.Results `json:"rounds"`
}

// groups measures those that are not there yet, and takes them all. Contestants that are compared with each other are
// one part: a run that goes on after an end never compares a round with one before the end.
func (m *measuring) groups(all [][]run.Contestant) {
	for i, group := range all {
		name := fmt.Sprintf("cycle %d: group %d", m.rep.Cycles+1, i+1)
		var d done
		if m.progress.get(name, &d) {
			m.before += d.Took
			fmt.Fprintf(m.out, "  %s: measured before\n", name)
		} else {
			began := time.Now()
			for _, c := range group {
				d.Rounds = append(d.Rounds, m.try(c))
			}
			d.Took = time.Since(began)
			if d.Rounds.NotMeasured() == 0 { // what is missing is tried again by a run that goes on
				m.progress.put(name, d)
			}
		}
		m.rep.Results = append(m.rep.Results, d.Rounds...)
	}
}

// write computes the figures of what there is so far.
func (m *measuring) write() {
	rep := &m.rep
	rep.Took = m.took()
	rep.Complete = m.complete && rep.Cycles == int(m.Rounds) && rep.Results.NotMeasured() == 0
	rep.Figures, rep.Curves = rep.Results.Figures(m.Only), rep.Results.Curves(m.Only)
	rep.Contestants = rep.Results.Contestants()
	rep.Write(m.to)
}
