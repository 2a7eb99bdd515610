package pages

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given one who may look, when he sends each form that acts, some of them twice, then each is refused, and stands once
// in the list of acts with who asked for what; nothing else was done.
func TestWhatIsRefusedStandsInTheListOfActs(t *testing.T) {
	w := newWorld(t, "/x", people(t), view.Hide{})
	paths := []string{"/letters/act", "/pause", "/resume", "/reconcile", "/reconcile/mend", "/reconcile/expected",
		"/letters/rehearse", "/letter/edit", "/letter/edit/send", "/outbox/act",
		"/acts/01890000-0000-7000-8000-000000000000/stop"}
	for _, path := range append(paths, paths[:2]...) {
		got := w.holds(path, w.ask(rita, "/x"+path, url.Values{"why": {"because"}}), http.StatusForbidden,
			"rita may look and not act")
		assert.Is(t, got.kind, "application/problem+json", "%s", path)
	}
	all, _, err := w.desk.Acts(t.Context(), operator.ActFilter{})
	require.That(t, err == nil && len(all) == len(paths), "%d acts, %v; want %d", len(all), err, len(paths))
	for i, a := range all {
		assert.That(t, a.Kind == operator.KindRefused && a.Actor == "rita" && a.State == operator.Failed, "%+v", a)
		assert.Has(t, w.ask(anna, "/x/acts/"+a.ID, nil).page, "POST "+paths[len(paths)-1-i],
			"the page of the act does not say what was asked for")
	}
	// Who has no right at all is nobody who could be named.
	assert.Is(t, w.ask("no token of ours", "/x/pause", url.Values{}).status, http.StatusUnauthorized, "a stranger: HTTP")
	all, _, err = w.desk.Acts(t.Context(), operator.ActFilter{})
	assert.That(t, err == nil && len(all) == len(paths), "%d acts, %v", len(all), err)
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
	assert.That(t, f.news("later", now.Add(3*refusedEvery)) && len(f.known) <= 10, "after a while %d are remembered",
		len(f.known))
}

// Given acts whose workers said nothing for four seconds, and for longer than a lease, three that hold all places and
// one that waits for them, and a run of which one letter failed again, then the page of each says so and what follows.
func TestThePageOfAnActSaysWhatBecameOfIt(t *testing.T) {
	w := open(t, "/x")
	var acts []string
	ask := func(who string) {
		t.Helper()
		a := require.Get(w.desk.Ask(t.Context(), operator.Actor{Name: who}, operator.TaskRequest{Kind: "slow"}))(t)
		acts = append(acts, a.ID)
	}
	hold := func() {
		w.exec("UPDATE consumer_log_act SET owner = 'host/1/x', lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR")
	}
	ask("anna")
	ask("bert")
	hold()
	ask(hostile[:40])
	w.says("/x/acts/"+acts[2], http.StatusOK, "!It waits for a place.") // two of three are taken
	hold()
	ask("carl")
	texts := []string{"It waits for a place.", "slow by bert", "!" + hostile[:40]}
	for _, holder := range acts[:3] {
		texts = append(texts, `href="/x/acts/`+holder+`"`)
		w.says("/x/acts/"+holder, http.StatusOK, "!It waits for a place.")
	}
	w.says("/x/acts/"+acts[3], http.StatusOK, texts...)
	const silent, lost = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"
	for id, left := range map[string]int{silent: 11, lost: -60} {
		w.exec("INSERT INTO consumer_log_act (id, group_name, queue, kind, state, work, actor, request, created_at, owner, "+
			"lease_until, progress) VALUES (?, 'g', 'q', 'replay', 'running', 3, 'ann@host', "+
			"'{\"kind\":\"replay\",\"filter\":{\"order\":\"A-1\"}}', UTC_TIMESTAMP(6) - INTERVAL 2 MINUTE, 'host/1/2', "+
			"UTC_TIMESTAMP(6) + INTERVAL ? SECOND, '{\"done\":4}')", id, left)
	}
	w.says("/x/acts/"+silent, http.StatusOK, "Its worker is gone", "seconds", "Nobody else goes on with it",
		"order=&#34;A-1&#34;")
	w.says("/x/acts/"+lost, http.StatusOK, "failed", "its process was killed", "ended")
	w.says("/x/acts", http.StatusOK, "its worker is gone", "its process was killed")
	run := require.Get(w.desk.Note(t.Context(), operator.Actor{Name: "anna"}, operator.KindReplay, "",
		operator.Request{Kind: operator.KindReplay, Filter: deadletter.Filter{Keys: []string{"order-1"}}}, ""))(t)
	const failed = "<b>1 letter failed again.</b>"
	for result, texts := range map[string][]string{
		`{"replayed":1,"applied":1}`:      {"!" + failed},
		`{"replayed":1,"failed_again":1}`: {failed, `href="/x/letters?since=20`},
	} {
		w.exec("UPDATE consumer_log_act SET result = ? WHERE id = ?", result, []byte(run.ID))
		w.says("/x/acts/"+run.ID, http.StatusOK, texts...)
	}
}
