package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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

// measureAll runs the cycles and writes the results after each, so that an interrupted run leaves something to look at.
func measureAll(ctx context.Context, s settings) (err error) {
	began := time.Now()
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	versions, err := r.Ground.Versions(ctx)
	if err != nil {
		return err
	}
	rep := report.Report{Started: began, Round: s.round, Complete: false, Servers: ground.Setup()}
	if rep.Machine, err = report.LookAround(ctx, versions); err != nil {
		return err
	}
	fmt.Println(rep.Machine)
	turns := &figure.Turns{}
	for rep.Cycles < s.rounds {
		fmt.Printf("cycle %d of %d, after %v\n", rep.Cycles+1, s.rounds, time.Since(began).Round(time.Second))
		if err := oneCycle(ctx, s, r, turns, &rep); err != nil {
			return err
		}
		rep.Cycles++
		each := time.Since(began) / time.Duration(rep.Cycles)
		fmt.Printf("%v a cycle: all will take about %v\n", each.Round(time.Second),
			(each*time.Duration(s.rounds) + s.ofMemory()).Round(time.Second))
		if err := s.write(&rep, turns, began); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, figure.RSS) {
		m, err := r.Memory(ctx, s.backlog, s.minute)
		if err != nil {
			return err
		}
		rep.Memory = &m
	}
	if slices.Contains(s.only, figure.LargeRSS) {
		m, err := r.LargeBodies(ctx, s.minute/2)
		if err != nil {
			return err
		}
		rep.LargeBodies = &m
	}
	rep.Complete = s.complete()
	if err := s.write(&rep, turns, began); err != nil {
		return err
	}
	fmt.Printf("%s", rep.Markdown())
	return nil
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
	r := &run.Runner{
		Ground: g, Length: s.round, Warm: min(warmUp, s.round/warmUpOfPart), LogRows: s.logRows, Waiting: s.waiting,
		Failing: s.failing, Letters: s.letters, Out: os.Stdout,
	}
	if err := r.Open(ctx); err != nil {
		return nil, errors.Join(err, r.Close(), g.Stop())
	}
	return r, nil
}

// oneCycle gives everybody one turn.
func oneCycle(ctx context.Context, s settings, r *run.Runner, turns *figure.Turns, rep *report.Report) error {
	for _, c := range figure.Cycle(s.only, rep.Cycles == 0) {
		round, err := r.Round(ctx, c)
		if err != nil {
			return err
		}
		turns.Rounds = append(turns.Rounds, round)
	}
	if slices.Contains(s.only, figure.LatencyP50) || slices.Contains(s.only, figure.LatencyP99) {
		l, err := r.Latency(ctx, offered, 0, "")
		if err != nil {
			return err
		}
		rep.Latency = append(rep.Latency, l)
	}
	if slices.Contains(s.only, figure.LatencyFailing) {
		l, err := r.Latency(ctx, offered, failEvery, figure.Delays)
		if err != nil {
			return err
		}
		rep.LatencyFailing = append(rep.LatencyFailing, l)
	}
	if slices.Contains(s.only, figure.StartMS) {
		starts, err := r.Starts(ctx)
		if err != nil {
			return err
		}
		rep.Starts = append(rep.Starts, starts)
	}
	return nil
}

// write computes the figures of what there is so far.
func (s settings) write(rep *report.Report, turns *figure.Turns, began time.Time) error {
	rep.Took = time.Since(began)
	rep.Figures = turns.Figures(s.only)
	rep.Figures = append(rep.Figures, figure.LatencyFigures(rep.Latency)...)
	rep.Figures = append(rep.Figures, figure.LatencyFailingFigures(rep.LatencyFailing)...)
	rep.Figures = append(rep.Figures, figure.StartFigures(rep.Starts)...)
	if rep.Memory != nil {
		rep.Figures = append(rep.Figures, figure.MemoryFigure(*rep.Memory))
	}
	if rep.LargeBodies != nil {
		rep.Figures = append(rep.Figures, figure.LargeBodiesFigure(*rep.LargeBodies))
	}
	rep.Contestants, rep.Curves, rep.Rounds = turns.Contestants(), turns.Curves(s.only), turns.Rounds
	return rep.Write(s.out)
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
