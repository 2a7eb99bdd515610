package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
)

// Runner runs rounds.
type Runner struct {
	Ground *ground.Ground
	// Length is how long a round is measured, Warm how long it runs before that.
	Length, Warm time.Duration
	// LogRows is how many rows the full consumer log has.
	LogRows int64
	// Waiting is how many messages wait in a round to the end, Failing how many if all of them fail, and Letters how many
	// dead letters are replayed.
	Waiting, Failing, Letters int64
	Out                       io.Writer

	empty, full *ground.Field
	rounds      uint64             // rounds so far: seeds
	rates       map[string]float64 // of a contestant, as far as known
}

// Open makes the fields.
func (r *Runner) Open(ctx context.Context) (err error) {
	r.rates = map[string]float64{}
	r.empty, err = r.Ground.Field(ctx, "bench_empty")
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
	f, err := r.Ground.Field(ctx, "bench_full")
	if err != nil {
		return nil, err
	}
	r.full = f
	if err := f.FillLog(ctx, r.LogRows); err != nil {
		return nil, err
	}
	fmt.Fprintf(r.Out, "  %d rows are in the log after %v\n", r.LogRows, time.Since(began).Round(time.Second))
	return f, nil
}

// Round sows and measures one round. When a contestant is faster than expected and empties the queue, it gets another
// round with more to do: a part of a round is no round.
func (r *Runner) Round(ctx context.Context, c Contestant) (Round, error) {
	f, err := r.field(ctx, c)
	if err != nil {
		return Round{}, err
	}
	const tries = 4
	for try := range tries {
		began := time.Now()
		if err := f.Sow(ctx, r.sowing(c), r.seed()); err != nil {
			err = fmt.Errorf("prepare %s: %w", c.Name, err)
			if ctx.Err() != nil || try == tries-1 {
				return Round{}, err
			}
			fmt.Fprintf(r.Out, "  %v; again\n", err) // a server that was slow to answer must not cost the whole run
			continue
		}
		sown := time.Since(began)
		round, err := r.measure(ctx, c, f)
		if err == nil || errors.Is(err, errTooShort) {
			r.rates[c.Name] = round.Rate
		}
		if errors.Is(err, errTooShort) {
			r.rates[c.Name] *= 1.6
			fmt.Fprintf(r.Out, "  %s: %v; again with more\n", c.Name, err)
			continue
		}
		if err != nil {
			return round, err
		}
		fmt.Fprintf(r.Out, "  %-22s %9.0f/s  %4.2f cores  %s  (%d published in %v, all in all %v)%s\n", c.Name, round.Rate,
			round.Busy,
			cpuText(round.CPU), f.Published(), sown.Round(time.Second/10), time.Since(began).Round(time.Second/10),
			round.remark())
		return round, nil
	}
	return Round{}, fmt.Errorf("%s emptied its queue %d times: %w", c.Name, tries, errTooShort)
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
	rate, known := r.rates[c.Name]
	more := margin
	if !known {
		rate, more = c.Guess, firstMargin
	}
	const ending = time.Second // between the last reading and the end of the processes
	deliveries := int64(rate*more*(r.Warm+r.Length+ending).Seconds()) + reserve
	s := c.Sowing
	s.Orders, s.KeepLog = deliveries, c.FullLog
	switch {
	case c.Replay:
		s.Orders = r.Letters
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
