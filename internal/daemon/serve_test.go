package daemon_test

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given dead letters, no daemon, and queues that were deleted; when serve shows them with an account that may only
// read, then pages and API tell of the letters and that nothing is consumed, an act says which right is missing and
// does nothing, no queue is made and nobody elected.
func TestServeShowsAGroupWithAnAccountThatMayOnlyRead(t *testing.T) {
	const n = 3
	w, _, fleet := deadOrders(t, n, 1)
	w.stop(fleet...)
	queues := w.config().TopologyConfig().Queues()
	w.broker.Delete(queues...)
	dsn := require.Get(mysql.ParseDSN(w.env["MYSQL_DSN"]))(t)
	w.set("MYSQL_DSN", stack.Restricted(t, w.env["MYSQL_DSN"], "SELECT ON `"+dsn.DBName+"`.*"))

	p, logs := w.logged("serve")
	w.eventually("it is ready", func() bool {
		r := calls(t, p, rita, http.MethodGet, "/readyz", "")
		return r.status == http.StatusOK && strings.Contains(r.text, `"pages_only":true`)
	})
	w.eventually("the first page tells of the letters", func() bool {
		page := asks(t, p, rita, "/", nil).text
		return strings.Contains(page, "Nothing is consumed here") && strings.Contains(page, "3 dead letters") &&
			strings.Contains(page, "Nothing has the name of this queue") && !strings.Contains(page, "name of this group")
	})
	assert.Is(t, len(keysOf(t, p, "/api/v1/letters?tag=stock.rollback", 2)), n, "the API lists")
	const preview = "/letters/act?act=replay&tag=stock.rollback"
	seen := asks(t, p, anna, preview, nil)
	require.That(t, strings.Contains(seen.text, "<b>3</b> will run"), "HTTP %d: %s", seen.status, seen.text)
	has(t, asks(t, p, anna, "/letters/act", form(seen.text, "why", "mended")).text, "INSERT command denied",
		"docs/rights.md")
	did := calls(t, p, anna, http.MethodPost, "/api/v1/pause", `{"why":"x"}`, "Idempotency-Key", "pause-1")
	did.is(t, did.status, "INSERT command denied")
	metrics := calls(t, p, "", http.MethodGet, "/metrics", "")
	assert.That(t, !strings.Contains(metrics.text, "rollbackd_leader") &&
		strings.Contains(metrics.text, "rollbackd_build_info"), "its metrics are %s", metrics.text)
	assert.Is(t, slices.ContainsFunc(queues, w.broker.Exists), false, "a queue was made")
	w.stop(p)
	assert.Has(t, logs.String(), "no queue named "+w.config().Queue+" is in RabbitMQ",
		"the log does not say that the queue is gone: %s", logs)
	for _, never := range []string{"elected", "consuming", "waiting for"} {
		assert.That(t, !strings.Contains(logs.String(), never), "the log says %q:\n%s", never, logs)
	}
	assert.Is(t, w.rows(dedup.Dead), n, "rows are dead")
}

// Given daemons without an HTTP address, then what is asked for on the pages of serve is done there.
func TestServeDoesWhatIsAskedForOnItsPages(t *testing.T) {
	const n = 3
	w, _, fleet := deadOrders(t, n, 1, "HTTP_ADDR", "off")
	w.set("HTTP_ADDR", "127.0.0.1:0")
	p, _ := w.logged("serve")
	const preview = "/letters/act?act=replay&tag=stock.rollback"
	seen := asks(t, p, anna, preview, nil)
	did := asks(t, p, anna, "/letters/act", form(seen.text, "why", "mended"))
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == n })
	w.done(p, did.location)
	w.stop(p)
	w.rest(fleet...)
}

// Given a log with rows of one group, when serve is told another, then health, API, first page and log name the one
// that there is; told the right one, or beside a log without rows, it says nothing of names.
func TestServeNamesTheGroupsThatThereAre(t *testing.T) {
	const what = "no group named stok is in consumer_log; there are: "
	w, _, fleet := deadOrders(t, 1, 1)
	fresh := aloneWorld(t, "ADMIN_TOKENS_FILE", twoTokens(t), "GROUP", "stok")
	right, _ := w.logged("serve")
	group := w.config().Group
	w.set("GROUP", "stok")
	wrong, logs := w.logged("serve")
	said := func(p *program.Process) string { return calls(t, p, rita, http.MethodGet, "/readyz", "").text }
	w.eventually("health names the groups", func() bool { return strings.Contains(said(wrong), what+group) })
	assert.Has(t, asks(t, wrong, rita, "/", nil).text, what+group, "the first page")
	calls(t, wrong, rita, http.MethodGet, "/api/v1/overview", "").is(t, http.StatusOK, what)
	assert.Has(t, logs.String(), what+group, "the log: %s", logs)
	empty, quiet := fresh.logged("serve")
	for _, p := range []*program.Process{right, empty} {
		w.eventually("names were looked for", func() bool { return strings.Contains(said(p), `"ready":true`) })
		assert.Has(t, said(p), `"degraded":[]`, "readyz")
	}
	assert.That(t, !strings.Contains(quiet.String(), "names that nothing has"), "the log of a new deployment: %s", quiet)
	w.stop(append(fleet, right, wrong, empty)...)
}

// Given a daemon whose pages are watched, when it is told to stop, then the events end as an answer does that is whole,
// and it exits with 0 although nobody has closed a browser.
func TestADaemonThatStopsEndsTheEventsOfItsPages(t *testing.T) {
	w := newWorld(t, "LANES", "1")
	p := w.start()
	addr := require.Get(p.Addr(t.Context()))(t)
	var watched []*bufio.Reader
	for _, path := range []string{"/?live=1", "/letters?live=1", "/acts?live=1", "/reconcile?live=1"} {
		req := require.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody))(t)
		resp := require.Get(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		events := bufio.NewReader(resp.Body)
		if line, err := events.ReadString('\n'); err != nil || !strings.HasPrefix(line, ":") {
			t.Fatalf("%s begins with %q, HTTP %d, %v", path, line, resp.StatusCode, err)
		}
		watched = append(watched, events)
	}
	w.stop(p)
	for _, events := range watched {
		_, err := io.Copy(io.Discard, events)
		assert.OK(t, err, "the events were cut off:")
	}
	w.judge(oracle.Allowance{})
}

// Given a daemon with a token, then its profiles are for who has it; without one, for this machine.
func TestProfilesAreForThoseWhoMayAct(t *testing.T) {
	t.Parallel()
	for set, statuses := range map[string]map[string]int{
		"":            {"": http.StatusOK},
		"open-sesame": {"": http.StatusUnauthorized, "close-sesame": http.StatusUnauthorized, "open-sesame": http.StatusOK},
	} {
		w := aloneWorld(t, "ADMIN_TOKEN", set)
		daemon := w.start()
		w.ready(daemon)
		for sent, want := range statuses {
			for _, page := range []string{"heap", "profile?seconds=1", "cmdline", "goroutine?debug=1"} {
				r := calls(t, daemon, sent, http.MethodGet, "/debug/pprof/"+page, "")
				is(w, page+" for "+sent, r.status, want)
				assert.That(t, want == http.StatusOK || !strings.Contains(r.text, "goroutine"),
					"%s tells of the process all the same", page)
			}
		}
		w.stop(daemon)
	}
}
