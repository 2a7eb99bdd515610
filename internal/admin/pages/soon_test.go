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
	"github.com/rollbackd/rollbackd/internal/test/assert"
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
	w := open(t, "")
	of := w.compared()
	server := w.api()
	unlock := w.locks("consumer_log_act WRITE, rollbackd_meta WRITE")
	var asking sync.WaitGroup
	for _, path := range []string{"/acts", "/acts/" + of, "/reconcile", "/reconcile/finding?n=0&of=" + of, "/pause"} {
		asking.Go(func() {
			status, page := w.get(path)
			assert.That(t, status == http.StatusServiceUnavailable && advises(page) &&
				!strings.Contains(page, "narrow the search"), "%s: HTTP %d, want 503 with an advice:\n%s", path, status, page)
		})
	}
	for _, path := range []string{"/acts", "/acts/" + of, "/reconcile", "/pause"} {
		asking.Go(func() {
			got := w.send(http.MethodGet, server.URL+api.Prefix+path, nil)
			assert.That(t, got.status == http.StatusServiceUnavailable && got.header.Get("Retry-After") == "1" &&
				advises(got.page), "the API's %s: HTTP %d, want 503 with an advice: %s", path, got.status, got.page)
		})
	}
	asking.Wait()
	unlock()
	w.says("/reconcile", http.StatusOK)
}

// api serves the API beside the pages.
func (w *world) api() *httptest.Server {
	s := httptest.NewServer(api.New(w.pages.view, w.pages.guard))
	w.t.Cleanup(s.Close)
	return s
}

// locks has somebody lock tables until unlock.
func (w *world) locks(tables string) (unlock func()) {
	w.t.Helper()
	pool := require.Get(sql.Open("mysql", w.dsn))(w.t)
	w.t.Cleanup(func() { _ = pool.Close() })
	other := require.Get(pool.Conn(w.t.Context()))(w.t)
	w.t.Cleanup(func() { _ = other.Close() })
	run := func(statement string) { require.Get(other.ExecContext(w.t.Context(), statement))(w.t) }
	run("LOCK TABLES " + tables)
	return func() { run("UNLOCK TABLES") }
}

// Given a table that somebody has locked, when a person or a program wants to act, then MySQL gives up waiting before
// they do, and they are told in plain words to try again, which then succeeds.
func TestWhoeverMeetsALockIsToldToTryAgain(t *testing.T) {
	w := newWorldWith(t, "", server.GuardOptions{}, time.Second, func(*view.Options) {})
	server := w.api()
	fields := form(t, w.ask("", "/pause", nil).page, "/pause")
	fields.Set("why", "stocktaking")
	fields.Set("for", "30m")
	unlock := w.locks("consumer_log_act WRITE")
	const plain = "MySQL let this wait in vain for somebody else"
	compare := func() answer {
		t.Helper()
		return w.send(http.MethodPost, server.URL+api.Prefix+"/reconcile", nil, "Idempotency-Key", "one")
	}
	got := w.holds("the API", compare(), http.StatusServiceUnavailable, plain, "!1205")
	assert.Is(t, got.header.Get("Retry-After"), "1", "Retry-After")
	w.holds("the page", w.ask("", "/pause", fields), http.StatusServiceUnavailable, plain)
	unlock()
	w.holds("the API again, under the same key", compare(), http.StatusCreated)
	w.holds("the same form again", w.ask("", "/pause", fields), http.StatusSeeOther)
}
