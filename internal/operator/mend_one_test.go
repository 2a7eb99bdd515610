package operator_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// compare is what a page asks for, as it is read from where it was written down.
func (w *world) compare(bounds operator.Bounds) operator.Report {
	w.T.Helper()
	report := require.Get(w.options(bounds).Run(w.T.Context()))(w.T)
	text := require.Get(json.Marshal(report))(w.T)
	var read operator.Report
	w.Must(json.Unmarshal(text, &read))
	return read
}

// depths are how many messages wait in the main queue, and letters in theirs.
func (w *world) depths() [2]int {
	return [2]int{w.Broker.Depth(w.Queue), w.Broker.Depth(rabbit.DeadQueue(w.Queue))}
}

// Given findings of each kind that a machine may mend, when they are mended one by one, then each time that one is
// gone and all others are as they were, and to mend it again changes nothing; by a process under the same name, whose
// former one died before it could say so, that is no failure.
func TestFindingsAreMendedOneByOne(t *testing.T) {
	w := newWorld(t).dead("no", "agrees", "no row", "ended", "cut off")
	w.Exec("DELETE FROM consumer_log WHERE msg_key = 'no row'")
	w.Exec("UPDATE consumer_log SET consumer_status = 1 WHERE msg_key = 'ended'")
	w.Exec("UPDATE consumer_log SET consumer_status = 2, reason = NULL, replays = 1, consumer_timestamp = " +
		"consumer_timestamp - INTERVAL 2 HOUR WHERE msg_key = 'cut off'")
	w.purged("purged", "purged too")
	w.reservation("A", 1, 2, "forgotten", time.Hour)
	all := w.compare(operator.Bounds{})
	require.Is(t, len(all.Findings), 6, "of %+v findings", all.Findings)
	left := map[string]bool{}
	for _, f := range all.Findings {
		left[f.Key] = true
	}
	for _, f := range all.Findings {
		by, risk := f.Repair()
		require.That(t, by != operator.NoRepair && risk == "", "%s %s: repair %q, risk %q", f.Kind, f.Key, by, risk)
		o := w.options(operator.Bounds{})
		o.By = "ann, run 1"
		done, err := o.Mend(t.Context(), f)
		assert.That(t, err == nil && done.Mended, "%s %s: %+v, %v", f.Kind, f.Key, done, err)
		delete(left, f.Key)
		now := w.compare(operator.Bounds{})
		assert.Is(t, len(now.Findings), len(left), "after %s %s there findings", f.Kind, f.Key)
		for _, other := range now.Findings {
			assert.That(t, left[other.Key], "after %s %s there is %s %s", f.Kind, f.Key, other.Kind, other.Key)
		}
		if f.Kind == operator.DeadWithoutLetter { // a daemon has begun it meanwhile
			w.Exec("UPDATE consumer_log SET consumer_times = 1 WHERE msg_key = ?", f.Key)
		}
		before := w.depths()
		_, err = w.options(operator.Bounds{}).Mend(t.Context(), f)
		assert.Error(t, err, operator.ErrLeft, "%s %s again, by somebody else", f.Kind, f.Key)
		o.Again = true
		done, err = o.Mend(t.Context(), f)
		assert.That(t, err == nil && done.Mended && done.Failure == "", "%s %s again: %+v, %v", f.Kind, f.Key, done, err)
		assert.Is(t, w.depths(), before, "%s %s again: messages sent, and letters", f.Kind, f.Key)
	}
	assert.Is(t, w.Broker.Depth(w.Queue), 3, "messages were sent again")
	for key, want := range map[string]dedup.Status{
		"no row": dedup.Dead, "ended": dedup.Success, "cut off": dedup.Failed, "agrees": dedup.Dead, "purged": dedup.Failed,
		"forgotten": dedup.Success,
	} {
		assert.Is(t, w.Row(key).Status, want, "%s", key)
	}
}

// Given more findings, letters and reservations than a page may have looked at, or letters that somebody else holds,
// then what is left out is said, and nothing is sent again that may be in other hands.
func TestWhatIsBeyondTheBoundsIsSaid(t *testing.T) {
	w := newWorld(t).purged(names("k", 30)...)
	r := w.compare(operator.Bounds{Findings: 10})
	assert.That(t, len(r.Findings) == 10 && r.More[operator.DeadWithoutLetter] == 20,
		"%d findings and %v more", len(r.Findings), r.More)
	w.dead("no", names("letter", 6)...)
	r = w.compare(operator.Bounds{Letters: 5})
	assert.That(t, len(r.Findings) == 0 && len(r.Unclear) == 1 && strings.Contains(r.Unclear[0], "over 5 letters"),
		"%d findings, unclear %q", len(r.Findings), r.Unclear)
	assert.Is(t, w.Broker.Depth(rabbit.DeadQueue(w.Queue)), 6, "letters are left")
	for _, order := range names("order", 1500) {
		w.reservation(order, 1, 2, order, time.Hour) // each released by a message that the log does not know
	}
	r = w.compare(operator.Bounds{Letters: 5, Time: time.Nanosecond})
	assert.That(t, r.Reservations == 1000 && len(r.Unclear) == 2 && len(r.Findings) > 0,
		"%d reservations, %d findings, unclear %q", r.Reservations, len(r.Findings), r.Unclear)
	w.Hold(4)
	r = w.run(func(o *operator.Reconciliation) { o.OrderOf, o.Republish = nil, true })
	w.wantFound(r)
	assert.Is(t, len(r.Unclear), 1, "unclear: %q", r.Unclear)
	assert.Is(t, w.Broker.Depth(w.Queue), 0, "messages were sent again whose letters another reader may hold")
}

// What a person must mend, or must be sure of, is neither asked of a machine nor done by one.
func TestOnlyWhatAMachineMayMendIsOrderedAndMended(t *testing.T) {
	w := newWorld(t).dead("no", "old")
	w.Exec("DELETE FROM consumer_log")
	report := operator.Report{Findings: []operator.Finding{
		{Kind: operator.NegativeStock, SKU: 1},
		{Kind: operator.SuccessNotReleased, Status: "success", Key: "A"},
		{Kind: operator.DeadWithoutLetter, Status: "dead", Key: "cut", Hindrance: "its row keeps no body"},
		{Kind: operator.LetterWithoutRow, Status: "absent", Tag: tag, Key: "old", Hindrance: "too_old"},
	}}
	for i, want := range []error{operator.ErrNoRepair, operator.ErrNoRepair, operator.ErrNoRepair, nil} {
		f := &report.Findings[i]
		f.Group = group
		for force, want := range map[bool]error{false: operator.ErrNoRepair, true: want} {
			order, err := report.Order("an act", i, force)
			assert.Error(t, err, want, "%s is ordered, force %v", f.Kind, force)
			assert.That(t, err != nil || order.Of == "an act" && order.Number == i && order.Force == force &&
				order.Finding.Key == f.Key, "%s, force %v: %+v", f.Kind, force, order)
			o := w.options(operator.Bounds{})
			o.Force = force
			_, err = o.Mend(t.Context(), *f)
			assert.Error(t, err, want, "%s is mended, force %v", f.Kind, force)
		}
	}
	a := operator.MendOrder{Finding: operator.Finding{Tag: "a b", Key: "c"}}
	b := operator.MendOrder{Finding: operator.Finding{Tag: "a", Key: "b c"}}
	assert.Is(t, a.Alone() != b.Alone(), true, "messages whose tag and key run together are two")
	for _, number := range []int{len(report.Findings), -1} {
		_, err := report.Order("an act", number, true)
		assert.Error(t, err, operator.ErrNoFinding, "finding %d", number)
	}
}

// Given a process that has reopened the row of a purged message and died before it sent it, when another one is to mend
// it, under the same name, then the message is sent.
func TestAMendThatDiedBeforeItsMessageWasSentIsGoneOnWith(t *testing.T) {
	w := newWorld(t).purged("purged")
	found := w.compare(operator.Bounds{}).Findings[0]
	o := w.options(operator.Bounds{})
	o.By, o.Again = "ann, run 1", true
	for n := range 2 { // the second process dies there too
		row := w.Row("purged")
		require.Get(w.Records.Reopen(t.Context(), row, dedup.Entry{Identity: row.Identity},
			dedup.ReplayNote{By: o.By, Filter: "reconcile", Token: fmt.Sprintf("dead-%d", n)}))(t)
	}
	done, err := o.Mend(t.Context(), found)
	assert.That(t, err == nil && done.Mended && done.Failure == "", "%+v, %v", done, err)
	assert.Is(t, w.Broker.Depth(w.Queue), 1, "messages are sent")
	row := w.Row("purged")
	assert.Is(t, fmt.Sprint(row.Status, row.Replays), "failed 3", "the row, replayed")
}
