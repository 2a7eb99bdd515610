package deadletter_test

import (
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
	w.dead(dedup.ReasonExhausted, names("k", 1500)...) // more than a channel holds
	for range 3 {
		all, res := w.survey(deadletter.SurveyOptions{})
		if res.Found != 1502 || res.Seen != 1502 || res.Others != 0 {
			t.Fatalf("%+v; want 1502 letters, nobody else", res)
		}
		if all[0].Row.Status != dedup.Success || all[1].Row.Status != dedup.Absent || all[1].Row.Key != "no row" ||
			all[2].Row.Key != "k-00000" || all[2].Reason != "exhausted" {
			t.Errorf("the first are %+v", all[:3])
		}
		w.WantQueues(0, 1502)
	}
}

func TestALetterWithoutARowIsAdoptedWhenItIsChosenAndYoung(t *testing.T) {
	w := newWorld(t)
	w.letter("a")
	w.letter("a") // a second copy
	w.letter("b")
	old := message("old", "{}")
	w.put(old, w.Identify(old), wire.CopyOptions{FirstFailedAt: time.Now().Add(-1000 * time.Hour)})
	w.Broker.Publish("", rabbit.DeadQueue(w.Queue), stack.Message{
		MessageId: "by hand", Type: tag, Body: []byte("{}"), DeliveryMode: 2,
	})
	chosen := func(k dedup.Identity) bool { return k.Key != "b" }
	all, res := w.survey(deadletter.SurveyOptions{Adopt: chosen})
	assert.Is(t, res.Adopted, 1, "%+v, %+v", res, all)
	if row := w.Row("a"); row.Status != dedup.Dead || row.Reason != "exhausted" ||
		!strings.Contains(row.Remark, "shelf is locked") || string(row.Body) != "{}" {
		t.Errorf("row of a: %+v", row)
	}
	if all[2].Row.Status != dedup.Absent || w.Row("b").Status != dedup.Absent {
		t.Error("b was not chosen, and has a row")
	}
	if all[3].Why != deadletter.WhyTooOld || all[4].Why != deadletter.WhyTooOld {
		t.Errorf("%v and %v; want too_old for one older than the retention, and for one of unknown age", all[3].Why,
			all[4].Why)
	}
	if _, res = w.survey(deadletter.SurveyOptions{Adopt: chosen, Force: true}); res.Adopted != 2 {
		t.Errorf("forced: %+v; want two adopted", res)
	}
	story, err := w.Records.Events(t.Context(), identity("old"))
	if err != nil || len(story) != 1 || story[0].By != "ann" {
		t.Errorf("story %+v, %v; want one line, by ann", story, err)
	}
	w.WantQueues(0, 5)
}

// What the log keeps of a message is not evidence of what it lacks.
func TestARowThatIsSentAgainKeepsWhatItHadAndNoMore(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "k")
	w.Exec("UPDATE consumer_log SET body_hash = NULL, msg_id = NULL, consumer_status = 2")
	before := w.Row("k")
	if res := w.replay(deadletter.Rows{Rows: []dedup.Row{before}}, deadletter.ReplayOptions{}); res.Replayed != 1 {
		t.Fatalf("%+v; want it sent", res)
	}
	row := w.Row("k")
	if len(row.BodyHash) != 0 || row.MessageID != "" || string(row.Body) != "{}" ||
		string(row.Properties) != string(before.Properties) {
		t.Errorf("row %+v; want what it had before", row)
	}
	w.WantQueues(1, 1)
}

func TestAMessageThatIsNotKeptWholeIsNotSent(t *testing.T) {
	w := newWorld(t)
	for name, spoil := range map[string]string{
		"cut body":    "UPDATE consumer_log SET msg_body = '{'",
		"no body":     "UPDATE consumer_log SET msg_body = NULL",
		"another key": "UPDATE consumer_log SET properties = '{\"type\":\"stock.rollback\",\"message_id\":\"other\"}'",
		"cut headers": "UPDATE consumer_log SET properties = '{\"type\":\"stock.rollback\",\"message_id\":" +
			"\"cut headers\",\"cut\":true}'",
		"odd properties":  "UPDATE consumer_log SET properties = 'x'",
		"no hash, 256KiB": "UPDATE consumer_log SET body_hash = NULL, msg_body = REPEAT('x', 262144)",
	} {
		w.dead(dedup.ReasonExhausted, name)
		w.Exec(spoil+" WHERE msg_key = ?", name)
		before := w.Row(name)
		res := w.replay(deadletter.Rows{Rows: []dedup.Row{before}}, deadletter.ReplayOptions{})
		_, hindrance, err := w.letters().Missing(t.Context(), before)
		if res.Replayed != 0 || res.LeftBy[deadletter.WhyCut] != 1 || hindrance == nil || err != nil {
			t.Errorf("%s: %+v, %v; want it left as cut", name, res, err)
		}
		if row := w.Row(name); row.Version.Status != dedup.Dead || row.Replays != 0 {
			t.Errorf("%s: row %+v; want it untouched", name, row)
		}
	}
	w.WantQueues(0, 6)
}

func TestWhatWasFiledUnderAKeyOfOursIsSentAgainAsItself(t *testing.T) {
	w := newWorld(t)
	first, second := message("k", "{}"), message("k", `{"other":1}`)
	own := w.Identify(second)
	conflict, cause := wire.Conflict(own, second.Body)
	unnamed := rabbit.Delivery{Message: rabbit.Message{MessageID: "bad\x01key", Body: []byte("{}")}, RoutingKey: tag}
	letters := []dedup.Death{
		{Entry: entry(w.Identify(first), first), Reason: "exhausted", Cause: "no"},
		{Entry: entry(conflict, second), Reason: "conflict", Cause: cause.Error()},
		{Entry: entry(w.Identify(unnamed), unnamed), Reason: "unidentified", Cause: "no"},
	}
	w.Must(errors.Join(w.Records.DeadRows(t.Context(), letters)...))
	var rows []dedup.Row
	for _, l := range letters {
		rows = append(rows, w.RowOf(l.Entry.Identity))
	}
	if res := w.replay(deadletter.Rows{Rows: rows}, deadletter.ReplayOptions{}); res.Replayed != 3 {
		t.Fatalf("%+v", res)
	}
	var bodies []string
	for range 3 {
		bodies = append(bodies, string(w.Get(w.Queue).Body))
	}
	assert.Equal(t, bodies, []string{"{}", `{"other":1}`, "{}"}, "bodies")
}

func TestARepublishWithoutItsServersSendsNothing(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "k")
	w.Broker.Purge(rabbit.DeadQueue(w.Queue))
	before := w.Row("k")
	away := stack.Proxy(t, stack.Addr(t, w.dsn))
	away.Refuse(true)
	good := w.dsn
	w.dsn = away.Through(w.dsn)
	if res, err := w.letters().Replay(t.Context(), deadletter.Rows{Rows: []dedup.Row{before}},
		deadletter.ReplayOptions{By: "ann"}); err == nil || res.Replayed != 0 {
		t.Errorf("without MySQL: %+v, %v; want an error", res, err)
	}
	w.WantQueues(0, 0)
	w.dsn = good
	away = stack.Proxy(t, stack.Addr(t, w.amqpURL))
	away.Refuse(true)
	w.amqpURL = away.Through(w.amqpURL)
	res, err := w.letters().Replay(t.Context(), deadletter.Rows{Rows: []dedup.Row{before}},
		deadletter.ReplayOptions{By: "ann"})
	if !errors.Is(err, deadletter.ErrBroker) || res.Replayed != 0 || res.LeftBy[deadletter.WhyUnpublished] != 1 {
		t.Errorf("without RabbitMQ: %+v, %v; want it reopened, unpublished and said so", res, err)
	}
}
