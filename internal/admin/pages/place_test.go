package pages

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// Given three acts that a daemon works on, and a fourth, then its page leads to those that hold the places.
func TestThePageOfAnActThatWaitsLeadsToThoseThatHoldThePlaces(t *testing.T) {
	w := newWorld(t, "/x", admin.GuardOptions{}, view.Hide{})
	ask := func(who string) operator.Act {
		t.Helper()
		a, err := w.desk.Ask(t.Context(), operator.Actor{Name: who}, operator.TaskRequest{Kind: "slow"})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var slow []operator.Act
	for _, who := range []string{"anna", "bert", hostile[:40]} {
		slow = append(slow, ask(who))
	}
	w.exec("UPDATE consumer_log_act SET owner = 'host/1/x', lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR")
	late := ask("carl")
	_, page := w.get("/x/acts/" + late.ID)
	if !strings.Contains(page, "It waits for a place.") || !strings.Contains(page, "slow by bert") ||
		strings.Contains(page, hostile[:40]) {
		t.Errorf("the page does not say what it waits for:\n%s", page)
	}
	for _, a := range slow {
		if !strings.Contains(page, `href="/x/acts/`+a.ID+`"`) {
			t.Errorf("the page does not lead to %s", a.ID)
		}
		if _, page := w.get("/x/acts/" + a.ID); strings.Contains(page, "It waits for a place.") {
			t.Errorf("%s has a place", a.ID)
		}
	}
}
