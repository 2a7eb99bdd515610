package deadletter_test

import (
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"testing"
)

func TestTwoRunsInSuccessionFindTheSame(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 1500)...)
	for range 5 {
		if res := w.replay(all, deadletter.ReplayOptions{DryRun: true}); res.Found != 1500 || res.Replayed != 1500 {
			t.Errorf("%+v; want all letters found again", res)
		}
	}
	if res := w.replay(all, deadletter.ReplayOptions{}); res.Replayed != 1500 {
		t.Errorf("%+v; want all letters found again", res)
	}
}
