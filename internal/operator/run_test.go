package operator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestARunReplaysAllThatTheFilterMatchesAndNothingThatDiedAfterThePreview(t *testing.T) {
	w := newWorld(t).dead("sku 17 is locked", names("a", 450)...)
	w.dead("the order is unknown", names("b", 30)...)
	w.consumes(nil)
	// given a preview of one group of errors
	p := w.preview(operator.KindReplay, deadletter.Filter{Fingerprint: deadletter.Fingerprint("sku 4 is locked")})
	assert.That(t, p.Matched == 450 && !p.More && p.Totals[deadletter.VerdictAct] == 50 && len(p.Letters) == 50,
		"the preview has %d letters, more %v, totals %v", p.Matched, p.More, p.Totals)
	// when more of them die before the click
	w.dead("sku 18 is locked", names("late", 20)...)
	w.Exec("UPDATE consumer_log SET consumer_timestamp = UTC_TIMESTAMP(6) WHERE msg_key LIKE 'late-%'")
	a, err := w.desk.Start(t.Context(), anna, operator.Request{Kind: operator.KindReplay, Filter: p.Filter, CutOff: p.At})
	w.Must(err)
	w.daemon()
	// then the run takes all that were there at the preview, and no others
	a = w.swept(a.ID)
	w.wantReplayed(a, 450)
	w.wantApplied(450)
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3 AND replays = 0"), 50,
		"rows are as they were")
	w.WantQueues(0, 50)
	// and each letter's story names the run
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_event WHERE `by` = ? AND `to` = 2", "anna, run "+a.ID), 450,
		"events name the run")
}

// Given a run whose daemon is killed, when another one is there, then it goes on, every letter has its
// effect once, and the counts are exact.
func TestARunGoesOnWhenItsDaemonIsKilledAndItsCountsAreExact(t *testing.T) {
	const n = 600
	w := newWorld(t).dead("no", names("a", n)...)
	w.consumes(nil)
	a := w.start(operator.Request{Filter: all, Rate: 60})
	replayed := func() int { return w.Number("SELECT COUNT(*) FROM consumer_log WHERE replays > 0") }
	for range 2 {
		// given a daemon that is killed in the middle of the run
		before := replayed()
		d, kill := w.mortal()
		w.works(d)
		w.Eventually("some are replayed", func() (string, bool) {
			have := replayed()
			return fmt.Sprint(have), have >= before+40
		})
		kill()
		require.Is(t, replayed() < n, true, "it is killed before it is done")
	}
	// when another one is there
	w.daemon()
	// then it goes on when the lease is over, and every letter has its effect once
	a = w.swept(a.ID)
	w.wantReplayed(a, n)
	assert.AtLeast(t, a.Terms, 3, "terms")
	assert.Is(t, a.Progress.Done, n, "done")
	w.wantApplied(n)
	w.WantQueues(0, 0)
}

// Given rows that keep too little of their messages, and one that a process reopened and died before it published it,
// then a run takes the former from the queue and publishes the latter, each once.
func TestARunTakesFromTheQueueWhatItsRowLacksAndPublishesWhatWasReopened(t *testing.T) {
	w := newWorld(t).dead("no", names("a", 10)...)
	a := w.start(operator.Request{Filter: all})
	row := w.Row("a-00002")
	require.Get(w.Records.Reopen(t.Context(), row, dedup.Entry{Identity: row.Identity},
		dedup.ReplayNote{By: "anna, run " + a.ID, Filter: "all", Token: "run/" + a.ID + "/dead/1"}))(t)
	w.Exec("UPDATE consumer_log SET msg_body = NULL WHERE msg_key IN ('a-00003', 'a-00004')")
	w.Exec("UPDATE consumer_log SET msg_body = 'cut' WHERE msg_key = 'a-00005'")
	w.consumes(nil)
	w.daemon()
	w.wantReplayed(w.swept(a.ID), 10)
	w.wantApplied(10)
	w.WantQueues(0, 0)
}

func TestARunIsStoppedByAnybodyWithinSecondsAndADrainHandsItOver(t *testing.T) {
	w := newWorld(t).dead("no", names("a", 400)...)
	w.consumes(nil)
	a := w.start(operator.Request{Filter: all, Rate: 10})
	// given a daemon that drains in the middle
	stop := w.daemon()
	w.until(a.ID, func(a operator.Act) bool { return a.Progress.Done >= 5 })
	stop()
	// then another goes on at once, without waiting for the lease
	began := time.Now()
	next := w.newDesk()
	next.LookEvery(time.Millisecond) // for stops too, more often than a walk through the queue takes
	w.works(next)
	w.until(a.ID, func(a operator.Act) bool { return a.Terms == 2 })
	assert.AtMost(t, time.Since(began), 13*time.Second, "the next one took it up after") // a lease is 15 s
	w.until(a.ID, func(a operator.Act) bool { return a.Progress.Done >= 15 })
	// when somebody stops it
	require.Get(w.newDesk().Stop(t.Context(), bert, a.ID))(w.T)
	w.ends(a.ID)
	a = w.swept(a.ID)
	assert.That(t, a.State == operator.Stopped && a.StopBy == "bert" && a.Result.Replayed < 400 &&
		a.Result.Replayed >= 15 && a.Result.Swept == a.Result.Replayed && a.Terms == 3,
		"%s by %q in %d terms, of which one is for the walk: %+v", a.State, a.StopBy, a.Terms, a.Result)
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log WHERE replays > 0"), a.Result.Replayed,
		"rows are replayed, the act says")
	w.WantQueues(0, 400-a.Result.Replayed)
	_, err := w.desk.Stop(t.Context(), bert, a.ID)
	assert.That(t, err == nil || errors.Is(err, operator.ErrEnded), "stopped again: %v", err)
}

func TestARunEndsWhenTooManyFailAgain(t *testing.T) {
	w := newWorld(t).dead("no", names("a", 300)...)
	w.consumes(errors.New("the shelf is locked"))
	a := w.start(operator.Request{Filter: all, Window: 20, MaxFailures: 10})
	w.daemon()
	a = w.ends(a.ID)
	assert.That(t, a.State == operator.Failed && a.Result.FailedAgain >= 10 && a.Result.Replayed <= 60 &&
		strings.Contains(a.Error, "failed again"), "%s: %+v, %s", a.State, a.Result, a.Error)
}

func TestADiscardEndsItsLettersAndParkedOnesStayInAReplay(t *testing.T) {
	w := newWorld(t).dead("no", names("a", 30)...)
	w.dead("no", "order-a", "order-b", "order-c")
	w.Reservation("order", 1, 2, letters.Identity("order-a"), 0)
	w.Reservation("order", 2, 2, letters.Identity("order-b"), 0)
	w.Exec("UPDATE consumer_log SET replays = ? WHERE msg_key IN ('a-00001', 'a-00002')", most)
	w.daemon()
	// given an order, whose letters are discarded
	d := w.start(operator.Request{Kind: operator.KindDiscard, Filter: deadletter.Filter{Order: "order"},
		Why: "it never was"})
	d = w.swept(d.ID)
	w.wantEnded(d, operator.Done, "2 discarded")
	assert.Is(t, [2]int{d.Result.Swept, w.status(dedup.Discarded)}, [2]int{2, 2}, "swept, and rows")
	w.WantQueues(0, 31)
	// when all are replayed, then parked ones stay and are counted by reason
	p := w.preview(operator.KindReplay, all)
	assert.That(t, p.Matched == 31 && p.Parked == 2 && p.Totals[deadletter.VerdictParked] == 2, "%+v", p)
	r := w.ends(w.start(operator.Request{Filter: all}).ID)
	assert.That(t, r.Result.Replayed == 29 && r.Result.LeftBy[deadletter.WhyParked] == 2 && len(r.Result.Left) == 2,
		"%+v", r.Result)
	// and the preview by key says of each what it would come to
	w.Exec("UPDATE consumer_log SET consumer_status = 1 WHERE msg_key = 'a-00005'")
	byKey := w.preview(operator.KindReplay, deadletter.Filter{Keys: []string{"a-00001", "a-00004", "a-00005", "order-a",
		"nobody"}})
	verdicts := map[string]deadletter.Verdict{}
	for _, j := range byKey.Letters {
		verdicts[j.Key] = j.Verdict
	}
	for key, want := range map[string]deadletter.Verdict{
		"a-00001": deadletter.VerdictParked, "a-00004": deadletter.VerdictInProgress, "a-00005": deadletter.VerdictDone,
		"order-a": deadletter.VerdictDiscarded, "nobody": deadletter.VerdictTooOld,
	} {
		assert.Is(t, verdicts[key], want, "%s", key)
	}
}

// Given a letter of another order, under another tag with the key of an order's letter, when the order's are discarded,
// then that is refused until the tag is said, which takes the order's alone.
func TestARunOverAnOrderTakesNoOtherOrdersLetter(t *testing.T) {
	w := newWorld(t).dead("no", "k")
	w.Reservation("order", 1, 2, letters.Identity("k"), 0)
	w.Exec("UPDATE consumer_log SET msg_tag = 'other'")
	w.dead("no", "k")
	r := operator.Request{Kind: operator.KindDiscard, Filter: deadletter.Filter{Order: "order"}, Why: "it never was",
		CutOff: require.Get(w.desk.Now(t.Context()))(t)}
	_, err := w.desk.Start(t.Context(), anna, r)
	assert.Error(t, err, operator.ErrRequest, "the discard")
	r.Filter.Tag = tag
	w.daemon()
	w.wantEnded(w.ends(w.start(r).ID), operator.Done, "1 discarded")
	assert.Is(t, w.Number("SELECT consumer_status FROM consumer_log WHERE msg_tag = 'other'"), 3, "the other's row")
}

// Given a run whose letters nobody takes yet; when a server's trouble ends a pass in the middle, then the next pass, in
// the same process, leaves alone what was published and confirmed long before: it is not reopened and published again.
func TestWhatWasConfirmedBeforeATroubleIsNotPublishedAgain(t *testing.T) {
	const n = 200
	w := newWorld(t).dead("no", names("a", n)...)
	a := w.start(operator.Request{Filter: all, Rate: 4, Window: n})
	w.daemon()
	var first string
	w.Eventually("the first letter is known to be published", func() (string, bool) {
		err := w.Pool.QueryRowContext(t.Context(), "SELECT msg_key FROM consumer_log WHERE replays = 1 AND "+
			"consumer_timestamp < (SELECT settled_at FROM consumer_log_act WHERE id = ?) ORDER BY consumer_timestamp LIMIT 1",
			[]byte(a.ID)).Scan(&first)
		return fmt.Sprint(err), err == nil
	})
	w.Exec("RENAME TABLE consumer_log TO away")
	w.until(a.ID, func(a operator.Act) bool { return a.Progress != nil && a.Progress.Trouble != "" })
	before := w.Number("SELECT COUNT(*) FROM away WHERE replays > 0")
	w.Exec("RENAME TABLE away TO consumer_log")
	w.Eventually("the run goes on with further letters", func() (string, bool) {
		have := w.Number("SELECT COUNT(*) FROM consumer_log WHERE replays > 0")
		return fmt.Sprint(have), have > before
	})
	assert.Is(t, w.Number("SELECT replays FROM consumer_log WHERE msg_key = ?", []byte(first)), 1,
		"%s was reopened times", first)
}
