package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Profile runs the daemon inside this process for one round, where it can be profiled, and writes into dir: cpu.prof
// and allocs.prof for go tool pprof, and profile.txt with their top entries and with the database's time by statement,
// for which the ground must have been started with Statements.
func (r *Runner) Profile(ctx context.Context, c Contestant, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of the profiles: %w", err)
	}
	if err := r.empty.Sow(ctx, r.sowing(c), r.seed()); err != nil {
		return fmt.Errorf("prepare the profile: %w", err)
	}
	cfg, _, err := config.Load(r.empty.Environ(append(c.Settings, "HTTP_ADDR=off")...))
	if err != nil {
		return err
	}
	d, err := daemon.New(ctx, cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return err
	}
	running, stopDaemon := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(running) }() // joined below
	text, err := r.profileRunning(ctx, c, d.Metrics(), dir)
	stopDaemon()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	if _, err := r.empty.Check(ctx); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-nodecount=45", "cpu.prof"}, {"-cum", "-nodecount=90", "cpu.prof"},
		{"-nodecount=35", "-sample_index=alloc_space", "-base=" + filepath.Join(dir, allocsBefore), "allocs.prof"},
	} {
		last := len(args) - 1
		args[last] = filepath.Join(dir, args[last])
		top, err := exec.CommandContext(ctx, "go", append([]string{"tool", "pprof", "-top"}, args...)...).Output()
		if err != nil {
			return fmt.Errorf("read %s: %w", args[last], err)
		}
		text += "\n" + strings.Join(args[:last], " ") + "\n" + string(top)
	}
	_, _ = io.WriteString(r.Out, text)
	return os.WriteFile(filepath.Join(dir, "profile.txt"), []byte(text), 0o644)
}

func (r *Runner) profileRunning(ctx context.Context, c Contestant, metrics prometheus.Gatherer, dir string) (
	text string, err error,
) {
	if err := until(ctx, "the first messages are applied", func() (bool, error) {
		n, err := worked(metrics)
		return n > 0, err
	}); err != nil {
		return "", err
	}
	if err := wait.For(ctx, r.Warm); err != nil {
		return "", err
	}
	if err := r.empty.ForgetStatements(ctx); err != nil {
		return "", err
	}
	cpu, err := os.Create(filepath.Join(dir, "cpu.prof"))
	if err != nil {
		return "", fmt.Errorf("write the profile: %w", err)
	}
	defer cpu.Close()
	before, err := worked(metrics)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := writeAllocs(dir, allocsBefore); err != nil {
		return "", err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return "", fmt.Errorf("profile: %w", err)
	}
	err = wait.For(ctx, r.Length)
	pprof.StopCPUProfile()
	took := time.Since(began)
	after, countErr := worked(metrics)
	statements, stErr := r.empty.Statements(ctx)
	left, depthErr := r.Ground.Depth()
	if err := errors.Join(err, countErr, stErr, depthErr, writeAllocs(dir, "allocs.prof")); err != nil {
		return "", err
	}
	if left == 0 && !c.ToTheEnd { // what failed waits in other queues
		return "", errTooShort
	}
	n := float64(after - before)
	var b strings.Builder
	fmt.Fprintf(&b, "%.0f messages applied or failed in %v, %.0f a second\n\nstatements, by all their time\n", n,
		took.Round(time.Millisecond), n/took.Seconds())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "µs a message\tcount\tms each\tstatement")
	for _, s := range statements {
		fmt.Fprintf(w, "%.2f\t%d\t%.2f\t%.150s\n", s.Total.Seconds()*1e6/n, s.Count, s.Total.Seconds()*1e3/float64(s.Count),
			s.Text)
	}
	if err := w.Flush(); err != nil {
		return "", fmt.Errorf("write the statements: %w", err)
	}
	return b.String(), nil
}

// allocsBefore is the profile of what was allocated before the clock started, by the producer among others.
const allocsBefore = "allocs-before.prof"

func writeAllocs(dir, name string) error {
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}

// worked reads the count of messages that were applied or failed where it is made.
func worked(metrics prometheus.Gatherer) (int64, error) {
	families, err := metrics.Gather()
	if err != nil {
		return 0, fmt.Errorf("read the metrics: %w", err)
	}
	n := 0.0
	for _, family := range families {
		if family.GetName() != "rollbackd_deliveries_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if isWork(m) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return int64(n), nil
}

func isWork(m *dto.Metric) bool {
	for _, label := range m.GetLabel() {
		if label.GetName() == "outcome" {
			return slices.Contains([]string{"applied", retried, dead}, label.GetValue())
		}
	}
	return false
}
