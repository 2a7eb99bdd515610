package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	// leaseTime is how long a run stays with a process that says nothing any more; leased is its end.
	leaseTime = 15 * time.Second
	leased    = "UTC_TIMESTAMP(6) + INTERVAL 15 SECOND"
	// lookEvery is how often a daemon looks for work, and for a stop.
	lookEvery = time.Second
	// askTime bounds one statement about a lease.
	askTime = 4 * time.Second
	// longestTrouble bounds the pause before a run that met a server's trouble goes on.
	longestTrouble = 10 * time.Second
	// restFactor: a sweep is followed by a rest of so many times as long as it took.
	restFactor = 10
)

// What ends the work on a run early.
var (
	errStopped   = errors.New("somebody stopped it")
	errLeaseLost = errors.New("another process has taken it over")
)

// job is one act that this process works on, which is its owner.
type job struct {
	d            *Operator
	act          Act
	stop         context.CancelCauseFunc
	allConfirmed bool // at the end of the last pass
	do           Work

	mu       sync.Mutex
	progress Progress // guarded by mu
	// confirmed is when everything that was reopened was known to be confirmed, by this process's clock; zero: not
	// since the column was written. Guarded by mu.
	confirmed time.Time
}

// atOnce is how many runs one process works on: a slow one must not keep others waiting.
const atOnce = 3

// Work takes up runs, some at a time, until ctx ends; then it finishes the letters in hand and gives the runs to
// whichever daemon is free. While MySQL is away it waits, but after the end of ctx no longer than Options.Drain.
func (d *Operator) Work(ctx context.Context) {
	var wg sync.WaitGroup
	over, cancel := context.WithCancel(context.WithoutCancel(ctx)) // goes on for a while after ctx has ended
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(d.o.Drain, cancel) })()
	defer wg.Wait()
	free := make(chan struct{}, atOnce)
	var nextSweep atomic.Int64 // in nanoseconds since 1970
	for said := false; ctx.Err() == nil; {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		j, err := d.take(ctx, time.Now().UnixNano() > nextSweep.Load())
		if err != nil && !said && ctx.Err() == nil { // the engine says so too when MySQL is away
			d.log.WarnContext(ctx, "runs over dead letters are not taken up", "err", err)
		}
		if said = err != nil; j == nil {
			<-free
			d.rest(ctx)
			continue
		}
		wg.Go(func() {
			defer func() { <-free }()
			if j.act.work == workLetters {
				j.run(ctx, over)
				return
			}
			began := time.Now()
			j.sweep(ctx)
			nextSweep.Store(time.Now().Add(restFactor * time.Since(began)).UnixNano())
		})
	}
}

// rest waits until it is time to look for work, or until this operator has some. The other daemons look by the clock.
func (d *Operator) rest(ctx context.Context) {
	select {
	case <-d.wake:
	case <-time.After(d.look):
	case <-ctx.Done():
	}
}

// waken says that there is work.
func (d *Operator) waken() {
	select {
	case d.wake <- struct{}{}:
	default: // it is said already
	}
}

// free is true of an act, or of a request, that nobody works on: its lease is over, or ends later than any lease,
// because the database's clock has gone back; one that is renewed meanwhile ends a bit later than one lease after the
// look began.
const free = "(lease_until IS NULL OR lease_until NOT BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 1 " +
	"MINUTE)"

// take takes the oldest act that waits for somebody and that this operator can do, letters before sweeps, by
// compare-and-set. One sweep at a time is enough for all acts.
func (d *Operator) take(ctx context.Context, sweeps bool) (*job, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	most := workLetters
	if sweeps {
		most = workSweep
	}
	kinds := []string{string(KindReplay), string(KindDiscard), string(KindEdit)}
	for kind := range d.tasks {
		kinds = append(kinds, string(kind))
	}
	found, err := d.list(ctx, "work BETWEEN ? AND ? AND "+free+" AND FIND_IN_SET(kind, ?) AND (work = ? OR NOT EXISTS ("+
		"SELECT 1 FROM "+d.acts+" WHERE group_name = ? AND queue = ? AND work = ? AND NOT "+free+")) ORDER BY work, id "+
		"LIMIT 1", workLetters, most, strings.Join(kinds, ","), workLetters, []byte(d.o.Group), []byte(d.o.Queue), workSweep)
	if err != nil {
		return nil, fmt.Errorf("look for runs: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	j := &job{d: d, act: found[0]}
	a := &j.act
	a.Owner = d.name + "/" + uuid.NewString()[:8]
	n, err := d.exec(ctx, "UPDATE "+d.acts+" SET owner = ?, term = term + 1, lease_until = "+leased+" WHERE id = ? AND "+
		"work = ? AND term = ? AND COALESCE(stop_by, '') = ? AND "+free, []byte(a.Owner), []byte(a.ID), a.work, a.Terms,
		a.StopBy)
	if err != nil {
		return nil, fmt.Errorf("take run %s: %w", a.ID, err)
	}
	if n != 1 { // somebody was faster
		return nil, nil
	}
	a.Terms++
	if a.Progress != nil {
		j.progress = *a.Progress
	}
	if j.do = j.passes; !a.Kind.overLetters() {
		j.do = reported(d.tasks[a.Kind])
	}
	return j, nil
}

// run does an act that was taken up, and writes down how it ended as long as over goes on.
func (j *job) run(ctx, over context.Context) {
	state, result, err := j.doing(ctx)
	switch {
	case state != "":
		j.end(over, state, result, err)
	case ctx.Err() != nil:
		j.giveUp(over)
	}
}

// doing does the act, and says how it ended; "" when somebody else must go on with it.
func (j *job) doing(ctx context.Context) (state State, result Result, err error) {
	doing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.stop = cancel
	if j.act.StopBy != "" {
		cancel(errStopped) // nobody had taken it up yet
	}
	j.renewed(doing, func() { result, err = j.guarded(doing) })
	switch cause := context.Cause(doing); {
	case errors.Is(cause, errLeaseLost): // whatever is to be said of it, the other one says
	case err == nil: // it came to its end before the stop or the drain reached it
		state = Done
	case errors.Is(cause, errStopped) && j.act.Own:
		state, err = Stopped, fmt.Errorf("act %s: %w", j.act.ID, errStopped)
	case errors.Is(cause, errStopped):
		state, err = Stopped, nil
	case ctx.Err() != nil && j.act.Own:
		state = Stopped
	case ctx.Err() == nil:
		state = Failed
	}
	return state, result, err
}

// guarded does the act. What panics has failed, unless it is the process's own: it must not take one daemon after the
// other with it.
func (j *job) guarded(ctx context.Context) (result Result, err error) {
	task := Task{Act: j.act, By: j.act.story(), Progress: j.seen, Letters: j.report(Progress{})}
	if j.act.Own {
		return j.do(ctx, task)
	}
	defer func() {
		if p := recover(); p != nil {
			j.d.log.ErrorContext(ctx, "an act panicked, which is a mistake of the program's", "act", j.act.ID, "panic", p,
				"stack", string(debug.Stack()))
			err = fmt.Errorf("it panicked, which is a mistake of the program's; the daemon's log says where: %v", p)
		}
	}()
	return j.do(ctx, task)
}

// seen takes in what is looked at, and how much of it was.
func (j *job) seen(phase string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.progress.Phase, j.progress.Done = phase, n
}

// renewed works while the lease is renewed.
func (j *job) renewed(ctx context.Context, work func()) {
	var wg sync.WaitGroup
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { j.renew(renewing) })
	work()
	stop()
	wg.Wait()
}

// renew keeps the lease, writes how far the run has come, and sees that somebody asked it to stop.
func (j *job) renew(ctx context.Context) {
	last := time.Now()
	for wait.For(ctx, j.d.look) == nil {
		now, err := j.renewOnce(ctx)
		switch {
		case err != nil && time.Since(last) < leaseTime:
		case !j.act.Own && now.Owner != j.act.Owner: // or nobody can tell whose it is
			j.stop(errLeaseLost)
			return
		default:
			last = time.Now()
		}
		if now.StopBy != "" && j.act.work != workSweep { // a run that was stopped is swept too
			j.stop(errStopped)
		}
	}
}

// update changes the act's row while it is this process's.
func (j *job) update(ctx context.Context, set string, args ...any) error {
	_, err := j.d.exec(ctx, "UPDATE "+j.d.acts+" SET "+set+" WHERE id = ? AND owner = ? AND work = ?",
		append(args, []byte(j.act.ID), []byte(j.act.Owner), j.act.work)...)
	return err
}

// renewOnce says how the act stands after it; the zero Act when that is not known.
func (j *job) renewOnce(ctx context.Context) (Act, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	j.mu.Lock()
	progress, confirmed := j.progress, j.confirmed
	j.confirmed = time.Time{}
	j.mu.Unlock()
	var ago any              // NULL: it stays as it is
	if !confirmed.IsZero() { // the statement may wait for as long as it may take
		ago = (time.Since(confirmed) + askTime + time.Second).Microseconds()
	}
	if err := j.update(ctx, "settled_at = COALESCE(GREATEST(COALESCE(settled_at, created_at), UTC_TIMESTAMP(6) - "+
		"INTERVAL ? MICROSECOND), settled_at), lease_until = "+leased+", progress = ?", ago, asJSON{progress}); err != nil {
		return Act{}, err
	}
	return j.d.Act(ctx, j.act.ID)
}

// report takes in how far a pass has come. No letter is in hand then.
func (j *job) report(base Progress) func(deadletter.Progress) {
	return func(p deadletter.Progress) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.progress = Progress{
			Phase: "letters", Matched: max(base.Matched, p.Found), More: base.More, Done: base.Done + p.Done, Left: p.Left,
			Waiting: p.Waiting, Applied: p.Applied, Failed: p.Failed,
		}
		if p.Confirmed {
			j.confirmed = time.Now()
		}
	}
}

// passes goes over the set until a pass comes to its end. What a server's trouble ended is tried again.
func (j *job) passes(ctx context.Context, _ Task) (result Result, err error) {
	for pause := time.Second; ; pause = min(2*pause, longestTrouble) {
		var again bool
		if result, again, err = j.pass(ctx); !again || ctx.Err() != nil {
			return result, err
		}
		j.mu.Lock()
		j.progress.Phase, j.progress.Trouble = "waiting", err.Error()
		j.mu.Unlock()
		j.d.log.WarnContext(ctx, "a run over dead letters waits", "act", j.act.ID, "err", err)
		if wait.For(ctx, pause) != nil {
			return result, err
		}
	}
}

// pass goes over the set once; again: a server is to blame for its error.
func (j *job) pass(ctx context.Context) (result Result, again bool, err error) {
	r, err := j.act.Request()
	if err != nil {
		return result, false, err
	}
	// What is confirmed is read anew, as another process would that goes on with the run: else all that waits in the queue
	// would be published again after each trouble of a server.
	now, err := j.d.Act(ctx, j.act.ID)
	if err != nil {
		return result, true, err
	}
	base := Progress{Matched: j.progress.Matched, More: j.progress.More}
	if base.Done, err = j.moved(ctx); err != nil {
		return result, true, err
	}
	set := r.set(j.act.ID)
	set.Since, set.Confirmed = j.act.first, now.settled
	res, err := r.Do(ctx, j.d.o.Letters, set, j.act.story(), false, j.report(base))
	j.allConfirmed = res.Confirmed
	result = ResultOf(res)
	result.Swept = 0 // which the sweep says
	return result, err != nil && !errors.Is(err, deadletter.ErrTooManyFailures), err
}

// moved is how many letters the run has moved, over all its processes.
func (j *job) moved(ctx context.Context) (int, error) {
	return j.d.o.Records.CountBy(ctx, j.d.o.Group, j.act.story(), j.act.Kind.reached(), j.act.first)
}

// end writes down how the run ended.
func (j *job) end(ctx context.Context, state State, result Result, cause error) {
	for pause := time.Second; ; pause = min(2*pause, longestTrouble) {
		err := j.tryEnd(ctx, state, result, cause)
		if err == nil {
			return
		}
		j.d.log.WarnContext(ctx, "the end of a run could not be written down; another process does it when the lease is "+
			"over", "act", j.act.ID, "err", err)
		if pause > longestTrouble/2 || wait.For(ctx, pause) != nil {
			return
		}
	}
}

func (j *job) tryEnd(ctx context.Context, state State, result Result, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*askTime)
	defer cancel()
	run := j.act.Kind.overLetters()
	done := result.Replayed + result.Discarded + result.Mended + result.Deleted + result.Retried
	if run && !j.act.Own {
		var err error
		if done, err = j.moved(ctx); err != nil {
			return err
		}
		if j.act.Kind == KindDiscard {
			result.Discarded = done
		} else {
			result.Replayed = done - result.LeftBy[deadletter.WhyUnpublished]
		}
	}
	j.mu.Lock()
	p := &j.progress
	if run {
		p.Phase, p.Trouble = "letters", ""
		p.Waiting, p.Applied, p.Failed = result.Unsettled, result.Applied, result.FailedAgain
	}
	if run || j.act.Own {
		p.Done, p.Left = done, result.LeftCount
	}
	progress := *p
	j.mu.Unlock()
	said, work := "", workNone
	if cause != nil {
		said = screen.Shorten(cause.Error(), dedup.MaxRemark)
	}
	switch {
	case j.act.Own && (done == 0 || !result.byRows):
		work = workOwn
	case done > 0 && run:
		work = workSweep
	}
	if err := j.update(ctx, "settled_at = IF(?, UTC_TIMESTAMP(6), settled_at), state = ?, work = ?, guard = NULL, "+
		"ended_at = UTC_TIMESTAMP(6), lease_until = NULL, progress = ?, result = ?, error = ?", j.allConfirmed,
		string(state), work, asJSON{progress}, asJSON{result}, said); err != nil {
		return err
	}
	j.d.log.InfoContext(ctx, "a run has ended", "act", j.act.ID, "kind", j.act.Kind, "state", state,
		"done", done, "left", result.LeftCount, "failed_again", result.FailedAgain, "err", said)
	return nil
}

// giveUp lets another daemon go on at once.
func (j *job) giveUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := j.update(ctx, "lease_until = NULL"); err != nil {
		j.d.log.WarnContext(ctx, "a run is taken over when its lease is over", "act", j.act.ID, "lease", leaseTime,
			"err", err)
	}
}

// bounds keep a comparison that a page asks for small: it runs in a daemon, beside its lanes.
var bounds = Bounds{Findings: 200, Letters: 200_000, Time: 5 * time.Minute, Rest: true}

func (d *Operator) reconciliation(t Task) Reconciliation {
	return Reconciliation{
		Lookup: d.o.Lookup, Letters: d.o.Letters, Retention: d.o.Retention, Bounds: bounds, By: t.By, Progress: t.Progress,
	}
}

// reconcile is the task of KindReconcile.
func (d *Operator) reconcile(ctx context.Context, t Task) (any, error) {
	found, err := d.reconciliation(t).Run(ctx)
	if err != nil {
		return nil, err // what was found so far would look like all
	}
	all := len(found.Findings)
	for _, more := range found.More {
		all += more
	}
	t.Progress("findings", all)
	return found, nil
}

// mend is the task of KindMend.
func (d *Operator) mend(ctx context.Context, t Task, order MendOrder) (any, error) {
	o := d.reconciliation(t)
	o.Force, o.Again = order.Force, t.Act.Terms > 1
	return o.Mend(ctx, order.Finding)
}

// asked is a task with what was asked for.
func asked[R any](do func(context.Context, Task, R) (any, error)) func(context.Context, Task) (any, error) {
	return func(ctx context.Context, t Task) (any, error) {
		var r R
		if err := json.Unmarshal(t.Act.Detail, &r); err != nil {
			return nil, fmt.Errorf("read what was asked for: %w", err)
		}
		return do(ctx, t, r)
	}
}

// reported is the work of a task, whose report becomes its act's.
func reported(task func(context.Context, Task) (any, error)) Work {
	return func(ctx context.Context, t Task) (Result, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, taskTime, errTooLong)
		defer cancel()
		report, err := task(ctx, t)
		if err != nil && errors.Is(context.Cause(ctx), errTooLong) {
			err = errTooLong
		}
		if whole, ok := report.(Result); ok || report == nil {
			return whole, err
		}
		text, lost := json.Marshal(report)
		if err == nil && lost != nil {
			err = fmt.Errorf("write down what came of it: %w", lost)
		}
		return Result{Report: text}, err
	}
}

// taskTime bounds a task: it holds one of few hands.
const taskTime = 15 * time.Minute

var errTooLong = fmt.Errorf("it took longer than %v and was given up", taskTime)

// sweep walks once through the dead-letter queue and drops what is stale there by now, for every run that has ended. It
// may be ended at any time, and is begun anew then.
func (j *job) sweep(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.stop = cancel
	before, err := j.d.Now(ctx)
	var res deadletter.SweepResult
	if err == nil {
		j.renewed(ctx, func() { res, err = j.d.o.Letters.Sweep(ctx) })
	}
	over, cancelOver := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancelOver()
	if err == nil {
		_, err = j.d.exec(over, "UPDATE "+j.d.acts+" SET work = ?, lease_until = NULL, result = "+
			"JSON_SET(CONVERT(result USING utf8mb4), '$.swept', ?) WHERE group_name = ? AND queue = ? AND work = ? AND "+
			"ended_at <= ?", workNone, res.Dropped, []byte(j.d.o.Group),
			[]byte(j.d.o.Queue), workSweep, before)
	}
	if err != nil {
		if ctx.Err() == nil {
			j.d.log.WarnContext(ctx, "the dead-letter queue could not be swept, and will be", "err", err)
		}
		j.giveUp(over)
		return
	}
	if res.Dropped > 0 {
		j.d.log.InfoContext(ctx, "stale letters dropped from the dead-letter queue", "dropped", res.Dropped, "seen", res.Seen)
	}
}
