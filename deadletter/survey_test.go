package deadletter_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func (w *world) survey(o deadletter.SurveyOptions) (all []deadletter.Surveyed, res deadletter.SurveyResult) {
	w.T.Helper()
	o.By = "ann"
	o.Each = func(s deadletter.Surveyed) error { all = append(all, s); return nil }
	res = require.Get(w.letters().Survey(w.T.Context(), o))(w.T)
	return all, res
}

func TestASurveySeesEveryLetterAndLeavesAllInTheirPlace(t *testing.T) {
	w := newWorld(t)
	w.inState("success", dedup.Success)
	w.letter("success")
	w.letter("no row")
	w.deadMany(dedup.ReasonExhausted, 1500) // more than a channel holds
	for range 3 {
		all, res := w.survey(deadletter.SurveyOptions{})
		require.Is(t, [3]int{res.Found, res.Seen, res.Others}, [3]int{1502, 1502, 0}, "%+v", res)
		assert.That(t, all[0].Row.Status == dedup.Success && all[1].Row.Status == dedup.Absent &&
			all[1].Row.Key == "no row" && all[2].Row.Key == "k-00000" && all[2].Reason == "exhausted", "the first are %+v",
			all[:3])
		w.WantQueues(0, 1502)
	}
}

func TestALetterWithoutARowIsAdoptedWhenItIsChosenAndYoung(t *testing.T) {
	w := newWorld(t)
	w.letter("a")
	w.letter("a") // a second copy
	w.letter("b")
	old := message("old", "{}")
	w.put(old, w.Identify(old), wire.CopyOptions{FirstFailedAt: time.Now().Add(-1000 * time.Hour), Replays: 2})
	w.Broker.Publish("", rabbit.DeadQueue(w.Queue), stack.Message{
		MessageId: "by hand", Type: tag, Body: []byte("{}"), DeliveryMode: 2,
	})
	chosen := func(k dedup.Identity) bool { return k.Key != "b" }
	all, res := w.survey(deadletter.SurveyOptions{Adopt: chosen})
	assert.Is(t, res.Adopted, 1, "%+v, %+v", res, all)
	row := w.Row("a")
	assert.That(t, row.Status == dedup.Dead && row.Reason == "exhausted" &&
		strings.Contains(row.Remark, "shelf is locked") && string(row.Body) == "{}", "row of a: %+v", row)
	assert.That(t, all[2].Row.Status == dedup.Absent && w.Row("b").Status == dedup.Absent,
		"b was not chosen, and has a row")
	assert.Is(t, all[3].Why, deadletter.WhyTooOld, "one older than the retention")
	assert.Is(t, all[4].Why, deadletter.WhyTooOld, "one of unknown age")
	_, res = w.survey(deadletter.SurveyOptions{Adopt: chosen, Force: true})
	assert.Is(t, res.Adopted, 2, "forced: %+v", res)
	w.wantRow(identity("old"), dedup.Dead, 2) // else the letter, moved by hand, is acked as duplicate_of_dead
	story := w.events(identity("old"))
	assert.That(t, len(story) == 1 && story[0].By == "ann", "story %+v; want one line, by ann", story)
	w.WantQueues(0, 5)
}

// What the log keeps of a message is not evidence of what it lacks.
func TestARowThatIsSentAgainKeepsWhatItHadAndNoMore(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k")
	w.Exec("UPDATE consumer_log SET body_hash = NULL, msg_id = NULL, consumer_status = 2")
	before := w.Row("k")
	w.replay(deadletter.Rows{Rows: []dedup.Row{before}}, plain, "replayed 1")
	row := w.Row("k")
	assert.That(t, len(row.BodyHash) == 0 && row.MessageID == "" && string(row.Body) == "{}" &&
		string(row.Properties) == string(before.Properties), "row %+v; want what it had before", row)
	w.WantQueues(1, 1)
}

func TestAMessageThatIsNotKeptWholeIsNotSent(t *testing.T) {
	w := newWorld(t)
	for name, spoil := range map[string]string{
		"cut body":        "msg_body = '{'",
		"no body":         "msg_body = NULL",
		"another key":     `properties = '{"type":"stock.rollback","message_id":"other"}'`,
		"cut headers":     `properties = '{"type":"stock.rollback","message_id":"cut headers","cut":true}'`,
		"odd properties":  "properties = 'x'",
		"no hash, 256KiB": "body_hash = NULL, msg_body = REPEAT('x', 262144)",
	} {
		w.dead(dedup.ReasonExhausted, name)
		w.Exec("UPDATE consumer_log SET "+spoil+" WHERE msg_key = ?", name)
		before := w.Row(name)
		res := w.replay(deadletter.Rows{Rows: []dedup.Row{before}}, plain)
		_, hindrance, err := w.letters().Missing(t.Context(), before)
		assert.That(t, res.Replayed == 0 && res.LeftBy[deadletter.WhyCut] == 1 && hindrance != nil && err == nil,
			"%s: %+v, %v; want it left as cut", name, res, err)
		w.wantRow(identity(name), dedup.Dead, 0)
	}
	w.WantQueues(0, 6)
}

func TestWhatWasFiledUnderAKeyOfOursIsSentAgainAsItself(t *testing.T) {
	w := newWorld(t)
	first := message("k", "{}")
	second, conflict := w.conflict("k", `{"other":1}`)
	unnamed := rabbit.Delivery{Message: rabbit.Message{MessageID: "bad\x01key", Body: []byte("{}")}, RoutingKey: tag}
	letters := []dedup.Death{
		{Entry: entry(w.Identify(first), first), Reason: "exhausted", Cause: "no"},
		{Entry: entry(conflict, second), Reason: "conflict", Cause: "no"},
		{Entry: entry(w.Identify(unnamed), unnamed), Reason: "unidentified", Cause: "no"},
	}
	w.Must(errors.Join(w.Records.DeadRows(t.Context(), letters)...))
	var rows []dedup.Row
	for _, l := range letters {
		rows = append(rows, w.RowOf(l.Entry.Identity))
	}
	w.replay(deadletter.Rows{Rows: rows}, plain, "replayed 3")
	var bodies []string
	for range 3 {
		bodies = append(bodies, string(w.Get(w.Queue).Body))
	}
	assert.Equal(t, bodies, []string{"{}", `{"other":1}`, "{}"}, "bodies")
}

func TestARepublishWithoutItsServersSendsNothing(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k")
	w.Broker.Purge(rabbit.DeadQueue(w.Queue))
	before, mysql := deadletter.Rows{Rows: []dedup.Row{w.Row("k")}}, w.proxied()
	mysql.Refuse(true)
	res, err := w.tries(before, plain)
	assert.That(t, err != nil && res.Replayed == 0, "without MySQL: %+v, %v; want an error", res, err)
	w.WantQueues(0, 0)
	mysql.Refuse(false)
	broker := stack.Proxy(t, stack.Addr(t, w.amqpURL))
	broker.Refuse(true)
	w.amqpURL = broker.Through(w.amqpURL)
	res, err = w.tries(before, plain)
	assert.That(t, errors.Is(err, deadletter.ErrBroker) && res.Replayed == 0 && res.LeftBy[deadletter.WhyUnpublished] == 1,
		"without RabbitMQ: %+v, %v; want it reopened, unpublished and said so", res, err)
}

func TestACountByFingerprintSaysThatItDidNotLookEverywhere(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 1200)
	w.Exec("UPDATE consumer_log SET remark = 'shelf is locked'")
	w.Exec("UPDATE consumer_log SET remark = 'no such order' WHERE msg_key IN ('k-00001', 'k-01199')")
	w.Exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp + INTERVAL 1 SECOND WHERE msg_key = 'k-01199'")
	w.MoveBack(2 * time.Second)
	now := require.Get(w.Records.Now(t.Context()))(w.T)
	set := deadletter.Set{Filter: deadletter.Filter{Fingerprint: deadletter.Fingerprint("no such order")}, CutOff: now,
		Name: "count"}
	for _, tc := range []struct {
		most, through, matched int
		more                   bool
	}{{100, 10_000, 2, false}, {100, 600, 1, true}, {1, 10_000, 1, true}} {
		matched, _, more, err := w.letters().CountSet(t.Context(), set, tc.most, tc.through)
		assert.That(t, err == nil && matched == tc.matched && more == tc.more,
			"%d through %d letters: %d, more %t, %v; want %d, %t", tc.most, tc.through, matched, more, err, tc.matched, tc.more)
	}
}

func TestASweepTakesNoLetterThatMayBeItsMessagesOnlyCopy(t *testing.T) {
	// a run of the pages replays the letter from its row, while its letter stays in the queue
	set := func(w *world) deadletter.Set {
		return deadletter.Set{Filter: all, CutOff: require.Get(w.Records.Now(w.T.Context()))(w.T), Name: "run-1"}
	}
	replayed := func(w *world) { w.replay(set(w), plain) }
	claimed := func(w *world) dedup.Claim {
		replayed(w)
		d := message("k", "{}")
		return require.Get(w.Records.Claim(w.T.Context(), w.Row("k"), entry(w.Identify(d), d), "host/1/1/k"))(w.T)
	}
	for name, tc := range map[string]struct {
		given   func(w *world)
		main    int // copies in the main queue
		dropped int
	}{
		"its row is dead": {given: func(*world) {}},
		"it was reopened by a process that died before it published": {given: func(w *world) {
			w.killedAt(deadletter.PointReopened, set(w))
		}},
		"it was published, and nobody has taken it": {given: replayed, main: 1},
		"its copy is being processed":               {given: func(w *world) { claimed(w) }, main: 1, dropped: 1},
		"its copy has failed": {given: func(w *world) {
			_, errs := w.Records.FailAll(w.T.Context(), []dedup.Failure{{Claim: claimed(w), Cause: "shelf is locked"}})
			w.Must(errs...)
		}, main: 1, dropped: 1},
		"its row was discarded": {given: func(w *world) {
			d := message("k", "{}")
			w.Must(w.Records.Discard(w.T.Context(), w.Row("k"), entry(w.Identify(d), d), "ann", "a test"))
		}, dropped: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).dead(dedup.ReasonExhausted, "k")
			w.MoveBack(time.Second)
			tc.given(w)
			w.WantQueues(tc.main, 1)
			// when the queue is swept, also twice
			for i := range 2 {
				res, err := w.letters().Sweep(t.Context())
				require.That(t, err == nil && (i != 0 || res.Dropped == tc.dropped), "Sweep = %+v, %v; want %d dropped", res,
					err, tc.dropped)
				w.WantQueues(tc.main, 1-tc.dropped)
			}
			if tc.dropped > 0 {
				return
			}
			// then what stayed can be replayed
			w.replay(all, plain)
			w.WantQueues(tc.main+1, 0)
		})
	}
}

func TestALetterIsShownWithAllThatTheLogKeeps(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, "k", "other")
	w.Exec("UPDATE consumer_log SET msg_body = ?, body_hash = NULL WHERE msg_key = 'other'", []byte{0xff, 0})
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	shown, err := w.letters().Show(t.Context(), "k", "")
	require.That(t, err == nil && len(shown) == 1, "Show = %+v, %v; want one", shown, err)
	s := shown[0]
	var headers map[string]any
	err = json.Unmarshal(s.Headers, &headers)
	assert.That(t, err == nil && headers[wire.HeaderReason] == "permanent", "headers %s, %v", s.Headers, err)
	assert.That(t, s.Body == "{}" && !s.BodyCut && s.MessageID == "k" && s.Reason == "permanent" &&
		len(s.Events) == 1 && s.Events[0].To == "dead", "%+v", s)
	shown, err = w.letters().Show(t.Context(), "other", tag)
	assert.That(t, err == nil && len(shown) == 1 && bytes.Equal(shown[0].BodyBytes, []byte{0xff, 0}) &&
		shown[0].Body == "", "a body that is no text: %+v, %v", shown, err)
	for _, other := range [][2]string{{"nope", ""}, {"k", "another tag"}} {
		shown, err := w.letters().Show(t.Context(), other[0], other[1])
		assert.That(t, err == nil && len(shown) == 0, "%v: %+v, %v; want none", other, shown, err)
	}
}
