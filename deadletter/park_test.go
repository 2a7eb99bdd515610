package deadletter_test

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestALetterReplayedAsOftenAsAllowedIsParkedAndMarkedOnce(t *testing.T) {
	w := newWorld(t)
	w.most = 2
	w.dead(dedup.ReasonExhausted, "often", "once")
	w.Exec("UPDATE consumer_log SET replays = IF(msg_key = 'often', 2, 1)")
	if res := w.replay(all, deadletter.ReplayOptions{DryRun: true}); res.Parked != 1 || res.Replayed != 1 {
		t.Errorf("dry run: %+v; want one replayed, one parked", res)
	}
	assert.Is(t, w.Row("often").Remark, "no", "a dry run wrote the remark")
	for range 2 {
		res := w.replay(all, deadletter.ReplayOptions{})
		if res.Parked != 1 || len(res.Left) != 1 || res.Left[0].Why != deadletter.WhyParked || res.Left[0].Key != "often" {
			t.Fatalf("%+v; want the letter parked", res)
		}
	}
	w.WantQueues(1, 1)
	row := w.Row("often")
	if row.Status != dedup.Dead || row.Replays != 2 || row.Remark != "parked after 2 replays of at most 2: no" {
		t.Errorf("row: %v, %d replays, remark %q", row.Status, row.Replays, row.Remark)
	}
	events, err := w.Records.Events(t.Context(), identity("often"))
	if err != nil || len(events) != 2 || events[1].To != dedup.Dead || events[1].By != "tester" ||
		!strings.HasPrefix(events[1].Error, "parked") {
		t.Errorf("events = %+v, %v; want one more, the parking", events, err)
	}
	page, _, err := w.letters().List(t.Context(), deadletter.Filter{}, "")
	if err != nil || len(page) != 1 || !page[0].Parked {
		t.Errorf("List = %+v, %v; want it parked", page, err)
	}
}

func TestAKeyThatNoLetterHasIsReported(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "a", "b")
	for name, tc := range map[string]struct {
		filter deadletter.Filter
		want   string
	}{
		"all found":              {deadletter.Filter{Keys: []string{"a", "b"}}, ""},
		"none found":             {deadletter.Filter{Keys: []string{"nope", "nay"}}, "nay nope"},
		"one found":              {deadletter.Filter{Keys: []string{"a", "nope"}}, "nope"},
		"found but for a reason": {deadletter.Filter{Keys: []string{"a"}, Reasons: []dedup.Reason{"permanent"}}, "a"},
	} {
		res := w.replay(tc.filter, deadletter.ReplayOptions{DryRun: true})
		assert.Is(t, strings.Join(res.NotFound, " "), tc.want, "%s: not found", name)
	}
}
