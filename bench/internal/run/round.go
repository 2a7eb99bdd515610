// Package run measures: it puts contestants on the ground, round after round in turn, and reads what they did from
// outside, in the same way for all. What a figure means and what its goal is, is not known here.
package run

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Sizes are how long rounds are, and over how much they go.
type Sizes struct {
	Length  time.Duration // how long a round is measured
	LogRows int64         // rows in the full consumer log
	Waiting int64         // messages of a round to the end
	Failing int64         // messages of one in which all fail
	Letters int64         // that are replayed
	Backlog int64         // of the round of memory
	Minute  time.Duration // of which that one has three; MySQL is blocked for half of it
}

// Runner runs rounds of one build.
type Runner struct {
	Sizes
	Warm   time.Duration // how long a round runs before it is measured
	Ground *ground.Ground
	// Build is the product's, of those on the ground; Schema is the beginning of its schemas' names.
	Build  ground.Build
	Schema string
	// Profiles, if not empty, is a folder for what the daemon's pages and the database tell of each round.
	Profiles string
	Out      io.Writer

	fields map[string]*ground.Field
	rounds uint64               // rounds so far: seeds
	rates  map[string][]float64 // of a contestant, the last ones
}

// New makes the runner of a build.
func New(g *ground.Ground, b ground.Build, schema string, s Sizes, out io.Writer) *Runner {
	const longest, part = time.Second, 5
	return &Runner{
		Sizes: s, Warm: min(longest, s.Length/part), Ground: g, Build: b, Schema: schema, Out: out,
		fields: map[string]*ground.Field{}, rates: map[string][]float64{},
	}
}

// Close lets go of the schemas' connections.
func (r *Runner) Close() (err error) {
	for _, f := range r.fields {
		err = errors.Join(err, f.DB.Close())
	}
	return err
}

// field is made when it is first wanted.
func (r *Runner) field(name string, fill func(*ground.Field)) *ground.Field {
	f := r.fields[name]
	if f == nil {
		f = r.Ground.Field(r.Schema+"_"+name, r.Build)
		fill(f)
		r.fields[name] = f
	}
	return f
}

// empty is the field whose log has the rows of the round alone.
func (r *Runner) empty() *ground.Field { return r.field("empty", func(*ground.Field) {}) }

// full is the one whose log is full.
func (r *Runner) full() *ground.Field {
	return r.field("full", func(f *ground.Field) {
		began := time.Now()
		f.FillLog(r.LogRows, began, 30*24*time.Hour)
		fmt.Fprintf(r.Out, "  %d rows are in the log after %v\n", r.LogRows, time.Since(began).Round(time.Second))
	})
}

// tries is how often a round may fail.
const tries = 5

// ErrNotMeasured says that a round failed as often as it may; it wraps how it failed at last.
var ErrNotMeasured = errors.New("could not be measured")

// Round sows and measures one round, and again when it fails: a server that was slow to answer, or ended a connection,
// must not cost the whole run. What breaks the promise is never tried again. A contestant that is faster than expected
// and empties the queue gets another round with more to do: a part of a round is no round.
func (r *Runner) Round(c Contestant) (round Round) {
	var err error
	for range tries {
		if err != nil {
			fmt.Fprintf(r.Out, "  %s: %v; again\n", c.Name, err)
		}
		err = must.Catch(func() {
			if c.Special == nil {
				round = r.once(c)
				return
			}
			round = Round{Contestant: c.Name, Sample: c.Special(r)}
			fmt.Fprintln(r.Out, round)
		})
		if err == nil {
			return round
		}
		if r.Ground.Ctx.Err() != nil || errors.Is(err, ground.ErrBroken) {
			must.OK(errors.Join(err, context.Cause(r.Ground.Ctx)))
		}
	}
	must.OK(fmt.Errorf("%s %w, tried %d times: %w", c.Name, ErrNotMeasured, tries, err))
	return round
}

func (r *Runner) once(c Contestant) (round Round) {
	f := r.empty()
	if c.Sowing.FullLog {
		f = r.full()
	}
	began := time.Now()
	f.Sow(r.sowing(c))
	sown := time.Since(began)
	if c.Extent == Evenly {
		r.untilCalm()
	}
	before := FixedWork()
	err := must.Catch(func() { round = r.measure(c, f) })
	if errors.Is(err, errTooShort) {
		expected, _ := r.expected(c)
		r.learn(c, 2*expected)
	}
	must.OK(err)
	round.Fixed = FixedWork()
	for name, took := range before {
		round.Fixed[name] = max(round.Fixed[name], took)
	}
	r.learn(c, round.Rate)
	fmt.Fprintf(r.Out, "%v  (%d published in %v, all in all %v)\n", round, f.Published(), sown.Round(time.Second/10),
		time.Since(began).Round(time.Second/10))
	return round
}

// FixedWork is how long pieces of work take that are always the same, in milliseconds: "cpu" hashes 16 MiB on each
// core, "memory" copies 64 MiB, and "fsync" is an append of 4 KiB that the disk keeps. Whoever else is at work makes
// them slower. The best of three times counts: the servers put away what the last round left.
func FixedWork() Sample {
	const times, mib = 3, 1 << 20
	file := must.Get(os.CreateTemp("", "rollbackd-bench-fixed-"))
	defer os.Remove(file.Name())
	defer file.Close()
	from, to := make([]byte, 64*mib), make([]byte, 64*mib)
	best := Sample{}
	for name, piece := range map[string]struct {
		n  int
		do func()
	}{
		"cpu":    {1, func() { must.Side(runtime.NumCPU(), func(int) { sha256.Sum256(from[:16*mib]) }) }},
		"memory": {4, func() { copy(to, from) }},
		"fsync": {50, func() {
			must.Get(file.Write(from[:4096]))
			must.OK(syscall.Fdatasync(int(file.Fd())))
		}},
	} {
		var took []float64
		for range times {
			began := time.Now()
			for range piece.n {
				piece.do()
			}
			took = append(took, ms(time.Since(began))/float64(piece.n))
		}
		best[name] = slices.Min(took)
	}
	return best
}

// lastRates is how many of a contestant's rates its next backlog follows: one slow round does not make it too small.
const lastRates = 3

// learn notes how fast a contestant was, or is thought to be.
func (r *Runner) learn(c Contestant, rate float64) {
	rates := append(r.rates[c.Name], rate)
	r.rates[c.Name] = rates[max(0, len(rates)-lastRates):]
}

// expected is how fast a contestant will be at most, and whether anything but a guess says so.
func (r *Runner) expected(c Contestant) (rate float64, known bool) {
	if rates := r.rates[c.Name]; len(rates) > 0 {
		return slices.Max(rates), true
	}
	return c.Guess, false
}

const (
	// ManyGoods and FewGoods are how many goods a shop has.
	ManyGoods = 1000
	FewGoods  = 10
	// reserve is more than all lanes and workers may have unacked.
	reserve = 20_000
	// How much more is published than is expected to be needed: more while a contestant's speed is a guess.
	margin, firstMargin = 1.15, 1.4
	// wholeGuess is for those of whom no guess says how much they do in a second.
	wholeGuess = 30_000
)

// sowing is the contestant's, with as many orders as it will need.
func (r *Runner) sowing(c Contestant) ground.Sowing {
	rate, known := r.expected(c)
	more := margin
	if !known {
		more = firstMargin
	}
	const ending = time.Second / 4 // between the last reading and the look at what the queue still has
	s := c.Sowing
	s.Orders = int64(rate*more*(r.Warm+r.Length+ending).Seconds()) + reserve
	switch {
	case c.Extent == Evenly:
		s.Orders, s.NoBacklog = int64(c.Guess*(r.Warm+r.evenly()).Seconds()), true
	case c.Extent == Looked:
		s.Orders, s.NoBacklog = 1, true
	case c.Extent == Replayed:
		s.Orders = r.Letters
	case c.Extent == Whole && s.PoisonEvery != 1:
		s.Orders = int64(cmp.Or(c.Guess, wholeGuess) * r.Length.Seconds())
	case c.Extent != Timed && s.PoisonEvery == 1:
		s.Orders = r.Failing
	case c.Extent == ToTheEnd:
		s.Orders = r.Waiting
	}
	if s.Twins > 0 {
		s.Orders /= 2
	}
	return r.seeded(s)
}

// seeded is a sowing of a round of its own.
func (r *Runner) seeded(s ground.Sowing) ground.Sowing {
	r.rounds++
	s.Seed, s.Goods = r.rounds, cmp.Or(s.Goods, ManyGoods)
	return s
}

// Contestant is who works off a backlog, and on what.
type Contestant struct {
	Name string
	// Rival, if not empty, is one of package rival's, with so many workers; else it is the product.
	Rival   string
	Workers int
	// Command is the product's; empty: run.
	Command string
	// Daemons is how many processes of the product run side by side; 0 means one.
	Daemons int
	// Quota, if not 0, is how much of a core each of them may take, and ServersQuota all servers together, by the kernel's
	// control groups (version 1).
	Quota, ServersQuota float64
	// Settings are the product's that are not left at their defaults, NAME=value without the prefix.
	Settings []string
	// Sowing is what is special about the round's orders; how many there are is the runner's to say.
	Sowing ground.Sowing
	// Extent is how far the round goes.
	Extent Extent
	// MySQLDelay is how much later everything arrives on the way to MySQL, and on the way back.
	MySQLDelay time.Duration
	// Lock is on what the product's lock stands, if not on the Redis that everybody has.
	Lock string
	// Viewed: somebody looks at the daemon's pages meanwhile.
	Viewed bool
	// Guess is how many deliveries a second are expected at first, or offered.
	Guess float64
	// Special, if not nil, measures something else than a round does.
	Special func(*Runner) Sample
}

// Sample is what was measured in one way or another, by name.
type Sample map[string]float64

// Extent is how far a round goes.
type Extent int

const (
	// Timed is for the length of a round.
	Timed Extent = iota
	// ToTheEnd is over so many messages as the runner says: until the last one that can be applied is, or, if none can,
	// until the last one is a dead letter. In such a round an attempt that failed counts as a delivery that ended, whether
	// or not another follows.
	ToTheEnd
	// Whole is to the end over about as many messages as the guess says of the length, until each of them has ended, the
	// failing ones as dead letters: the same work whoever does it, however fast.
	Whole
	// Replayed is over dead letters: the daemon first files the messages as letters, which is not measured. Then what was
	// wrong is mended, the letters are replayed with the product's command, and the clock runs until all are applied.
	Replayed
	// Evenly is beside an idle daemon to which as many messages come a second as the guess says.
	Evenly
	// Looked is over many looks at pages of a daemon that has nothing else to do; a delivery is a look.
	Looked
)

// Round is one measured round.
type Round struct {
	Contestant string  `json:"contestant"`
	Seconds    float64 `json:"seconds,omitempty"`    // between the two readings
	Deliveries int64   `json:"deliveries,omitempty"` // that ended meanwhile
	Messages   int64   `json:"messages,omitempty"`   // of them the last of their message
	Rate       float64 `json:"per_second,omitempty"` // deliveries by seconds
	Applied    float64 `json:"applied_per_second,omitempty"`
	Failed     float64 `json:"failed_attempts_per_second,omitempty"`
	CPU        Sample  `json:"cpu_us_per_delivery,omitempty"` // by process
	Busy       float64 `json:"cores_busy,omitempty"`          // by all processes of the machine that were watched
	Total      int64   `json:"applied_in_all,omitempty"`      // checked against the stock
	Pages      Sample  `json:"pages_ms,omitempty"`            // the longest time of each page that was looked at
	Sample     Sample  `json:"sample,omitempty"`              // of one that is special, and what comes evenly cost
	Fixed      Sample  `json:"fixed_ms,omitempty"`            // [FixedWork] just before and just after, the longer times
	// NotMeasured, if not empty, says why there is no more than the name.
	NotMeasured string `json:"not_measured,omitempty"`
}

// Working are the processes that a message is put through; the bench itself is none.
var Working = []string{"client", "mysql", "rabbitmq", "redis"}

// Spent is what a message cost each process, in µs of CPU, with all the attempts that it had.
func (r Round) Spent() Sample {
	spent := Sample{}
	for _, process := range Working {
		spent[process] = r.CPU[process] * float64(r.Deliveries) / float64(max(r.Messages, 1))
	}
	return spent
}

// errTooShort says that the backlog ended before the clock.
var errTooShort = errors.New("the backlog was worked off before the clock stopped")

// measure runs one contestant against the backlog that lies there: it starts the processes, lets them warm up, reads
// them at the beginning and at the end of the time, stops them and checks the stock.
func (r *Runner) measure(c Contestant, f *ground.Field) (round Round) {
	c.Settings = slices.Clip(c.Settings)
	if c.MySQLDelay > 0 {
		proxy := must.Get(stack.NewProxy(must.Get(mysql.ParseDSN(f.DSN)).Addr, func(format string, args ...any) {
			fmt.Fprintf(r.Out, "  proxy: "+format+"\n", args...)
		}))
		defer proxy.Close()
		proxy.Delay(c.MySQLDelay)
		c.Settings = append(c.Settings, "MYSQL_DSN="+proxy.Through(f.DSN))
	}
	var from, to reading
	var left int64
	var harvest ground.Harvest
	f.WithLock(c.Lock, func(settings []string) {
		c.Settings = append(c.Settings, settings...)
		harvest = r.beside(f, c, func(p *processes) {
			var pages Sample
			clock := func() { from, to = r.clock(c, f, p) }
			switch {
			case c.Viewed:
				pages = p.viewed(clock)
			case r.Profiles != "":
				p.profiled(f, clock)
			default:
				clock()
			}
			round = c.round(from, to)
			round.Pages = pages
			left = r.Ground.Depth()
			if f.Sown.Unreserved { // whoever only consumes leaves no rows
				round.Total = p.read().ended
			}
			if c.Extent == Evenly {
				p.until(target{applied: f.Sown.Orders})
			}
		})
	})
	if c.Extent == Timed && left == 0 {
		must.OK(errTooShort)
	}
	must.OK(c.checkEnd(f.Sown, to, harvest))
	round.Total += harvest.Applied
	return round
}

func (c Contestant) round(from, to reading) Round {
	seconds := to.at.Sub(from.at).Seconds()
	ended := to.ended - from.ended
	if c.Extent == ToTheEnd || c.Extent == Whole {
		ended += to.again - from.again
	}
	round := Round{
		Contestant: c.Name, Seconds: seconds, Deliveries: ended, Messages: to.ended - from.ended,
		Rate:    float64(ended) / seconds,
		Applied: float64(to.fresh-from.fresh) / seconds,
		Failed:  float64(to.again+to.dead-from.again-from.dead) / seconds, CPU: Sample{},
	}
	if c.Extent == Evenly {
		each := since(to.counts, from.counts, float64(max(ended, 1)))
		each["commits_per_second"] = each[comCommit] * round.Rate
		round.Sample = each
	}
	for name, cores := range since(to.cpu, from.cpu, seconds) {
		round.Busy += cores
		if ended > 0 {
			round.CPU[name] = cores * 1e6 / round.Rate
		}
	}
	return round
}

// clock reads the processes at the beginning and at the end of what is measured: for a time, after warming up, or from
// the first delivery that ended until everything has come as far as it can, or each message has ended.
func (r *Runner) clock(c Contestant, f *ground.Field, p *processes) (from, to reading) {
	switch c.Extent {
	case Replayed:
		return r.replay(f, p)
	case Evenly:
		return r.offer(c, f, p)
	case Looked:
		return p.lookAt()
	case ToTheEnd:
		return p.begun(0), p.until(goalOf(f.Sown))
	case Whole:
		return p.begun(0), p.until(target{ended: f.Published()})
	}
	from = p.begun(r.Warm)
	r.Ground.Rest(r.Length)
	return from, p.read()
}

// replay lets the daemon file all messages as letters, mends the cause, and measures from the start of the product's
// command until the last letter is applied. What the command takes of the processors counts as the client's.
func (r *Runner) replay(f *ground.Field, p *processes) (from, to reading) {
	p.until(target{dead: f.Sown.Orders})
	f.Mend()
	command := exec.CommandContext(r.Ground.Ctx, f.Build.Binary, "dlq", "replay", "--all", "--no-wait")
	command.Env = f.Environ()
	from = p.read()
	out, err := command.CombinedOutput()
	must.OK(err, "replay the letters: ", string(out))
	to = p.until(goalOf(f.Sown))
	to.cpu["client"] += (command.ProcessState.UserTime() + command.ProcessState.SystemTime()).Seconds()
	return from, to
}

// target is how far a round goes.
type target struct{ applied, dead, ended int64 }

// goalOf is how far the messages can come: all that can be applied are; if none can, all are dead letters.
func goalOf(s ground.Sowing) target {
	if good := s.Orders - s.Failing(); good > 0 {
		return target{applied: good}
	}
	return target{dead: s.Orders}
}

// mostWhole is what a round to its end may take.
const mostWhole = 5 * time.Minute

// until reads the processes until the target is reached.
func (p *processes) until(t target) (r reading) {
	p.r.Ground.Until(fmt.Sprintf("as many messages have come to their end as %+v", t), mostWhole, func() bool {
		r = p.read()
		return r.fresh >= t.applied && r.dead >= t.dead && r.ended >= t.ended
	})
	return r
}

// attempts are those that everybody gives a message, the product by its default.
const attempts = 5

// checkEnd holds a round that comes to its end to what must be so then: what can be applied is, and what cannot has had
// all its attempts and is a dead letter. A letter that was replayed is none any more.
func (c Contestant) checkEnd(s ground.Sowing, to reading, h ground.Harvest) error {
	good := s.Orders - s.Failing()
	switch {
	case c.Extent == Timed, c.Extent == Evenly, c.Extent == Looked:
		return nil
	case h.Applied != good:
		return fmt.Errorf("%s: %w: %d messages are applied, want %d", c.Name, ground.ErrBroken, h.Applied, good)
	case c.Extent == Replayed && h.Dead != 0:
		return fmt.Errorf("%s: %d letters are still there", c.Name, h.Dead)
	case good == 0 && h.Dead != s.Orders:
		return fmt.Errorf("%s: %d messages are dead letters, want %d", c.Name, h.Dead, s.Orders)
	case good == 0 && to.again != (attempts-1)*s.Orders:
		return fmt.Errorf("%s: %d attempts failed before the last ones, want %d", c.Name, to.again, (attempts-1)*s.Orders)
	}
	return nil
}

// String is what the round says of itself in one line.
func (r Round) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-22s", r.Contestant)
	if r.CPU != nil {
		fmt.Fprintf(&b, " %9.0f/s  %4.2f cores  µs each:", r.Rate, r.Busy)
	}
	for _, process := range Working {
		if spent, ok := r.CPU[process]; ok {
			fmt.Fprintf(&b, " %s %.1f", process, spent)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Sample)) {
		fmt.Fprintf(&b, " %s %.5g", name, r.Sample[name])
	}
	if r.Failed > 0 {
		fmt.Fprintf(&b, "  applied %.0f/s, failed attempts %.0f/s", r.Applied, r.Failed)
	}
	return b.String()
}
