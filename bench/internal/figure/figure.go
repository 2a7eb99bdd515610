package figure

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// Figure is one figure with how it came about.
type Figure struct {
	Key     string             `json:"-"`
	What    string             `json:"what"`
	Unit    string             `json:"unit"`
	Value   float64            `json:"value"`
	Goal    string             `json:"goal"`
	Reached *bool              `json:"reached"` // null: there is no goal, the figure is reported
	Spread  Spread             `json:"spread"`  // of the rounds' own values
	Rounds  []float64          `json:"rounds"`
	Parts   map[string]float64 `json:"parts"` // what the value is made of: medians
	Note    string             `json:"note,omitempty"`
	// NotMeasured, if not empty, says why there is no value.
	NotMeasured string `json:"not_measured,omitempty"`
}

// Spread is the smallest and the largest of some values.
type Spread struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// goal is a bound; the zero value is none.
type goal struct {
	sign  string // "≥" or "≤"
	bound float64
}

func atLeast(x float64) goal { return goal{"≥", x} }
func atMost(x float64) goal  { return goal{"≤", x} }

func (g goal) String() string {
	if g.sign == "" {
		return "reported"
	}
	return fmt.Sprintf("%s %v", g.sign, g.bound)
}

func (g goal) reached(value float64) *bool {
	if g.sign == "" {
		return nil
	}
	ok := value <= g.bound
	if g.sign == "≥" {
		ok = value >= g.bound
	}
	return &ok
}

// definition is a figure that is made of rounds.
type definition struct {
	key, what, unit string
	goal            goal
	others          []string // contestants besides the base
	remarks         []string // contestants that stand in the table beside them
	apart           bool     // these are compared with each other and not with the base
	// make computes the figure's own values, one a cycle, and its parts.
	make func(t *Turns) (rounds []float64, parts map[string]float64)
	note string
}

const pagesNote = "5,000,000 rows, 100,000 dead letters; a page every 0.6 s, each in turn, and the overview live"

const lockNote = "its servers run on the same two cores"

var definitions = []definition{
	{
		key: "vs_plain", what: "rollbackd ÷ plain consume, each message acked singly, same queue", unit: "ratio",
		goal:   atLeast(0.5),
		others: []string{rival.PlainEach}, remarks: []string{rival.PlainMultiple},
		make: bestOf(Base, []string{rival.PlainEach}, []string{rival.PlainMultiple}),
		note: "plain consume only takes and acks; plain_multiple acks every 500",
	},
	{
		key: "vs_classic", what: "rollbackd ÷ the classic algorithm, best of 1, 16, 64 workers", unit: "ratio",
		goal:   atLeast(15),
		others: allWorkers(rival.Classic), make: bestOf(Base, allWorkers(rival.Classic), nil),
	},
	{
		key: "vs_watermill", what: "rollbackd ÷ watermill v1.5.1 + watermill-amqp/v3 v3.0.0, dedup row and effect in one " +
			"transaction, best of 1, 16, 64 subscribers", unit: "ratio", goal: atLeast(8),
		others: allWorkers(rival.Watermill), make: bestOf(Base, allWorkers(rival.Watermill), nil),
	},
	{
		key: "duplicates_50", what: "with 50 % duplicates ÷ without, in deliveries/s", unit: "ratio", goal: atLeast(1),
		others: []string{"duplicates"}, make: overBase("duplicates", deliveries),
		note: "each block of 10,000 messages is followed by its copies, shuffled",
	},
	{
		key: fullLog, what: "with 5,000,000 rows already in consumer_log ÷ empty", unit: "ratio", goal: atLeast(0.8),
		others: []string{fullLog}, make: overBase(fullLog, deliveries), note: "and 100,000 dead letters",
	},
	{
		key: "pages", what: "while somebody looks at the pages ÷ while nobody does", unit: "ratio", goal: atLeast(0.98),
		others: []string{fullLog, "pages"}, apart: true, make: between("pages", fullLog, deliveries), note: pagesNote,
	},
	{
		key: "page_ms", what: "the slowest answer of any page meanwhile", unit: "ms", goal: atMost(200),
		others: []string{"pages"}, apart: true, make: slowestPages, note: pagesNote,
	},
	{
		key: "poison", what: "with 1 failing message in 1,000 ÷ without, in applied messages/s", unit: "ratio",
		goal:   atLeast(0.7),
		others: []string{"poison"}, make: overBase("poison", applied),
		note: "its order has no reservation: an ordinary failure, tried again after 1s, 5s, 30s, 2m",
	},
	{
		key: "hot_goods", what: "ten goods ÷ 1,000 goods", unit: "ratio", goal: atLeast(0.8),
		others: []string{"hot_goods"}, make: overBase("hot_goods", deliveries),
	},
	{
		key: "redis_off", what: "REDIS_URL=off ÷ on", unit: "ratio", goal: atLeast(0.8),
		others: []string{"redis_off"}, make: overBase("redis_off", deliveries),
	},
	{
		key: "lock_redlock", what: "LOCK=redlock on three masters ÷ one Redis", unit: "ratio",
		others: []string{"lock_redlock"}, make: overBase("lock_redlock", deliveries), note: lockNote,
	},
	{
		key: "lock_zookeeper", what: "LOCK=zookeeper on one server ÷ one Redis", unit: "ratio",
		others: []string{"lock_zookeeper"}, make: overBase("lock_zookeeper", deliveries), note: lockNote,
	},
	{
		key: "lock_mysql", what: "LOCK=mysql, beside the log ÷ one Redis", unit: "ratio",
		others: []string{"lock_mysql"}, make: overBase("lock_mysql", deliveries), note: lockNote,
	},
	{
		key: "two_daemons", what: "two daemons ÷ one, on the same two cores", unit: "ratio",
		others: []string{"two_daemons"}, make: overBase("two_daemons", deliveries),
	},
	{
		key: "failing_1", what: "good messages/s while 1 % of 200,000 fail ÷ while none fails", unit: "ratio",
		goal: atLeast(0.8), others: []string{noneFailing, "failing_1"}, apart: true,
		make: over("failing_1", noneFailing, applied), note: failingNote,
	},
	{
		key: "failing_5", what: "good messages/s while 5 % of 200,000 fail ÷ while none fails", unit: "ratio",
		goal: atLeast(0.55), others: []string{noneFailing, "failing_5"}, apart: true,
		make: over("failing_5", noneFailing, applied), note: failingNote,
	},
	{
		key: "failing_20", what: "good messages/s while 20 % of 200,000 fail ÷ while none fails", unit: "ratio",
		goal: atLeast(0.3), others: []string{noneFailing, "failing_20"}, apart: true,
		make: over("failing_20", noneFailing, applied), note: failingNote,
	},
	{
		key: "all_failing", what: "attempts/s when every message fails ÷ messages/s when none does", unit: "ratio",
		goal: atLeast(0.15), others: []string{allFailing}, make: overBase(allFailing, deliveries),
		note: "until all are dead letters, " + fiveAttempts,
	},
	{
		key: "classic_failing", what: "attempts/s when every message fails, rollbackd ÷ the classic algorithm, best of 16, " +
			"64 workers", unit: "ratio",
		goal: atLeast(2), others: append(failingRivals(rival.Classic), allFailing),
		remarks: failingRivals(rival.Watermill), apart: true,
		make: bestOf(allFailing, failingRivals(rival.Classic), failingRivals(rival.Watermill)),
		note: "everybody with " + fiveAttempts + ", and the same dead-letter queue",
	},
	{
		key: "replay", what: "dead letters replayed until applied, a second ÷ messages/s", unit: "ratio",
		goal: atLeast(0.15), others: []string{"replay"}, make: overBase("replay", deliveries),
		note: "rollbackd dlq replay --all --no-wait of 100,000 letters beside one daemon",
	},
	{
		key: "contended", what: "two daemons ÷ one, both copies of each message in hand at the same time, in deliveries/s",
		unit: "ratio", goal: atLeast(0.8), others: []string{contendedOne, "contended"}, apart: true,
		make: over("contended", contendedOne, deliveries),
		note: "each 1,000 messages are followed by the same ones, shuffled; on the same two cores",
	},
	{
		key: "mysql_1ms", what: "with MySQL 1 ms away, each way ÷ beside it", unit: "ratio", goal: atLeast(0.8),
		others: []string{"mysql_1ms"}, make: overBase("mysql_1ms", deliveries), note: "eight lanes instead of four",
	},
	{
		key: "mysql_1ms_failing_5", what: "good messages/s while 5 % fail with MySQL 1 ms away, each way ÷ beside it",
		unit: "ratio", goal: atLeast(0.7), others: []string{"failing_5", "mysql_1ms_failing_5"}, apart: true,
		make: over("mysql_1ms_failing_5", "failing_5", applied), note: "eight lanes instead of four",
	},
	{
		key: handlerSQL, what: "HANDLER=sql, an order's state as the guard and amount = amount + n for each item ÷ the " +
			"built-in handler", unit: "ratio", goal: atLeast(0.3),
		others: []string{handlerSQL}, make: overBase(handlerSQL, deliveries),
		note: "the statements of deploy/examples/sql/order-state",
	},
	{
		key: "handler_sql_classic", what: "HANDLER=sql ÷ the classic algorithm with the same two updates, best of 1, 16, " +
			"64 workers", unit: "ratio", goal: atLeast(4),
		others: append(classicOnStatements(), handlerSQL), apart: true,
		make: bestOf(handlerSQL, classicOnStatements(), nil),
	},
	{
		key: handlerHTTP, what: "HANDLER=http, a service that answers in 1 ms ÷ the built-in handler", unit: "ratio",
		goal: atLeast(0.15), others: []string{handlerHTTP}, make: overBase(handlerHTTP, deliveries),
		note: "the service runs in the bench, on the same two cores",
	},
	{
		key: "handler_http_pool", what: "HANDLER=http ÷ a worker pool in Go with a commit before and after each call, best " +
			"of 16, 64, 128 workers", unit: "ratio", goal: atLeast(2),
		others: append(pools(), handlerHTTP), apart: true, make: bestOf(handlerHTTP, pools(), nil),
	},
	{
		key: "cpu_us_per_message", what: "the daemon's own CPU for a message, user and system", unit: "µs",
		make: cpuOfBase, note: "the parts are the CPU of all processes for the same message",
	},
}

// fiveAttempts are the same for everybody.
var fiveAttempts = "five attempts each, " + strings.ReplaceAll(Delays, ",", ", ") + " apart"

const failingNote = "an order without its reservation; until the last good one is applied"

func failingRivals(rival string) (names []string) {
	for _, n := range failingWorkers {
		names = append(names, failingRival(rival, n))
	}
	return names
}

func classicOnStatements() (names []string) {
	for _, n := range workerCounts {
		names = append(names, workers(rival.Classic, n)+"_sql")
	}
	return names
}

func pools() (names []string) {
	for _, n := range poolWorkers {
		names = append(names, workers(rival.Pool, n))
	}
	return names
}

func allWorkers(rival string) (names []string) {
	for _, n := range workerCounts {
		names = append(names, workers(rival, n))
	}
	return names
}

// The keys of the figures that are made otherwise, and of the curves.
const (
	LatencyP50 = "latency_p50_ms"
	LatencyP99 = "latency_p99_ms"
	// LatencyFailing is the latency of the good messages among some that fail.
	LatencyFailing = "latency_failing_5_p99_ms"
	StartMS        = "start_ms"
	RSS            = "rss_mib"
	LargeRSS       = "large_bodies_rss_mib"
	BatchSize      = "batch_size"
	Lanes          = "lanes"
)

// Names are all figures and curves.
func Names() (names []string) {
	for _, d := range definitions {
		names = append(names, d.key)
	}
	return append(names, LatencyP50, LatencyP99, LatencyFailing, StartMS, RSS, LargeRSS, BatchSize, Lanes)
}

// Turns are the rounds of some cycles in the order they were run.
type Turns struct {
	Rounds []run.Round
}

// of are the rounds of one contestant that could be measured.
func (t *Turns) of(name string) (rounds []run.Round) {
	for _, r := range t.Rounds {
		if r.Contestant == name && r.NotMeasured == "" {
			rounds = append(rounds, r)
		}
	}
	return rounds
}

// rates are the deliveries/s of one contestant, round by round.
func (t *Turns) rates(name string) []float64 { return values(t.of(name), deliveries) }

// before is a contestant's last round before the i-th round of all, if it could be measured.
func (t *Turns) before(i int, name string) (run.Round, bool) {
	for ; i >= 0; i-- {
		if t.Rounds[i].Contestant == name {
			return t.Rounds[i], t.Rounds[i].NotMeasured == ""
		}
	}
	return run.Round{}, false
}

// after is a contestant's first round after the i-th round of all, if it could be measured.
func (t *Turns) after(i int, name string) (run.Round, bool) {
	for _, r := range t.Rounds[i:] {
		if r.Contestant == name {
			return r, r.NotMeasured == ""
		}
	}
	return run.Round{}, false
}

func deliveries(r run.Round) float64 { return r.Rate }
func applied(r run.Round) float64    { return r.Applied }

func values(rounds []run.Round, value func(run.Round) float64) []float64 {
	all := make([]float64, len(rounds))
	for i, r := range rounds {
		all[i] = value(r)
	}
	return all
}

// overBase divides each round of a contestant by the base's round just before it in its group.
func overBase(name string, value func(run.Round) float64) func(*Turns) ([]float64, map[string]float64) {
	return over(name, Base, value)
}

// over divides each round of a contestant by the last one of another before it.
func over(name, other string, value func(run.Round) float64) func(*Turns) ([]float64, map[string]float64) {
	return func(t *Turns) (ratios []float64, parts map[string]float64) {
		var others []float64
		for i, r := range t.Rounds {
			if o, ok := t.before(i, other); ok && r.Contestant == name && r.NotMeasured == "" {
				ratios = append(ratios, value(r)/value(o))
				others = append(others, value(o))
			}
		}
		return ratios, map[string]float64{name: Median(values(t.of(name), value)), other: Median(others)}
	}
}

// between divides each round of one by the mean of the rounds of another before and after it: what differs between two
// rounds of the same is more than what such a figure is about.
func between(name, other string, value func(run.Round) float64) func(*Turns) ([]float64, map[string]float64) {
	return func(t *Turns) (ratios []float64, parts map[string]float64) {
		for i, r := range t.Rounds {
			if r.Contestant != name || r.NotMeasured != "" {
				continue
			}
			before, ok1 := t.before(i, other)
			after, ok2 := t.after(i, other)
			if ok1 && ok2 {
				ratios = append(ratios, 2*value(r)/(value(before)+value(after)))
			}
		}
		return ratios, map[string]float64{
			name: Median(values(t.of(name), value)), other: Median(values(t.of(other), value)),
		}
	}
}

// bestOf divides one by the best of some rivals, where best is meant by the median of all rounds. The parts also show
// those that were not the best, and the remarks as far as they had a turn.
func bestOf(one string, names, remarks []string) func(*Turns) ([]float64, map[string]float64) {
	return func(t *Turns) ([]float64, map[string]float64) {
		fastest := slices.MaxFunc(names, func(a, b string) int {
			return int(math.Copysign(1, Median(t.rates(a))-Median(t.rates(b))))
		})
		ratios, parts := over(fastest, one, deliveries)(t)
		for i := range ratios {
			ratios[i] = 1 / ratios[i]
		}
		for _, name := range slices.Concat(names, remarks) {
			if rates := t.rates(name); len(rates) > 0 {
				parts[name] = Median(rates)
			}
		}
		return ratios, parts
	}
}

// slowestPages are the slowest answers of each round; the parts are the pages.
func slowestPages(t *Turns) (slowest []float64, parts map[string]float64) {
	all := map[string][]float64{}
	for _, r := range t.of("pages") {
		for name, ms := range r.Pages {
			all[name] = append(all[name], ms)
		}
		if len(r.Pages) > 0 {
			slowest = append(slowest, slices.Max(slices.Collect(maps.Values(r.Pages))))
		}
	}
	parts = map[string]float64{}
	for name, ms := range all {
		parts[name] = slices.Max(ms)
	}
	return slowest, parts
}

func cpuOfBase(t *Turns) ([]float64, map[string]float64) {
	parts := map[string]float64{}
	for _, process := range Processes {
		parts[process] = Median(values(t.of(Base), func(r run.Round) float64 { return r.CPU[process] }))
	}
	return values(t.of(Base), func(r run.Round) float64 { return r.CPU["client"] }), parts
}

// Processes are those whose CPU is accounted for.
var Processes = []string{"client", "mysql", "rabbitmq", "redis", "bench"}

// Figures are those of the wanted ones that the rounds are enough for, and those for which a round is missing that
// could not be measured.
func (t *Turns) Figures(wanted []string) (all []Figure) {
	for _, d := range definitions {
		if !slices.Contains(wanted, d.key) {
			continue
		}
		var rounds []float64
		var parts map[string]float64
		if t.has(d.others) {
			rounds, parts = d.make(t)
		}
		if len(rounds) > 0 {
			all = append(all, newFigure(d.key, d.what, d.unit, d.goal, d.note, rounds, parts))
		} else if why := t.notMeasured(append(slices.Clip(d.others), Base)); why != "" {
			all = append(all, Figure{
				Key: d.key, What: d.what, Unit: d.unit, Goal: d.goal.String(), Note: d.note, NotMeasured: why,
			})
		}
	}
	return all
}

// notMeasured says why a round of these contestants is missing; it is empty where none is.
func (t *Turns) notMeasured(names []string) (why string) {
	for _, r := range t.Rounds {
		if slices.Contains(names, r.Contestant) {
			why = cmp.Or(r.NotMeasured, why)
		}
	}
	return why
}

func (t *Turns) has(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return len(t.of(name)) == 0 })
}

func newFigure(key, what, unit string, g goal, note string, rounds []float64, parts map[string]float64) Figure {
	f := Figure{
		Key: key, What: what, Unit: unit, Goal: g.String(), Note: note, Parts: parts, Value: round(Median(rounds)),
		Spread: spread(rounds),
	}
	f.Reached = g.reached(Median(rounds))
	f.Rounds = rounded(rounds)
	for _, name := range slices.Collect(maps.Keys(parts)) {
		parts[name] = round(parts[name])
	}
	return f
}
