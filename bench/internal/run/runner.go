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
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
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
