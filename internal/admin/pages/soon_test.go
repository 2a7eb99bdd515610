package pages

import (
	"database/sql"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/api"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// Given tables that somebody has locked, as a change of a table does, when pages and the API are asked for what
// the desk knows, then each answer is given up after some seconds with 503 and an advice, as all others are.
func TestWhatWaitsForTheDeskIsGivenUpWithAnAdvice(t *testing.T) {
	w := newWorld(t, "", admin.GuardOptions{}, view.Hide{})
	of := w.compared()
	programs, err := api.New(api.Options{
		View: w.pages.o.View, Guard: w.pages.o.Guard, Desk: w.desk, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(programs)
	defer server.Close()
	pool, err := sql.Open("mysql", w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	other, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "LOCK TABLES consumer_log_act WRITE, rollbackd_meta WRITE"); err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	for _, path := range []string{"/acts", "/acts/" + of, "/reconcile", "/reconcile/finding?n=0&of=" + of, "/pause"} {
		asking.Go(func() {
			status, page := w.get(path)
			if status != http.StatusServiceUnavailable || !strings.Contains(page, "the database took too long") {
				t.Errorf("%s: HTTP %d, want 503 with an advice:\n%s", path, status, page)
			}
		})
	}
	for _, path := range []string{"/acts", "/acts/" + of, "/reconcile", "/pause"} {
		asking.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+api.Prefix+path, http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusServiceUnavailable ||
				!strings.Contains(string(text), "the database took too long") {
				t.Errorf("the API's %s: HTTP %d, %v, want 503 with an advice: %s", path, resp.StatusCode, err, text)
			}
		})
	}
	asking.Wait()
	if _, err := other.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
		t.Fatal(err)
	}
	if status, _ := w.get("/reconcile"); status != http.StatusOK {
		t.Errorf("when nobody locks them any more: HTTP %d", status)
	}
}
