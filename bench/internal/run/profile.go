package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// mostProfiled is how long the daemon's pages answer at most, with room.
const mostProfiled = 25 * time.Second

// Profile runs the daemon for one round, and writes into dir what its pages tell of it: cpu.prof and allocs.prof for go
// tool pprof, and profile.txt with their top entries and with the database's time by statement, for which the ground
// must have been started with Statements.
func (r *Runner) Profile(ctx context.Context, c Contestant, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of the profiles: %w", err)
	}
	if err := r.empty.Sow(ctx, r.sowing(c), r.seed()); err != nil {
		return fmt.Errorf("prepare the profile: %w", err)
	}
	var text string
	if _, err := r.beside(ctx, r.empty, c, func(all processes) (err error) {
		if text, err = r.profile(ctx, all, dir); err != nil {
			return err
		}
		left, err := r.Ground.Depth()
		if err == nil && left == 0 && c.Extent == Timed { // what failed waits in other queues
			err = errTooShort
		}
		return err
	}); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-nodecount=45", "cpu.prof"}, {"-cum", "-nodecount=90", "cpu.prof"},
		{"-nodecount=35", "-sample_index=alloc_space", "allocs.prof"},
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

func (r *Runner) profile(ctx context.Context, all processes, dir string) (text string, err error) {
	v, err := newViewer(ctx, all[0])
	if err != nil {
		return "", err
	}
	if err := all.begun(ctx, r.Warm); err != nil {
		return "", err
	}
	if err := r.empty.ForgetStatements(ctx); err != nil {
		return "", err
	}
	before, err := all.read(ctx, nil)
	if err != nil {
		return "", err
	}
	both, profiling := errgroup.WithContext(ctx)
	for name, page := range map[string]string{"cpu.prof": "profile", "allocs.prof": "allocs"} {
		both.Go(func() error {
			var b bytes.Buffer
			path := fmt.Sprintf("/debug/pprof/%s?seconds=%.0f", page, max(1, min(r.Length, mostProfiled).Seconds()))
			if err := v.get(profiling, path, &b); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644)
		})
	}
	err = both.Wait()
	after, readErr := all.read(ctx, nil)
	statements, stErr := r.empty.Statements(ctx)
	if err := errors.Join(err, readErr, stErr); err != nil {
		return "", err
	}
	n := float64(after.fresh + after.again + after.dead - before.fresh - before.again - before.dead)
	took := after.at.Sub(before.at)
	var b strings.Builder
	fmt.Fprintf(&b, "%.0f messages applied or failed in %v, %.0f a second\n\nstatements, by all their time\n", n,
		took.Round(time.Millisecond), n/took.Seconds())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "µs a message\tcount\tms each\tstatement")
	for _, s := range statements {
		fmt.Fprintf(w, "%.2f\t%d\t%.2f\t%.150s\n", s.Total.Seconds()*1e6/n, s.Count, s.Total.Seconds()*1e3/float64(s.Count),
			s.Text)
	}
	err = w.Flush()
	return b.String(), err
}
