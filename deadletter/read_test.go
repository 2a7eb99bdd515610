package deadletter_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func TestALetterIsShownWithAllThatTheLogKeeps(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, "k", "other")
	w.Exec("UPDATE consumer_log SET msg_body = ?, body_hash = NULL WHERE msg_key = 'other'", []byte{0xff, 0})
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	shown, err := w.letters().Show(t.Context(), "k", "")
	if err != nil || len(shown) != 1 {
		t.Fatalf("Show = %+v, %v; want one", shown, err)
	}
	s := shown[0]
	var headers map[string]any
	if err := json.Unmarshal(s.Headers, &headers); err != nil || headers[wire.HeaderReason] != "permanent" {
		t.Errorf("headers %s, %v", s.Headers, err)
	}
	if s.Body != "{}" || s.BodyCut || s.MessageID != "k" || s.Reason != "permanent" || len(s.Events) != 1 ||
		s.Events[0].To != "dead" {
		t.Errorf("%+v", s)
	}
	if shown, err := w.letters().Show(t.Context(), "other", tag); err != nil || len(shown) != 1 ||
		!bytes.Equal(shown[0].BodyBytes, []byte{0xff, 0}) || shown[0].Body != "" {
		t.Errorf("a body that is no text: %+v, %v", shown, err)
	}
	for _, other := range [][2]string{{"nope", ""}, {"k", "another tag"}} {
		if shown, err := w.letters().Show(t.Context(), other[0], other[1]); err != nil || len(shown) != 0 {
			t.Errorf("%v: %+v, %v; want none", other, shown, err)
		}
	}
}
