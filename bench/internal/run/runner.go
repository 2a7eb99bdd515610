package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
)

// Runner runs rounds of one build.
type Runner struct {
	Ground *ground.Ground
	// Build is the product's, of those on the ground; Schema is the beginning of its schemas' names.
	Build  ground.Build
	Schema string
	// Length is how long a round is measured, Warm how long it runs before that.
	Length, Warm time.Duration
	// LogRows is how many rows the full consumer log has.
	LogRows int64
	// Waiting is how many messages wait in a round to the end, Failing how many if all of them fail, and Letters how many
	// dead letters are replayed.
	Waiting, Failing, Letters int64
	Out                       io.Writer

	empty, full *ground.Field
	rounds      uint64               // rounds so far: seeds
	rates       map[string][]float64 // of a contestant, the last ones
}

// Open makes the fields.
func (r *Runner) Open(ctx context.Context) (err error) {
	r.rates = map[string][]float64{}
	r.empty, err = r.Ground.Field(ctx, r.Schema+"_empty", r.Build)
	return err
}

// Close lets go of the fields.
func (r *Runner) Close() (err error) {
	for _, f := range []*ground.Field{r.empty, r.full} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// fullField is the one whose log is full, which it is when it is first wanted.
func (r *Runner) fullField(ctx context.Context) (*ground.Field, error) {
	if r.full != nil {
		return r.full, nil
	}
	began := time.Now()
	f, err := r.Ground.Field(ctx, r.Schema+"_full", r.Build)
	if err != nil {
		return nil, err
	}
	if err := f.FillLog(ctx, r.LogRows); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.full = f
	fmt.Fprintf(r.Out, "  %d rows are in the log after %v\n", r.LogRows, time.Since(began).Round(time.Second))
	return f, nil
}

// ErrNotMeasured says that a round failed as often as it may; it wraps how it failed at last.
var ErrNotMeasured = errors.New("could not be measured")

// tries is how often a round may fail.
const tries = 5

// repeated does a round, and again on a new connection when it fails: a server that was slow to answer, or ended a
// connection, must not cost the whole run. What breaks the promise is never tried again.
func repeated[T any](ctx context.Context, r *Runner, name string, do func() (T, error)) (got T, err error) {
	for try := range tries {
		if try > 0 {
			fmt.Fprintf(r.Out, "  %s: %v; again\n", name, err)
			err = r.Ground.Reconnect(ctx)
		}
		if err == nil {
			got, err = do()
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, ground.ErrBroken) {
			return got, err
		}
	}
	return got, fmt.Errorf("%s %w, tried %d times: %w", name, ErrNotMeasured, tries, err)
}

// Round sows and measures one round. When a contestant is faster than expected and empties the queue, it gets another
// round with more to do: a part of a round is no round.
func (r *Runner) Round(ctx context.Context, c Contestant) (Round, error) {
	return repeated(ctx, r, c.Name, func() (Round, error) { return r.once(ctx, c) })
}

func (r *Runner) once(ctx context.Context, c Contestant) (round Round, err error) {
	f := r.empty
	if c.FullLog {
		if f, err = r.fullField(ctx); err != nil {
			return round, err
		}
	}
	began := time.Now()
	if err := f.Sow(ctx, r.sowing(c), r.seed()); err != nil {
		return round, fmt.Errorf("prepare the round: %w", err)
	}
	sown := time.Since(began)
	round, err = r.measure(ctx, c, f)
	if errors.Is(err, errTooShort) {
		expected, _ := r.expected(c)
		r.learn(c, 2*expected)
	}
	if err != nil {
		return round, err
	}
	r.learn(c, round.Rate)
	fmt.Fprintf(r.Out, "  %s  (%d published in %v, all in all %v)\n", round, f.Published(), sown.Round(time.Second/10),
		time.Since(began).Round(time.Second/10))
	return round, nil
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
	margin, firstMargin = 1.2, 1.4
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
	const ending = time.Second // between the last reading and the end of the processes
	s := c.Sowing
	s.Orders, s.KeepLog = int64(rate*more*(r.Warm+r.Length+ending).Seconds())+reserve, c.FullLog
	switch {
	case c.Extent == Replayed:
		s.Orders = r.Letters
	case c.Extent == Whole && s.PoisonEvery != 1:
		s.Orders = int64(cmp.Or(c.Guess, wholeGuess) * r.Length.Seconds())
	case c.Extent != Timed && s.PoisonEvery == 1:
		s.Orders = r.Failing
	case c.Extent == ToTheEnd:
		s.Orders = r.Waiting
	}
	if s.Twice {
		s.Orders /= 2
	}
	s.Goods = cmp.Or(s.Goods, ManyGoods)
	return s
}

func (r *Runner) seed() uint64 { r.rounds++; return r.rounds }
