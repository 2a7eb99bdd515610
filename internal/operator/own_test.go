package operator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a daemon that is free, when a process does something itself, then it is one act with who, a clean why, its
// worker and how far it is; nobody else takes it up, and its result is kept.
func TestWhatAProcessDoesItselfIsAnActToo(t *testing.T) {
	w := newWorld(t)
	w.daemon()
	r := operator.TaskRequest{
		Kind: operator.KindReplay, Why: "\x1b[31mthe shelf\n is \u202eback\x00", Detail: operator.Request{Filter: all},
	}
	err := w.desk.Do(t.Context(), anna, r, func(_ context.Context, task operator.Task) (operator.Result, error) {
		task.Letters(deadletter.Progress{Found: 9, Done: 4})
		w.Eventually("how far it is", func() (string, bool) {
			a := w.act(task.Act.ID)
			return a.Owner, a.Progress.Done == 4 && a.Progress.Matched == 9
		})
		a := w.act(operator.ActIn(task.By))
		if a.State != operator.Running || a.Actor != "anna" || a.Owner == "" || a.Terms != 0 || a.Silent != 0 {
			t.Errorf("while it goes on: %+v", a)
		}
		assert.Is(t, a.Why, "[31mthe shelf is back", "why")
		return operator.Result{Replayed: 5}, nil
	})
	acts := w.acts(operator.ActFilter{State: operator.Done})
	if err != nil || len(acts) != 1 || acts[0].Result.Replayed != 5 || acts[0].Progress.Done != 5 ||
		acts[0].Ended.IsZero() || acts[0].Sweeping {
		t.Fatalf("in the end %+v, %v", acts, err)
	}
}

// Given something that a process does itself, when anybody stops it, then it ends as stopped; and when it fails, the
// act says why.
func TestWhatAProcessDoesItselfCanBeStoppedAndFail(t *testing.T) {
	w := newWorld(t)
	prune := operator.TaskRequest{Kind: operator.KindPrune}
	var id string
	err := w.desk.Do(t.Context(), anna, prune, func(ctx context.Context, task operator.Task) (operator.Result, error) {
		id = task.Act.ID
		require.Get(w.desk.Stop(t.Context(), bert, id))(t)
		<-ctx.Done()
		return operator.Result{Deleted: 3}, ctx.Err()
	})
	a := w.act(id)
	if err == nil || !strings.Contains(err.Error(), "somebody stopped it") || a.State != operator.Stopped ||
		a.StopBy != "bert" || a.Result.Deleted != 3 {
		t.Errorf("stopped: %v, %+v", err, a)
	}
	if _, err := w.desk.Stop(t.Context(), bert, id); err != nil && !errors.Is(err, operator.ErrEnded) {
		t.Error(err)
	}
	broken := errors.New("the broker is away")
	err = w.desk.Do(t.Context(), anna, prune, func(_ context.Context, task operator.Task) (operator.Result, error) {
		id = task.Act.ID
		return operator.Result{}, broken
	})
	if a := w.act(id); !errors.Is(err, broken) || a.State != operator.Failed || a.Error != broken.Error() {
		t.Errorf("failed: %v, %+v", err, a)
	}
}

// Given processes in the middle of their acts, one of its own and one of the fleet's, when they are killed, then within
// five seconds the acts say that nothing is heard of them; and what only its own process could do has failed.
func TestAnActSaysWithinFiveSecondsThatItsWorkerIsGone(t *testing.T) {
	w := newWorld(t).dead("boom", names("k", 3)...)
	run := w.start(operator.Request{Filter: all, Rate: 0.1})
	kill := w.child()
	w.Eventually("the run is worked on", func() (string, bool) { a := w.act(run.ID); return "", a.Owner != "" })
	killOwn := w.child("own")
	var own string
	w.Eventually("a process begins", func() (string, bool) {
		for _, a := range w.acts(operator.ActFilter{Kind: operator.KindPrune}) {
			own = a.ID
		}
		return "", own != ""
	})
	kill()
	killOwn()
	killed := time.Now()
	for _, id := range []string{run.ID, own} {
		w.Eventually("it says that its worker is gone", func() (string, bool) {
			asked := time.Since(killed)
			a := w.act(id)
			says := a.Silent >= 3 && a.State == operator.Running
			if !says && asked > 5*time.Second { // it is asked late on a busy machine, and has to say so then
				t.Errorf("asked after %v it says %+v", asked, a)
			}
			return "", says
		})
	}
	a := w.ends(own)
	if a.State != operator.Failed || !strings.Contains(a.Error, "its process was killed") || a.Ended.IsZero() {
		t.Errorf("afterwards %+v", a)
	}
	if failed := w.acts(operator.ActFilter{State: operator.Failed}); len(failed) != 1 || failed[0].ID != own {
		t.Errorf("failed acts %+v", failed)
	}
}

// Given a table of acts that is locked, or missing, when a process does something itself, then it is told once that it
// is not written down, and the work is done.
func TestARecordThatCannotBeWrittenIsNotInTheWay(t *testing.T) {
	w := newWorld(t)
	var told []error
	d := w.newDesk(func(o *operator.Options) { o.Unwritten = func(err error) { told = append(told, err) } })
	does := func() {
		t.Helper()
		done := false
		told = nil
		ask := operator.TaskRequest{Kind: operator.KindReplay}
		err := d.Do(t.Context(), anna, ask, func(_ context.Context, task operator.Task) (
			operator.Result, error) {
			task.Letters(deadletter.Progress{})
			done = task.By == "anna"
			return operator.Result{}, nil
		})
		if err != nil || !done || len(told) != 1 {
			t.Errorf("done %v, %v, told %v", done, err, told)
		}
	}
	conn, err := w.Pool.Conn(t.Context())
	w.Must(err)
	require.Get(conn.ExecContext(t.Context(), "LOCK TABLES consumer_log_act WRITE"))(w.T)
	does()
	require.Get(conn.ExecContext(t.Context(), "UNLOCK TABLES"))(w.T)
	w.Exec("DROP TABLE consumer_log_act")
	does()
	_ = conn.Close()
}

// doOwn is what a child does that has an act of its own.
func doOwn(d *operator.Operator) error {
	prune := operator.TaskRequest{Kind: operator.KindPrune}
	return d.Do(context.Background(), bert, prune, func(ctx context.Context, _ operator.Task) (operator.Result, error) {
		<-ctx.Done()
		return operator.Result{}, nil
	})
}
