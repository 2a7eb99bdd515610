package view

import (
	"context"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Span is how far back charts go, and how long a piece of them is.
type Span struct {
	Name       string
	Long, Step time.Duration
}

// Spans are those that there are, the shortest first.
func Spans() []Span {
	return []Span{
		{"hour", time.Hour, time.Minute}, {"day", 24 * time.Hour, 15 * time.Minute}, {"week", 7 * 24 * time.Hour, time.Hour},
	}
}

// chartsKeep is how long charts are kept: they change once a minute.
const chartsKeep = 15 * time.Second

// Charts are what all daemons of the group did with the queue, piece by piece, the oldest first.
type Charts struct {
	Span   string    `json:"span"`
	From   time.Time `json:"from"`
	Until  time.Time `json:"until"` // the beginning of the minute that goes on
	Step   int       `json:"step_seconds"`
	Pieces []Piece   `json:"pieces"` // never null; those in which no daemon wrote are missing
}

// Piece is what was done within a step of a chart.
type Piece struct {
	At       time.Time              `json:"at"`
	Applied  Range                  `json:"applied"` // a second
	Retried  Range                  `json:"retried"` // a second
	Dead     map[dedup.Reason]int64 `json:"dead"`
	Waiting  *Range                 `json:"waiting,omitempty"`  // in the main queue; missing while nobody knows
	Retrying *Range                 `json:"retrying,omitempty"` // in the retry queues
	// P50 and P99 are those of the lags, in seconds, of all that was applied in the piece; WorstP99 is that of the minute
	// in which it was largest. They are missing when nothing was applied of which anybody knows when it was published.
	P50      *float64 `json:"lag_p50_seconds,omitempty"`
	P99      *float64 `json:"lag_p99_seconds,omitempty"`
	WorstP99 *float64 `json:"lag_worst_p99_seconds,omitempty"`
}

// Range is the mean of a piece, and its minutes with the least and the most: what lasted a minute shows in a week.
type Range struct {
	Least float64 `json:"least"`
	Mean  float64 `json:"mean"`
	Most  float64 `json:"most"`
}

// Charts are what is known of the last hour, day or week, at most some seconds old while somebody looks. Where nobody
// has looked yet, it waits for as long as a page may wait.
func (v *View) Charts(ctx context.Context, span string) (Charts, error) {
	at := max(0, slices.IndexFunc(Spans(), func(s Span) bool { return s.Name == span }))
	known, err := Within(ctx, pageTime, func(ctx context.Context) (Aged[Charts], error) {
		return v.charts[at].await(ctx, chartsKeep)
	})
	return known.Value, err
}

// lookAtMinutes reads the minutes of a span. That the oldest piece lacks what began before the span shows nowhere.
func (v *View) lookAtMinutes(ctx context.Context, s Span) (Charts, error) {
	until := time.Now().UTC().Truncate(time.Minute)
	from := until.Add(-s.Long)
	all, err := v.o.Records.Minutes(ctx, v.o.Group, v.o.Names.Queue, time.Since(from))
	return Charts{s.Name, from, until, int(s.Step.Seconds()), pieces(all, s.Step)}, err
}

// pieces joins minutes, the oldest first. Between the first and the last a minute in which no daemon wrote is one in
// which nothing was done, unless it is one of a whole piece: of that nobody knows anything.
func pieces(all []dedup.Minute, step time.Duration) []Piece {
	joined := []Piece{}
	for len(all) > 0 {
		at := all[0].At.Truncate(step)
		n := slices.IndexFunc(all, func(m dedup.Minute) bool { return !m.At.Before(at.Add(step)) })
		last := at.Add(step)
		if n < 0 {
			n, last = len(all), all[len(all)-1].At.Add(time.Minute)
		}
		first := at
		if len(joined) == 0 {
			first = all[0].At
		}
		joined = append(joined, piece(at, all[:n], int(last.Sub(first)/time.Minute)))
		all = all[n:]
	}
	return joined
}

// piece joins the minutes that were written of those that there were.
func piece(at time.Time, all []dedup.Minute, there int) Piece {
	p := Piece{At: at, Dead: map[dedup.Reason]int64{}}
	var applied, retried, waiting, retrying []float64
	var lag [len(dedup.Minute{}.Lag)]int64
	for _, m := range all {
		applied, retried = append(applied, float64(m.Applied)/60), append(retried, float64(m.Retried)/60)
		for r, n := range m.Dead {
			p.Dead[r] += n
		}
		if m.Waiting.Valid {
			waiting = append(waiting, float64(m.Waiting.V))
		}
		if m.Retrying.Valid {
			retrying = append(retrying, float64(m.Retrying.V))
		}
		for i, n := range m.Lag {
			lag[i] += n
		}
		if worst := quantileOf(0.99, m.Lag[:]); worst != nil && (p.WorstP99 == nil || *worst > *p.WorstP99) {
			p.WorstP99 = worst
		}
	}
	silent := make([]float64, max(0, there-len(all)))
	p.Applied, p.Retried = *rangeOf(append(applied, silent...)), *rangeOf(append(retried, silent...))
	p.Waiting, p.Retrying = rangeOf(waiting), rangeOf(retrying)
	p.P50, p.P99 = quantileOf(0.5, lag[:]), quantileOf(0.99, lag[:])
	return p
}

// rangeOf is nil of nothing.
func rangeOf(all []float64) *Range {
	if len(all) == 0 {
		return nil
	}
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return &Range{slices.Min(all), sum / float64(len(all)), slices.Max(all)}
}

// quantileOf is that of lags which were counted in the buckets of [dedup.LagBounds], as if those of a bucket lay evenly
// in it; of those beyond the last bound it is that. It is nil of nothing.
func quantileOf(q float64, counts []int64) *float64 {
	var total int64
	for _, n := range counts {
		total += n
	}
	below, low := 0.0, 0.0
	for i, bound := range dedup.LagBounds() {
		n := float64(counts[i])
		if want := q * float64(total); n > 0 && below+n >= want {
			x := low + (bound-low)*(want-below)/n
			return &x
		}
		below, low = below+n, bound
	}
	if total == 0 {
		return nil
	}
	return &low
}
