package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// outcome is what a run leaves behind.
type outcome struct {
	Status     dedup.Status
	Replays    int
	Main, Dead int // messages in the queues
	Replayed   int
	Discarded  int
	Stale      int
	Why        deadletter.Why
}

func TestALetterGoesTheWayOfItsRow(t *testing.T) {
	const expired = 99 // a row in Processing whose lease is over
	stay := func(s dedup.Status, why deadletter.Why) outcome { return outcome{Status: s, Dead: 1, Why: why} }
	for name, tc := range map[string]struct {
		status  dedup.Status
		options deadletter.ReplayOptions
		want    outcome
	}{
		"absent": {
			status: dedup.Absent, want: outcome{Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1},
		},
		"failed": {
			status: dedup.Failed, want: outcome{Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1},
		},
		"dead": {
			status: dedup.Dead, want: outcome{Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1},
		},
		"lease expired": {
			status: expired, want: outcome{Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1},
		},
		"lease lives": {status: dedup.Processing, want: stay(dedup.Processing, deadletter.WhyInProgress)},
		"success":     {status: dedup.Success, want: outcome{Status: dedup.Success, Stale: 1}},
		"success, forced": {
			status: dedup.Success, options: deadletter.ReplayOptions{Force: true, Discarded: true},
			want: outcome{Status: dedup.Success, Stale: 1},
		},
		"discarded": {status: dedup.Discarded, want: outcome{Status: dedup.Discarded, Stale: 1}},
		"discarded, asked for": {
			status: dedup.Discarded, options: deadletter.ReplayOptions{Discarded: true}, want: outcome{
				Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1,
			},
		},
		"dead, dry run": {
			status: dedup.Dead, options: deadletter.ReplayOptions{DryRun: true}, want: outcome{Status: dedup.Dead, Dead: 1,
				Replayed: 1},
		},
		"success, dry run": {
			status: dedup.Success, options: deadletter.ReplayOptions{DryRun: true}, want: outcome{Status: dedup.Success, Dead: 1,
				Stale: 1},
		},
		"lease lives, though forced": {
			status: dedup.Processing, options: deadletter.ReplayOptions{Force: true},
			want: stay(dedup.Processing, deadletter.WhyInProgress),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if tc.status == expired {
				w.inState("k", dedup.Processing)
				w.moveBack(lease)
			} else {
				w.inState("k", tc.status)
			}
			w.moveBack(time.Second)
			w.letter("k")
			res := w.replay(all, tc.options)
			w.wantOutcome(res, tc.want)
		})
	}
}

func TestADiscardedLetterGoesTheWayOfItsRow(t *testing.T) {
	gone := outcome{Status: dedup.Discarded, Discarded: 1}
	for name, tc := range map[string]struct {
		status dedup.Status
		aged   time.Duration
		want   outcome
	}{
		"absent":        {dedup.Absent, 0, gone},
		"failed":        {dedup.Failed, time.Second, gone},
		"dead":          {dedup.Dead, time.Second, gone},
		"lease expired": {dedup.Processing, lease, gone},
		"lease lives": {dedup.Processing, time.Second, outcome{
			Status: dedup.Processing, Dead: 1, Why: deadletter.WhyInProgress,
		}},
		"success":   {dedup.Success, time.Second, outcome{Status: dedup.Success, Stale: 1}},
		"discarded": {dedup.Discarded, time.Second, outcome{Status: dedup.Discarded, Stale: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.inState("k", tc.status)
			w.moveBack(tc.aged)
			w.letter("k")
			res, err := w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann", Why: "order was a test"})
			if err != nil {
				t.Fatal(err)
			}
			w.wantOutcome(res, tc.want)
			if want := "discarded by ann: order was a test (chosen: all)"; tc.want.Discarded == 1 && w.row("k").Remark != want {
				t.Errorf("remark = %q, want %q", w.row("k").Remark, want)
			}
		})
	}
}

func (w *world) wantOutcome(res deadletter.Result, want outcome) {
	w.t.Helper()
	w.wantQueues(want.Main, want.Dead)
	row := w.row("k")
	have := outcome{
		Status: row.Status, Replays: row.Replays, Main: want.Main, Dead: want.Dead,
		Replayed: res.Replayed, Discarded: res.Discarded, Stale: res.Stale,
	}
	if len(res.Left) == 1 {
		have.Why = res.Left[0].Why
	}
	if diff := cmp.Diff(want, have); diff != "" || res.Found != 1 || res.Seen != 1 {
		w.t.Errorf("-want +have:\n%s\n%+v", diff, res)
	}
	if want.Main == 1 && (!row.Due || row.Attempts != 0) {
		w.t.Errorf("row is due %t after %d attempts, want due at once after 0", row.Due, row.Attempts)
	}
}

func TestAReplayedMessageIsTheProducersOwnWithTheRowsReplays(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"a":1}`)
	d.Headers = rabbit.Table{"x-tenant": "north", wire.HeaderPublishedAt: int64(1700000000000)}
	id := w.identify(d)
	w.inState("k", dedup.Absent)
	w.put(d, id, wire.CopyOptions{Attempt: 3})
	if err := w.records.Dead(t.Context(), dedup.Row{Identity: id.Identity, Version: dedup.Version{Status: dedup.Absent}},
		entry(id, d), "exhausted", "no"); err != nil {
		t.Fatal(err)
	}
	w.moveBack(time.Second)
	w.replay(all, deadletter.ReplayOptions{})
	got := w.get(w.queue)
	delete(got.Headers, wire.HeaderFirstFailedAt)
	delete(got.Headers, "x-delivery-count") // the broker's
	want := rabbit.Table{
		"x-tenant": "north", wire.HeaderPublishedAt: int64(1700000000000), wire.HeaderReplays: int64(1),
		wire.HeaderExchange: "stock", wire.HeaderRoutingKey: tag,
	}
	if diff := cmp.Diff(want, got.Headers); diff != "" || string(got.Body) != `{"a":1}` || got.Type != tag ||
		got.MessageId != "k" {
		t.Errorf("body %s, type %q, id %q, headers -want +got:\n%s", got.Body, got.Type, got.MessageId, diff)
	}
	events, err := w.records.Events(t.Context(), id.Identity)
	if err != nil || len(events) != 2 || events[1].By != "tester" || events[1].Error != "replayed all" {
		t.Errorf("events = %+v, %v; want the replay, by whom and of what", events, err)
	}
}

func TestAReplayKilledHalfWayIsDoneAgainByTheNext(t *testing.T) {
	const n = 3
	for point, of := range map[deadletter.Point]struct{ published, acked bool }{
		deadletter.PointReopened:  {false, false},
		deadletter.PointPublished: {true, false}, // further copies of an identity are harmless
		deadletter.PointAcked:     {true, true},
	} {
		t.Run(string(point), func(t *testing.T) {
			w := newWorld(t)
			keys := names("k", n)
			w.dead(dedup.ReasonExhausted, keys...)
			killed := errors.New("killed")
			w.hook = func(p deadletter.Point) error {
				if p == point {
					return killed
				}
				return nil
			}
			_, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{By: "first"})
			if !errors.Is(err, killed) {
				t.Fatalf("Replay = %v, want the kill", err)
			}
			taken := 0 // all, unless the broker was slow to deliver
			for _, key := range keys {
				if row := w.row(key); row.Status == dedup.Failed && row.Replays == 1 {
					taken++
				}
			}
			published, acked := 0, 0
			if of.published {
				published = taken
			}
			if of.acked {
				acked = taken
			}
			w.wantQueues(published, n-acked)
			if row := w.row(keys[0]); row.Status != dedup.Failed || row.Replays != 1 {
				t.Fatalf("row = %v after %d replays, want failed after 1", row.Status, row.Replays)
			}
			w.hook = nil
			w.replay(all, deadletter.ReplayOptions{})
			w.wantQueues(published+n-acked, 0)
			again := 2
			if of.acked {
				again = 1
			}
			if row := w.row(keys[0]); row.Status != dedup.Failed || row.Replays != again {
				t.Errorf("row = %v after %d replays, want failed after %d", row.Status, row.Replays, again)
			}
		})
	}
}

func TestADiscardKilledBeforeItsAckIsFinishedByTheNext(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "k")
	w.hook = func(p deadletter.Point) error {
		if p == deadletter.PointDiscarded {
			return errors.New("killed")
		}
		return nil
	}
	if _, err := w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann"}); err == nil {
		t.Fatal("the kill was not reported")
	}
	w.wantQueues(0, 1)
	w.hook = nil
	res, err := w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann"})
	if err != nil || res.Stale != 1 {
		t.Errorf("Discard = %+v, %v; want one stale letter", res, err)
	}
	w.wantQueues(0, 0)
}

func TestTwoReplaysAtOnceShareTheLetters(t *testing.T) {
	w := newWorld(t)
	const n = 1200
	w.dead(dedup.ReasonExhausted, names("k", n)...)
	results := make(chan deadletter.Result, 2)
	for range 2 {
		letters := w.letters()
		go func() {
			res, err := letters.Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"})
			if err != nil {
				t.Errorf("Replay: %v", err)
			}
			results <- res
		}()
	}
	a, b := <-results, <-results
	if a.Replayed+b.Replayed != n || len(a.Left)+len(b.Left) != 0 {
		t.Errorf("replayed %d and %d, left %v %v; want %d in all", a.Replayed, b.Replayed, a.Left, b.Left, n)
	}
	w.wantQueues(n, 0)
	var once int
	if err := w.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND "+
		"replays = 1").Scan(&once); err != nil || once != n {
		t.Errorf("%d rows were reopened exactly once (%v), want %d", once, err, n)
	}
}

func TestSeveralLettersOfOneMessageBecomeOneMessage(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "k", "other")
	w.letter("k")
	w.letter("k")
	res := w.replay(all, deadletter.ReplayOptions{})
	// A slow broker may hand a letter out after the first of its message is gone: its row says that this run reopened it,
	// and it is a second copy of what the row stands for.
	if res.Replayed+res.Duplicates != 4 || res.Duplicates == 0 {
		t.Errorf("replayed %d, duplicates %d; want 2 and 2", res.Replayed, res.Duplicates)
	}
	w.wantQueues(res.Replayed, 0)
}

func TestWhatIsNotChosenGoesBackToItsPlace(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, "a", "b")
	w.dead(dedup.ReasonExhausted, "c", "d")
	res := w.replay(deadletter.Filter{Reasons: []dedup.Reason{"exhausted"}, Limit: 1}, deadletter.ReplayOptions{})
	if res.Replayed != 1 || res.NotSelected+res.Unseen != 3 { // one may come behind the limit
		t.Errorf("%+v; want 1 replayed and 3 passed or not seen", res)
	}
	w.wantQueues(1, 3)
	for _, want := range []string{"a", "b", "d"} {
		if got := w.get(rabbit.DeadQueue(w.queue)); got.MessageId != want {
			t.Errorf("next letter is %s, want %s", got.MessageId, want)
		}
	}
}

func TestManyLettersAreAckedTogetherAndNoneBetweenThemThatStays(t *testing.T) {
	for name, tc := range map[string]struct {
		stay []int // of eight letters, in their order
	}{
		"none stays":       {},
		"the first stays":  {[]int{0}},
		"the middle stays": {[]int{3, 4}},
		"some stay":        {[]int{1, 6}},
		"the last stays":   {[]int{7}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			keys := names("k", 8)
			reasons := make([]dedup.Reason, len(keys))
			var want []string
			for i, key := range keys {
				reasons[i] = dedup.ReasonExhausted
				if slices.Contains(tc.stay, i) {
					reasons[i] = dedup.ReasonPermanent
					want = append(want, key)
				}
				w.dead(reasons[i], key)
			}
			f := deadletter.Filter{Reasons: []dedup.Reason{dedup.ReasonExhausted}}
			if res := w.replay(f, deadletter.ReplayOptions{}); res.Replayed != len(keys)-len(want) || len(res.Left) > 0 {
				t.Fatalf("%+v; want %d replayed and nothing left", res, len(keys)-len(want))
			}
			w.wantQueues(len(keys)-len(want), len(want))
			var have []string
			for range want {
				have = append(have, w.get(rabbit.DeadQueue(w.queue)).MessageId)
			}
			if !slices.Equal(have, want) {
				t.Errorf("the letters that stayed are %v, want %v", have, want)
			}
		})
	}
}

func TestOneLetterIsFoundBehindManyOthers(t *testing.T) {
	w := newWorld(t)
	const n = 2600 // more than two channels hold
	w.dead(dedup.ReasonExhausted, names("k", n)...)
	res := w.replay(deadletter.Filter{Keys: []string{"k-02599"}}, deadletter.ReplayOptions{})
	if res.Replayed != 1 || res.NotSelected != n-1 {
		t.Errorf("replayed %d, passed %d; want 1 and %d", res.Replayed, res.NotSelected, n-1)
	}
	w.wantQueues(1, n-1)
}

func TestAFilterChoosesByTheRow(t *testing.T) {
	for name, tc := range map[string]struct {
		filter deadletter.Filter
		want   int
	}{
		"key":           {deadletter.Filter{Keys: []string{"a"}}, 1},
		"other key":     {deadletter.Filter{Keys: []string{"A"}}, 0},
		"tag":           {deadletter.Filter{Tag: tag}, 2},
		"other tag":     {deadletter.Filter{Tag: "order.cancelled"}, 0},
		"reason":        {deadletter.Filter{Reasons: []dedup.Reason{"permanent"}}, 1},
		"since":         {deadletter.Filter{Since: time.Now().Add(-time.Hour)}, 2},
		"since later":   {deadletter.Filter{Since: time.Now().Add(time.Hour)}, 0},
		"until":         {deadletter.Filter{Until: time.Now().Add(time.Hour)}, 2},
		"until earlier": {deadletter.Filter{Until: time.Now().Add(-time.Hour)}, 0},
		"all of it": {deadletter.Filter{
			Keys: []string{"b"}, Tag: tag, Reasons: []dedup.Reason{"permanent"}, Since: time.Now().Add(-time.Hour),
		}, 1},
		"contradiction": {deadletter.Filter{Keys: []string{"a"}, Reasons: []dedup.Reason{"permanent"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.dead(dedup.ReasonExhausted, "a")
			w.dead(dedup.ReasonPermanent, "b")
			if res := w.replay(tc.filter, deadletter.ReplayOptions{DryRun: true}); res.Replayed != tc.want ||
				res.NotSelected != 2-tc.want {
				t.Errorf("chose %d of 2, want %d", res.Replayed, tc.want)
			}
		})
	}
}

func TestAReplayWithoutAFilterIsRefused(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "k")
	for _, f := range []deadletter.Filter{{}, {Limit: 3}} {
		if _, err := w.letters().Replay(t.Context(), f, deadletter.ReplayOptions{}); !errors.Is(err, deadletter.ErrNoFilter) {
			t.Errorf("Replay(%+v) = %v, want ErrNoFilter", f, err)
		}
	}
	w.wantQueues(0, 1)
}

func TestAnOldLetterWithoutARowWantsForce(t *testing.T) {
	for name, tc := range map[string]struct {
		first time.Duration // ago
		force bool
		want  outcome
	}{
		"young":       {28 * 24 * time.Hour, false, outcome{Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1}},
		"old":         {30 * 24 * time.Hour, false, outcome{Status: dedup.Absent, Dead: 1, Why: deadletter.WhyTooOld}},
		"old, forced": {30 * 24 * time.Hour, true, outcome{Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d := message("k", "{}")
			w.put(d, w.identify(d), wire.CopyOptions{FirstFailedAt: time.Now().Add(-tc.first)})
			res := w.replay(all, deadletter.ReplayOptions{Force: tc.force})
			w.wantOutcome(res, tc.want)
		})
	}
}

func TestALetterOfUnknownAgeWithoutARowStays(t *testing.T) {
	w := newWorld(t)
	m := message("k", "{}").Message // published to the dead-letter queue by somebody else
	if err := w.publisher.Publish(t.Context(),
		[]rabbit.Publishing{{Key: rabbit.DeadQueue(w.queue), Message: m}})[0]; err != nil {
		t.Fatal(err)
	}
	res := w.replay(all, deadletter.ReplayOptions{})
	w.wantQueues(0, 1)
	if len(res.Left) != 1 || res.Left[0].Why != deadletter.WhyTooOld {
		t.Errorf("left %v, want one that is too old for all we know", res.Left)
	}
}

func TestAMissingMainQueueEndsTheReplayAndLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 300)...)
	w.broker.Delete(w.queue)
	res, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"})
	if !errors.Is(err, rabbit.ErrUnroutable) || res.Replayed != 0 || res.Seen > 200 {
		t.Fatalf("Replay = %+v, %v; want it to end after one window, unroutable", res, err)
	}
	for _, left := range res.Left {
		if left.Why != deadletter.WhyUnpublished {
			t.Errorf("left %v, want unpublished", left)
		}
	}
	w.declare()
	w.wantQueues(0, 300)
	w.replay(all, deadletter.ReplayOptions{})
	w.wantQueues(300, 0)
}

func TestAnInterruptedReplayFinishesWhatItHasInHand(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 1150)...)
	ctx, cancel := context.WithCancel(t.Context())
	res, err := w.letters().Replay(ctx, all, deadletter.ReplayOptions{By: "tester", Progress: func(deadletter.Progress) {
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || res.Replayed == 0 || res.Replayed >= 1150 || len(res.Left) > 0 {
		t.Fatalf("Replay = %+v, %v; want a finished part and the interruption", res, err)
	}
	w.wantQueues(res.Replayed, 1150-res.Replayed)
}

func TestProgressEndsAtAllLetters(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 1150)...)
	var steps []deadletter.Progress
	w.replay(all, deadletter.ReplayOptions{Progress: func(p deadletter.Progress) { steps = append(steps, p) }})
	if n := len(steps); n < 3 || steps[n-1] != (deadletter.Progress{Seen: 1150, Found: 1150, Done: 1150}) {
		t.Errorf("progress = %v, want at least three steps up to 1150 of 1150", steps)
	}
}

func TestAnEmptyQueueIsDoneAtOnce(t *testing.T) {
	w := newWorld(t)
	want := deadletter.Result{ByReason: map[dedup.Reason]int{}, Left: []deadletter.Left{}, NotFound: []string{}}
	if diff := cmp.Diff(want, w.replay(all, deadletter.ReplayOptions{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestAMissingDeadLetterQueueIsNamed(t *testing.T) {
	w := newWorld(t)
	w.broker.Delete(rabbit.DeadQueue(w.queue))
	_, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{})
	if want := fmt.Sprintf("look at queue %q", rabbit.DeadQueue(w.queue)); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("Replay = %v, want %q in it", err, want)
	}
}

// Given a replay by what is in bodies that was killed when it had reopened a row and published nothing, when it is done
// again, then the letter is replayed, from its row; a row that may have had its effect is left alone.
func TestAReplayByBodiesThatWasKilledIsDoneByTheNext(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "a", "b")
	w.hook = func(deadletter.Point) error { return errors.New("killed") }
	f := deadletter.Filter{Body: "{}", Limit: 1}
	if _, err := w.letters().Replay(t.Context(), f, deadletter.ReplayOptions{By: "tester"}); err == nil {
		t.Fatal("the kill was not reported")
	}
	w.wantQueues(0, 2)
	w.hook = nil
	w.exec("UPDATE consumer_log SET reason = 'effect_unknown' WHERE msg_key = 'b'")
	f.Limit = 0
	if res := w.replay(f, deadletter.ReplayOptions{}); res.Replayed != 1 || !res.ByRows || w.row("b").Replays != 0 {
		t.Errorf("%+v; want the one that was reopened", res)
	}
	w.wantQueues(1, 2)
}
