package deadletter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Replay puts the letters of a selection back on the main queue, their rows reopened. The set is frozen: what was in
// the dead-letter queue, or dead, when Replay began. Letters that stay, and why, are in the result, which is good
// beside an error too.
//
// The error says why the run ended early: a server that went away, too many failures, or ctx. Letters that were not
// finished are where they were; run it again. Nothing is lost and nothing has two effects, also when the process is
// killed half-way.
func (l *Letters) Replay(ctx context.Context, of Selection, o ReplayOptions) (Result, error) {
	return newRun(l, of, o).do(ctx, "replay")
}

// Discard ends the letters of a selection: their rows say discarded, by whom and why. For the rest it is like Replay.
func (l *Letters) Discard(ctx context.Context, of Selection, o DiscardOptions) (Result, error) {
	r := newRun(l, of, ReplayOptions{By: o.By, DryRun: o.DryRun, Progress: o.Progress})
	r.discard, r.why = true, o.Why
	return r.do(ctx, "discard")
}

// run is one Replay or Discard: what was asked for, and what came of it. Its methods stand in the order in which a
// letter meets them.
type run struct {
	l       *Letters
	of      Selection
	o       ReplayOptions
	discard bool   // else it replays
	why     string // of a discard
	began   time.Time
	token   string // begins the owner of every row that it reopens; no other run has it
	calls   int    // of change, each of which has a token of its own
	tally   *tally

	// The selection says these:
	source source
	filter Filter        // what of the source's letters is chosen
	within time.Duration // bounds what some letters do after the run was asked to stop
	done   func(*letter) // told of each letter whose end is committed, and confirmed

	queue     *queue // nil: it needs none
	publisher *rabbit.Publisher
	watch     *watch

	// Of the last look at rows:
	elapsed   time.Duration // since the run began
	retention time.Duration // how long an ended identity is remembered
}

// source is where letters come from: the dead-letter queue, the lines of an export, or rows of the log.
type source interface {
	// next takes some letters; io.EOF when there are no more.
	next(ctx context.Context) ([]*letter, error)
	// lookUp finds the rows of letters, and what stands against them.
	lookUp(ctx context.Context, letters []*letter) error
	// judge says what becomes of a letter that was looked up.
	judge(lt *letter) (verdict, Why)
	// close lets go of what was not taken. It gets why the run ended early, and returns that, or what goes wrong here.
	close(ctx context.Context, err error) error
}

func newRun(l *Letters, of Selection, o ReplayOptions) *run {
	r := &run{
		l: l, of: of, o: o, began: time.Now(), tally: newTally(o), filter: Filter{All: true}, within: windowTimeout,
		done: func(*letter) {},
	}
	r.watch = newWatch(r)
	r.named("replay/")
	return r
}

// named says how the owners of the rows that the run reopens begin.
func (r *run) named(prefix string) { r.token = prefix + uuid.NewString() + "/" }

// choose takes in what of the source's letters is chosen.
func (r *run) choose(f Filter) {
	r.filter, r.tally.limit = f, f.Limit
	for _, key := range f.Keys {
		r.tally.missing[key] = true
	}
}

func (r *run) do(ctx context.Context, what string) (Result, error) {
	err := r.o.Validate()
	if err == nil {
		err = r.connected(ctx, func() (err error) {
			if r.source, err = r.of.open(ctx, r); err != nil {
				return err
			}
			if err := r.move(ctx); err != nil {
				return err
			}
			return r.watch.settle(ctx)
		})
	}
	if err != nil {
		err = fmt.Errorf("%s dead letters: %w", what, err)
	}
	r.tally.Confirmed = r.tally.confirmed()
	return r.tally.Result, err
}

// connected does something with a publisher to the main queue, and with the dead-letter queue if it is dialled.
func (r *run) connected(ctx context.Context, do func() error) (err error) {
	r.publisher = rabbit.NewPublisher(r.l.o.amqp())
	defer func() {
		err = errors.Join(err, r.publisher.Close(context.WithoutCancel(ctx)))
		if r.queue != nil {
			err = errors.Join(err, r.queue.close(ctx)) // which gives back what was not taken
		}
	}()
	return do()
}

func (r *run) dial(ctx context.Context) (err error) {
	r.queue, err = r.l.dial(ctx)
	return err
}

// finishing is a context for letters in hand: they are finished although ctx ends.
func (r *run) finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	late := fmt.Errorf("some letters took over %v", r.within)
	return context.WithTimeoutCause(context.WithoutCancel(ctx), r.within, late)
}

// move goes through the source, window by window, and lets go of what was not taken.
func (r *run) move(ctx context.Context) error {
	for {
		letters, err := r.source.next(ctx)
		if errors.Is(err, io.EOF) {
			return r.source.close(ctx, nil)
		}
		if err == nil {
			err = r.window(ctx, letters)
		}
		if err != nil {
			return r.source.close(ctx, err)
		}
		r.tally.report()
	}
}

// window is the life of some letters: judge them by their rows, and bring to the end those that are to go, as many at a
// time as the watch allows. Some must wait until others have their rows, and are judged again.
func (r *run) window(ctx context.Context, letters []*letter) error {
	letters = r.mayMatch(letters)
	for len(letters) > 0 {
		leaders, waiting, err := r.sort(ctx, letters)
		for err == nil && len(leaders) > 0 {
			var n int
			if n, err = r.watch.turn(ctx, len(leaders)); err == nil {
				err = r.act(ctx, leaders[:n])
				leaders = leaders[n:]
			}
		}
		if err != nil {
			r.tally.unsee(leaders, waiting)
			return err
		}
		letters = waiting
	}
	return nil
}

// mayMatch leaves out the letters that the filter cannot choose, before the database is asked about them.
func (r *run) mayMatch(letters []*letter) []*letter {
	return slices.DeleteFunc(letters, func(lt *letter) bool {
		no := !lt.mayMatch(r.filter)
		if no {
			r.tally.NotSelected++
		}
		return no
	})
}

// sort finds out what becomes of letters: it drops the stale ones, notes those that stay and returns those to act on,
// each of another identity, and those that must be judged again after them.
//
// Of several letters of one message the first leads and the others follow it: what is committed and confirmed for the
// first holds for them too, because they were in the queue before. Another body under the same key waits until the
// first has its row, as bodies are compared only with a committed one.
func (r *run) sort(ctx context.Context, letters []*letter) (leaders, waiting []*letter, err error) {
	ctx, cancel := r.finishing(ctx)
	defer cancel()
	if err := r.source.lookUp(ctx, letters); err != nil {
		return nil, letters, err
	}
	var stale []*letter
	var parked []dedup.Row
	led := map[dedup.Identity]*letter{}
	for _, lt := range letters {
		leader := led[lt.id.Identity]
		if !lt.matches(r.filter) || leader == nil && r.tally.reached(len(leaders)) {
			r.tally.NotSelected++
			continue
		}
		r.tally.find(lt)
		v, why := r.source.judge(lt)
		switch {
		case v == drop:
			stale = append(stale, lt)
		case v == later:
			r.tally.Later++
		case v == leave:
			r.tally.leave(lt, why, lt.err)
			if why == WhyParked {
				parked = append(parked, lt.row)
			}
		case leader == nil:
			led[lt.id.Identity] = lt
			leaders = append(leaders, lt)
		case leader.id.BodyHash == lt.id.BodyHash:
			leader.followers = append(leader.followers, lt)
		default:
			waiting = append(waiting, lt)
		}
	}
	return leaders, waiting, errors.Join(r.drop(ctx, stale), r.park(ctx, parked))
}

// look looks at the rows of letters in the way of a source.
func (r *run) look(
	ctx context.Context, letters []*letter, lookUp func(context.Context, []*letter, bool) error,
) (err error) {
	r.elapsed = time.Since(r.began)
	if err := lookUp(ctx, letters, r.o.Discarded); err != nil {
		return err
	}
	r.retention, err = r.l.o.remembers(ctx)
	return err
}

// judge is what the row says, as decide reads it, unless something stands against a letter that would go.
func (r *run) judge(lt *letter) (verdict, Why) {
	age, dated := lt.age(time.Now())
	v, why := decide(lt.row, situation{
		discard: r.discard, discarded: r.o.Discarded, force: r.o.Force, token: r.token, elapsed: r.elapsed,
		keyTaken: lt.row.Status == dedup.Absent && lt.conflicted,
		age:      age, dated: dated, retention: r.retention, most: r.l.o.MaxReplays,
	})
	switch open := lt.from != nil && lt.row.Status != dedup.Discarded; {
	case v == act && open && isSuperseded(lt.row, lt.info.Replays, 0) && r.l.o.Records.Overdue(lt.row) < time.Hour:
		return drop, "" // a copy of its message goes on
	case v == act && lt.blockedBy != "":
		return leave, lt.blockedBy
	}
	return v, why
}

// act brings letters, each of another identity, to their end, and notes those that stay. Replay: the row is reopened
// (committed), the message published (confirmed and routed), the letter acked. Discard: the row says so (committed),
// ack. Its error is one after which the run must end.
func (r *run) act(ctx context.Context, letters []*letter) error {
	ctx, cancel := r.finishing(ctx)
	defer cancel()
	counter, change, at := &r.tally.Replayed, r.reopen, pointReopened
	if r.discard {
		counter, change, at = &r.tally.Discarded, r.mark, pointDiscarded
	}
	if r.o.DryRun {
		for _, lt := range letters {
			*counter++
			r.tally.done(lt)
			r.tally.Duplicates += len(lt.followers)
		}
		return nil
	}
	fault := r.change(ctx, letters, change)
	if err := r.l.hook(at); err != nil {
		return err
	}
	if !r.discard {
		fault = errors.Join(fault, r.publish(ctx, letters))
		if err := r.l.hook(pointPublished); err != nil {
			return err
		}
	}
	for _, lt := range letters {
		if lt.why == "" {
			*counter++
			r.tally.done(lt)
			r.watch.add(lt)
			r.done(lt)
		}
	}
	return errors.Join(fault, r.finish(ctx, letters), r.l.hook(pointAcked))
}

// mark makes the letters' rows say discarded.
func (r *run) mark(ctx context.Context, letters []*letter, _ string) []error {
	why := r.why + " (chosen: " + r.of.String() + ")"
	return r.l.o.Records.DiscardAll(ctx, mapped(letters, func(lt *letter) dedup.Discarding {
		return dedup.Discarding{From: lt.row, Entry: lt.entry(), By: r.o.By, Why: why}
	}))
}

// reopen makes the letters' rows start anew, under a name that no other call has.
func (r *run) reopen(ctx context.Context, letters []*letter, token string) []error {
	rows, errs := r.l.o.Records.ReopenAll(ctx, mapped(letters, func(lt *letter) dedup.Reopening {
		return dedup.Reopening{From: lt.row, Entry: lt.entry(), Note: dedup.ReplayNote{
			By: r.o.By, Filter: r.of.String(), Token: lt.row.ReplayToken(token), Discarded: r.o.Discarded,
			Mended: lt.replacedBody,
		}}
	}))
	for i, lt := range letters {
		if errs[i] == nil {
			lt.row.Version = rows[i].Version
		}
	}
	return errs
}

// publish sends the messages of all letters whose rows this run has just reopened, and of no other.
func (r *run) publish(ctx context.Context, letters []*letter) (fault error) {
	var batch []rabbit.Publishing
	var sent []*letter
	for _, lt := range letters {
		if lt.why == "" {
			sent = append(sent, lt)
			batch = append(batch, r.l.message(lt))
		}
	}
	if len(batch) == 0 {
		return nil
	}
	for i, err := range r.publisher.Publish(ctx, batch) {
		if err == nil {
			continue
		}
		sent[i].why, sent[i].err = WhyUnpublished, err
		if !errors.Is(err, rabbit.ErrUnsendable) { // the others would meet it too: do not reopen more rows
			fault = brokerError(fmt.Errorf("publish to queue %q: %w", r.l.o.Queue, err))
		}
	}
	return fault
}
