package run

import (
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
)

// Day is what was measured on a day of a year, some values of each.
type Day struct{ Rates, LookUps, MiB []float64 }

// Year measures a daemon, and look-ups, before a log as full as it gets of so many rows a year, and before one over
// which such a year has passed: in turns, so that whatever else the machine does is the same for both.
func (r *Runner) Year(rows, times int64) (days [2]Day) {
	y := ground.Year{Rows: rows, End: time.Now()}
	fields := [2]*ground.Field{
		r.field("first", func(f *ground.Field) { f.BeginYear(y) }),
		r.field("last", func(f *ground.Field) {
			f.BeginYear(y)
			began := time.Now()
			deleted := f.PassYear(y)
			fmt.Fprintf(r.Out, "  %d rows were deleted in %v\n", deleted, time.Since(began).Round(time.Second))
		}),
	}
	for range times {
		for i, name := range []string{"first day", "last day"} {
			const lookUps = 100_000
			d, f := &days[i], fields[i]
			r.fields["full"] = f
			d.MiB = append(d.MiB, f.LogMiB())
			d.LookUps = append(d.LookUps, f.LookUps(lookUps))
			d.Rates = append(d.Rates, r.Round(Contestant{Name: name, FullLog: true, Guess: 25_000}).Rate)
		}
	}
	return days
}
