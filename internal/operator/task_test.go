package operator_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// does is a daemon that knows one kind of task more.
func (w *world) does(kind operator.Kind, do func(context.Context, operator.Task) (any, error)) (stop func()) {
	w.T.Helper()
	d := w.newDesk()
	d.Does(kind, do)
	return w.works(d)
}

// Given a task that may be done by one at a time, and a daemon that does not know its kind, when the daemon drains that
// does it, then another begins it anew at once, and the act says how far it has come; while it goes on a second one is
// not begun, of how many ever ask at once; and anybody stops it.
func TestATaskIsAloneHandedOverAndStopped(t *testing.T) {
	w := newWorld(t)
	w.daemon() // knows runs over letters only
	begun := make(chan struct{}, 2)
	waits := func(ctx context.Context, task operator.Task) (any, error) {
		task.Progress(task.By, 2)
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	stop := w.does("wait", waits)
	ask := operator.TaskRequest{Kind: "wait", Alone: "all"}
	acts, errs := make([]operator.Act, 10), make([]error, 10)
	var all sync.WaitGroup
	for i := range acts {
		all.Go(func() { acts[i], errs[i] = w.desk.Ask(t.Context(), anna, ask) })
	}
	all.Wait()
	id, others := acts[0].ID, 0
	for i, err := range errs {
		assert.Is(t, acts[i].ID, id, "one begins, and the others are told of it: act")
		if err != nil {
			assert.Error(t, err, operator.ErrSameSet, "another")
			others++
		}
	}
	assert.Is(t, others, 9, "others")
	<-begun
	stop()
	w.does("wait", waits)
	<-begun                                 // by the next one
	w.until(id, func(a operator.Act) bool { // it is seen how far it has come
		return a.Terms == 2 && a.Progress.Phase == "anna, run "+id && a.Progress.Done == 2
	})
	require.Get(w.newDesk().Stop(t.Context(), bert, id))(w.T)
	a := w.ends(id)
	assert.That(t, a.State == operator.Stopped && a.StopBy == "bert", "%s by %q, %s", a.State, a.StopBy, a.Error)
	assert.Is(t, w.ask(anna, ask).ID != id, true, "after its end another one begins")
}

// Given tasks whose functions panic and fail, then their acts have failed and say why, and their daemon goes on with
// others.
func TestATaskThatPanicsOrFailsSaysWhyAndEndsNoDaemon(t *testing.T) {
	w := newWorld(t)
	d := w.newDesk()
	d.LookEvery(time.Hour) // what is asked for at its own desk it takes up at once
	d.Does("odd", func(_ context.Context, task operator.Task) (any, error) {
		var letters []string
		switch string(task.Act.Detail) {
		case `"panic"`:
			return letters[3], nil
		case `"fail"`:
			return nil, errors.New("the letter is not there")
		}
		return task.By, nil
	})
	w.works(d)
	var a operator.Act
	for _, c := range []struct {
		detail string
		state  operator.State
		err    string
	}{
		{"panic", operator.Failed, "index out of range"}, {"fail", operator.Failed, "the letter is not there"},
		{"end", operator.Done, ""},
	} {
		a = w.ends(require.Get(d.Ask(t.Context(), anna, operator.TaskRequest{Kind: "odd", Detail: c.detail}))(t).ID)
		assert.Is(t, a.State, c.state, "%s", a.Error)
		assert.Has(t, a.Error, c.err, "error")
	}
	assert.Is(t, string(a.Result.Report), `"anna, run `+a.ID+`"`, "what came of it")
	if list := w.acts(operator.ActFilter{Limit: 1}); len(list) != 1 || list[0].ID != a.ID || list[0].Result.Report != nil {
		t.Errorf("the list of acts: %+v; want the latest without its report", list)
	}
	_, err := w.desk.Ask(t.Context(), anna, operator.TaskRequest{Kind: "No Kind"})
	assert.Error(t, err, operator.ErrRequest, "a kind that is none")
}

// Given a task that has ended while MySQL is frozen, when its daemon drains, then the daemon does not wait for MySQL
// longer than it may.
func TestADrainDoesNotWaitForAFrozenDatabase(t *testing.T) {
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.DSN))
	begun, goOn := make(chan struct{}), make(chan struct{})
	d := w.deskAt(proxy.Through(w.DSN), w.Broker.URL, func(o *operator.Options) { o.Drain = time.Second })
	d.Does("wait", func(context.Context, operator.Task) (any, error) {
		close(begun)
		<-goOn
		return "ended", nil
	})
	w.ask(anna, operator.TaskRequest{Kind: "wait"})
	stop := w.works(d)
	<-begun
	proxy.Hold(true)
	close(goOn)
	began := time.Now()
	stop()
	// 19 s without a bound; a loaded machine needs some time too
	assert.AtMost(t, time.Since(began), 12*time.Second, "the drain took")
	proxy.Hold(false)
}
