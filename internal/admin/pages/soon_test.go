package pages

import (
	"database/sql"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/api"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// advises reports whether an answer says what was in vain, and what to do. Which of the two it says depends on who was
// first, both after five seconds: we, or the server with its limit for locks.
func advises(text string) bool {
	return strings.Contains(text, "took too long: try again in a moment") ||
		strings.Contains(text, "lock, as while a table is changed: try again in a moment")
}

// Given tables that somebody has locked, as a change of a table does, when pages and the API are asked for what
// the desk knows, then each answer is given up after some seconds with 503 and an advice that fits, as all others are.
func TestWhatWaitsForTheDeskIsGivenUpWithAnAdvice(t *testing.T) {
	w := newWorld(t, "", server.GuardOptions{}, view.Hide{})
	of := w.compared()
	server := httptest.NewServer(api.New(w.pages.view, w.pages.guard))
	defer server.Close()
	pool := require.Get(sql.Open("mysql", w.dsn))(t)
	defer pool.Close()
	other := require.Get(pool.Conn(t.Context()))(t)
	defer other.Close()
	require.Get(other.ExecContext(t.Context(), "LOCK TABLES consumer_log_act WRITE, rollbackd_meta WRITE"))(t)
	var asking sync.WaitGroup
	for _, path := range []string{"/acts", "/acts/" + of, "/reconcile", "/reconcile/finding?n=0&of=" + of, "/pause"} {
		asking.Go(func() {
			status, page := w.get(path)
			if status != http.StatusServiceUnavailable || !advises(page) ||
				strings.Contains(page, "narrow the search") {
				t.Errorf("%s: HTTP %d, want 503 with an advice:\n%s", path, status, page)
			}
		})
	}
	for _, path := range []string{"/acts", "/acts/" + of, "/reconcile", "/pause"} {
		asking.Go(func() {
			got := w.send(http.MethodGet, server.URL+api.Prefix+path, nil)
			if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "1" || !advises(got.page) {
				t.Errorf("the API's %s: HTTP %d, want 503 with an advice: %s", path, got.status, got.page)
			}
		})
	}
	asking.Wait()
	require.Get(other.ExecContext(t.Context(), "UNLOCK TABLES"))(t)
	if status, _ := w.get("/reconcile"); status != http.StatusOK {
		t.Errorf("when nobody locks them any more: HTTP %d", status)
	}
}

// Given a table that somebody has locked, when a person or a program wants to act, then MySQL gives up waiting before
// they do, and they are told in plain words to try again, which then succeeds.
func TestWhoeverMeetsALockIsToldToTryAgain(t *testing.T) {
	w := newWorldWith(t, "", server.GuardOptions{}, time.Second, func(*view.Options) {})
	server := httptest.NewServer(api.New(w.pages.view, w.pages.guard))
	defer server.Close()
	pool := require.Get(sql.Open("mysql", w.dsn))(t)
	defer pool.Close()
	fields := form(t, w.ask("", "/pause", nil).page, "/pause")
	fields.Set("why", "stocktaking")
	fields.Set("for", "30m")
	other := require.Get(pool.Conn(t.Context()))(t)
	defer other.Close()
	require.Get(other.ExecContext(t.Context(), "LOCK TABLES consumer_log_act WRITE"))(t)
	const plain = "MySQL let this wait in vain for somebody else"
	compare := func() answer {
		t.Helper()
		return w.send(http.MethodPost, server.URL+api.Prefix+"/reconcile", nil, "Idempotency-Key", "one")
	}
	if got := compare(); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "1" ||
		!strings.Contains(got.page, plain) || strings.Contains(got.page, "1205") {
		t.Errorf("the API: HTTP %d, Retry-After %q: %s", got.status, got.header.Get("Retry-After"), got.page)
	}
	if got := w.ask("", "/pause", fields); got.status != http.StatusServiceUnavailable ||
		!strings.Contains(got.page, plain) {
		t.Errorf("the page: HTTP %d\n%s", got.status, got.page)
	}
	require.Get(other.ExecContext(t.Context(), "UNLOCK TABLES"))(t)
	if got := compare(); got.status != http.StatusCreated {
		t.Errorf("the API again, under the same key: HTTP %d: %s", got.status, got.page)
	}
	if got := w.ask("", "/pause", fields); got.status != http.StatusSeeOther {
		t.Errorf("the same form again: HTTP %d\n%s", got.status, got.page)
	}
}
