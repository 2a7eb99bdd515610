package deadletter_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

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

func TestListShowsWhatIsKnownUnderStableNames(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, "other")
	w.inState("k", dedup.Dead)
	page, _, err := w.letters().List(t.Context(), deadletter.Filter{Reasons: []dedup.Reason{"exhausted"}}, "")
	if err != nil || len(page) != 1 {
		t.Fatalf("List = %v, %v; want one letter", page, err)
	}
	row := w.Row("k")
	if !page[0].DeadAt.Equal(row.DeadAt) || page[0].DeadAt.IsZero() {
		t.Errorf("dead at %v, want %v", page[0].DeadAt, row.DeadAt)
	}
	page[0].DeadAt, page[0].Created = time.Unix(1, 0).UTC(), time.Unix(0, 0).UTC()
	got, err := json.Marshal(page[0])
	want := `{"group":"test-group","tag":"stock.rollback","key":"k","reason":"exhausted","attempts":0,"replays":0,` +
		`"dead_at":"1970-01-01T00:00:01Z","created_at":"1970-01-01T00:00:00Z","remark":"shelf is locked",` +
		`"body_sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","parked":false}`
	if err != nil || string(got) != want {
		t.Errorf("JSON is\n%s\nwant\n%s", got, want)
	}
}
