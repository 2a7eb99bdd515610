package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// ReplayOptions say how to replay.
type ReplayOptions struct {
	// By is the person or process; it stands in the story of each row.
	By string
	// Force also takes letters without a row that are older than the log's retention, and those whose key another body had
	// whose row is gone. Each of them may have had its effect, which then happens again. And it takes parked letters.
	Force bool
	// Discarded also takes letters whose identity a person has discarded.
	Discarded bool
	// DryRun changes nothing and counts what would be.
	DryRun bool
	// Progress, if set, is called after every window of letters, by the goroutine that called Replay.
	Progress func(Progress)
}

// DiscardOptions say how to discard.
type DiscardOptions struct {
	By, Why  string // who, and why: both stand in the row
	DryRun   bool
	Progress func(Progress)
}

// window is how many letters go through the steps together.
const window = 200

// windowTimeout bounds what a window does after the run was asked to stop: letters in hand are finished, not dropped.
const windowTimeout = time.Minute

// run is one Replay or Discard.
type run struct {
	l         *Letters
	f         Filter
	o         ReplayOptions
	discard   bool
	because   string // of a discard
	began     time.Time
	token     string // begins the owner of every row it reopens; no other run has it
	count     int    // tokens given out
	queue     *queue
	publisher *rabbit.Publisher
	result    Result
	parked    []dedup.Row     // of the letters of a window that are not to be replayed again
	missing   map[string]bool // keys of the filter that no letter had so far
}

// Replay puts the letters that f chooses back on the main queue, their rows reopened. The set is frozen: what was in the
// dead-letter queue when Replay began. Letters that stay, and why, are in the result, which is good beside an error too.
//
// The error says why the run ended early: a server that went away, or ctx. Letters that were not finished are in the queue;
// run it again. Nothing is lost and nothing has two effects, also when the process is killed half-way.
func (l *Letters) Replay(ctx context.Context, f Filter, o ReplayOptions) (Result, error) {
	r := &run{l: l, f: f, o: o}
	if err := r.all(ctx); err != nil {
		return r.result, fmt.Errorf("replay dead letters: %w", err)
	}
	return r.result, nil
}

// Discard ends the letters that f chooses: their rows say discarded, by whom and why, and they leave the queue. For the rest
// it is like Replay.
func (l *Letters) Discard(ctx context.Context, f Filter, o DiscardOptions) (Result, error) {
	r := &run{l: l, f: f, o: ReplayOptions{By: o.By, DryRun: o.DryRun, Progress: o.Progress}, discard: true, because: o.Why}
	if err := r.all(ctx); err != nil {
		return r.result, fmt.Errorf("discard dead letters: %w", err)
	}
	return r.result, nil
}

// all takes the letters window by window, until all that were there at the beginning are seen or the limit is reached.
func (r *run) all(ctx context.Context) (err error) {
	r.began = time.Now()
	r.result = Result{DryRun: r.o.DryRun, ByReason: map[string]int{}, Left: []Left{}, NotFound: []string{}}
	r.missing = map[string]bool{}
	for _, key := range r.f.Keys {
		r.missing[key] = true
	}
	if err := r.f.validate(); err != nil {
		return err
	}
	r.token = "replay/" + uuid.NewString() + "/"
	conn, err := rabbit.Dial(ctx, r.l.amqp())
	if err != nil {
		return brokerError(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }() // which gives back what was not taken
	r.publisher = rabbit.NewPublisher(r.l.amqp())
	defer func() { err = errors.Join(err, r.publisher.Close(context.WithoutCancel(ctx))) }()
	r.queue = &queue{conn: conn, name: r.l.Queue()}
	defer func() { r.queue.leave(context.WithoutCancel(ctx), r.result.Found-r.queue.acked()) }()
	if r.result.Found, _, err = conn.Depth(ctx, r.queue.name); err != nil {
		return brokerError(err)
	}
	if err := r.pass(ctx); err != nil || r.enough() {
		return err
	}
	r.result.NotFound = slices.AppendSeq(r.result.NotFound, maps.Keys(r.missing))
	slices.Sort(r.result.NotFound)
	return nil
}

// pass goes through the queue once.
func (r *run) pass(ctx context.Context) error {
	for r.result.Seen < r.result.Found && !r.enough() {
		taken, err := r.queue.next(ctx, min(window, r.result.Found-r.result.Seen))
		if err != nil {
			return brokerError(err)
		}
		if len(taken) == 0 {
			return nil // another run took the rest
		}
		letters := make([]*letter, len(taken))
		for i, t := range taken {
			letters[i] = r.l.read(t)
		}
		r.result.Seen += len(letters)
		if err := r.window(ctx, letters); err != nil {
			return err
		}
		if r.o.Progress != nil {
			r.o.Progress(Progress{Seen: r.result.Seen, Found: r.result.Found})
		}
	}
	return nil
}

func brokerError(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return brokerFault{err}
}

// enough reports whether the limit is reached.
func (r *run) enough() bool {
	return r.f.Limit > 0 && r.result.Replayed+r.result.Discarded >= r.f.Limit
}

// window is the life of some letters. Those in hand are finished although ctx ends.
func (r *run) window(ctx context.Context, letters []*letter) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), windowTimeout, fmt.Errorf("a window of letters took over %v", windowTimeout))
	defer cancel()
	for len(letters) > 0 {
		elapsed := time.Since(r.began)
		if err := r.l.lookUp(ctx, letters, r.o.Discarded); err != nil {
			return err
		}
		leaders, stale, waiting := r.sort(letters, elapsed)
		if err := errors.Join(r.drop(ctx, stale), r.park(ctx)); err != nil {
			return err
		}
		step := r.replay
		if r.discard {
			step = r.end
		}
		if err := step(ctx, leaders); err != nil {
			return err
		}
		letters = waiting
	}
	return nil
}

// sort judges each letter. Of several letters of one message the first leads and the others follow it: what is committed
// and confirmed for the first holds for them too, because they were in the queue before. Another body under the same
// key waits until the first has its row, as bodies are compared only with a committed one.
func (r *run) sort(letters []*letter, elapsed time.Duration) (leaders, stale, waiting []*letter) {
	led := map[dedup.Key]*letter{}
	now := time.Now()
	for _, lt := range letters {
		if !lt.matches(r.f) || r.f.Limit > 0 && r.result.Replayed+r.result.Discarded+len(leaders) >= r.f.Limit && led[lt.id.Key] == nil {
			r.result.NotSelected++
			continue
		}
		r.find(lt)
		v, why := decide(lt.row, r.situation(lt, elapsed, now))
		leader := led[lt.id.Key]
		switch {
		case v == drop:
			stale = append(stale, lt)
		case v == later:
			r.result.Later++
		case v == leave:
			r.result.leave(lt, why, nil)
			if why == WhyParked {
				r.parked = append(r.parked, lt.row)
			}
		case leader == nil:
			led[lt.id.Key] = lt
			leaders = append(leaders, lt)
		case leader.id.BodyHash == lt.id.BodyHash:
			leader.followers = append(leader.followers, lt)
		default:
			waiting = append(waiting, lt)
		}
	}
	return leaders, stale, waiting
}

func (r *run) situation(lt *letter, elapsed time.Duration, now time.Time) situation {
	age, dated := lt.age(now)
	return situation{
		discard: r.discard, discarded: r.o.Discarded, force: r.o.Force, token: r.token, elapsed: elapsed,
		keyTaken: lt.row.Status == dedup.Absent && lt.conflicted,
		age:      age, dated: dated, retention: r.l.o.Retention, most: r.l.o.MaxReplays,
	}
}

// find notes that the filter's keys which the letter has were found.
func (r *run) find(lt *letter) {
	for _, key := range []dedup.Key{lt.id.Key, lt.own.Key, lt.old.Key} {
		delete(r.missing, key.Name)
	}
}
