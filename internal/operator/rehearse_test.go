package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// untouched is one whose handler no letter may reach.
func untouched(t *testing.T) func(*operator.Options) {
	return func(o *operator.Options) {
		o.Rehearse = func(context.Context, deadletter.Message) (deadletter.Rehearsed, error) {
			t.Error("a letter has reached the handler")
			return deadletter.Rehearsed{}, nil
		}
	}
}

func (w *world) rehearse(f deadletter.Filter) operator.Act {
	w.T.Helper()
	return require.Get(w.desk.Rehearse(w.T.Context(), anna, "", operator.RehearsalRequest{Filter: f}))(w.T)
}

// Given dead letters of every kind, and a daemon that has no handler beside one that has, when they are rehearsed while
// somebody discards one, then all are grouped by what would become of them, the one that moved is in no group, what may
// have ended a process does not reach the handler, nor does its edit, and nothing has changed but the one. Of a key
// that is misspelt it is not said that somebody has replayed it.
func TestARehearsalGroupsASetByWhatWouldBecomeOfIt(t *testing.T) {
	w := newWorld(t).outbox().dead("shelf is locked", names("k", 250)...)
	w.Dead(dedup.ReasonCrashed, "lease expired", "crashed")
	w.dead("shelf is locked", "parked", "moves")
	w.Exec("UPDATE consumer_log SET replays = 5 WHERE msg_key = 'parked'")
	var mu sync.Mutex
	seen := map[string]int{}
	w.daemon()
	try := func(_ context.Context, m deadletter.Message) (deadletter.Rehearsed, error) {
		mu.Lock()
		defer mu.Unlock()
		key := m.Key
		seen[key]++
		switch {
		case key == "moves":
			_, err := w.desk.Start(t.Context(), bert, operator.Request{Kind: operator.KindDiscard, Why: "a test",
				Filter: deadletter.Filter{Keys: []string{key}}, CutOff: w.preview(operator.KindDiscard, all).At})
			w.Must(err)
			w.Eventually("it is discarded", func() (string, bool) { return "", w.status(dedup.Discarded) == 1 })
			return deadletter.Rehearsed{Prospect: deadletter.WouldApply}, nil
		case strings.HasSuffix(key, "7"):
			return deadletter.Rehearsed{Prospect: deadletter.WouldFail, Err: fmt.Errorf("order %q is gone\nstack", key)}, nil
		case strings.HasSuffix(key, "8"):
			return deadletter.Rehearsed{Prospect: deadletter.WouldWait, Err: errors.New("too early")}, nil
		}
		return deadletter.Rehearsed{Prospect: deadletter.WouldApply, Changed: map[string]int64{"stock": 2, "seen": 0}}, nil
	}
	w.daemon(func(o *operator.Options) { o.Rehearse = try })

	a := w.ends(w.rehearse(all).ID)

	got := a.Rehearsed()
	require.That(t, a.State == operator.Done && got != nil, "it is %s: %s", a.State, a.Error)
	want := &operator.Rehearsal{Letters: 252, Moved: 1, Parked: 1, Groups: []operator.RehearsalGroup{
		{Outcome: deadletter.WouldFail, Count: 25, Error: `order "k-00247" is gone`},
		{Outcome: deadletter.NotRehearsed, Count: 1,
			Error: "a process has died with it, perhaps of it, and this one shall not: replay it alone"},
		{Outcome: deadletter.WouldWait, Count: 25, Error: "too early"},
		{Outcome: deadletter.WouldApply, Count: 200, Changed: map[string]int64{"stock": 400, "seen": 0}},
	}}
	for _, g := range got.Groups {
		assert.That(t, len(g.First) == min(5, g.Count), "of %d letters %v are named", g.Count, g.First)
	}
	diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(operator.RehearsalGroup{}),
		cmpopts.IgnoreFields(operator.RehearsalGroup{}, "First"))
	assert.That(t, diff == "", "-want +got:\n%s", diff)
	assert.Is(t, a.Outcome(), "25 would fail, 1 not rehearsed, 25 would come later, 200 would be applied, "+
		"1 moved meanwhile", "its outcome")
	assert.That(t, seen["crashed"]+seen["parked"] <= 0 && len(seen) == 251,
		"%d letters came to the handler, %d of them the crashed one", len(seen), seen["crashed"])
	assert.Is(t, w.status(dedup.Dead), 252, "dead letters")
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_event WHERE `by` LIKE '%"+a.ID+"%'"), 0,
		"steps of messages name the rehearsal")

	p := require.Get(w.newDesk(untouched(t)).PreviewEdit(t.Context(), edit("crashed")))(t)
	assert.Has(t, p.NoRehearsal, "process has died", "it is not rehearsed:")
	unknown := w.ends(w.rehearse(deadletter.Filter{Keys: []string{"misspelt"}}).ID).Rehearsed()
	assert.That(t, unknown != nil && unknown.Moved == 0 && len(unknown.Groups) == 1 &&
		unknown.Groups[0].Outcome == deadletter.NotRehearsed, "it is said %+v", unknown)
}

// Given what forbids a rehearsal, when one is asked for, then it fails and says why, and no letter reaches the handler.
func TestARehearsalThatMayNotBeSaysWhy(t *testing.T) {
	w := newWorld(t).dead("shelf is locked", "k")
	a := w.rehearse(all)
	_, err := w.desk.Rehearse(t.Context(), bert, "", operator.RehearsalRequest{Filter: all})
	assert.Error(t, err, operator.ErrSameSet, "the same a second time")
	w.Exec("UPDATE consumer_log_act SET term = 2") // two daemons ended in it
	w.daemon(untouched(t))
	for _, says := range []string{"perhaps a letter ends the process", "audit is myisam"} {
		a = w.ends(a.ID)
		assert.Is(t, a.State, operator.Failed, "%s", a.Error)
		assert.Has(t, strings.ToLower(a.Error), says, "it")
		w.Exec("CREATE TABLE IF NOT EXISTS audit (k INT) ENGINE=MyISAM") // which is not rolled back
		a = w.rehearse(all)
	}
}

// Given a pool for a handler that may take a minute, then the server lets its transactions be silent for longer.
func TestARehearsalMayTakeAsLongAsItsHandler(t *testing.T) {
	w := newWorld(t)
	_, pool := w.Open(w.DSN, operator.RehearsalPool(time.Minute))
	assert.AtLeast(t, stack.Number(t, pool, "SELECT @@wait_timeout"), 61, "s in which a transaction may be silent")
}
