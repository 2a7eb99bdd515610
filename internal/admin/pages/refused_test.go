package pages

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given one who may look, when he sends each form that acts, some of them twice, then each is refused, and stands once
// in the list of acts with who asked for what; nothing else was done.
func TestWhatIsRefusedStandsInTheListOfActs(t *testing.T) {
	w := newWorld(t, "/x", people(t), view.Hide{})
	paths := []string{
		"/letters/act", "/pause", "/resume", "/reconcile", "/reconcile/mend",
		"/acts/01890000-0000-7000-8000-000000000000/stop",
	}
	for _, path := range append(paths, paths[:2]...) {
		if got := w.ask(rita, "/x"+path, url.Values{"why": {"because"}}); got.status != http.StatusForbidden ||
			got.kind != "application/problem+json" || !strings.Contains(got.page, "rita may look and not act") {
			t.Errorf("%s: HTTP %d %s %s", path, got.status, got.kind, got.page)
		}
	}
	all, _, err := w.desk.Acts(t.Context(), operator.ActFilter{})
	if err != nil || len(all) != len(paths) {
		t.Fatalf("%d acts, %v; want %d", len(all), err, len(paths))
	}
	for i, a := range all {
		if a.Kind != operator.KindRefused || a.Actor != "rita" || a.State != operator.Failed {
			t.Errorf("%+v", a)
		}
		assert.Has(t, w.ask(anna, "/x/acts/"+a.ID, nil).page, "POST "+paths[len(paths)-1-i],
			"the page of the act does not say what was asked for")
	}
	// Who has no right at all is nobody who could be named.
	assert.Is(t, w.ask("no token of ours", "/x/pause", url.Values{}).status, http.StatusUnauthorized, "a stranger: HTTP")
	if all, _, err := w.desk.Acts(t.Context(), operator.ActFilter{}); err != nil || len(all) != len(paths) {
		t.Errorf("%d acts, %v", len(all), err)
	}
}

// The same refusal counts once in a minute, and one who thinks of ever new ones does not fill the memory.
func TestTheSameRefusalIsNewsOnceInAMinute(t *testing.T) {
	f := NewRefusals(nil, nil)
	now := time.Now()
	for _, tc := range []struct {
		what string
		at   time.Duration
		want bool
	}{
		{"a", 0, true}, {"a", time.Second, false}, {"b", time.Second, true}, {"a", refusedEvery - 1, false},
		{"a", refusedEvery, true}, {"a", refusedEvery + 1, false},
	} {
		assert.Is(t, f.news(tc.what, now.Add(tc.at)), tc.want, "%s after %v", tc.what, tc.at)
	}
	for i := range 3 * mostRefused {
		f.news(strings.Repeat("x", i), now)
	}
	assert.AtMost(t, len(f.known), mostRefused, "are remembered")
	if !f.news("later", now.Add(3*refusedEvery)) || len(f.known) > 10 {
		t.Errorf("after a while %d are remembered", len(f.known))
	}
}
