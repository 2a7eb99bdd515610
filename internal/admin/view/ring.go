package view

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
)

const (
	// sampleEvery is how often figures are taken, sampled how many are kept: an hour.
	sampleEvery = 10 * time.Second
	sampled     = 360
	// healthEvery is how often the engine is asked what it misses, so that short troubles are remembered too.
	healthEvery = time.Second
)

// Sample is what the metrics said at a time, and how much of it came since the sample before. What nobody knows is nil,
// or missing.
type Sample struct {
	At time.Time `json:"at"`
	// Rates are deliveries a second, by outcome, since the sample before.
	Rates map[string]float64 `json:"rates"`
	// Lag is the 99th percentile of the seconds from publishing to the committed effect, of what ended since the sample
	// before.
	Lag *float64 `json:"lag_seconds,omitempty"`
	// Ready are messages that wait, by kind of queue: main, retry, backstop, dead.
	Ready map[string]float64 `json:"ready"`
	// Dead is the number of dead rows, at most dedup.MaxCounted.
	Dead   *float64        `json:"dead_rows,omitempty"`
	Leader bool            `json:"leader"` // this process is elected
	Up     map[string]bool `json:"up"`     // of each dependency whether it answers

	total map[string]float64 // deliveries since the start
	lag   *dto.Histogram
}

// Trouble is the last time that something was amiss.
type Trouble struct {
	What  string    `json:"what"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
	Stops bool      `json:"stops"`
}

// ring keeps the last hour.
type ring struct {
	mu       sync.Mutex
	samples  []Sample  // oldest first; guarded by mu
	troubles []Trouble // guarded by mu
}

// mostTroubles bounds what is remembered.
const mostTroubles = 50

// sample takes figures until ctx ends.
func (v *View) sample(ctx context.Context) {
	figures, health := time.Tick(sampleEvery), time.Tick(healthEvery)
	v.take(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-figures:
			v.take(ctx)
		case <-health:
			v.ring.watch(v.o.Health(), time.Now().UTC())
		}
	}
}

// take adds a sample.
func (v *View) take(ctx context.Context) {
	families, err := v.o.Metrics.Gather()
	if err != nil { // what could be gathered is there all the same
		v.o.Logger.WarnContext(ctx, "the figures of the pages lack some", "err", err)
	}
	v.ring.add(read(families, v.o.Names.Queue, time.Now().UTC()))
}

// read takes what the pages show out of the metrics: of other queues of this daemon nothing.
func read(families []*dto.MetricFamily, queue string, now time.Time) Sample {
	s := Sample{At: now, Ready: map[string]float64{}, Up: map[string]bool{}, total: map[string]float64{}}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if of, kind := label(m, "queue"), label(m, "kind"); of != "" && of != queue && !beside(of, queue, kind) {
				continue
			}
			switch f.GetName() {
			case "rollbackd_deliveries_total":
				s.total[label(m, "outcome")] = m.GetCounter().GetValue()
			case "rollbackd_lag_seconds":
				s.lag = m.GetHistogram()
			case "rollbackd_queue_messages_ready":
				if n := m.GetGauge().GetValue(); !math.IsNaN(n) {
					s.Ready[label(m, "kind")] += n
				}
			case "rollbackd_dead_letters":
				if n := m.GetGauge().GetValue(); !math.IsNaN(n) {
					s.Dead = &n
				}
			case "rollbackd_leader":
				s.Leader = m.GetGauge().GetValue() == 1
			case "rollbackd_dependency_up":
				s.Up[label(m, "name")] = m.GetGauge().GetValue() == 1
			}
		}
	}
	return s
}

// beside reports whether a queue of this kind is one of those beside the main queue.
func beside(name, queue, kind string) bool {
	rest, of := strings.CutPrefix(name, queue+"."+kind)
	return of && kind != "" && (rest == "" || kind == "retry" && rest[0] == '.')
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// add keeps a sample, with what it has more than the one before.
func (r *ring) add(s Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Rates = map[string]float64{}
	if n := len(r.samples); n > 0 {
		before := r.samples[n-1]
		if seconds := s.At.Sub(before.At).Seconds(); seconds > 0 {
			for outcome, total := range s.total {
				s.Rates[outcome] = max(0, total-before.total[outcome]) / seconds
			}
		}
		s.Lag = quantile(0.99, s.lag, before.lag)
		r.samples[n-1].lag, r.samples[n-1].total = nil, nil
	}
	r.samples = append(r.samples, s)
	r.samples = slices.Delete(r.samples, 0, max(0, len(r.samples)-sampled))
}

// quantile of what a histogram has more than it had: the upper bound of the bucket in which it lies, or of the last one
// when it lies beyond; nil when it has nothing more.
func quantile(q float64, now, before *dto.Histogram) (bound *float64) {
	more := now.GetSampleCount() - before.GetSampleCount()
	if now.GetSampleCount() <= before.GetSampleCount() {
		return nil
	}
	had := map[float64]uint64{}
	for _, b := range before.GetBucket() {
		had[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	for _, b := range now.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 0) {
			break
		}
		bound = b.UpperBound
		if float64(b.GetCumulativeCount()-had[*bound]) >= q*float64(more) {
			break
		}
	}
	return bound
}

// watch remembers what is amiss, and when it was over.
func (r *ring) watch(h server.Readiness, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	open := map[string]bool{}
	for i, text := range slices.Concat(h.Waiting, h.Degraded) {
		what, why, _ := strings.Cut(text, ": ")
		if what == "session" { // between two connections: RabbitMQ itself is named when it does not answer
			continue
		}
		open[what] = true
		trouble := Trouble{What: what, Why: why, Since: now, Stops: i < len(h.Waiting)}
		if at := slices.IndexFunc(r.troubles, func(t Trouble) bool { return t.What == what }); at >= 0 {
			if last := r.troubles[at]; last.Until.IsZero() {
				trouble.Since = last.Since
				r.troubles[at] = trouble
				continue
			}
			r.troubles = slices.Delete(r.troubles, at, at+1) // the last one counts
		}
		r.troubles = append(r.troubles, trouble)
	}
	for i := range r.troubles {
		if t := &r.troubles[i]; t.Until.IsZero() && !open[t.What] {
			t.Until = now
		}
	}
	r.troubles = slices.Delete(r.troubles, 0, max(0, len(r.troubles)-mostTroubles))
}

// Hour is what is kept of the last hour.
type Hour struct {
	Samples  []Sample  `json:"samples"` // oldest first; those that are kept must not be changed
	Troubles []Trouble `json:"-"`       // the latest first
}

// Now is the last sample; its At is zero when there is none yet.
func (h Hour) Now() Sample {
	if len(h.Samples) == 0 {
		return Sample{}
	}
	return h.Samples[len(h.Samples)-1]
}

// Hour is the last hour, from memory.
func (v *View) Hour() Hour {
	v.ring.watch(v.o.Health(), time.Now().UTC())
	v.ring.mu.Lock()
	defer v.ring.mu.Unlock()
	h := Hour{append([]Sample{}, v.ring.samples...), append([]Trouble{}, v.ring.troubles...)} // never null
	slices.Reverse(h.Troubles)
	return h
}

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
