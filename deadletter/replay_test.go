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
	"github.com/rollbackd/rollbackd/internal/test/assert"
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
	w := newWorld(t)
	var (
		none    deadletter.ReplayOptions
		force   = deadletter.ReplayOptions{Force: true, Discarded: true}
		dry     = deadletter.ReplayOptions{DryRun: true}
		again   = outcome{Status: dedup.Failed, Replays: 1, Main: 1, Replayed: 1}
		gone    = outcome{Status: dedup.Discarded, Discarded: 1}
		busy    = outcome{Status: dedup.Processing, Dead: 1, Why: deadletter.WhyInProgress}
		applied = outcome{Status: dedup.Success, Stale: 1}
		ended   = outcome{Status: dedup.Discarded, Stale: 1}
	)
	for name, tc := range map[string]struct {
		status  dedup.Status
		aged    time.Duration
		discard bool
		options deadletter.ReplayOptions
		want    outcome
	}{
		"absent":                  {dedup.Absent, 0, false, none, again},
		"failed":                  {dedup.Failed, time.Second, false, none, again},
		"dead":                    {dedup.Dead, time.Second, false, none, again},
		"dead, dry run":           {dedup.Dead, time.Second, false, dry, outcome{Status: dedup.Dead, Dead: 1, Replayed: 1}},
		"lease expired":           {dedup.Processing, lease, false, none, again},
		"lease lives":             {dedup.Processing, time.Second, false, none, busy},
		"lease lives, forced":     {dedup.Processing, time.Second, false, force, busy},
		"success":                 {dedup.Success, time.Second, false, none, applied},
		"success, forced":         {dedup.Success, time.Second, false, force, applied},
		"success, dry run":        {dedup.Success, time.Second, false, dry, outcome{Status: 1, Dead: 1, Stale: 1}},
		"discarded":               {dedup.Discarded, time.Second, false, none, ended},
		"discarded, asked for":    {dedup.Discarded, time.Second, false, force, again},
		"absent, to discard":      {dedup.Absent, 0, true, none, gone},
		"failed, to discard":      {dedup.Failed, time.Second, true, none, gone},
		"dead, to discard":        {dedup.Dead, time.Second, true, none, gone},
		"lease over, to discard":  {dedup.Processing, lease, true, none, gone},
		"lease lives, to discard": {dedup.Processing, time.Second, true, none, busy},
		"success, to discard":     {dedup.Success, time.Second, true, none, applied},
		"discarded, to discard":   {dedup.Discarded, time.Second, true, none, ended},
	} {
		w.Broker.Purge(w.Queue)
		w.Broker.Purge(rabbit.DeadQueue(w.Queue))
		w.inState(name, tc.status)
		w.MoveBack(tc.aged)
		w.letter(name)
		if !tc.discard {
			w.wantOutcome(name, w.replay(all, tc.options), tc.want)
			continue
		}
		res, err := w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann", Why: "order was a test"})
		w.Must(err)
		w.wantOutcome(name, res, tc.want)
		if want := "discarded by ann: order was a test (chosen: all)"; tc.want == gone && w.Row(name).Remark != want {
			t.Errorf("%s: remark = %q, want %q", name, w.Row(name).Remark, want)
		}
	}
}

func (w *world) wantOutcome(key string, res deadletter.Result, want outcome) {
	w.T.Helper()
	w.WantQueues(want.Main, want.Dead)
	row := w.Row(key)
	have := outcome{
		Status: row.Status, Replays: row.Replays, Main: want.Main, Dead: want.Dead,
		Replayed: res.Replayed, Discarded: res.Discarded, Stale: res.Stale,
	}
	if len(res.Left) == 1 {
		have.Why = res.Left[0].Why
	}
	if diff := cmp.Diff(want, have); diff != "" || res.Found != 1 || res.Seen != 1 {
		w.T.Errorf("%s: -want +have:\n%s\n%+v", key, diff, res)
	}
	if want.Main == 1 && (!row.Due || row.Attempts != 0) {
		w.T.Errorf("%s is due %t after %d attempts, want due at once after 0", key, row.Due, row.Attempts)
	}
}

func TestAReplayedMessageIsTheProducersOwnWithTheRowsReplays(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"a":1}`)
	d.Headers = rabbit.Table{"x-tenant": "north", wire.HeaderPublishedAt: int64(1700000000000)}
	id := w.Identify(d)
	w.inState("k", dedup.Absent)
	w.put(d, id, wire.CopyOptions{Attempt: 3})
	w.Must(w.Records.Dead(t.Context(), absent(id.Identity),
		entry(id, d), "exhausted", "no"))
	w.MoveBack(time.Second)
	w.replay(all, deadletter.ReplayOptions{})
	got := w.Get(w.Queue)
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
	events, err := w.Records.Events(t.Context(), id.Identity)
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
			w.killAt(point)
			_, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{By: "first"})
			if !errors.Is(err, errKilled) {
				t.Fatalf("Replay = %v, want the kill", err)
			}
			taken := 0 // all, unless the broker was slow to deliver
			for _, key := range keys {
				if row := w.Row(key); row.Status == dedup.Failed && row.Replays == 1 {
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
			w.WantQueues(published, n-acked)
			if row := w.Row(keys[0]); row.Status != dedup.Failed || row.Replays != 1 {
				t.Fatalf("row = %v after %d replays, want failed after 1", row.Status, row.Replays)
			}
			w.hook = nil
			w.replay(all, deadletter.ReplayOptions{})
			w.WantQueues(published+n-acked, 0)
			again := 2
			if of.acked {
				again = 1
			}
			if row := w.Row(keys[0]); row.Status != dedup.Failed || row.Replays != again {
				t.Errorf("row = %v after %d replays, want failed after %d", row.Status, row.Replays, again)
			}
		})
	}
}

func TestADiscardKilledBeforeItsAckIsFinishedByTheNext(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "k")
	w.killAt(deadletter.PointDiscarded)
	if _, err := w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann"}); err == nil {
		t.Fatal("the kill was not reported")
	}
	w.WantQueues(0, 1)
	w.hook = nil
	res, err := w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann"})
	if err != nil || res.Stale != 1 {
		t.Errorf("Discard = %+v, %v; want one stale letter", res, err)
	}
	w.WantQueues(0, 0)
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
	w.WantQueues(n, 0)
	w.wantStatus(dedup.Failed, 1, n)
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
	w.WantQueues(res.Replayed, 0)
}

func TestWhatIsNotChosenGoesBackToItsPlace(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, "a", "b")
	w.dead(dedup.ReasonExhausted, "c", "d")
	res := w.replay(deadletter.Filter{Reasons: []dedup.Reason{"exhausted"}, Limit: 1}, deadletter.ReplayOptions{})
	if res.Replayed != 1 || res.NotSelected+res.Unseen != 3 { // one may come behind the limit
		t.Errorf("%+v; want 1 replayed and 3 passed or not seen", res)
	}
	w.WantQueues(1, 3)
	for _, want := range []string{"a", "b", "d"} {
		assert.Is(t, w.Get(rabbit.DeadQueue(w.Queue)).MessageId, want, "next letter")
	}
}

func TestManyLettersAreAckedTogetherAndNoneBetweenThemThatStays(t *testing.T) {
	w := newWorld(t)
	for name, stay := range map[string][]int{ // of eight letters, in their order
		"none stays": nil, "the first stays": {0}, "the middle stays": {3, 4}, "some stay": {1, 6}, "the last stays": {7},
	} {
		var want []string
		for i, key := range names(name, 8) {
			reason := dedup.ReasonExhausted
			if slices.Contains(stay, i) {
				reason = dedup.ReasonPermanent
				want = append(want, key)
			}
			w.dead(reason, key)
		}
		f := deadletter.Filter{Reasons: []dedup.Reason{dedup.ReasonExhausted}}
		if res := w.replay(f, deadletter.ReplayOptions{}); res.Replayed != 8-len(want) || len(res.Left) > 0 {
			t.Fatalf("%s: %+v; want %d replayed and nothing left", name, res, 8-len(want))
		}
		w.WantQueues(8-len(want), len(want))
		w.Broker.Purge(w.Queue)
		var have []string
		for range want {
			have = append(have, w.Get(rabbit.DeadQueue(w.Queue)).MessageId)
		}
		assert.Equal(t, have, want, "%s: the letters that stayed", name)
	}
}

func TestAFilterChoosesByTheRow(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "a")
	w.dead(dedup.ReasonPermanent, "b")
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
		if res := w.replay(tc.filter, deadletter.ReplayOptions{DryRun: true}); res.Replayed != tc.want ||
			res.NotSelected != 2-tc.want {
			t.Errorf("%s: chose %d of 2, want %d", name, res.Replayed, tc.want)
		}
	}
}

func TestAMissingMainQueueEndsTheReplayAndLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 600)...)
	w.Broker.Delete(w.Queue)
	res, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"})
	if !errors.Is(err, rabbit.ErrUnroutable) || res.Replayed != 0 || res.Seen > 500 {
		t.Fatalf("Replay = %+v, %v; want it to end within one window of 500, unroutable", res, err)
	}
	for _, left := range res.Left {
		assert.Is(t, left.Why, deadletter.WhyUnpublished, "left %v", left)
	}
	w.Declare()
	w.WantQueues(0, 600)
	w.replay(all, deadletter.ReplayOptions{})
	w.WantQueues(600, 0)
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
	w.WantQueues(res.Replayed, 1150-res.Replayed)
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

// Given thousands of letters, which come through wider and wider channels, when they are replayed, then each that was
// chosen is in the main queue, and each that was not is in its own.
func TestThousandsOfLettersGoThroughWiderAndWiderChannels(t *testing.T) {
	w := newWorld(t)
	const n, stay = 6000, 700
	w.dead(dedup.ReasonPermanent, names("stays", stay)...)
	w.dead(dedup.ReasonExhausted, names("k", n)...)
	f := deadletter.Filter{Reasons: []dedup.Reason{dedup.ReasonExhausted}}
	res := w.replay(f, deadletter.ReplayOptions{})
	if res.Seen != n+stay || res.Replayed != n || res.NotSelected != stay || len(res.Left) > 0 || res.Unseen > 0 {
		t.Errorf("%+v; want %d replayed and %d not chosen", res, n, stay)
	}
	w.WantQueues(n, stay)
	w.wantStatus(dedup.Failed, 1, n)
	w.wantStatus(dedup.Dead, 0, stay)
}

// Given thousands of letters, when others die behind them while they are replayed, then each that was there at the
// beginning is replayed, and none of the others is taken in its place.
func TestLettersThatDieBehindAReplayTakeNobodysPlace(t *testing.T) {
	w := newWorld(t)
	const n, behind = 6000, 3000
	w.deadMany(dedup.ReasonExhausted, n)
	late := names("late", behind)
	w.hook = func(deadletter.Point) error {
		if late != nil {
			w.dead(dedup.ReasonPermanent, late...)
			late = nil
		}
		return nil
	}
	res := w.replay(deadletter.Filter{Reasons: []dedup.Reason{dedup.ReasonExhausted}}, deadletter.ReplayOptions{})
	if res.Seen != n || res.Replayed != n || res.NotSelected+res.Later > 0 {
		t.Errorf("%+v; want all %d that were there replayed, and no other taken", res, n)
	}
	w.WantQueues(n, behind)
	w.wantStatus(dedup.Failed, 1, n)
	w.wantStatus(dedup.Dead, 0, behind)
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
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	_, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{})
	if want := fmt.Sprintf("look at queue %q", rabbit.DeadQueue(w.Queue)); err == nil ||
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
	w.WantQueues(0, 2)
	w.hook = nil
	w.Exec("UPDATE consumer_log SET reason = 'effect_unknown' WHERE msg_key = 'b'")
	f.Limit = 0
	if res := w.replay(f, deadletter.ReplayOptions{}); res.Replayed != 1 || !res.ByRows || w.Row("b").Replays != 0 {
		t.Errorf("%+v; want the one that was reopened", res)
	}
	w.WantQueues(1, 2)
}
