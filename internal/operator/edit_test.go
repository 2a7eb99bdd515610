package operator_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// edit is a letter with a body that the letters of a world do not have.
func edit(key string) operator.EditRequest {
	return operator.EditRequest{Tag: tag, Key: key, Body: `{"mended":true}`, Headers: map[string]any{"x-shop": "north"},
		Why: "a quantity was a text"}
}

// Given letters that cannot be edited, or an edit that may not be, when it is asked for, then it is refused with the
// reason, and neither row nor outbox has changed.
func TestAnEditThatMayNotBeSaysWhyAndChangesNothing(t *testing.T) {
	long := strings.Repeat("k", 250)
	w := newWorld(t).outbox().dead("shelf is locked", "k", "cut", long)
	w.Exec("UPDATE consumer_log SET msg_body = 'x' WHERE msg_key = 'cut'")
	for _, tc := range []struct {
		name, key, says string
		change          func(r *operator.EditRequest)
	}{
		{"it is not dead", "never seen", "and not dead", nil},
		{"nothing is changed", "k", "replay it", func(r *operator.EditRequest) { r.Body, r.Headers = "{}", nil }},
		{"a header that no outbox carries", "k", `header "x-list"`, func(r *operator.EditRequest) {
			r.Headers["x-list"] = []any{1}
		}},
		{"another key by its headers", "k", "ROLLBACKD_KEY_FROM", func(r *operator.EditRequest) {
			r.Headers["x-message-key"] = "k"
		}},
		{"a body of which the row keeps a part", "cut", "keeps only the first", nil},
		{"a key without room for another", long, "a new key", nil},
		{"there is no outbox", "k", "migrate --outbox", func(*operator.EditRequest) {
			assert.Is(t, w.Number("SELECT COUNT(*) FROM rollbackd_outbox"), 0, "messages in the outbox")
			w.Exec("DROP TABLE rollbackd_outbox")
		}},
	} {
		r := edit(tc.key)
		if tc.change != nil {
			tc.change(&r)
		}
		_, err := w.desk.Edit(t.Context(), anna, "", r)
		assert.Error(t, err, deadletter.ErrNoEdit, "%s: the edit", tc.name)
		assert.Has(t, fmt.Sprint(err), tc.says, "%s: the edit", tc.name)
	}
	assert.Is(t, w.status(dedup.Dead), 3, "letters")
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_act"), 0, "acts")
}

// Given a dead letter, when many edit it at once while others replay and discard it, then it goes one way alone: the
// edited message is put once if it was edited, and not at all otherwise.
func TestOfManyWhoEditReplayAndDiscardALetterOneDoes(t *testing.T) {
	w := newWorld(t).outbox()
	edited := 0
	for round := range 8 {
		key := fmt.Sprintf("k-%d", round)
		w.dead("shelf is locked", key)
		w.MoveBack(time.Second)
		var wg sync.WaitGroup
		var once sync.Once
		begin := make(chan struct{}) // of the replay: at once, or when the first edit has come back
		if round%2 == 0 {
			once.Do(func() { close(begin) })
		}
		for i := range 3 {
			wg.Go(func() {
				defer once.Do(func() { close(begin) })
				r := edit(key)
				r.Body = fmt.Sprintf(`{"by":%d}`, i)
				_, err := w.desk.Edit(t.Context(), anna, "", r)
				assert.That(t, err == nil || errors.Is(err, deadletter.ErrNoEdit) || operator.Busy(err), "%v", err)
			})
		}
		row := w.Row(key)
		wg.Go(func() {
			<-begin
			_, err := w.Records.Reopen(t.Context(), row, dedup.Entry{Identity: row.Identity}, dedup.ReplayNote{By: "bert",
				Filter: "a test", Token: row.ReplayToken("replay/" + key)})
			assert.That(t, err == nil || errors.Is(err, dedup.ErrLost) || errors.Is(err, dedup.ErrStale), "%v", err)
		})
		wg.Wait()
		sent := w.Number("SELECT COUNT(*) FROM rollbackd_outbox WHERE msg_key LIKE '" + key + "/edited-%'")
		switch status := w.Row(key).Status; {
		case status == dedup.Discarded && sent == 1:
			edited++
		case status == dedup.Failed && sent == 0:
		default:
			t.Errorf("%s is %v, and %d are sent in its place", key, status, sent)
		}
	}
	assert.Is(t, w.Number("SELECT COUNT(*) FROM rollbackd_outbox WHERE headers = '{\"x-shop\":\"north\"}' AND "+
		"exchange = '' AND routing_key = ?", w.Queue), edited, "sent to the queue alone, with their headers")
	const id = "0190aaaa-0000-7000-8000-000000000001"
	w.dead("shelf is locked", "once")
	for range 2 { // under one id it is one edit
		a := require.Get(w.desk.Edit(t.Context(), anna, id, edit("once")))(t)
		assert.Is(t, fmt.Sprint(a.ID, a.State), id+"done", "the act")
	}
	assert.Is(t, w.Number("SELECT COUNT(*) FROM rollbackd_outbox WHERE msg_key LIKE 'once/%'"), 1, "sent")
	if t.Logf("%d of 8 were edited, the others replayed", edited); edited == 0 {
		t.Error("none was edited: nothing was tried")
	}
}

// Given two letters of one key, one of them filed as conflict, when both are edited, the second after the first one's
// message has left the outbox, then each is another message, which leads back to its letter.
func TestLettersOfOneKeyAreEditedToMessagesOfDifferentKeys(t *testing.T) {
	w := newWorld(t).outbox().dead("shelf is locked", "k")
	d := letters.Message("k", `{"other":1}`)
	filed, _ := wire.Conflict(w.Identify(d), d.Body)
	w.Must(w.Records.Dead(t.Context(), dedup.Row{}, letters.Entry(filed, d), dedup.ReasonConflict, "no"))
	var all []operator.Edited
	for _, k := range []dedup.Identity{letters.Identity("k"), filed.Identity} {
		r, did := edit(k.Key), operator.Edited{}
		r.Tag = k.Tag
		a := require.Get(w.desk.Edit(t.Context(), anna, "", r))(t)
		w.Exec("DELETE FROM rollbackd_outbox")
		require.OK(t, json.Unmarshal(a.Detail, &did))
		all = append(all, did)
	}
	require.Is(t, all[0].Sent != all[1].Sent, true, "%v are different", all)
	for _, did := range all {
		told := require.Get(w.dead("no", did.Sent.Key).lookup().OfKey(t.Context(), did.Sent.Key, did.Sent.Tag))(t)
		assert.That(t, len(told.Messages) == 1 && told.Messages[0].EditedFrom != nil &&
			*told.Messages[0].EditedFrom == did.MessageName, "%v is told as %+v", did, told.Messages)
	}
}

// Given letters with headers that an outbox carries and others, when one is read to be edited, then it has those of its
// producer, a whole number with all its digits, and those that would be lost are named.
func TestWhatIsEditedHasTheHeadersOfItsProducer(t *testing.T) {
	w := newWorld(t).dead("shelf is locked", "k")
	w.Exec(`UPDATE consumer_log SET properties = JSON_SET(CONVERT(properties USING utf8mb4), '$.headers', JSON_OBJECT(` +
		`'x-shop', 'north', 'x-count', JSON_OBJECT('$int64', '9007199254740993'), 'x-message-key', 'k', ` +
		`'x-rollbackd-error', 'shelf', 'x-list', JSON_ARRAY('a')))`)
	got := require.Get(w.desk.Editable(t.Context(), operator.MessageName{Tag: tag, Key: "k"}))(t)
	text := require.Get(json.Marshal(got.EditRequest))(t)
	var asked operator.EditRequest // as a page or a program sends it
	require.OK(t, json.Unmarshal(text, &asked))
	text = require.Get(json.Marshal(asked.Headers))(t)
	assert.That(t, string(text) == `{"x-count":9007199254740993,"x-shop":"north"}` && len(got.Lost) == 1 &&
		got.Lost[0] == "x-list", "headers %s, lost %v; properties %s", text, got.Lost, w.Row("k").Properties)
}
