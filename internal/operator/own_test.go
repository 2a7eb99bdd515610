package operator_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given something that a process does itself, then it is one act, which says how far it is; when anybody stops it, it
// ends as stopped; and when it fails, the act says why.
func TestWhatAProcessDoesItselfIsAnActThatCanBeStoppedAndFail(t *testing.T) {
	w := newWorld(t)
	ask := operator.TaskRequest{Kind: operator.KindReplay, Detail: operator.Request{Filter: all}}
	var id string
	err := w.desk.Do(t.Context(), anna, ask, func(ctx context.Context, task operator.Task) (operator.Result, error) {
		id = operator.ActIn(task.By)
		task.Letters(deadletter.Progress{Found: 9, Done: 4})
		w.until(id, func(a operator.Act) bool {
			return a.Progress.Done == 4 && a.Progress.Matched == 9 && a.State == operator.Running && a.Owner != "" &&
				a.Silent == 0
		})
		require.Get(w.desk.Stop(t.Context(), bert, id))(t)
		<-ctx.Done()
		return operator.Result{Replayed: 5}, ctx.Err()
	})
	a := w.act(id)
	assert.That(t, err != nil && strings.Contains(err.Error(), "somebody stopped it") && a.State == operator.Stopped &&
		a.StopBy == "bert" && a.Result.Replayed == 5 && a.Progress.Done == 5 && !a.Ended.IsZero() && !a.Sweeping,
		"stopped: %v, %+v", err, a)
	_, err = w.desk.Stop(t.Context(), bert, id)
	assert.That(t, err == nil || errors.Is(err, operator.ErrEnded), "%v", err)
	broken := errors.New("the broker is away")
	err = w.desk.Do(t.Context(), anna, ask, func(_ context.Context, task operator.Task) (operator.Result, error) {
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
	d, kill := w.mortal()
	w.works(d)
	w.until(run.ID, func(a operator.Act) bool { return a.Owner != "" })
	process, killOwn := w.mortal()
	began := make(chan string)
	var doing sync.WaitGroup
	doing.Go(func() {
		_ = process.Do(t.Context(), bert, operator.TaskRequest{Kind: operator.KindPrune},
			func(ctx context.Context, task operator.Task) (operator.Result, error) {
				began <- task.Act.ID
				<-ctx.Done()
				return operator.Result{}, nil
			})
	})
	t.Cleanup(doing.Wait)
	own := <-began
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
	assert.That(t, a.State == operator.Failed && strings.Contains(a.Error, "its process was killed") && !a.Ended.IsZero(),
		"afterwards %+v", a)
	failed := w.acts(operator.ActFilter{State: operator.Failed})
	assert.That(t, len(failed) == 1 && failed[0].ID == own, "failed acts %+v", failed)
}
