package run

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// mostProfiled is how long the daemon's pages answer at most, with room.
const mostProfiled = 25 * time.Second

// Profile runs the daemon for one round, and writes into dir what its pages tell of it: cpu.prof and allocs.prof for go
// tool pprof, and profile.txt with their top entries and with the database's time by statement, for which the ground
// must have been started with Statements.
func (r *Runner) Profile(c Contestant, dir string) {
	must.OK(os.MkdirAll(dir, 0o755))
	r.empty().Sow(r.sowing(c), r.seed())
	var text strings.Builder
	r.beside(r.empty(), c, func(p *processes) {
		p.profile(&text, dir)
		if r.Ground.Depth() == 0 && c.Extent == Timed { // what failed waits in other queues
			must.OK(errTooShort)
		}
	})
	for _, args := range [][]string{
		{"-nodecount=45", "cpu.prof"}, {"-cum", "-nodecount=90", "cpu.prof"},
		{"-nodecount=35", "-sample_index=alloc_space", "allocs.prof"},
	} {
		top := must.Get(ground.Output(r.Ground.Ctx, dir, "go", append([]string{"tool", "pprof", "-top"}, args...)...))
		fmt.Fprintf(&text, "\n%s\n%s\n", strings.Join(args[:len(args)-1], " "), top)
	}
	_, _ = io.WriteString(r.Out, text.String())
	must.OK(os.WriteFile(filepath.Join(dir, "profile.txt"), []byte(text.String()), 0o644))
}

func (p *processes) profile(text io.Writer, dir string) {
	p.begun(p.r.Warm)
	f := p.r.empty()
	f.ForgetStatements()
	before := p.counted()
	profiles, seconds := [][2]string{{"cpu", "profile"}, {"allocs", "allocs"}}, min(p.r.Length, mostProfiled).Seconds()
	must.Side(len(profiles), func(i int) {
		page := fmt.Sprintf("/debug/pprof/%s?seconds=%.0f", profiles[i][1], max(1, seconds))
		must.OK(os.WriteFile(filepath.Join(dir, profiles[i][0]+".prof"), p.view(p.r.Ground.Ctx, page), 0o644))
	})
	after, statements := p.counted(), f.Statements()
	n := float64(after.fresh + after.again + after.dead - before.fresh - before.again - before.dead)
	took := after.at.Sub(before.at)
	fmt.Fprintf(text, "%.0f messages applied or failed in %v, %.0f a second\n\nstatements, by all their time\n", n,
		took.Round(time.Millisecond), n/took.Seconds())
	w := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "µs a message\tcount\tms each\tstatement")
	for _, s := range statements {
		fmt.Fprintf(w, "%.2f\t%d\t%.2f\t%.150s\n", s.Total.Seconds()*1e6/n, s.Count, s.Total.Seconds()*1e3/float64(s.Count),
			s.Text)
	}
	must.OK(w.Flush())
}
