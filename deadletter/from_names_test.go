package deadletter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// taken is a row that another log left open, as it was taken over.
func (w *world) taken(key string, body, properties []byte) {
	w.T.Helper()
	id := identity(key)
	at := require.First(w.Records.Waypoint(w.T.Context(), "taken:"+key, "run"))(w.T)
	require.Get(w.Records.TakeOver(w.T.Context(), at, nil, []dedup.Taken{{
		Entry: dedup.Entry{Identity: id, Body: body, Properties: properties}, Status: dedup.Dead, Origin: key,
		From: absent(id),
	}}))(w.T)
}

// Given letters, rows without one, and rows without a body, when lines of an export that name them are discarded, then
// their rows say so and their letters leave the queue, and nothing else does.
func TestWhatTheLinesOfAnExportNameIsDiscarded(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, "a", "b", "not in the file")
	w.taken("no letter", []byte("{}"), nil)
	w.taken("no body", nil, nil)
	w.inState("done", dedup.Success)
	w.MoveBack(time.Second) // before the run began
	text := file(t, deadletter.Line{Tag: tag, Key: "a"}, deadletter.Line{Tag: tag, Key: "b", Body: []byte("another")},
		deadletter.Line{Group: group, Tag: tag, Key: "no letter"}, deadletter.Line{Tag: tag, Key: "no body"},
		deadletter.Line{Tag: tag, Key: "done"}, deadletter.Line{Group: "other", Tag: tag, Key: "not in the file"}) +
		"{}\nno line\n"
	discard := func(dry bool) deadletter.Result {
		t.Helper()
		res, err := w.letters().Discard(t.Context(),
			deadletter.File{Name: "f", Lines: strings.NewReader(text), Filter: all},
			deadletter.DiscardOptions{By: "ann", Why: "it was done", DryRun: dry})
		if err != nil {
			t.Fatalf("DiscardFrom: %v (%+v)", err, res)
		}
		return res
	}
	if res := discard(true); res.Discarded != 4 || res.Stale != 1 || len(res.Left) != 3 {
		t.Errorf("dry run: %+v", res)
	}
	w.WantQueues(0, 3)
	res := discard(false)
	if res.Discarded != 4 || res.Stale != 1 || len(res.Left) != 3 || res.Duplicates != 2 ||
		res.ByReason[dedup.ReasonEffectUnknown] != 2 {
		t.Errorf("%+v; want 4 discarded, one stale, 3 bad lines, 2 letters dropped", res)
	}
	w.WantQueues(0, 1)
	for _, key := range []string{"a", "b", "no letter", "no body"} {
		if row := w.Row(key); row.Status != dedup.Discarded || !strings.Contains(row.Remark, "it was done") {
			t.Errorf("%s: %+v", key, row)
		}
	}
	if w.Row("not in the file").Status != dedup.Dead || w.Row("done").Status != dedup.Success {
		t.Error("a row was moved that is not to be")
	}
}

// Given a row that was taken over with a body that is not its message's, when its line is completed and replayed, then
// the row takes what was sent.
func TestARowThatDoesNotKnowItsBodyTakesWhatIsSent(t *testing.T) {
	w := newWorld(t)
	w.taken("k", []byte(`{"cut`), []byte(`{"message_id":"k","type":"`+tag+`"}`))
	w.MoveBack(time.Second)
	_, lines := w.export()
	ln := lines["k"]
	if ln.BodyCut || ln.HeadersCut {
		t.Errorf("line: %+v", ln)
	}
	ln.Body = []byte(`{"whole":1}`)
	if res := w.replayFrom(file(t, ln), deadletter.ReplayOptions{}); res.Replayed != 1 {
		t.Fatalf("%+v; want it replayed", res)
	}
	id := w.Identify(message("k", `{"whole":1}`))
	row := w.Row("k")
	if row.Status != dedup.Failed || string(row.Body) != `{"whole":1}` || string(row.BodyHash) != string(id.BodyHash[:]) {
		t.Errorf("row: %+v", row)
	}
	w.WantQueues(1, 0)
}
