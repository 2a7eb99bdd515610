package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// inComparisons are the variables' defaults where builds are compared: many short rounds tell more than few long ones.
var inComparisons = map[string]string{
	"BENCH_ROUND": "3s", "BENCH_LETTERS": "20000", "BENCH_LOG_ROWS": "200000",
}

// compared is what two builds are compared in if nothing is said.
var compared = []string{"vs_plain", "vs_classic", "vs_watermill", "failing_5", "all_failing", figure.Latency}

// comparison is what `bench compare` was asked for.
type comparison struct {
	pairs    int
	allow    float64 // percent
	resume   bool
	builds   []string
	subjects []figure.Subject
}

func readComparison(args []string) (c comparison) {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&c.pairs, "pairs", 12, "")
	flags.Float64Var(&c.allow, "allow", 3, "")
	flags.BoolVar(&c.resume, "resume", false, "")
	must.OK(flags.Parse(args), usage)
	names := flags.Args()
	if len(names) < 2 || c.pairs < 2 || c.allow < 0 {
		must.OK(fmt.Errorf("compare: want two builds, two pairs or more and no less than 0 percent\n%s", usage))
	}
	c.builds, names = names[:2], names[2:]
	if len(names) == 0 {
		names = compared
	}
	c.subjects = figure.Subjects(names)
	return c
}

// compareMain compares two builds and prints the table. It is an error if one of the rows is anything but not below.
func compareMain(ctx context.Context, args []string, env func(string) string) {
	c := readComparison(args)
	s, err := readSettings(func(name string) string { return cmp.Or(env(name), inComparisons[name]) })
	must.OK(err)
	s.with(ctx, ground.Options{Builds: c.builds}, func(runners ...*run.Runner) {
		p := resumable[[2]run.Round]("compare.json", runners[0].Ground.Builds, s, c.resume)
		try := func(side int, of run.Contestant) run.Round { return runners[side].Round(of) }
		c.print(os.Stdout, c.run(os.Stdout, p, try))
	})
}

// sides are the names of the builds in the tables.
var sides = []string{"a", "b"}

// row is what was found out of one subject: pairs of rounds, one just after the other, of the builds a and b.
type row struct {
	figure.Subject
	pairs [][2]run.Round
}

// run measures all pairs: a b, b a, a b, and so on, so that who is second is not always the same. The first rounds of
// all count for nothing, because the servers are cold.
func (c comparison) run(
	out io.Writer, p *progress[[2]run.Round], try func(side int, of run.Contestant) run.Round,
) (rows []row) {
	warm := false
	for _, subject := range c.subjects {
		r := row{Subject: subject}
		fmt.Fprintln(out, r.title())
		for n := range c.pairs {
			name := fmt.Sprintf("%s, pair %d", subject.Name, n+1)
			r.pairs = append(r.pairs, p.part(name, func() (both [2]run.Round) {
				for i := 0; i < len(sides) && !warm; i++ {
					try(i, subject.Contestant)
				}
				warm = true
				for i := range sides {
					side := (i + n) % len(sides)
					both[side] = try(side, subject.Contestant)
				}
				return both
			}))
			all := r.compared("")
			fmt.Fprintf(out, "  %s, %s first: ratio %.3f (%.3f to %.3f), %s\n", name, sides[n%len(sides)], all.Ratio, all.Low,
				all.High, all.Verdict(c.allow))
		}
		rows = append(rows, r)
	}
	return rows
}

func (r row) title() string { return fmt.Sprintf("`%s` (%s)", r.Name, strings.Join(r.Keys, ", ")) }

// compared compares what a message costs one of the processes, or, without a name, all of them.
func (r row) compared(process string) figure.Comparison {
	var costs [2][]float64
	for _, p := range r.pairs {
		for side, round := range p {
			cost := 0.0
			for name, micros := range round.Spent() {
				if process == "" || process == name {
					cost += micros
				}
			}
			costs[side] = append(costs[side], cost)
		}
	}
	return figure.Compare(costs[0], costs[1])
}

func (c comparison) print(out io.Writer, rows []row) {
	fmt.Fprintf(out, "\na is %s, b is %s; µs of CPU for a message, or for a look at a page. %q: with a confidence of "+
		"95 %% b is dearer by %g %% at most.\n\n", c.builds[0], c.builds[1], figure.NotBelow, c.allow)
	fmt.Fprintln(out, "| | a | b | b ÷ a | 95 % | pairs | | the daemon | MySQL | RabbitMQ | Redis |\n"+
		"|---|---|---|---|---|---|---|---|---|---|---|")
	var others []string
	for _, r := range rows {
		all := r.compared("")
		verdict := all.Verdict(c.allow)
		if !strings.HasPrefix(verdict, figure.NotBelow) {
			others = append(others, r.Name)
		}
		fmt.Fprintf(out, "| %s | %.1f | %.1f | **%.3f** | %.3f to %.3f | %d | %s |", r.title(), all.A, all.B, all.Ratio,
			all.Low, all.High, all.Pairs, verdict)
		for _, process := range run.Working {
			one := r.compared(process)
			fmt.Fprintf(out, " %.1f → %.1f |", one.A, one.B)
		}
		fmt.Fprintln(out)
	}
	if len(others) > 0 {
		must.OK(fmt.Errorf("not shown to be not below: %s", strings.Join(others, ", ")))
	}
}
