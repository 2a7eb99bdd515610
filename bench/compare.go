package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// inComparisons are the variables' defaults where builds are compared: many short rounds tell more than few long ones.
var inComparisons = map[string]string{
	"BENCH_ROUND": "3s", "BENCH_LETTERS": "20000", "BENCH_LOG_ROWS": "200000",
}

// compared is what two builds are compared in if nothing is said.
var compared = []string{"vs_plain", "vs_classic", "vs_watermill", "failing_5", "all_failing", figure.Latency}

// leastLatency is half of how long messages come evenly at least: at their speed a shorter time costs too few ticks.
const leastLatency = 5 * time.Second

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
	var names []string
	for rest := args; len(rest) > 0; { // flags may stand behind names
		must.OK(flags.Parse(rest), usage)
		if rest = flags.Args(); len(rest) > 0 {
			names, rest = append(names, rest[0]), rest[1:]
		}
	}
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
	g := ground.Start(ctx, ground.Options{Log: os.Stdout, Builds: c.builds})
	runners := []*run.Runner{s.runner(g, g.Builds[0], "bench_a"), s.runner(g, g.Builds[1], "bench_b")}
	err = must.Catch(func() {
		p := s.resumable("compare.jsonl", g.Builds, "compare", c.resume)
		defer p.close()
		c.print(os.Stdout, c.run(os.Stdout, p, func(side int, of figure.Subject) spent { return spend(runners[side], of) }))
	})
	must.OK(errors.Join(err, runners[0].Close(), runners[1].Close(), g.Stop()))
}

// spent is what a message, or a look at a page, costs each process, in µs of CPU.
type spent map[string]float64

func (s spent) sum() (sum float64) {
	for _, micros := range s {
		sum += micros
	}
	return sum
}

func spend(r *run.Runner, of figure.Subject) spent {
	switch of.Name {
	case figure.Latency:
		defer func(usual time.Duration) { r.Length = usual }(r.Length)
		r.Length = max(r.Length, leastLatency)
		return r.Cost(offered).Spent()
	case figure.Pages:
		costs, all := r.PageCosts(0), spent{}
		for _, page := range costs {
			all["client"] += page.Daemon * 1000 / float64(len(costs))
			all["mysql"] += page.MySQL * 1000 / float64(len(costs))
		}
		return all
	}
	return r.Round(of.Contestant).Spent()
}

// sides are the names of the builds in the tables.
var sides = []string{"a", "b"}

// pair are two rounds, one just after the other, of the builds a and b.
type pair [2]spent

// row is what was found out of one subject.
type row struct {
	figure.Subject
	pairs   []pair
	missing string // why there are no more
}

// run measures all pairs: a b, b a, a b, and so on, so that who is second is not always the same. The first rounds of
// all count for nothing, because the servers are cold.
func (c comparison) run(out io.Writer, p *progress, measure func(side int, of figure.Subject) spent) (rows []row) {
	warm := false
	for _, subject := range c.subjects {
		r := row{Subject: subject}
		fmt.Fprintln(out, r.title())
		for n := 0; n < c.pairs && r.missing == ""; n++ {
			name := fmt.Sprintf("%s, pair %d", subject.Name, n+1)
			var both pair
			if !p.get(name, &both) {
				r.missing = measured(func() {
					for i := 0; i < len(sides) && !warm; i++ {
						measure(i, subject)
					}
					warm = true
					for i := range sides {
						side := (i + n) % len(sides)
						both[side] = measure(side, subject)
					}
					p.put(name, both)
				})
			}
			if r.missing == "" {
				r.pairs = append(r.pairs, both)
				fmt.Fprintf(out, "  %s, %s first: a %.1f µs, b %.1f µs; %s\n", name, sides[n%len(sides)], both[0].sum(),
					both[1].sum(), c.told(r.compared()))
			}
		}
		rows = append(rows, r)
	}
	return rows
}

func (r row) title() string { return fmt.Sprintf("`%s` (%s)", r.Name, strings.Join(r.Keys, ", ")) }

func (r row) compared() figure.Comparison {
	var costs [2][]float64
	for _, p := range r.pairs {
		for i := range p {
			costs[i] = append(costs[i], p[i].sum())
		}
	}
	return figure.Compare(costs[0], costs[1])
}

func (c comparison) told(all figure.Comparison) string {
	if all.Pairs < 2 {
		return fmt.Sprintf("ratio %.3f", all.Ratio)
	}
	return fmt.Sprintf("ratio %.3f (%.3f to %.3f), %s", all.Ratio, all.Low, all.High, all.Verdict(c.allow))
}

func (c comparison) print(out io.Writer, rows []row) {
	fmt.Fprintf(out, "\na is %s, b is %s; µs of CPU for a message, or for a look at a page. %q: with a confidence of "+
		"95 %% b is dearer by %g %% at most.\n\n", c.builds[0], c.builds[1], figure.NotBelow, c.allow)
	fmt.Fprintln(out, "| | a | b | b ÷ a | 95 % | pairs | | the daemon | MySQL | RabbitMQ | Redis |\n"+
		"|---|---|---|---|---|---|---|---|---|---|---|")
	var others []string
	for _, r := range rows {
		all := r.compared()
		verdict := all.Verdict(c.allow)
		if r.missing != "" {
			verdict = fmt.Sprintf("not measured, or not all: %.300s", strings.ReplaceAll(r.missing, "\n", " "))
		}
		if !strings.HasPrefix(verdict, figure.NotBelow) {
			others = append(others, r.Name)
		}
		if all.Pairs == 0 {
			fmt.Fprintf(out, "| %s | – | – | – | – | 0 | %s | – | – | – | – |\n", r.title(), verdict)
			continue
		}
		fmt.Fprintf(out, "| %s | %.1f | %.1f | **%.3f** | %.3f to %.3f | %d | %s |", r.title(), all.A, all.B, all.Ratio,
			all.Low, all.High, all.Pairs, verdict)
		for _, process := range run.Working {
			var means [2]float64
			for _, p := range r.pairs {
				for i := range p {
					means[i] += p[i][process] / float64(len(r.pairs))
				}
			}
			fmt.Fprintf(out, " %.1f → %.1f |", means[0], means[1])
		}
		fmt.Fprintln(out)
	}
	if len(others) > 0 {
		must.OK(fmt.Errorf("not shown to be not below: %s", strings.Join(others, ", ")))
	}
}
