package figure

import (
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// LatencyFigures are the two that the latency rounds make.
func LatencyFigures(rounds []run.Latency) []Figure {
	if len(rounds) == 0 {
		return nil
	}
	const what = "publish to applied at 1,000 messages/s offered, %s percentile"
	return []Figure{
		newFigure(LatencyP50, fmt.Sprintf(what, "50th"), "ms", atMost(6), lookedFor, pick(rounds, p50),
			latencyParts(rounds)),
		newFigure(LatencyP99, fmt.Sprintf(what, "99th"), "ms", atMost(25), lookedFor, pick(rounds, p99),
			latencyParts(rounds)),
	}
}

// LatencyFailingFigures is the one that the latency rounds make in which some messages fail.
func LatencyFailingFigures(rounds []run.Latency) []Figure {
	if len(rounds) == 0 {
		return nil
	}
	parts := latencyParts(rounds)
	parts["p50_ms"] = Median(pick(rounds, p50))
	const what = "publish to applied of the good ones among 1,000 messages/s of which 5 % fail, 99th percentile"
	return []Figure{newFigure(LatencyFailing, what, "ms", atMost(30), lookedFor+"; the others have "+fiveAttempts,
		pick(rounds, p99), parts)}
}

const lookedFor = "one message in 20 is looked for every 0.4 ms until its row is committed"

func p50(l run.Latency) float64 { return l.P50 }
func p99(l run.Latency) float64 { return l.P99 }

func pick[T any](rounds []T, value func(T) float64) (all []float64) {
	for _, r := range rounds {
		all = append(all, value(r))
	}
	return all
}

func latencyParts(rounds []run.Latency) map[string]float64 {
	return map[string]float64{
		"row_written_p50_ms": Median(pick(rounds, func(l run.Latency) float64 { return l.WrittenP50 })),
		"row_written_p99_ms": Median(pick(rounds, func(l run.Latency) float64 { return l.WrittenP99 })),
		"max_ms":             Median(pick(rounds, func(l run.Latency) float64 { return l.Max })),
		"sampled":            Median(pick(rounds, func(l run.Latency) float64 { return float64(l.Sampled) })),
		"offered_per_second": rounds[0].Offered,
	}
}

// StartFigures is the one that the starts make: of each round the middle one.
func StartFigures(rounds []run.Starts) []Figure {
	if len(rounds) == 0 {
		return nil
	}
	var all []float64
	for _, r := range rounds {
		all = append(all, r.MS...)
	}
	return []Figure{newFigure(StartMS, "start of a daemon to its first effect, on warm servers", "ms", atMost(300),
		"a message waits; from before the process is made until its row is committed",
		pick(rounds, func(r run.Starts) float64 { return Median(r.MS) }),
		map[string]float64{"starts": float64(len(all)), "fastest_ms": slices.Min(all), "slowest_ms": slices.Max(all)})}
}

// mostGrowth is what the last minute may take of the second's.
const mostGrowth = 1.1

// MemoryFigure is reached when both of its bounds are kept.
func MemoryFigure(m run.Memory) Figure {
	growth := m.LastMinute / m.SecondMinute
	f := newFigure(RSS, "daemon's resident memory before a backlog of 1,000,000, at most; the last minute's by the "+
		"second's", "MiB", atMost(150), "",
		[]float64{m.Max}, map[string]float64{
			"second_minute_mib": m.SecondMinute, "last_minute_mib": m.LastMinute, "last_by_second": growth,
			"least_queued": float64(m.LeastQueued), "applied": float64(m.Applied), "minute_seconds": m.Minute,
		})
	f.Goal = fmt.Sprintf("≤ 150, last minute ≤ %v × second", mostGrowth)
	f.Note = "one run of three minutes; a shop that goes on keeps the queue full"
	reached := *f.Reached && growth <= mostGrowth
	f.Reached = &reached
	return f
}

// LargeBodiesFigure is of one round.
func LargeBodiesFigure(m run.LargeBodies) Figure {
	const what = "daemon's resident memory, at most, with 2,400 bodies of 256 KiB while MySQL is blocked"
	const note = "after 100,000 ordinary messages at full speed; then all are applied"
	return newFigure(LargeRSS, what, "MiB", atMost(200), note, []float64{m.Max}, map[string]float64{
		"after_small_mib": m.AfterSmall, "at_block_mib": m.AtBlock, "blocked_seconds": m.Blocked,
	})
}

// Curve is throughput over a setting.
type Curve struct {
	Key     string  `json:"-"`
	Title   string  `json:"title"`
	XLabel  string  `json:"x"`
	YLabel  string  `json:"y"`
	Default int     `json:"default"`
	Points  []Point `json:"points"`
}

// Point is one setting's rounds.
type Point struct {
	X      int       `json:"x"`
	Median float64   `json:"median"`
	Spread Spread    `json:"spread"`
	Rounds []float64 `json:"rounds"`
}

// Best is the setting with the highest median.
func (c Curve) Best() Point {
	return slices.MaxFunc(c.Points, func(a, b Point) int { return int(a.Median - b.Median) })
}

var curves = []struct {
	key, title, x string
	points        []int
	def           int
	contestant    func(int) string
}{
	{BatchSize, "Applied messages per second over batch size (4 lanes)", "ROLLBACKD_BATCH_SIZE", batchSizes,
		defaultBatchSize, batchOf},
	{Lanes, "Applied messages per second over lanes (batches of 1,000)", "ROLLBACKD_LANES", laneCounts, defaultLanes,
		lanesOf},
}

// Curves are those of the wanted ones that have all their points.
func (t *Turns) Curves(wanted []string) (all []Curve) {
	for _, d := range curves {
		c := Curve{Key: d.key, Title: d.title, XLabel: d.x, YLabel: "messages/s", Default: d.def}
		for _, x := range d.points {
			if rates := t.rates(d.contestant(x)); len(rates) > 0 {
				c.Points = append(c.Points, Point{
					X: x, Median: round(Median(rates)), Spread: spread(rates), Rounds: rounded(rates),
				})
			}
		}
		if slices.Contains(wanted, d.key) && len(c.Points) == len(d.points) {
			all = append(all, c)
		}
	}
	return all
}

// Contestant is what everybody did, for the table of the parts.
type Contestant struct {
	Name   string             `json:"name"`
	Rate   float64            `json:"per_second"`
	Spread Spread             `json:"spread"`
	Rounds []float64          `json:"rounds"`
	CPU    map[string]float64 `json:"cpu_us_per_delivery"`
	Busy   float64            `json:"cores_busy"`
}

// Contestants are all, in the order of their first round.
func (t *Turns) Contestants() (all []Contestant) {
	for i, r := range t.Rounds {
		rounds := t.of(r.Contestant)
		if len(rounds) == 0 ||
			slices.ContainsFunc(t.Rounds[:i], func(earlier run.Round) bool { return earlier.Contestant == r.Contestant }) {
			continue
		}
		c := Contestant{Name: r.Contestant, CPU: map[string]float64{}}
		rates := values(rounds, deliveries)
		c.Rate, c.Spread = round(Median(rates)), spread(rates)
		c.Rounds = rounded(rates)
		for _, process := range Processes {
			c.CPU[process] = round(Median(values(rounds, func(r run.Round) float64 { return r.CPU[process] })))
		}
		c.Busy = round(Median(values(rounds, func(r run.Round) float64 { return r.Busy })))
		all = append(all, c)
	}
	return all
}
