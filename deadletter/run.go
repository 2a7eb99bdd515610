package deadletter

import (
	"cmp"
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

// run is one Replay or Discard.
type run struct {
	l         *Letters
	f         Filter
	o         ReplayOptions
	discard   bool
	because   string // of a discard
	from      string // the file that the letters come from; "" for the queue
	began     time.Time
	token     string    // begins the owner of every row it reopens; no other run has it
	count     int       // tokens given out
	next      time.Time // when the rate allows the next letters
	queue     *queue
	publisher *rabbit.Publisher
	watch     *watch
	result    Result
	retention time.Duration   // how long an ended identity is remembered, when the letters of a window were judged
	parked    []dedup.Row     // of the letters of a window that are not to be replayed again
	missing   map[string]bool // keys of the filter that no letter had so far

	// Of letters from a file whose messages are confirmed: the replays that the run gave their rows, and what their messages
	// say they are.
	sent   map[dedup.Key]int
	owners map[dedup.Key]bool
}

// Replay puts the letters that f chooses back on the main queue, their rows reopened. The set is frozen: what was in the
// dead-letter queue when Replay began. Letters that stay, and why, are in the result, which is good beside an error too.
//
// The error says why the run ended early: a server that went away, too many failures, or ctx. Letters that were not finished
// are in the queue; run it again. Nothing is lost and nothing has two effects, also when the process is killed half-way.
func (l *Letters) Replay(ctx context.Context, f Filter, o ReplayOptions) (Result, error) {
	r := l.newRun(f, o)
	if err := r.do(ctx, r.throughQueue); err != nil {
		return r.result, fmt.Errorf("replay dead letters: %w", err)
	}
	return r.result, nil
}

// Discard ends the letters that f chooses: their rows say discarded, by whom and why, and they leave the queue. For the rest
// it is like Replay.
func (l *Letters) Discard(ctx context.Context, f Filter, o DiscardOptions) (Result, error) {
	r := l.newRun(f, ReplayOptions{By: o.By, DryRun: o.DryRun, Progress: o.Progress})
	r.discard, r.because = true, o.Why
	if err := r.do(ctx, r.throughQueue); err != nil {
		return r.result, fmt.Errorf("discard dead letters: %w", err)
	}
	return r.result, nil
}

func (l *Letters) newRun(f Filter, o ReplayOptions) *run {
	r := &run{l: l, f: f, o: o, began: time.Now(), token: cmp.Or(o.token, "replay/") + uuid.NewString() + "/", missing: map[string]bool{}}
	r.result = Result{DryRun: o.DryRun, ByReason: map[string]int{}, Left: []Left{}, NotFound: []string{}}
	return r
}

// do opens what a run needs, lets it go its way, and waits for the outcomes of what it watches.
func (r *run) do(ctx context.Context, way func(context.Context) error) (err error) {
	if err := errors.Join(r.f.validate(), r.o.validate()); err != nil {
		return err
	}
	conn, err := rabbit.Dial(ctx, r.l.amqp())
	if err != nil {
		return brokerError(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }() // which gives back what was not taken
	r.publisher = rabbit.NewPublisher(r.l.amqp())
	defer func() { err = errors.Join(err, r.publisher.Close(context.WithoutCancel(ctx))) }()
	r.queue = &queue{conn: conn, name: r.l.Queue()}
	r.watch = r.newWatch()
	if err := way(ctx); err != nil {
		return err
	}
	return r.watch.settle(ctx)
}

// throughQueue takes the letters window by window, until all that were there at the beginning are seen or the limit is
// reached.
func (r *run) throughQueue(ctx context.Context) (err error) {
	defer func() {
		r.queue.leave(context.WithoutCancel(ctx), r.result.Found-r.queue.acked())
		if err != nil || r.enough() {
			r.result.Unseen = r.result.Found - r.result.Seen
		}
	}()
	if r.result.Found, r.result.Others, err = r.queue.conn.Depth(ctx, r.queue.name); err != nil {
		return brokerError(err)
	}
	for {
		r.newPass()
		whole, err := r.pass(ctx)
		if err != nil {
			return err
		}
		if whole {
			break
		}
		r.queue.leave(context.WithoutCancel(ctx), r.result.Found-r.queue.acked())
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	if r.enough() {
		return nil
	}
	r.result.NotFound = slices.AppendSeq(r.result.NotFound, maps.Keys(r.missing))
	slices.Sort(r.result.NotFound)
	return nil
}

// newPass forgets what will be seen again: what the last pass gave back.
func (r *run) newPass() {
	r.result.Seen = r.queue.acked()
	r.result.NotSelected, r.result.Later, r.result.Parked, r.result.Left = 0, 0, 0, []Left{}
	for _, key := range r.f.Keys {
		r.missing[key] = r.missing[key] || r.queue.got == 0
	}
}

// pass goes through the queue once; whole is false when it must begin anew with what is left, because it has held letters
// for long.
func (r *run) pass(ctx context.Context) (whole bool, err error) {
	began, acked := time.Now(), r.queue.acked()
	for r.result.Seen < r.result.Found && !r.enough() {
		taken, err := r.queue.next(ctx, min(r.handful(), r.result.Found-r.result.Seen))
		if err != nil {
			return false, brokerError(err)
		}
		if len(taken) == 0 {
			return true, nil // another run took the rest
		}
		letters := make([]*letter, len(taken))
		for i, t := range taken {
			letters[i] = r.l.read(t)
		}
		r.result.Seen += len(letters)
		if err := r.window(ctx, letters, r.l.lookUp); err != nil {
			return false, err
		}
		r.tell()
		if time.Since(began) > r.l.hold && r.queue.acked() > acked { // else it would come no further the next time
			return false, nil
		}
	}
	return true, nil
}

// handful is how many letters are taken from the queue together: with a low rate no more than go in a minute.
func (r *run) handful() int {
	if r.o.Rate > 0 && r.o.Rate*60 < window {
		return max(1, int(r.o.Rate*60))
	}
	return window
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

// finishing is a context for letters in hand: they are finished although ctx ends.
func (r *run) finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	within := cmp.Or(r.o.within, windowTimeout)
	return context.WithTimeoutCause(context.WithoutCancel(ctx), within, fmt.Errorf("some letters took over %v", within))
}

// window is the life of some letters.
func (r *run) window(ctx context.Context, letters []*letter, lookUp func(context.Context, []*letter, bool) error) error {
	letters = slices.DeleteFunc(letters, func(lt *letter) bool {
		no := !lt.mayMatch(r.f)
		if no {
			r.result.NotSelected++
		}
		return no
	})
	for len(letters) > 0 {
		leaders, waiting, err := r.judge(ctx, letters, lookUp)
		for err == nil && len(leaders) > 0 {
			var n int
			if n, err = r.turn(ctx, len(leaders)); err == nil {
				err = r.act(ctx, leaders[:n])
				leaders = leaders[n:]
			}
		}
		if err != nil {
			for _, lt := range leaders {
				r.result.Seen -= 1 + len(lt.followers)
			}
			r.result.Seen -= len(waiting)
			return err
		}
		letters = waiting
	}
	return nil
}

// judge finds out what becomes of letters: it drops the stale ones, notes those that stay and returns those to act on.
func (r *run) judge(ctx context.Context, letters []*letter, lookUp func(context.Context, []*letter, bool) error) (leaders, waiting []*letter, err error) {
	ctx, cancel := r.finishing(ctx)
	defer cancel()
	elapsed := time.Since(r.began)
	if err := lookUp(ctx, letters, r.o.Discarded); err != nil {
		return nil, letters, err
	}
	if r.retention, err = r.l.retention(ctx); err != nil {
		return nil, letters, err
	}
	leaders, stale, waiting := r.sort(letters, elapsed)
	return leaders, waiting, errors.Join(r.drop(ctx, stale), r.park(ctx))
}

// act replays or discards letters, or pretends to.
func (r *run) act(ctx context.Context, letters []*letter) error {
	ctx, cancel := r.finishing(ctx)
	defer cancel()
	if r.discard {
		return r.end(ctx, letters)
	}
	return r.replay(ctx, letters)
}

// turn waits until some of want letters may be replayed, by the rate and by what is watched, and says how many.
func (r *run) turn(ctx context.Context, want int) (n int, err error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	n = want
	if r.watch != nil {
		room, err := r.watch.room(ctx)
		if err != nil {
			return 0, err
		}
		n = min(n, room)
	}
	if r.o.Rate == 0 || r.o.DryRun {
		return n, nil
	}
	n = min(n, max(1, int(r.o.Rate/4))) // what goes in a quarter of a second
	for now := time.Now(); r.next.After(now); now = time.Now() {
		r.tell()
		if err := wait(ctx, min(r.next.Sub(now), consumersEvery)); err != nil {
			return 0, err
		}
	}
	r.next = time.Now().Add(time.Duration(float64(n) / r.o.Rate * float64(time.Second)))
	return n, nil
}

// tell reports the progress.
func (r *run) tell() {
	if r.o.Progress == nil {
		return
	}
	p := Progress{Seen: r.result.Seen, Found: r.result.Found, Done: r.result.Replayed + r.result.Discarded, Failed: r.result.FailedAgain}
	if r.watch != nil {
		p.Waiting = len(r.watch.open)
	}
	r.o.Progress(p)
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
		if v == act && lt.bar != "" && !(lt.bar == WhyCut && r.o.Force && !lt.line.BodyCut) {
			v, why = leave, lt.bar
		}
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
		age:      age, dated: dated, retention: r.retention, most: r.l.o.MaxReplays,
	}
}

// find notes that the filter's keys which the letter has were found.
func (r *run) find(lt *letter) {
	for _, key := range []dedup.Key{lt.id.Key, lt.own.Key, lt.old.Key} {
		delete(r.missing, key.Name)
	}
}
