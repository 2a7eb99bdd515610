package run

import (
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
)

// LogMiB is how much room the log takes on a day of a year.
const LogMiB = "MiB of consumer_log"

// Year measures a daemon, and look-ups, before a log as full as it gets of so many rows a year, and before one over
// which such a year has passed: in turns, so that whatever else the machine does is the same for both.
func (r *Runner) Year(rows, times int64) (first, last map[string][]float64) {
	y := ground.Year{Rows: rows, End: time.Now()}
	fields := []*ground.Field{
		r.field("first", func(f *ground.Field) { f.BeginYear(y) }),
		r.field("last", func(f *ground.Field) {
			f.BeginYear(y)
			began := time.Now()
			deleted := f.PassYear(y)
			fmt.Fprintf(r.Out, "  %d rows were deleted in %v\n", deleted, time.Since(began).Round(time.Second))
		}),
	}
	first, last = map[string][]float64{}, map[string][]float64{}
	for range times {
		for i, day := range []map[string][]float64{first, last} {
			const lookUps = 100_000
			f := fields[i]
			r.fields["full"] = f
			day[LogMiB] = append(day[LogMiB], f.LogMiB())
			day["rows looked up a second"] = append(day["rows looked up a second"], f.LookUps(lookUps))
			round := r.Round(Contestant{Name: []string{"first day", "last day"}[i], FullLog: true, Guess: 25_000})
			day["messages/s"] = append(day["messages/s"], round.Rate)
		}
	}
	return first, last
}
