package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
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
	a, err := w.desk.Ask(t.Context(), anna, ask)
	if err != nil || a.State != operator.Running || a.ID != ask.ID {
		t.Fatalf("%+v, %v", a, err)
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
	if a.State != operator.Done || string(a.Result.Report) != `{"by":"anna, run `+a.ID+`","sum":6}` || a.Why != "to know" {
		t.Errorf("%s: %s %s", a.State, a.Result.Report, a.Error)
	}
	if list, _, err := w.desk.Acts(t.Context(), operator.ActFilter{Kind: "count"}); err != nil || len(list) != 1 ||
		list[0].State != operator.Done || list[0].Result.Report != nil {
		t.Errorf("the list of acts: %+v, %v; want it without the report", list, err)
	}
	if again, err := w.desk.Ask(t.Context(), anna, ask); err != nil || again.ID != a.ID || again.State != operator.Done {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	next := require.Get(w.desk.Ask(t.Context(), anna, operator.TaskRequest{Kind: "count", Detail: []int{1, 1}}))(w.T)
	if w.ends(next.ID); times.Load() != 2 {
		t.Errorf("two tasks were done %d times", times.Load())
	}
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
	next, err := w.desk.Ask(t.Context(), anna, ask)
	if err != nil || next.ID == id {
		t.Errorf("after its end: %+v, %v", next, err)
	}
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
		a := require.Get(w.desk.Ask(t.Context(), anna, operator.TaskRequest{Kind: "odd", Detail: c.detail}))(w.T)
		if a = w.ends(a.ID); a.State != c.state || !strings.Contains(a.Error, c.err) {
			t.Errorf("%s: %s; want %s: %s", a.State, a.Error, c.state, c.err)
		}
	}
	_, err := w.desk.Ask(t.Context(), anna, operator.TaskRequest{Kind: "No Kind"})
	assert.Error(t, err, operator.ErrRequest, "a kind that is none")
}

// Given a task that has ended while MySQL is frozen, when its daemon drains, then the daemon does not wait for MySQL
// longer than it may.
func TestADrainDoesNotWaitForAFrozenDatabase(t *testing.T) {
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	there := w.place
	there.dsn = proxy.Through(w.dsn)
	begun, goOn := make(chan struct{}), make(chan struct{})
	d, pool, err := there.newDesk(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)),
		func(o *operator.Options) { o.Drain = time.Second })
	w.Must(err)
	d.Does("wait", func(context.Context, operator.Task) (any, error) {
		close(begun)
		<-goOn
		return "ended", nil
	})
	t.Cleanup(func() { _ = pool.Close() })
	require.Get(w.desk.Ask(t.Context(), anna, operator.TaskRequest{Kind: "wait"}))(w.T)
	stop := w.works(d)
	<-begun
	proxy.Hold(true)
	close(goOn)
	began := time.Now()
	stop()
	if took := time.Since(began); took > 12*time.Second { // 19 s without a bound; a loaded machine needs some time too
		t.Errorf("the drain took %v", took)
	}
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
	ask := func(who operator.Actor) operator.Act {
		t.Helper()
		return require.Get(w.desk.Ask(t.Context(), who, operator.TaskRequest{Kind: "slow"}))(w.T)
	}
	var slow []operator.Act
	for _, who := range []operator.Actor{anna, bert, anna} {
		if a := ask(who); a.WaitsFor != nil {
			t.Errorf("there is a place, and it is said to wait for %+v", a.WaitsFor)
		} else {
			slow = append(slow, a)
		}
		<-begun
	}
	late := ask(bert)
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
