package deadletter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// bigEnv asks for the size that the issue names; without it the test is as large as fits into an ordinary run.
const bigEnv = "ROLLBACKD_TEST_BIG"

// childEnv makes the test binary a process that replays until it kills itself.
const childEnv = "ROLLBACKD_TEST_REPLAY"

// outcome is what a run leaves behind: the row's status and replays, its tally, and messages in the queues.
type outcome struct {
	row, tally string
	main, dead int
}

func TestALetterGoesTheWayOfItsRow(t *testing.T) {
	w := newWorld(t)
	var (
		again   = outcome{"failed 1", "replayed 1", 1, 0}
		gone    = outcome{"discarded 0", "discarded 1", 0, 0}
		busy    = outcome{"processing 0", "left 1, in_progress", 0, 1}
		applied = outcome{"success 0", "stale 1", 0, 0}
		ended   = outcome{"discarded 0", "stale 1", 0, 0}
	)
	for name, tc := range map[string]struct {
		status                      dedup.Status
		aged                        time.Duration
		replayed, forced, discarded outcome
	}{
		"absent":        {dedup.Absent, 0, again, again, gone},
		"failed":        {dedup.Failed, time.Second, again, again, gone},
		"dead":          {dedup.Dead, time.Second, again, again, gone},
		"lease expired": {dedup.Processing, lease, again, again, gone},
		"lease lives":   {dedup.Processing, time.Second, busy, busy, busy},
		"success":       {dedup.Success, time.Second, applied, applied, applied},
		"discarded":     {dedup.Discarded, time.Second, ended, again, ended},
	} {
		for verb, want := range map[string]outcome{
			"replayed": tc.replayed, "forced": tc.forced, "discarded": tc.discarded,
			"dry run": {fmt.Sprint(tc.status, 0), tc.replayed.tally, 0, 1},
		} {
			key := name + ", " + verb
			w.Broker.Purge(w.Queue)
			w.Broker.Purge(rabbit.DeadQueue(w.Queue))
			w.inState(key, tc.status)
			w.MoveBack(tc.aged)
			w.letter(key)
			forced := verb == "forced"
			run := func() (deadletter.Result, error) {
				return w.tries(all, deadletter.ReplayOptions{Force: forced, Discarded: forced, DryRun: verb == "dry run"})
			}
			if verb == "discarded" {
				run = func() (deadletter.Result, error) {
					return w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann", Why: "order was a test"})
				}
			}
			res := require.Get(run())(t)
			w.WantQueues(want.main, want.dead)
			w.wantTally(res, want.tally)
			row := w.Row(key)
			assert.Is(t, fmt.Sprint(row.Status, row.Replays, res.Found, res.Seen), want.row+" 1 1", "%s", key)
			assert.That(t, want.main != 1 || (row.Due && row.Attempts == 0),
				"%s is due %t after %d attempts, want due at once after 0", key, row.Due, row.Attempts)
			if want == gone {
				assert.Is(t, row.Remark, "discarded by ann: order was a test (chosen: all)", "%s: remark", key)
			}
		}
	}
}

func TestAReplayedMessageIsTheProducersOwnWithTheRowsReplays(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"a":1}`)
	d.Headers = rabbit.Table{"x-tenant": "north", wire.HeaderPublishedAt: int64(1700000000000)}
	id := w.Identify(d)
	w.inState("k", dedup.Absent)
	w.put(d, id, wire.CopyOptions{Attempt: 3})
	w.Must(w.Records.Dead(t.Context(), absent(id.Identity), entry(id, d), "exhausted", "no"))
	w.MoveBack(time.Second)
	w.replay(all, plain)
	got := w.Get(w.Queue)
	delete(got.Headers, wire.HeaderFirstFailedAt)
	delete(got.Headers, "x-delivery-count") // the broker's
	want := rabbit.Table{
		"x-tenant": "north", wire.HeaderPublishedAt: int64(1700000000000), wire.HeaderReplays: int64(1),
		wire.HeaderExchange: "stock", wire.HeaderRoutingKey: tag,
	}
	diff := cmp.Diff(want, got.Headers)
	assert.That(t, diff == "" && string(got.Body) == `{"a":1}` && got.Type == tag && got.MessageId == "k",
		"body %s, type %q, id %q, headers -want +got:\n%s", got.Body, got.Type, got.MessageId, diff)
	e := w.events(id.Identity)
	assert.That(t, len(e) == 2 && e[1].By == "tester" && e[1].Error == "replayed all", "%+v; want who replayed what", e)
}

func TestADiscardKilledBeforeItsAckIsFinishedByTheNext(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k")
	w.killAt(deadletter.PointDiscarded)
	discard := func() (deadletter.Result, error) {
		return w.letters().Discard(t.Context(), all, deadletter.DiscardOptions{By: "ann"})
	}
	_, err := discard()
	assert.Error(t, err, errKilled, "Discard")
	w.WantQueues(0, 1)
	w.hook = nil
	w.wantTally(require.Get(discard())(t), "stale 1")
	w.WantQueues(0, 0)
}

func TestTwoReplaysAtOnceShareTheLetters(t *testing.T) {
	const n = 1200
	w := newWorld(t).deadMany(dedup.ReasonExhausted, n)
	var runs sync.WaitGroup
	var results [2]deadletter.Result
	for i := range results {
		letters := w.letters()
		runs.Go(func() {
			var err error
			results[i], err = letters.Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"})
			assert.OK(t, err, "Replay:")
		})
	}
	runs.Wait()
	a, b := results[0], results[1]
	assert.Is(t, [2]int{a.Replayed + b.Replayed, len(a.Left) + len(b.Left)}, [2]int{n, 0}, "%+v and %+v", a, b)
	w.WantQueues(n, 0)
	w.wantStatus(dedup.Failed, 1, n)
	// and an empty queue is done at once
	want := deadletter.Result{ByReason: map[dedup.Reason]int{}, Left: []deadletter.Left{}, NotFound: []string{}}
	diff := cmp.Diff(want, w.replay(all, plain), cmpopts.EquateEmpty())
	assert.That(t, diff == "", "of an empty queue (-want +got):\n%s", diff)
}

func TestSeveralLettersOfOneMessageBecomeOneMessage(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k", "other")
	w.letter("k")
	w.letter("k")
	res := w.replay(all, plain)
	// A slow broker may hand a letter out after the first of its message is gone: its row says that this run reopened it,
	// and it is a second copy of what the row stands for.
	assert.That(t, res.Replayed+res.Duplicates == 4 && res.Duplicates != 0, "replayed %d, duplicates %d; want 2 and 2",
		res.Replayed, res.Duplicates)
	w.WantQueues(res.Replayed, 0)
}

func TestWhatIsNotChosenGoesBackToItsPlace(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, "a", "b")
	w.dead(dedup.ReasonExhausted, "c", "d")
	res := w.replay(deadletter.Filter{Reasons: []dedup.Reason{"exhausted"}, Limit: 1}, plain)
	res.NotSelected, res.Unseen = res.NotSelected+res.Unseen, 0 // one may come behind the limit
	w.wantTally(res, "replayed 1, not selected 3")
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
		res := w.replay(ofReason(dedup.ReasonExhausted), plain)
		require.Is(t, [2]int{res.Replayed, len(res.Left)}, [2]int{8 - len(want), 0}, "%s: replayed, left", name)
		w.WantQueues(8-len(want), len(want))
		w.Broker.Purge(w.Queue)
		var have []string
		for range want {
			have = append(have, w.Get(rabbit.DeadQueue(w.Queue)).MessageId)
		}
		assert.Equal(t, have, want, "%s: the letters that stayed", name)
	}
}

func TestAFilterChoosesByTheRowAndNamesKeysThatNoLetterHas(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "a")
	w.dead(dedup.ReasonPermanent, "b")
	before, after := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		filter  deadletter.Filter
		want    int
		missing string // keys
	}{
		"key":           {byKeys("a"), 1, ""},
		"other key":     {byKeys("A"), 0, "A"},
		"some keys":     {byKeys("a", "nope"), 1, "nope"},
		"unknown keys":  {byKeys("nope", "nay"), 0, "nay nope"},
		"tag":           {deadletter.Filter{Tag: tag}, 2, ""},
		"other tag":     {deadletter.Filter{Tag: "order.cancelled"}, 0, ""},
		"reason":        {ofReason(dedup.ReasonPermanent), 1, ""},
		"since":         {deadletter.Filter{Since: before}, 2, ""},
		"since later":   {deadletter.Filter{Since: after}, 0, ""},
		"until":         {deadletter.Filter{Until: after}, 2, ""},
		"until earlier": {deadletter.Filter{Until: before}, 0, ""},
		"all of it": {deadletter.Filter{
			Keys: []string{"b"}, Tag: tag, Reasons: []dedup.Reason{"permanent"}, Since: before,
		}, 1, ""},
		"contradiction": {deadletter.Filter{Keys: []string{"a"}, Reasons: []dedup.Reason{"permanent"}}, 0, "a"},
	} {
		res := w.replay(tc.filter, dry)
		assert.Is(t, [2]int{res.Replayed, res.NotSelected}, [2]int{tc.want, 2 - tc.want}, "%s: chose, left out", name)
		assert.Is(t, strings.Join(res.NotFound, " "), tc.missing, "%s: keys that were not found", name)
	}
}

func TestAMissingMainQueueEndsTheReplayAndLosesNothing(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 600)
	w.Broker.Delete(w.Queue)
	res, err := w.tries(all, plain)
	require.That(t, errors.Is(err, rabbit.ErrUnroutable) && res.Replayed == 0 && res.Seen <= 500,
		"Replay = %+v, %v; want it to end within one window of 500, unroutable", res, err)
	for _, left := range res.Left {
		assert.Is(t, left.Why, deadletter.WhyUnpublished, "left %v", left)
	}
	w.Declare()
	w.WantQueues(0, 600)
	w.replay(all, plain)
	w.WantQueues(600, 0)
}

func TestAnInterruptedReplayFinishesWhatItHasInHand(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 1150)
	ctx, cancel := context.WithCancel(t.Context())
	res, err := w.letters().Replay(ctx, all, deadletter.ReplayOptions{By: "tester", Progress: func(deadletter.Progress) {
		cancel()
	}})
	require.That(t, errors.Is(err, context.Canceled) && res.Replayed != 0 && res.Replayed < 1150 && len(res.Left) == 0,
		"Replay = %+v, %v; want a finished part and the interruption", res, err)
	w.WantQueues(res.Replayed, 1150-res.Replayed)
}

// Given thousands of letters, which come through wider and wider channels, when others die behind them while they are
// replayed, then each that was there at the beginning and was chosen is in the main queue, each that was not is in its
// own, and none of the others is taken in its place.
func TestLettersThatDieBehindAReplayTakeNobodysPlace(t *testing.T) {
	const n, stay, behind = 6000, 700, 3000
	w := newWorld(t).dead(dedup.ReasonPermanent, names("stays", stay)...)
	w.deadMany(dedup.ReasonExhausted, n)
	late := names("late", behind)
	w.hook = func(deadletter.Point) error {
		if late != nil {
			w.dead(dedup.ReasonPermanent, late...)
			late = nil
		}
		return nil
	}
	res := w.replay(ofReason(dedup.ReasonExhausted), plain)
	assert.Is(t, [4]int{res.Seen, res.Replayed, res.NotSelected, res.Later}, [4]int{n + stay, n, stay}, "%+v", res)
	w.WantQueues(n, stay+behind)
	w.wantStatus(dedup.Failed, 1, n)
	w.wantStatus(dedup.Dead, 0, stay+behind)
}

// Given a replay by what is in bodies that was killed when it had reopened a row and published nothing, when it is done
// again, then the letter is replayed, from its row; a row that may have had its effect is left alone.
func TestAReplayByBodiesThatWasKilledIsDoneByTheNext(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "a", "b")
	w.killedAt(deadletter.PointReopened, deadletter.Filter{Body: "{}", Limit: 1})
	w.WantQueues(0, 2)
	w.Exec("UPDATE consumer_log SET reason = 'effect_unknown' WHERE msg_key = 'b'")
	res := w.replay(deadletter.Filter{Body: "{}"}, plain)
	assert.That(t, res.Replayed == 1 && res.ByRows && w.Row("b").Replays == 0, "%+v; want the one that was reopened", res)
	w.WantQueues(1, 2)
}

// Given letters whose messages were replayed from their rows and wait for their next attempt, when all letters of the
// queue are discarded or replayed, then these are dropped and the attempts are made; but those whose next attempt is an
// hour late are taken, because no copy of them is left perhaps.
func TestALetterWhoseMessageIsInRetryIsNotTaken(t *testing.T) {
	for name, run := range map[string]func(*deadletter.Letters) (deadletter.Result, error){
		"discard": func(l *deadletter.Letters) (deadletter.Result, error) {
			return l.Discard(t.Context(), all, deadletter.DiscardOptions{By: "tester", Why: "a test"})
		},
		"replay": func(l *deadletter.Letters) (deadletter.Result, error) { return l.Replay(t.Context(), all, plain) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).dead(dedup.ReasonExhausted, "waits", "lost")
			w.replay(deadletter.Filter{Body: "{}"}, plain)
			w.Exec("UPDATE consumer_log SET consumer_times = 1, " +
				"consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL IF(msg_key = 'lost', 3, 0) * 3600 + 1 SECOND")
			res := require.Get(run(w.letters()))(t)
			assert.Is(t, [2]int{res.Replayed + res.Discarded, res.Stale}, [2]int{1, 1}, "%+v", res)
			w.wantRow(identity("waits"), dedup.Failed, 1)
		})
	}
}

// What counts is what was deleted, not what LOG_RETENTION says.
func TestALetterIsTooOldForWhatWasPruned(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	failed := time.Now().Add(-72 * time.Hour)
	w.put(d, w.Identify(d), wire.CopyOptions{Attempt: 3, FirstFailedAt: failed, DeadAt: failed.Add(time.Hour)})
	w.inState("k", dedup.Success)
	w.MoveBack(70 * time.Hour)
	require.Is(t, w.replay(all, dry).Stale, 1, "before")
	// log prune --older-than 24h
	require.Get(w.Records.Prune(t.Context(), dedup.PruneOptions{Group: group, OlderThan: 24 * time.Hour}))(w.T)
	assert.Is(t, w.replay(all, plain).Replayed, 0,
		"a message that had its effect is published again under a new row, without force")
}

func TestAReplaySaysThatSomebodyElseReads(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 5)
	w.Hold(5)
	assert.Is(t, w.replay(all, plain).Others, 1, "no error, and the result")
}

func TestALetterReplayedAsOftenAsAllowedIsParkedAndMarkedOnce(t *testing.T) {
	w := newWorld(t)
	w.most = 2
	w.dead(dedup.ReasonExhausted, "often", "once")
	w.Exec("UPDATE consumer_log SET replays = IF(msg_key = 'often', 2, 1)")
	w.replay(all, dry, "replayed 1, parked 1, left 1, parked")
	assert.Is(t, w.Row("often").Remark, "no", "a dry run wrote the remark")
	w.replay(all, plain, "replayed 1, parked 1, left 1, parked")
	w.replay(all, plain, "parked 1, left 1, parked")
	w.WantQueues(1, 1)
	w.wantRow(identity("often"), dedup.Dead, 2)
	assert.Is(t, w.Row("often").Remark, "parked after 2 replays of at most 2: no", "remark")
	e := w.events(identity("often"))
	assert.That(t, len(e) == 2 && e[1].To == dedup.Dead && e[1].By == "tester" &&
		strings.HasPrefix(e[1].Error, "parked"), "events = %+v; want one more, the parking", e)
	page, _, err := w.letters().List(t.Context(), deadletter.Filter{}, "")
	assert.That(t, err == nil && len(page) == 1 && page[0].Parked, "List = %+v, %v; want it parked", page, err)
}

func TestAFewLettersAmongManyAreReplayedThoughKilledHalfWay(t *testing.T) {
	n := 3000
	if os.Getenv(bigEnv) != "" {
		n = 200_000
	}
	w := newWorld(t).deadMany(dedup.ReasonExhausted, n)
	keys := names("k", n)
	var chosen []string
	for i := range 12 {
		chosen = append(chosen, keys[i*(n-1)/11])
	}
	// given a replay that is killed when it has replayed some of them
	steps := 0
	w.hook = func(deadletter.Point) error {
		if steps++; steps < 8 { // each handful has three; that of the last is published, and not acked
			return nil
		}
		return errKilled
	}
	_, err := w.tries(byKeys(chosen...), plain)
	require.Is(t, errors.Is(err, errKilled), true, "the replay, %v, ends by the kill", err)
	w.hook = nil
	w.Eventually("all letters in either queue", func() (string, bool) {
		return "fewer", w.Broker.Depth(w.Queue)+w.Broker.Depth(rabbit.DeadQueue(w.Queue)) >= n
	})
	// when it is done again
	began := time.Now()
	res := w.replay(byKeys(chosen...), plain)
	t.Logf("%d letters by key among %d: %v", len(chosen), n, time.Since(began).Round(10*time.Millisecond))
	assert.That(t, res.Replayed != 0 && len(res.Left) == 0 && res.Unseen == 0, "%+v; want the rest replayed", res)
	// then those are in the main queue, every other letter is where it was
	w.Eventually("all other letters", func() (string, bool) {
		return "fewer", w.Broker.Depth(rabbit.DeadQueue(w.Queue)) == n-len(chosen)
	})
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND replays > 0"), 12, "reopened")
	w.wantStatus(dedup.Dead, 0, n-len(chosen))
	for _, key := range chosen {
		assert.Is(t, w.Row(key).Status, dedup.Failed, "%s", key)
	}
}

// Given a letter that only the queue has, and a process that died when it had reopened its row; when the next one ends
// before it comes to the queue, then it has not called that letter published, and a third publishes it.
func TestALetterThatOnlyTheQueueHasIsPublishedByWhoeverGoesOn(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "poor")
	w.Exec("UPDATE consumer_log SET msg_body = NULL")
	set := deadletter.Set{Filter: all, CutOff: require.Get(w.Records.Now(t.Context()))(t).Add(time.Minute), Name: "set"}
	w.killedAt(deadletter.PointReopened, set)
	w.dead(dedup.ReasonExhausted, "other")
	ctx, end := context.WithCancel(t.Context())
	_, err := w.letters().Replay(ctx, set, deadletter.ReplayOptions{Progress: func(p deadletter.Progress) {
		if p.Done == 1 && p.Confirmed {
			set.Confirmed = require.Get(w.Records.Now(t.Context()))(t)
		}
		if p.Done == 1 {
			end()
		}
	}})
	require.Is(t, errors.Is(err, context.Canceled), true, "the second process, %v, is ended", err)
	w.replay(set, plain)
	w.wantRow(identity("poor"), dedup.Failed, 2)
}

// Given a process that SIGKILL ends when it has reopened its second row, or published its second message, when another
// one replays, then each message has one effect.
func TestAReplayOfAKilledProcessIsDoneByTheNext(t *testing.T) {
	if of := strings.Split(os.Getenv(childEnv), "\n"); len(of) == 4 {
		w := &world{World: &letters.World{T: t, Queue: of[0]}, dsn: of[1], amqpURL: of[2], keyFrom: keyFrom}
		times := map[string]int{}
		w.hook = func(p deadletter.Point) error {
			if times[string(p)]++; times[of[3]] == 2 {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return nil
		}
		w.replay(all, deadletter.ReplayOptions{Rate: 5}) // a letter at a time
		return
	}
	const n = 5
	for i, point := range []deadletter.Point{deadletter.PointReopened, deadletter.PointPublished} {
		t.Run(string(point), func(t *testing.T) {
			w := newWorld(t).deadMany(dedup.ReasonExhausted, n)
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAReplayOfAKilledProcess")
			child.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{w.Queue, w.dsn, w.amqpURL, string(point)}, "\n"))
			out, err := child.CombinedOutput()
			require.Is(t, fmt.Sprint(err), "signal: killed", "the process ends by, and says %s", out)
			dead := rabbit.DeadQueue(w.Queue)
			w.Eventually("what it held is there again", func() (string, bool) { // RabbitMQ may not have the first one's ack
				m, d := w.Broker.Depth(w.Queue), w.Broker.Depth(dead)
				return fmt.Sprint(m, " and ", d), m == 1+i && d >= n-1
			})
			w.wantStatus(dedup.Failed, 1, 2)
			w.replay(all, plain)
			w.cured()
			w.Eventually("no message anywhere", func() (string, bool) { return "some", w.Broker.Quiet(w.Queue, dead) })
			w.wantEffects(n)
		})
	}
}

func isCommit(b []byte) bool { return bytes.HasSuffix(b, []byte("COMMIT")) }

func TestAReopenWhoseAnswerIsLostIsRecognised(t *testing.T) {
	for name, arm := range map[string]func(*stack.TCPProxy, func([]byte) bool) <-chan struct{}{
		"committed": (*stack.TCPProxy).DropReply, "not committed": (*stack.TCPProxy).DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).dead(dedup.ReasonExhausted, "k")
			proxy := w.proxied()
			sprung := arm(proxy, isCommit)
			w.replay(all, plain, "replayed 1")
			<-sprung
			w.WantQueues(1, 0)
			w.wantRow(identity("k"), dedup.Failed, 1)
		})
	}
}

// proxied leads what is tested to MySQL through a proxy.
func (w *world) proxied() *stack.TCPProxy {
	w.T.Helper()
	proxy := stack.Proxy(w.T, stack.Addr(w.T, w.dsn))
	w.dsn = proxy.Through(w.dsn)
	return proxy
}

func TestAReopenOfUnknownOutcomeIsNeverPublished(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 3)
	proxy := w.proxied()
	// given a database that is gone from the first COMMIT on
	letters := w.letters()
	require.First(letters.List(t.Context(), all, ""))(t) // opens the only connection there will be
	sprung := proxy.DropReply(isCommit)
	proxy.Refuse(true)
	res, err := letters.Replay(t.Context(), byKeys("k-00001"), deadletter.ReplayOptions{By: "tester"})
	assert.That(t, err != nil, "Replay did not say that the database is gone")
	<-sprung
	// then the letter stays, nothing is published, although the row is reopened: the server had committed
	w.WantQueues(0, 3)
	require.Is(t, [2]int{res.Replayed, res.LeftBy[deadletter.WhyUnknown]}, [2]int{0, 1}, "%+v", res)
	w.wantRow(identity("k-00001"), dedup.Failed, 1)
	// and the next run replays it
	proxy.Refuse(false)
	w.replay(all, plain)
	w.WantQueues(3, 0)
}

// Given a broker that is slow, so that nothing comes for a while although all letters are on their way, then the run
// does not take its queue for empty.
func TestLettersThatAreLongOnTheirWayAreWaitedFor(t *testing.T) {
	w := newWorld(t)
	for _, key := range names("k", 3) {
		d := message(key, `"`+strings.Repeat("x", 100<<10)+`"`)
		w.filed(d, w.Identify(d), dedup.ReasonExhausted)
	}
	line := stack.Proxy(t, stack.Addr(t, w.amqpURL))
	w.amqpURL = line.Through(w.amqpURL)
	line.Rate(200 << 10)
	w.replay(all, plain, "replayed 3")
}

func TestAWatchedReplayWaitsForWhatBecomesOfItsLetters(t *testing.T) {
	const n = 300
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	w.cured()
	waiting := 0
	w.replay(all, deadletter.ReplayOptions{Window: 40, Progress: func(p deadletter.Progress) {
		waiting = max(waiting, p.Waiting)
	}}, "replayed 300, applied 300")
	assert.AtMost(t, waiting, 40, "letters waited at a time")
	w.wantEffects(n)
}

func TestADaemonThatComesWhileAReplayWaitsIsWaitedForToTheEnd(t *testing.T) {
	const n = 41
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	// given that a full window of letters waits and nobody consumes them, when a daemon begins to
	begin := sync.OnceFunc(func() { w.cured() })
	// then the last letter is waited for as well: what was true a moment before it came says nothing about it
	w.replay(all, deadletter.ReplayOptions{Window: n - 1, Progress: func(p deadletter.Progress) {
		if p.Waiting == n-1 {
			begin()
		}
	}}, "replayed 41, applied 41")
	w.wantEffects(n)
}

func TestAReplayEndsWhenTooManyOfItsLettersFailAgain(t *testing.T) {
	const n = 300
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	w.engine() // which refuses everything
	res, err := w.tries(all, deadletter.ReplayOptions{Window: 20, MaxFailures: 5})
	require.That(t, errors.Is(err, deadletter.ErrTooManyFailures) && res.FailedAgain >= 5 && res.Replayed <= 5+20+20,
		"%+v, %v; want it to end after 5 failures and what was under way", res, err)
	assert.Is(t, res.Replayed+res.Unseen, n, "replayed and not seen")
	w.WantQueues(0, n)
}

func TestFailuresOfOthersDoNotEndAReplay(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, names("old", 50)...) // dead, and not of this run
	w.dead(dedup.ReasonExhausted, "k")
	w.cured()
	res := w.replay(ofReason(dedup.ReasonExhausted), deadletter.ReplayOptions{Window: 10, MaxFailures: 1})
	assert.Is(t, [2]int{res.Applied, res.FailedAgain}, [2]int{1, 0}, "%+v", res)
}

func TestAWatchedReplayWithoutADaemonDoesNotWait(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 3)
	w.replay(all, deadletter.ReplayOptions{Window: 500}, "replayed 3, unsettled 3")
	w.WantQueues(3, 0)
}

func TestAnInterruptedWaitLeavesWhatWasNotReplayed(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 30)
	ctx, cancel := context.WithCancel(t.Context())
	// given no daemon, so that the window stays full
	res, err := w.letters().Replay(ctx, all, deadletter.ReplayOptions{By: "tester", Window: 10,
		Progress: func(p deadletter.Progress) {
			if p.Waiting == 10 {
				cancel()
			}
		}})
	assert.Error(t, err, context.Canceled, "Replay")
	assert.Is(t, [3]int{res.Replayed, res.Unseen, len(res.Left)}, [3]int{10, 20, 0}, "%+v", res)
	w.WantQueues(10, 20)
}

func TestARateBoundsHowFastLettersGo(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 12)
	began := time.Now()
	w.replay(all, deadletter.ReplayOptions{Rate: 10}, "replayed 12")
	// the first goes at once, each further one at least a tenth of a second later; a slow machine only makes it slower
	assert.AtLeast(t, time.Since(began), time.Second, "it took")
	w.WantQueues(12, 0)
}

func TestARunThatTakesLongGivesBackWhatItHoldsAndGoesOn(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, names("other", 300)...)
	w.deadMany(dedup.ReasonExhausted, 600)
	letters := w.letters()
	letters.Hold(time.Nanosecond) // after every window
	late := sync.OnceFunc(func() { w.letter("late") })
	var last deadletter.Progress
	res := require.Get(letters.Replay(t.Context(), ofReason(dedup.ReasonExhausted), deadletter.ReplayOptions{
		By: "tester", Progress: func(p deadletter.Progress) { late(); last = p }, // which is not of this run
	}))(t)
	assert.Is(t, last, deadletter.Progress{Seen: 900, Found: 900, Done: 600}, "progress ends at")
	w.wantTally(res, "replayed 600, not selected 300")
	assert.Is(t, res.Seen, 900, "seen")
	w.WantQueues(600, 301)
}

func TestAKeyThatWasFoundBeforeTheRunGaveBackWhatItHeldIsNotMissing(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 450)
	letters := w.letters()
	letters.Hold(time.Nanosecond) // after every window
	// given two keys that are far apart, and one that no letter has
	res, err := letters.Replay(t.Context(), byKeys("k-00001", "k-00449", "nobody's"),
		deadletter.ReplayOptions{By: "tester"})
	assert.That(t, err == nil && res.Replayed == 2 && slices.Equal(res.NotFound, []string{"nobody's"}),
		"%+v, %v; want two replayed and nobody's missing", res, err)
	w.WantQueues(2, 448)
}

func TestNonsenseOptionsAreRefused(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k")
	for _, o := range []deadletter.ReplayOptions{{Rate: -1}, {Window: -1}, {Window: deadletter.MaxWindow + 1},
		{MaxFailures: -1, Window: 1}, {MaxFailures: 3}} {
		_, err := w.tries(all, o)
		assert.That(t, err != nil, "%+v was taken", o)
	}
	for _, f := range []deadletter.Filter{{}, {Limit: 3}} {
		_, err := w.tries(f, plain)
		assert.Error(t, err, deadletter.ErrNoFilter, "Replay(%+v)", f)
	}
	w.WantQueues(0, 1)
	assert.Is(t, w.Row("k").Status, dedup.Dead, "row")
}

// cured runs an engine whose handler refuses nothing.
func (w *world) cured() { w.T.Helper(); w.engineThat(true) }

// engine runs one whose handler refuses everything for good until cured.
func (w *world) engine() (cured *atomic.Bool) { w.T.Helper(); return w.engineThat(false) }

func (w *world) engineThat(accepts bool) (cured *atomic.Bool) {
	w.T.Helper()
	cured = new(atomic.Bool)
	cured.Store(accepts)
	w.Exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL) ENGINE=InnoDB")
	w.Consume(consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
		if !cured.Load() {
			return consumer.Permanent(errors.New("shelf is locked"))
		}
		return tx.Exec("INSERT INTO effect (k) VALUES (?)", m.Key).Error
	}))
	return cured
}

// effects counts the rows of effect, and the different keys in it.
func (w *world) effects() (all, different int) {
	w.T.Helper()
	return w.Number("SELECT COUNT(*) FROM effect"), w.Number("SELECT COUNT(DISTINCT k) FROM effect")
}

func (w *world) wantEffects(n int) {
	w.T.Helper()
	w.Eventually("all effects", func() (string, bool) {
		all, different := w.effects()
		return "", all >= n && different >= n
	})
	all, different := w.effects()
	assert.That(w.T, all == n && different == n, "%d effects on %d keys, want %d on %d", all, different, n, n)
}

// drained replays all until no letter is left and n messages have their effect: what a run that died had in hand may
// come back after a look at the queue.
func (w *world) drained(n int) {
	w.T.Helper()
	w.Eventually("an empty dead-letter queue, and all effects", func() (string, bool) {
		w.replay(all, plain)
		_, different := w.effects()
		return fmt.Sprint(different), w.Broker.Depth(rabbit.DeadQueue(w.Queue)) == 0 && different == n
	})
	w.wantEffects(n)
}

func TestALetterThatComesBackIsNotTakenAgain(t *testing.T) {
	const n = 500
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	// given a daemon whose handler still refuses everything
	cured := w.engine()
	w.replay(all, plain, "replayed 500")
	// then each came back as a letter, replayed once
	w.WantQueues(0, n)
	w.wantStatus(dedup.Dead, 1, n)
	// when the cause is mended
	cured.Store(true)
	w.replay(all, plain)
	w.wantEffects(n)
	w.WantQueues(0, 0)
	w.wantStatus(dedup.Success, 2, n)
}

func (w *world) wantStatus(status dedup.Status, replays, n int) {
	w.T.Helper()
	w.Eventually("rows "+status.String(), func() (string, bool) {
		have := w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ? AND replays = ?", int(status), replays)
		return fmt.Sprint(have), have == n
	})
}

// Given hundreds of letters and stale ones among them, when three replays take them at once and two die half-way,
// then every letter has one effect.
func TestEveryLetterHasOneEffectWhateverIsReplayed(t *testing.T) {
	const n = 400
	w := newWorld(t).deadMany(dedup.ReasonExhausted, n)
	for _, key := range names("k", 60) { // as crashes between letter and row leave them
		w.letter(key)
	}
	w.cured()
	var runs sync.WaitGroup
	for range 3 {
		letters := w.letters()
		w.killAt(deadletter.PointPublished) // the next ones die half-way
		runs.Go(func() {
			_, _ = letters.Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"}) // that some end early is the point
		})
	}
	runs.Wait()
	w.hook = nil
	w.drained(n)
}
