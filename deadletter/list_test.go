package deadletter_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

func TestListPagesThroughTheLogAndNeverTouchesTheQueue(t *testing.T) {
	w := newWorld(t)
	want := names("k", 25)
	w.dead(dedup.ReasonExhausted, want...)
	w.inState("applied", dedup.Success)
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	letters := w.letters()
	var got []string
	var after dedup.Cursor
	for {
		page, next, err := letters.List(t.Context(), deadletter.Filter{Limit: 10}, after)
		w.Must(err)
		for _, l := range page {
			got = append(got, l.Key)
		}
		if after = next; after == "" {
			break
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
