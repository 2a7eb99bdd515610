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
func (w *shop) compare(bounds operator.Bounds) operator.Report {
	w.T.Helper()
	report := require.Get(w.options(bounds).Run(w.T.Context()))(w.T)
	text := require.Get(json.Marshal(report))(w.T)
	var read operator.Report
	w.Must(json.Unmarshal(text, &read))
	return read
}

// depths are how many messages wait in the main queue, and letters in theirs.
func (w *shop) depths() [2]int {
	return [2]int{w.Broker.Depth(w.Queue), w.Broker.Depth(rabbit.DeadQueue(w.Queue))}
}

// mendable makes a finding of each kind that a machine may mend, one for each message that was purged.
func (w *shop) mendable(purged ...string) operator.Report {
	w.T.Helper()
	w.dead(true, "no row", "ended", "cut off")
	w.Exec("DELETE FROM consumer_log WHERE msg_key = 'no row'")
	w.Exec("UPDATE consumer_log SET consumer_status = 1 WHERE msg_key = 'ended'")
	w.Exec("UPDATE consumer_log SET consumer_status = 2, replays = 1, consumer_timestamp = consumer_timestamp - " +
		"INTERVAL 2 HOUR WHERE msg_key = 'cut off'")
	w.dead(false, purged...)
	w.reservation("A", 1, 2, "forgotten", time.Hour)
	all := w.compare(operator.Bounds{})
	require.Is(w.T, len(all.Findings), 4+len(purged), "of %+v findings", all.Findings)
	return all
}

// Given findings of each kind that a machine may mend, when they are mended one by one, then each time that one is
// gone and all others are as they were, and to mend it again changes nothing; by a process under the same name, whose
// former one died before it could say so, that is no failure.
func TestFindingsAreMendedOneByOne(t *testing.T) {
	w := newShop(t).dead(true, "agrees")
	all := w.mendable("purged", "purged too")
	left := map[string]bool{}
	for _, f := range all.Findings {
		left[f.Key] = true
	}
	for _, f := range all.Findings {
		by, risk := f.Repair()
		if by == operator.NoRepair || risk != "" {
			t.Fatalf("%s %s: repair %q, risk %q", f.Kind, f.Key, by, risk)
		}
		o := w.options(operator.Bounds{})
		o.By = "ann, run 1"
		done, err := o.Mend(t.Context(), f)
		if err != nil || !done.Mended {
			t.Errorf("%s %s: %+v, %v", f.Kind, f.Key, done, err)
		}
		delete(left, f.Key)
		now := w.compare(operator.Bounds{})
		assert.Is(t, len(now.Findings), len(left), "after %s %s there findings", f.Kind, f.Key)
		for _, other := range now.Findings {
			if !left[other.Key] {
				t.Errorf("after %s %s there is %s %s", f.Kind, f.Key, other.Kind, other.Key)
			}
		}
		if f.Kind == operator.DeadWithoutLetter { // a daemon has begun it meanwhile
			w.Exec("UPDATE consumer_log SET consumer_times = 1 WHERE msg_key = ?", f.Key)
		}
		before := w.depths()
		_, err = w.options(operator.Bounds{}).Mend(t.Context(), f)
		assert.Error(t, err, operator.ErrLeft, "%s %s again, by somebody else", f.Kind, f.Key)
		o.Again = true
		if done, err := o.Mend(t.Context(), f); err != nil || !done.Mended || done.Failure != "" {
			t.Errorf("%s %s again: %+v, %v", f.Kind, f.Key, done, err)
		}
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

// Given findings that a person must mend, or be sure of first, then a machine does not.
func TestWhatIsAtRiskIsNotMendedWithoutAPersonsWord(t *testing.T) {
	w := newShop(t).dead(true, "old")
	w.Exec("DELETE FROM consumer_log")
	for _, f := range []operator.Finding{
		{Kind: operator.NegativeStock, SKU: 1},
		{Kind: operator.SuccessNotReleased, Status: "success", Key: "A"},
		{Kind: operator.DeadWithoutLetter, Status: "dead", Key: "cut", Hindrance: "its row keeps no body"},
		{Kind: operator.LetterWithoutRow, Status: "absent", Tag: tag, Key: "old", Hindrance: "too_old"},
	} {
		f.Group = group
		o := w.options(operator.Bounds{})
		_, err := o.Mend(t.Context(), f)
		assert.Error(t, err, operator.ErrNoRepair, "%s", f.Kind)
		if f.Kind == operator.LetterWithoutRow {
			o.Force = true
			assert.Is(t, require.Get(o.Mend(t.Context(), f))(t).Mended, true, "with a person's word: mended")
		}
	}
}

// Given more findings, letters and reservations than a page may have looked at, then what is left out is said.
func TestWhatIsBeyondTheBoundsIsSaid(t *testing.T) {
	w := newShop(t).dead(false, names("k", 30)...)
	r := w.compare(operator.Bounds{Findings: 10})
	if len(r.Findings) != 10 || r.More[operator.DeadWithoutLetter] != 20 {
		t.Errorf("%d findings and %v more", len(r.Findings), r.More)
	}
	w.dead(true, names("letter", 6)...)
	r = w.compare(operator.Bounds{Letters: 5})
	if len(r.Findings) != 0 || len(r.Unclear) != 1 || !strings.Contains(r.Unclear[0], "over 5 letters") {
		t.Errorf("%d findings, unclear %q", len(r.Findings), r.Unclear)
	}
	assert.Is(t, w.Broker.Depth(rabbit.DeadQueue(w.Queue)), 6, "letters are left")
	for _, order := range names("order", 1500) {
		w.reservation(order, 1, 2, order, time.Hour) // each released by a message that the log does not know
	}
	r = w.compare(operator.Bounds{Letters: 5, Time: time.Nanosecond})
	if r.Reservations != 1000 || len(r.Unclear) != 2 || len(r.Findings) == 0 {
		t.Errorf("%d reservations, %d findings, unclear %q", r.Reservations, len(r.Findings), r.Unclear)
	}
}

// What a person must mend, or must be sure of, is not asked of a machine.
func TestOnlyWhatAMachineMayMendIsOrdered(t *testing.T) {
	t.Parallel()
	kept := func(kind operator.FindingKind, hindrance string) operator.Finding {
		return operator.Finding{Kind: kind, Hindrance: hindrance, Key: string(kind)}
	}
	w := operator.Report{Findings: []operator.Finding{
		kept(operator.StaleLetter, ""), kept(operator.LetterWithoutRow, "its row may have been deleted"),
		kept(operator.NegativeStock, ""),
	}}
	for _, c := range []struct {
		number int
		force  bool
		want   error
	}{
		{0, false, nil}, {1, false, operator.ErrNoRepair}, {1, true, nil}, {2, true, operator.ErrNoRepair},
		{3, true, operator.ErrNoFinding}, {-1, true, operator.ErrNoFinding},
	} {
		order, err := w.Order("an act", c.number, c.force)
		assert.Error(t, err, c.want, "finding %d, force %v", c.number, c.force)
		if c.want == nil && (order.Of != "an act" || order.Number != c.number || order.Force != c.force ||
			order.Finding.Key != w.Findings[c.number].Key) {
			t.Errorf("finding %d, force %v: %+v", c.number, c.force, order)
		}
	}
}

// Given a process that has reopened the row of a purged message and died before it sent it, when another one is to mend
// it, under the same name, then the message is sent.
func TestAMendThatDiedBeforeItsMessageWasSentIsGoneOnWith(t *testing.T) {
	w := newShop(t).dead(false, "purged")
	found := w.compare(operator.Bounds{}).Findings[0]
	o := w.options(operator.Bounds{})
	o.By, o.Again = "ann, run 1", true
	for n := range 2 { // the second process dies there too
		row := w.Row("purged")
		require.Get(w.Records.Reopen(t.Context(), row, dedup.Entry{Identity: row.Identity}, dedup.ReplayNote{
			By: o.By, Filter: "reconcile", Token: fmt.Sprintf("dead-%d", n),
		}))(t)
	}
	if done, err := o.Mend(t.Context(), found); err != nil || !done.Mended || done.Failure != "" {
		t.Errorf("%+v, %v", done, err)
	}
	assert.Is(t, w.Broker.Depth(w.Queue), 1, "messages are sent")
	row := w.Row("purged")
	assert.Is(t, fmt.Sprint(row.Status, row.Replays), "failed 3", "the row, replayed")
}
