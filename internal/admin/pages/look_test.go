package pages

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// everything is all that stands in all tables.
func (w *world) everything() string {
	w.t.Helper()
	tables := stack.RowsOf(w.t, w.pool, "SELECT GROUP_CONCAT(table_name) AS names FROM information_schema.tables "+
		"WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'")[0]["names"]
	require.That(w.t, strings.Contains(tables, "consumer_log_once"), "the tables are %s", tables)
	return fmt.Sprint(stack.RowsOf(w.t, w.pool, "CHECKSUM TABLE "+tables))
}

// Given somebody who may act, then nothing changes by whatever he looks at, forms too; and where another site makes his
// browser ask, or leads it to what acts, he gets nothing. Whoever follows a link to another page may come from
// anywhere.
func TestALookChangesNothing(t *testing.T) {
	w := open(t, "").some()
	of := w.compared()
	a := require.Get(w.desk.Pause(t.Context(), operator.Actor{Name: "anna"}, operator.PauseRequest{Why: "a mend"}))(t)
	require.Get(w.desk.Issue(t.Context(), operator.Actor{}))(t) // the key is made once for all
	before := w.everything()
	const act = "/letters/act?act=replay&all=1"
	paths := []string{"/", "/letters", act, "/letters/act?act=discard&key=order-1", "/acts", "/acts/" + a.ID, "/pause",
		"/log", "/message?key=order-1", "/order?sn=A-1", "/find", "/reconcile", "/reconcile?of=" + of,
		"/reconcile/finding?n=0&of=" + of, "/reconcile/finding?n=1&of=" + of, "/letters/download", "/static/pages.css"}
	for _, path := range paths {
		for range 3 {
			status, page := w.get(path)
			assert.That(t, status == http.StatusOK || strings.HasPrefix(path, "/order"), "%s: HTTP %d:\n%s", path, status, page)
		}
		for _, site := range []string{"cross-site", "same-site"} {
			for kind, h := range map[string][]string{
				"a picture": {"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
				"a script":  {"Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"},
				"a frame":   {"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
				"unnamed":   nil,
				"a page":    {"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			} {
				status, _ := w.get(path, append(h, "Sec-Fetch-Site", site)...)
				open := strings.HasPrefix(path, "/static/") || kind == "a page" && !strings.HasPrefix(path, "/letters/act")
				assert.That(t, (status == http.StatusForbidden) != open, "%s for %s %s: HTTP %d", path, kind, site, status)
			}
		}
		for _, site := range []string{"same-origin", "none"} {
			status, _ := w.get(path, "Sec-Fetch-Site", site)
			assert.That(t, status != http.StatusForbidden, "%s from these pages (%s): HTTP %d", path, site, status)
		}
		require.Is(t, w.everything(), before, "%s has changed to", path)
	}
}
