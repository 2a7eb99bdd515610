package dedup

import (
	"fmt"
	"testing"
	"time"
)

func TestTheOldestRowOfEachStateThatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if oldest, err := w.log.Oldest(t.Context(), "g"); err != nil || len(oldest) != 0 {
		t.Errorf("an empty log has %v (%v)", oldest, err)
	}
	for i, age := range []time.Duration{time.Hour, 3 * time.Hour, 2 * time.Hour} {
		for _, status := range []Status{Success, Failed, Dead, Discarded} {
			w.rowAged(key(fmt.Sprint(status, i)), status, age)
			w.rowAged(Identity{"other", "t", fmt.Sprint(status, i)}, status, 24*time.Hour)
		}
	}
	oldest, err := w.log.Oldest(t.Context(), "g")
	if err != nil || len(oldest) != 2 {
		t.Fatalf("the oldest are %v (%v), want one failed, one dead", oldest, err)
	}
	for _, status := range []Status{Failed, Dead} {
		if r := oldest[status]; r.Key != fmt.Sprint(status, 1) || r.Age < 3*time.Hour || r.Age > 4*time.Hour {
			t.Errorf("the oldest in %v is %v, %v old; want number 1, 3h", status, r.Identity, r.Age)
		}
	}
}
