package pages

import (
	"net/http"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given acts whose workers said nothing for four seconds, and for longer than a lease, three that hold all places and
// one that waits for them, and a run of which one letter failed again, then the page of each says so and what follows.
func TestThePageOfAnActSaysWhatBecameOfIt(t *testing.T) {
	w := newWorld(t, "/x", server.GuardOptions{}, view.Hide{})
	var acts []string
	ask := func(who string) {
		t.Helper()
		a := require.Get(w.desk.Ask(t.Context(), operator.Actor{Name: who}, operator.TaskRequest{Kind: "slow"}))(t)
		acts = append(acts, a.ID)
	}
	for _, who := range []string{"anna", "bert", hostile[:40]} {
		ask(who)
	}
	w.exec("UPDATE consumer_log_act SET owner = 'host/1/x', lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR")
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
