package daemon_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// person is a desk of the test's own, as a page or a program has it, which works on nothing.
func (w *world) person() *operator.Operator {
	w.t.Helper()
	cfg, s := w.config(), w.store(dedup.OpenOptions{})
	d, err := operator.New(operator.Options{
		Lookup: s.Lookup, Letters: s.Letters, Queue: cfg.Queue,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// Given orders whose reservations are missing, so that their rollbacks are dead letters, and two daemons; when the
// cause is mended and a person replays them all, and the daemon that works on that is killed with SIGKILL, then the
// other one goes on, and each order's stock is back once.
func TestARunGoesOnInAnotherDaemonWhenItsOwnIsKilled(t *testing.T) {
	t.Parallel()
	const n = 160
	w, _, both := deadOrders(t, n, 2)
	first, second := both[0], both[1]
	person := w.person()
	p, err := person.Preview(t.Context(), operator.PreviewRequest{
		Kind: operator.KindReplay, Filter: deadletter.Filter{All: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := person.Start(t.Context(), operator.Actor{Name: "anna"}, operator.Request{
		Kind: operator.KindReplay, Filter: p.Filter, CutOff: p.At, Rate: 40,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("some are replayed", func() bool { return w.rows(dedup.Success) > 40 })
	a = must(person.Act(t.Context(), a.ID))(t)
	victim, other := first, second
	if strings.Contains(a.Owner, fmt.Sprintf("/%d/", second.Pid())) {
		victim, other = second, first
	}
	w.kill(victim)
	w.eventually("the run is done and the queue swept", func() bool {
		a, err = person.Act(t.Context(), a.ID)
		return err == nil && a.State == operator.Done && !a.Sweeping
	})
	if a.Result.Replayed != n || a.Terms < 2 || a.Result.LeftCount != 0 {
		t.Errorf("after %d terms: %+v", a.Terms, a.Result)
	}
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == n })
	is(w, "letters are left", w.broker.Depth(rabbit.DeadQueue(w.config().Queue)), 0)
	w.rest(other)
}
