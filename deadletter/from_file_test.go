package deadletter_test

import (
	"bytes"
	"encoding/hex"
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

func (w *world) replayFrom(text string, o deadletter.ReplayOptions) deadletter.Result {
	w.T.Helper()
	o.By = "tester"
	file := deadletter.File{Name: "letters.ndjson", Lines: strings.NewReader(text), Filter: all}
	res, err := w.letters().Replay(w.T.Context(), file, o)
	if err != nil {
		w.T.Fatalf("ReplayFrom: %v (%+v)", err, res)
	}
	return res
}

func TestAnExportHasTheLettersAsTheyStandInTheQueue(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"a":1}`)
	d.Headers = rabbit.Table{"x-tenant": "north", "x-count": int64(7)}
	id := w.Identify(d)
	w.Must(w.Records.Dead(t.Context(), absent(id.Identity),
		entry(id, d), "permanent", "no such order"))
	_, lines := w.export()
	ln := lines["k"]
	m := require.Get(wire.Exported(ln.Properties, ln.Headers, ln.Body))(w.T)
	info := wire.ReadCopy(m.Headers)
	if ln.Reason != "permanent" || ln.Tag != tag || string(ln.Body) != `{"a":1}` || ln.BodyCut || ln.HeadersCut ||
		m.Headers["x-tenant"] != "north" || m.Headers["x-count"] != int64(7) || m.MessageID != "k" ||
		info.Reason != dedup.ReasonPermanent || info.DeadAt.IsZero() || info.RoutingKey != tag {
		t.Errorf("line %+v\nmessage %+v", ln, m)
	}
	assert.Is(t, w.Identify(m).Identity, id.Identity, "the message")
}

func TestAnExportPagesThroughAllLettersAndNeverTouchesTheQueue(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 250)...)
	w.dead(dedup.ReasonPermanent, "p")
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	if _, lines := w.export(); len(lines) != 251 {
		t.Errorf("%d different lines, want 251", len(lines))
	}
	for want, f := range map[int]deadletter.Filter{
		1: {Reasons: []dedup.Reason{"permanent"}}, 2: {Keys: []string{"k-00003", "k-00100", "nope"}}, 120: {Limit: 120},
		251: {Tag: tag, Since: time.Now().Add(-time.Hour)}, 0: {Until: time.Now().Add(-time.Hour)},
	} {
		var out bytes.Buffer
		if n, err := w.letters().Export(t.Context(), f, &out); err != nil || n != want ||
			strings.Count(out.String(), "\n") != want {
			t.Errorf("%+v: %d letters, %v; want %d", f, n, err, want)
		}
	}
}

func TestAnExportIsReplayedOnceAndItsLettersLeaveTheQueue(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, names("k", 250)...)
	w.dead(dedup.ReasonPermanent, "not in the file")
	text, _ := w.export()
	var some strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "not in the file") {
			some.WriteString(line)
		}
	}
	assert.Is(t, w.replayFrom(some.String(), deadletter.ReplayOptions{DryRun: true}).Replayed, 250, "dry run")
	w.WantQueues(0, 251)
	res := w.replayFrom(some.String(), deadletter.ReplayOptions{})
	if res.Replayed != 250 || res.Duplicates != 250 || res.Mended != 0 {
		t.Errorf("%+v; want 250 replayed, their letters dropped", res)
	}
	w.WantQueues(250, 1)
	w.cured()
	w.wantEffects(250)
	// and when it is replayed again
	if res := w.replayFrom(some.String(), deadletter.ReplayOptions{}); res.Stale != 250 || res.Replayed != 0 {
		t.Errorf("%+v; want all stale", res)
	}
	w.wantEffects(250)
	events, err := w.Records.Events(t.Context(), identity("k-00007"))
	if err != nil || len(events) < 2 || events[1].By != "tester" || events[1].Error != `replayed all from `+
		`"letters.ndjson"` {
		t.Errorf("events = %+v, %v; want by whom and from where", events, err)
	}
}

// mendedFile kills nothing: it exports the only letter and gives it another body.
func (w *world) mendedFile(body string) string {
	w.T.Helper()
	_, lines := w.export()
	for _, ln := range lines {
		ln.Body = []byte(body)
		return file(w.T, ln)
	}
	w.T.Fatal("no letter")
	return ""
}

// Given a letter whose body a person mends, when that replay is killed at any step and the former letter is replayed
// or moved by hand, then the effect is that of the mended body, once.
func TestAMendedBodyIsProcessedAndTheFormerLetterHasNoEffect(t *testing.T) {
	// The former letter meets the row at every moment in every way that it can move.
	byReplay := func(w *world) { w.replay(all, deadletter.ReplayOptions{}) }
	byHand := func(w *world) { w.shovel() }
	for name, move := range map[string]func(*world){"replayed": byReplay, "moved by hand": byHand} {
		for point, replayedByThen := range map[deadletter.Point]bool{
			deadletter.PointReopened: false, deadletter.PointPublished: true, deadletter.PointAcked: true, "never": true,
		} {
			t.Run(name+"/killed when "+string(point), func(t *testing.T) {
				w := newWorld(t)
				w.dead(dedup.ReasonPermanent, "k")
				mended := w.mendedFile(`{"mended":true}`)
				w.killAt(point)
				_, err := w.letters().Replay(t.Context(),
					deadletter.File{Name: "f", Lines: strings.NewReader(mended), Filter: all},
					deadletter.ReplayOptions{By: "ann"})
				require.Is(t, errors.Is(err, errKilled), (point != "never"), "ReplayFrom = %v", err)
				w.hook = nil
				w.cured()
				move(w) // the former letter, where it is still there
				if !replayedByThen {
					w.replayFrom(mended, deadletter.ReplayOptions{})
				}
				w.wantEffects(1)
				w.WantQueues(0, 0)
				row := w.Row("k")
				if id := w.Identify(message("k", `{"mended":true}`)); row.Status != dedup.Success ||
					!bytes.Equal(row.BodyHash, id.BodyHash[:]) {
					t.Errorf("row %v with hash %x, want success with the mended body's", row.Status, row.BodyHash)
				}
			})
		}
	}
}

// shovel moves all letters to the main queue as they are.
func (w *world) shovel() {
	w.T.Helper()
	for {
		d, ok := w.Broker.Get(rabbit.DeadQueue(w.Queue))
		if !ok {
			return
		}
		delete(d.Headers, "x-delivery-count")
		w.Broker.Publish("", w.Queue, stack.Message{
			Body: d.Body, Headers: d.Headers, MessageId: d.MessageId, Type: d.Type, DeliveryMode: 2,
		})
	}
}

func TestAMendIsAnEventWithBothHashes(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonMalformed, "k")
	former := w.Row("k").BodyHash
	res := w.replayFrom(w.mendedFile(`{"mended":true}`), deadletter.ReplayOptions{})
	if res.Mended != 1 || res.Replayed != 1 || res.Duplicates != 1 {
		t.Errorf("%+v; want one mended, its former letter dropped", res)
	}
	w.WantQueues(1, 0)
	if got := w.Get(w.Queue); string(got.Body) != `{"mended":true}` || got.MessageId != "k" {
		t.Errorf("message %s of %s", got.Body, got.MessageId)
	}
	row := w.Row("k")
	events, err := w.Records.Events(t.Context(), row.Identity)
	last := events[len(events)-1]
	if err != nil || !strings.Contains(last.Error, hex.EncodeToString(former)) ||
		!strings.Contains(last.Error, hex.EncodeToString(row.BodyHash)) || last.By != "tester" {
		t.Errorf("event %+v, %v; want both hashes", last, err)
	}
	assert.Is(t, string(row.Body), `{"mended":true}`, "the row keeps %s", row.Body)
}

func TestALetterThatTheDaemonMadeSinceStaysInTheQueue(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, names("k", 40)...)
	text, _ := w.export()
	w.engine() // which refuses everything: each comes back as a letter while the file is replayed
	w.replayFrom(text, deadletter.ReplayOptions{Window: 10})
	w.wantStatus(dedup.Dead, 1, 40)
	w.Eventually("a letter for each dead row", func() (string, bool) {
		return "letters", w.Broker.Depth(rabbit.DeadQueue(w.Queue)) >= 40
	})
}

func TestALineThatCannotBeReplayedSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, "k", "cut", "headers", "other")
	w.Exec("UPDATE consumer_log SET msg_body = '{', body_hash = ? WHERE msg_key = 'cut'", bytes.Repeat([]byte{1}, 32))
	w.Exec("UPDATE consumer_log SET properties = NULL WHERE msg_key = 'headers'")
	_, lines := w.export()
	other := lines["other"]
	other.Key = "another"
	text := "not json\n\n{}\n" + file(t, other, lines["cut"], lines["headers"], lines["k"]) + strings.Repeat("x", 3<<20) +
		"\n"
	res := w.replayFrom(text, deadletter.ReplayOptions{})
	whys := map[deadletter.Why]int{}
	for _, left := range res.Left {
		whys[left.Why]++
	}
	if res.Replayed != 1 || whys[deadletter.WhyBadLine] != 3 || whys[deadletter.WhyOtherIdentity] != 1 ||
		whys[deadletter.WhyCut] != 2 {
		t.Errorf("replayed %d, left %v", res.Replayed, res.Left)
	}
	w.WantQueues(1, 3)
	// and what a person vouches for
	if res := w.replayFrom(file(t, lines["cut"], lines["headers"]),
		deadletter.ReplayOptions{Force: true}); res.Replayed != 1 {
		t.Errorf("forced: %+v; want the one with whole body", res)
	}
}

func TestAnExportedLetterPublishedWithItsHeadersIsProcessed(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, "k")
	cured := w.engine()
	w.replay(all, deadletter.ReplayOptions{}) // in vain
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
	w := newWorld(t)
	const n = 120
	w.dead(dedup.ReasonPermanent, names("k", n)...)
	w.cured()
	_, lines := w.export()
	done := make(chan error, 2)
	for _, body := range []string{`{"mended":1}`, `{"mended":2}`} {
		var mended []deadletter.Line
		for _, ln := range lines {
			ln.Body = []byte(body)
			mended = append(mended, ln)
		}
		text, letters := file(t, mended...), w.letters()
		go func() {
			file := deadletter.File{Name: "f", Lines: strings.NewReader(text), Filter: all}
			_, err := letters.Replay(t.Context(), file, deadletter.ReplayOptions{By: "tester"})
			done <- err
		}()
	}
	for range 2 {
		assert.OK(t, <-done, "ReplayFrom:")
	}
	w.Eventually("an empty dead-letter queue", func() (string, bool) {
		w.replay(all, deadletter.ReplayOptions{})
		return "letters", w.Broker.Depth(rabbit.DeadQueue(w.Queue)) == 0
	})
	w.wantEffects(n)
	w.WantQueues(0, 0)
}
