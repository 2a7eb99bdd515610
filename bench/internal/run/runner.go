package run

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
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
func (r *Runner) Close() error {
	var errs []error
	for _, f := range []*ground.Field{r.empty, r.full} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// field is the one that a contestant works on; the full one is filled when it is first wanted.
func (r *Runner) field(ctx context.Context, c Contestant) (*ground.Field, error) {
	if !c.FullLog {
		return r.empty, nil
	}
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
func (r *Runner) repeated(ctx context.Context, name string, do func() error) (err error) {
	for try := range tries {
		if try > 0 {
			fmt.Fprintf(r.Out, "  %s: %v; again\n", name, err)
			err = r.Ground.Reconnect(ctx)
		}
		if err == nil {
			err = do()
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, ground.ErrBroken) {
			return err
		}
	}
	return fmt.Errorf("%s %w, tried %d times: %w", name, ErrNotMeasured, tries, err)
}

// Round sows and measures one round. When a contestant is faster than expected and empties the queue, it gets another
// round with more to do: a part of a round is no round.
func (r *Runner) Round(ctx context.Context, c Contestant) (round Round, err error) {
	err = r.repeated(ctx, c.Name, func() (err error) {
		round, err = r.once(ctx, c)
		return err
	})
	return round, err
}

func (r *Runner) once(ctx context.Context, c Contestant) (Round, error) {
	f, err := r.field(ctx, c)
	if err != nil {
		return Round{}, err
	}
	began := time.Now()
	if err := f.Sow(ctx, r.sowing(c), r.seed()); err != nil {
		return Round{}, fmt.Errorf("prepare the round: %w", err)
	}
	sown := time.Since(began)
	round, err := r.measure(ctx, c, f)
	if errors.Is(err, errTooShort) {
		expected, _ := r.expected(c)
		r.learn(c, 2*expected)
	}
	if err != nil {
		return round, err
	}
	r.learn(c, round.Rate)
	fmt.Fprintf(r.Out, "  %-22s %9.0f/s  %4.2f cores  %s  (%d published in %v, all in all %v)%s\n", c.Name, round.Rate,
		round.Busy,
		cpuText(round.CPU), f.Published(), sown.Round(time.Second/10), time.Since(began).Round(time.Second/10),
		round.remark())
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

// remark is what else there is to say of a round to the end.
func (r Round) remark() (text string) {
	if r.Failed > 0 {
		text = fmt.Sprintf("  applied %.0f/s, failed attempts %.0f/s", r.Applied, r.Failed)
	}
	if r.Cut {
		text += fmt.Sprintf("  ended early, after %.0f s", r.Seconds)
	}
	return text
}

func cpuText(cpu map[string]float64) string {
	return fmt.Sprintf("µs each: client %.1f mysql %.1f rabbitmq %.1f redis %.1f", cpu["client"], cpu["mysql"],
		cpu["rabbitmq"], cpu["redis"])
}

// How much more is published than is expected to be needed: more while a contestant's speed is a guess.
const (
	margin      = 1.2
	firstMargin = 1.4
)

// sowing is the contestant's, with as many orders as it will need.
func (r *Runner) sowing(c Contestant) ground.Sowing {
	rate, known := r.expected(c)
	more := margin
	if !known {
		more = firstMargin
	}
	const ending = time.Second // between the last reading and the end of the processes
	deliveries := int64(rate*more*(r.Warm+r.Length+ending).Seconds()) + reserve
	s := c.Sowing
	s.Orders, s.KeepLog = deliveries, c.FullLog
	switch {
	case c.Replay:
		s.Orders = r.Letters
	case c.Whole && s.PoisonEvery != 1:
		s.Orders = int64(cmp.Or(c.Guess, wholeGuess) * r.Length.Seconds())
	case c.ToTheEnd && s.PoisonEvery == 1:
		s.Orders = r.Failing
	case c.ToTheEnd:
		s.Orders = r.Waiting
	}
	if s.Twice {
		s.Orders /= 2
	}
	if s.Goods == 0 {
		s.Goods = ManyGoods
	}
	return s
}

// wholeGuess is for those of whom no guess says how much they do in a second.
const wholeGuess = 30_000

const (
	// ManyGoods and FewGoods are how many goods a shop has.
	ManyGoods = 1000
	FewGoods  = 10
	// reserve is more than all lanes and workers may have unacked.
	reserve = 20_000
)

func (r *Runner) seed() uint64 { r.rounds++; return r.rounds }

// tail keeps the last of what a process writes.
type tail struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

const tailBytes = 4 << 10

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String is the last of it, from the beginning of a line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.text
	if len(text) == tailBytes {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return string(text)
}
