package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// How long a relay rests between two looks: shortly after it found something, longer each time that it did not.
const (
	shortestRest = 10 * time.Millisecond
	longestRest  = time.Second
)

// Relay publishes the rows of an outbox. Make it with [New].
type Relay struct {
	cfg       Config
	publisher *rabbit.Publisher
	metrics   *metrics
	looks     looker
	troubles  troubles

	inFlight chan struct{} // holds a token for each batch that awaits its confirms
	batches  sync.WaitGroup
}

// New connects to nothing yet.
func New(cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Relay{
		cfg: cfg, metrics: metrics, publisher: rabbit.NewPublisher(cfg.rabbit()),
		looks: looker{db: cfg.DB}, inFlight: make(chan struct{}, cfg.InFlight),
	}, nil
}

// Run publishes until ctx ends; then it claims nothing more, waits for what is under way, which is bounded by the
// lease, and returns nil. Servers that are away are waited for. Run once only.
func (r *Relay) Run(ctx context.Context) error {
	// What is under way may go on when ctx ends, but no longer than its claim holds.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	for rest := shortestRest; ctx.Err() == nil; {
		found, err := r.turn(ctx, work)
		r.troubles.told(ctx, r.cfg.Logger, "the outbox cannot be read", err)
		switch {
		case err != nil:
			rest = longestRest
		case r.troubles.away() || r.publisher.Blocked() != "":
			rest = longestRest // what is claimed now would wait under its lease for nothing
		case found == r.cfg.BatchSize:
			continue
		case found > 0:
			rest = shortestRest
		default:
			rest = min(2*rest, longestRest)
		}
		_ = wait.For(ctx, rest) // the loop looks at ctx
	}
	r.batches.Wait()
	closing, cancel := context.WithTimeout(work, r.cfg.Lease)
	defer cancel()
	if err := r.publisher.Close(closing); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// turn claims one batch and has it delivered beside what comes next. found is how many rows there were.
func (r *Relay) turn(ctx, work context.Context) (found int, err error) {
	if r.publisher.Blocked() != "" {
		return 0, nil
	}
	select {
	case r.inFlight <- struct{}{}:
	case <-ctx.Done():
		return 0, nil
	}
	given := false
	defer func() {
		if !given {
			<-r.inFlight
		}
	}()
	from, due, err := r.looks.next(ctx)
	if err != nil || !due {
		return 0, err
	}
	until := time.Now().Add(r.cfg.Lease)
	claimed, err := r.claim(ctx, from)
	if err != nil || len(claimed.rows) == 0 {
		return 0, err
	}
	given = true
	r.batches.Go(func() {
		defer func() { <-r.inFlight }()
		within, cancel := context.WithDeadline(work, until)
		defer cancel()
		r.deliver(within, claimed)
	})
	return len(claimed.rows), nil
}

// deliver publishes what was claimed and writes down what came of it.
func (r *Relay) deliver(ctx context.Context, c claim) {
	var batch []rabbit.Publishing
	var sent []*row
	for i := range c.rows {
		if one := &c.rows[i]; one.verdict == nil {
			batch, sent = append(batch, one.publishing), append(sent, one)
		}
	}
	for i, err := range r.publisher.Publish(ctx, batch) {
		sent[i].verdict = err
	}
	err := r.settle(ctx, c)
	r.troubles.told(ctx, r.cfg.Logger, "what was published cannot be taken out of the outbox; it is sent again", err)
}
