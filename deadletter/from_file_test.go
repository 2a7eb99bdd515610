package deadletter_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
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

// export is the export of all letters, its lines by key.
func (w *world) export() (text string, lines map[string]deadletter.Line) {
	w.T.Helper()
	var out bytes.Buffer
	n := require.Get(w.letters().Export(w.T.Context(), deadletter.Filter{}, &out))(w.T)
	lines = map[string]deadletter.Line{}
	for text := range strings.Lines(out.String()) {
		ln := require.Get(deadletter.ParseLine([]byte(text)))(w.T)
		lines[ln.Key] = ln
	}
	require.Is(w.T, len(lines), n, "lines letters")
	return out.String(), lines
}

// file is an export of these lines.
func file(t testing.TB, lines ...deadletter.Line) string {
	t.Helper()
	var b strings.Builder
	for _, ln := range lines {
		text := require.Get(json.Marshal(ln))(t)
		b.Write(append(text, '\n'))
	}
	return b.String()
}

// linesOf are those of a file.
func linesOf(text string) deadletter.File {
	return deadletter.File{Name: "letters.ndjson", Lines: strings.NewReader(text), Filter: all}
}

func TestAnExportHasTheLettersAsTheyStandInTheQueue(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"a":1}`)
	d.Headers = rabbit.Table{"x-tenant": "north", "x-count": int64(7)}
	id := w.Identify(d)
	w.Must(w.Records.Dead(t.Context(), absent(id.Identity), entry(id, d), "permanent", "no such order"))
	_, lines := w.export()
	ln := lines["k"]
	m := require.Get(wire.Exported(ln.Properties, ln.Headers, ln.Body))(w.T)
	info := wire.ReadCopy(m.Headers)
	assert.That(t, ln.Reason == "permanent" && ln.Tag == tag && string(ln.Body) == `{"a":1}` && !ln.BodyCut &&
		!ln.HeadersCut && m.Headers["x-tenant"] == "north" && m.Headers["x-count"] == int64(7) && m.MessageID == "k" &&
		info.Reason == dedup.ReasonPermanent && !info.DeadAt.IsZero() && info.RoutingKey == tag, "%+v\n%+v", ln, m)
	assert.Is(t, w.Identify(m).Identity, id.Identity, "the message")
}

func TestAnExportPagesThroughAllLettersAndNeverTouchesTheQueue(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 250)
	w.dead(dedup.ReasonPermanent, "p")
	w.inState("applied", dedup.Success)
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	_, lines := w.export()
	assert.That(t, len(lines) == 251, "%d different lines, want 251", len(lines))
	assert.Is(t, len(require.Get(allLetters(t.Context(), w.letters()))(t)), 251, "letters on the pages of the list")
	for want, f := range map[int]deadletter.Filter{
		1: {Reasons: []dedup.Reason{"permanent"}}, 2: {Keys: []string{"k-00003", "k-00100", "nope"}}, 120: {Limit: 120},
		251: {Tag: tag, Since: time.Now().Add(-time.Hour)}, 0: {Until: time.Now().Add(-time.Hour)},
	} {
		var out bytes.Buffer
		n, err := w.letters().Export(t.Context(), f, &out)
		assert.That(t, err == nil && n == want && strings.Count(out.String(), "\n") == want,
			"%+v: %d letters, %v; want %d", f, n, err, want)
	}
}

// mended exports all letters and gives them another body.
func (w *world) mended(body string) string {
	w.T.Helper()
	var all []deadletter.Line
	_, lines := w.export()
	for _, ln := range lines {
		ln.Body = []byte(body)
		all = append(all, ln)
	}
	return file(w.T, all...)
}

// Given a letter whose body a person mends, when that replay is killed at any step and the former letter is replayed
// or moved by hand, then the effect is that of the mended body, once.
func TestAMendedBodyIsProcessedAndTheFormerLetterHasNoEffect(t *testing.T) {
	// The former letter meets the row at every moment in every way that it can move.
	byReplay := func(w *world) { w.replay(all, plain) }
	for name, move := range map[string]func(*world){"replayed": byReplay, "moved by hand": (*world).shovel} {
		for point, replayedByThen := range map[deadletter.Point]bool{
			deadletter.PointReopened: false, deadletter.PointPublished: true, deadletter.PointAcked: true, "never": true,
		} {
			t.Run(name+"/killed when "+string(point), func(t *testing.T) {
				w := newWorld(t).dead(dedup.ReasonPermanent, "k")
				mended := w.mended(`{"mended":true}`)
				w.killAt(point)
				_, err := w.tries(linesOf(mended), plain)
				require.Is(t, errors.Is(err, errKilled), (point != "never"), "Replay = %v", err)
				w.hook = nil
				w.cured()
				move(w) // the former letter, where it is still there
				if !replayedByThen {
					w.replay(linesOf(mended), plain)
				}
				w.wantEffects(1)
				w.replay(linesOf(mended), plain, "stale 1") // once more
				w.WantQueues(0, 0)
				row := w.Row("k")
				id := w.Identify(message("k", `{"mended":true}`))
				assert.That(t, row.Status == dedup.Success && bytes.Equal(row.BodyHash, id.BodyHash[:]),
					"row %v with hash %x, want success with the mended body's", row.Status, row.BodyHash)
			})
		}
	}
}

// shovel moves all letters to the main queue as they are.
func (w *world) shovel() {
	w.T.Helper()
	dead := rabbit.DeadQueue(w.Queue)
	for d, ok := w.Broker.Get(dead); ok; d, ok = w.Broker.Get(dead) {
		delete(d.Headers, "x-delivery-count")
		w.Broker.Publish("", w.Queue, stack.Message{
			Body: d.Body, Headers: d.Headers, MessageId: d.MessageId, Type: d.Type, DeliveryMode: 2,
		})
	}
}

func TestAMendIsAnEventWithBothHashes(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonMalformed, "k")
	former := w.Row("k").BodyHash
	mended := w.mended(`{"mended":true}`)
	assert.Is(t, w.replay(linesOf(mended), dry).Replayed, 1, "dry run")
	w.WantQueues(0, 1)
	w.replay(linesOf(mended), plain, "replayed 1, mended 1, duplicates 1")
	w.WantQueues(1, 0)
	got := w.Get(w.Queue)
	assert.Is(t, got.MessageId+string(got.Body), `k{"mended":true}`, "the message")
	row := w.Row("k")
	events := w.events(row.Identity)
	last := events[len(events)-1]
	for _, told := range []string{fmt.Sprintf("%x", former), fmt.Sprintf("%x", row.BodyHash), `from "letters.ndjson"`} {
		assert.Has(t, last.Error, told, "the event")
	}
	assert.Is(t, last.By, "tester", "by")
	assert.Is(t, string(row.Body), `{"mended":true}`, "the row keeps")
}

func TestALineThatCannotBeReplayedSaysWhy(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, "k", "cut", "headers", "other")
	w.Exec("UPDATE consumer_log SET msg_body = '{', body_hash = ? WHERE msg_key = 'cut'", bytes.Repeat([]byte{1}, 32))
	w.Exec("UPDATE consumer_log SET properties = NULL WHERE msg_key = 'headers'")
	_, lines := w.export()
	other := lines["other"]
	other.Key = "another"
	text := "not json\n\n{}\n" + file(t, other, lines["cut"], lines["headers"], lines["k"]) + strings.Repeat("x", 3<<20) +
		"\n"
	res := w.replay(linesOf(text), plain)
	whys := map[deadletter.Why]int{}
	for _, left := range res.Left {
		whys[left.Why]++
	}
	want := map[deadletter.Why]int{deadletter.WhyBadLine: 3, deadletter.WhyOtherIdentity: 1, deadletter.WhyCut: 2}
	assert.That(t, res.Replayed == 1 && maps.Equal(whys, want), "replayed %d, left %v", res.Replayed, res.Left)
	w.WantQueues(1, 3)
	// and what a person vouches for: the one with whole body
	assert.Is(t, w.replay(linesOf(file(t, lines["cut"], lines["headers"])), force).Replayed, 1, "forced")
}

func TestAnExportedLetterPublishedWithItsHeadersIsProcessed(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, "k")
	cured := w.engine()
	w.replay(all, plain) // in vain
	w.wantStatus(dedup.Dead, 1, 1)
	w.WantQueues(0, 1)
	_, lines := w.export()
	cured.Store(true)
	ln := lines["k"]
	m := require.Get(wire.Exported(ln.Properties, ln.Headers, ln.Body))(w.T)
	w.Must(w.Publisher.Publish(t.Context(), []rabbit.Publishing{{Key: w.Queue, Message: m.Message}})[0])
	w.wantEffects(1)
	w.wantStatus(dedup.Success, 2, 1)
}

func TestTwoMendsAtOnceHaveOneEffectEach(t *testing.T) {
	const n = 120
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	w.cured()
	var runs sync.WaitGroup
	for _, text := range []string{w.mended(`{"mended":1}`), w.mended(`{"mended":2}`)} {
		letters := w.letters()
		runs.Go(func() {
			_, err := letters.Replay(t.Context(), linesOf(text), deadletter.ReplayOptions{By: "tester"})
			assert.OK(t, err, "Replay:")
		})
	}
	runs.Wait()
	w.drained(n)
	w.WantQueues(0, 0)
}

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
	w := newWorld(t).dead(dedup.ReasonPermanent, "a", "b", "not in the file")
	w.taken("no letter", []byte("{}"), nil)
	w.taken("no body", nil, nil)
	w.inState("done", dedup.Success)
	w.MoveBack(time.Second) // before the run began
	text := file(t, deadletter.Line{Tag: tag, Key: "a"}, deadletter.Line{Tag: tag, Key: "b", Body: []byte("another")},
		deadletter.Line{Group: group, Tag: tag, Key: "no letter"}, deadletter.Line{Tag: tag, Key: "no body"},
		deadletter.Line{Tag: tag, Key: "done"}, deadletter.Line{Group: "other", Tag: tag, Key: "not in the file"}) +
		"{}\nno line\n"
	const left = "left 3, other_identity, bad_line, bad_line"
	for i, want := range []string{"discarded 4, stale 1, ", "discarded 4, stale 1, duplicates 2, "} {
		res := require.Get(w.letters().Discard(t.Context(), linesOf(text),
			deadletter.DiscardOptions{By: "ann", Why: "it was done", DryRun: i == 0}))(t)
		w.wantTally(res, want+left)
		assert.Is(t, res.ByReason[dedup.ReasonEffectUnknown], 2, "by reason: %v", res.ByReason)
		w.WantQueues(0, 3-2*i)
	}
	for _, key := range []string{"a", "b", "no letter", "no body"} {
		row := w.Row(key)
		assert.That(t, row.Status == dedup.Discarded && strings.Contains(row.Remark, "it was done"), "%s: %+v", key, row)
	}
	w.wantRow(identity("not in the file"), dedup.Dead, 0)
	w.wantRow(identity("done"), dedup.Success, 0)
}

// Given a row that was taken over with a body that is not its message's, when its line is completed and replayed, then
// the row takes what was sent.
func TestARowThatDoesNotKnowItsBodyTakesWhatIsSent(t *testing.T) {
	w := newWorld(t)
	w.taken("k", []byte(`{"cut`), []byte(`{"message_id":"k","type":"`+tag+`"}`))
	w.MoveBack(time.Second)
	_, lines := w.export()
	ln := lines["k"]
	assert.Is(t, ln.BodyCut || ln.HeadersCut, false, "the line %+v is cut", ln)
	ln.Body = []byte(`{"whole":1}`)
	w.replay(linesOf(file(t, ln)), plain, "replayed 1")
	id := w.Identify(message("k", `{"whole":1}`))
	row := w.Row("k")
	assert.That(t, row.Status == dedup.Failed && string(row.Body) == `{"whole":1}` &&
		string(row.BodyHash) == string(id.BodyHash[:]), "row: %+v", row)
	w.WantQueues(1, 0)
}

// The success that a conflict met may be forgotten by now: then the other body would find the key free.
func TestAConflictFromAFileTakesNoEffectWithoutForce(t *testing.T) {
	w := newWorld(t)
	w.inState("k", dedup.Success)
	d, conflict := w.conflict("k", `{"other":1}`)
	w.filed(d, conflict, dedup.ReasonConflict)
	text, _ := w.export()
	w.Exec("DELETE FROM consumer_log WHERE consumer_status = 1") // its retention is over
	w.replay(all, dry, "left 1, key_taken")
	w.replay(deadletter.Rows{Rows: []dedup.Row{w.RowOf(conflict.Identity)}}, plain, "left 1, key_taken")
	w.cured()
	res := w.replay(linesOf(text), deadletter.ReplayOptions{Window: 10})
	n, _ := w.effects()
	assert.Is(t, n, 0, "without force, as of %+v, effects", res)
	res = w.replay(linesOf(text), deadletter.ReplayOptions{Force: true, Window: 10})
	assert.Is(t, res.Replayed+res.Stale, 1, "with force: %+v", res)
	w.wantEffects(1)
	assert.Is(t, w.RowOf(conflict.Identity).Status, dedup.Discarded, "the row of the conflict")
}
