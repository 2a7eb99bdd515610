package pages

import (
	"net/http"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// Given acts whose workers said nothing for four seconds, and for longer than a lease, when they are looked at, then
// the pages say so, and that nobody goes on with what a command did.
func TestAPageSaysThatTheWorkerOfAnActIsGone(t *testing.T) {
	w := newWorld(t, "", admin.GuardOptions{}, view.Hide{})
	const silent, lost = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"
	for id, left := range map[string]int{silent: 11, lost: -60} {
		w.exec("INSERT INTO consumer_log_act (id, group_name, queue, kind, state, work, actor, request, created_at, owner, "+
			"lease_until, progress) VALUES (?, 'g', 'q', 'replay', 'running', 3, 'ann@host', "+
			"'{\"kind\":\"replay\",\"filter\":{\"order\":\"A-1\"}}', UTC_TIMESTAMP(6) - INTERVAL 2 MINUTE, 'host/1/2', "+
			"UTC_TIMESTAMP(6) + INTERVAL ? SECOND, '{\"done\":4}')", id, left)
	}
	for path, wants := range map[string][]string{
		"/acts/" + silent: {"Its worker is gone", "seconds", "Nobody else goes on with it", "order=&#34;A-1&#34;"},
		"/acts/" + lost:   {"failed", "its process was killed", "ended"},
		"/acts":           {"its worker is gone", "its process was killed"},
	} {
		status, page := w.get(path)
		for _, want := range wants {
			if status != http.StatusOK || !strings.Contains(page, want) {
				t.Errorf("%s: HTTP %d without %q:\n%s", path, status, want, page)
			}
		}
	}
}
