package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
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

// Given a daemon that knows a kind of task and one that does not, then the first does it, and its act says how far it
// has come and what came of it; asked again under its id it is not done again.
func TestATaskIsDoneByADaemonThatKnowsItsKind(t *testing.T) {
	w := newWorld(t)
	w.daemon() // knows runs over letters only
	ask := operator.TaskRequest{
		ID: "0190aaaa-0000-7000-8000-000000000001", Kind: "count", Why: "to know", Detail: []int{4, 2},
	}
	a := w.ask(anna, ask)
	if a.State != operator.Running || a.ID != ask.ID {
		t.Fatalf("%+v", a)
	}
	var times atomic.Int32
	goOn := make(chan struct{})
	w.does("count", func(_ context.Context, task operator.Task) (any, error) {
		times.Add(1)
		var numbers []int
		err := json.Unmarshal(task.Act.Detail, &numbers)
		task.Progress("numbers", len(numbers))
		<-goOn
		return map[string]any{"sum": numbers[0] + numbers[1], "by": task.By}, err
	})
	w.Eventually("it is seen how far it has come", func() (string, bool) {
		p := w.act(a.ID).Progress
		return p.Phase, p.Phase == "numbers" && p.Done == 2
	})
	close(goOn)
	a = w.ends(a.ID)
	w.wantEnded(a, operator.Done, "")
	assert.Is(t, a.Why+": "+string(a.Result.Report), `to know: {"by":"anna, run `+a.ID+`","sum":6}`, "on record")
	if list := w.acts(operator.ActFilter{Kind: "count"}); len(list) != 1 || list[0].State != operator.Done ||
		list[0].Result.Report != nil {
		t.Errorf("the list of acts: %+v; want it without the report", list)
	}
	if again := w.ask(anna, ask); again.ID != a.ID || again.State != operator.Done {
		t.Errorf("asked again: %+v", again)
	}
	w.ends(w.ask(anna, operator.TaskRequest{Kind: "count", Detail: []int{1, 1}}).ID)
	assert.Is(t, times.Load(), 2, "two tasks were done times")
}

// Given a task that may be done by one at a time, when its daemon drains, then another begins it anew at once; while it
// goes on a second one is not begun; and anybody stops it.
func TestATaskIsAloneHandedOverAndStopped(t *testing.T) {
	w := newWorld(t)
	begun := make(chan struct{}, 2)
	waits := func(ctx context.Context, _ operator.Task) (any, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	stop := w.does("wait", waits)
	ask := operator.TaskRequest{Kind: "wait", Alone: "all"}
	id := w.oneBegins(10, func(int) (operator.Act, error) { return w.desk.Ask(t.Context(), anna, ask) })
	<-begun
	stop()
	w.does("wait", waits)
	<-begun // by the next one
	if a := w.act(id); a.State != operator.Running || a.Terms != 2 {
		t.Errorf("after the drain: %s in term %d", a.State, a.Terms)
	}
	require.Get(w.newDesk().Stop(t.Context(), bert, id))(w.T)
	if a := w.ends(id); a.State != operator.Stopped || a.StopBy != "bert" {
		t.Errorf("%s by %q, %s", a.State, a.StopBy, a.Error)
	}
	assert.Is(t, w.ask(anna, ask).ID != id, true, "after its end another one begins")
}

// Given tasks whose functions panic and fail, then their acts have failed and say why, and their daemon goes on with
// others.
func TestATaskThatPanicsOrFailsSaysWhyAndEndsNoDaemon(t *testing.T) {
	w := newWorld(t)
	w.does("odd", func(_ context.Context, task operator.Task) (any, error) {
		var letters []string
		switch string(task.Act.Detail) {
		case `"panic"`:
			return letters[3], nil
		case `"fail"`:
			return nil, errors.New("the letter is not there")
		}
		return letters, nil
	})
	for _, c := range []struct {
		detail string
		state  operator.State
		err    string
	}{
		{"panic", operator.Failed, "index out of range"}, {"fail", operator.Failed, "the letter is not there"},
		{"end", operator.Done, ""},
	} {
		a := w.ends(w.ask(anna, operator.TaskRequest{Kind: "odd", Detail: c.detail}).ID)
		assert.Is(t, a.State, c.state, "%s", a.Error)
		assert.Has(t, a.Error, c.err, "error")
	}
	_, err := w.desk.Ask(t.Context(), anna, operator.TaskRequest{Kind: "No Kind"})
	assert.Error(t, err, operator.ErrRequest, "a kind that is none")
}

// Given a task that has ended while MySQL is frozen, when its daemon drains, then the daemon does not wait for MySQL
// longer than it may.
func TestADrainDoesNotWaitForAFrozenDatabase(t *testing.T) {
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	w.dsn = proxy.Through(w.dsn)
	begun, goOn := make(chan struct{}), make(chan struct{})
	d := w.newDesk(func(o *operator.Options) { o.Drain = time.Second })
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

// Given a daemon whose places are all held by slow acts, then a further one says which they are, who began them and
// when, until it has a place itself.
func TestAnActThatWaitsForAPlaceSaysWhoHoldsThem(t *testing.T) {
	w := newWorld(t)
	begun, goOn := make(chan struct{}, 4), make(chan struct{})
	w.does("slow", func(ctx context.Context, _ operator.Task) (any, error) {
		begun <- struct{}{}
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	})
	var slow []operator.Act
	for _, who := range []operator.Actor{anna, bert, anna} {
		a := w.ask(who, operator.TaskRequest{Kind: "slow"})
		require.Is(t, len(a.WaitsFor), 0, "there is a place, and it is said to wait for %+v", a.WaitsFor)
		slow = append(slow, a)
		<-begun
	}
	late := w.ask(bert, operator.TaskRequest{Kind: "slow"})
	require.Is(t, len(late.WaitsFor), len(slow), "it waits for %+v", late.WaitsFor)
	for i, h := range late.WaitsFor {
		if h.ID != slow[i].ID || h.Kind != "slow" || h.Actor != slow[i].Actor || !h.Since.Equal(slow[i].Created) ||
			h.Owner == "" {
			t.Errorf("it waits for %+v, want %+v", h, slow[i])
		}
	}
	goOn <- struct{}{}
	<-begun
	if a := w.act(late.ID); a.Owner == "" || a.WaitsFor != nil {
		t.Errorf("it has a place, worked on by %q, and is said to wait for %+v", a.Owner, a.WaitsFor)
	}
	close(goOn)
	w.ends(late.ID)
}
