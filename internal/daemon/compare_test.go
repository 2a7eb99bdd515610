package daemon_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given dead orders whose letters somebody purged, and one who may act and one who may look; when the first has log,
// letters and stock compared on a page and mends what is found one by one, then each message runs once, the acts say
// who did it, and the form that was sent twice did it once; what the second asks for is refused.
func TestWhatAComparisonFindsIsMendedOneByOneOnThePages(t *testing.T) {
	t.Parallel()
	const n = 3
	w, _, fleet := deadOrders(t, n, 1, "BASE_PATH", "/x")
	p := fleet[0]
	w.eventually("all letters are there", func() bool {
		return w.broker.Depth(rabbit.DeadQueue(w.config().Queue)) == n
	})
	w.broker.Purge(rabbit.DeadQueue(w.config().Queue))

	sees := asks(t, p, rita, "/x/reconcile", nil)
	if sees.status != http.StatusOK || !strings.Contains(sees.page, "Nothing has been compared yet.") ||
		!strings.Contains(sees.page, "<button disabled") {
		t.Errorf("who may look sees, HTTP %d:\n%s", sees.status, sees.page)
	}
	form := url.Values{"token": {field(t, asks(t, p, anna, "/x/reconcile", nil).page, "token")}}
	assert.Is(t, asks(t, p, rita, "/x/reconcile", form).status, http.StatusForbidden, "who may look compares: HTTP")
	for range 2 {
		if got := asks(t, p, anna, "/x/reconcile", form); got.status != http.StatusSeeOther ||
			got.location != "/x/reconcile" {
			t.Fatalf("HTTP %d, %q\n%s", got.status, got.location, got.page)
		}
	}
	finding := regexp.MustCompile(`/x/reconcile/finding\?n=\d+&amp;of=[0-9a-f-]{36}`)
	var links []string
	w.eventually("it has compared", func() bool {
		sees = asks(t, p, rita, "/x/reconcile", nil)
		links = finding.FindAllString(sees.page, -1)
		return strings.Contains(sees.page, `<span class="tag success">done</span>`)
	})
	if len(links) != n || !strings.Contains(sees.page, "it was purged, or moved by hand") {
		t.Fatalf("it has found:\n%s", sees.page)
	}
	for i, link := range links {
		link = strings.ReplaceAll(link, "&amp;", "&")
		page := asks(t, p, anna, link, nil).page
		form := url.Values{"token": {field(t, page, "token")}, "of": {field(t, page, "of")}, "n": {field(t, page, "n")},
			"why": {"purged by mistake"}}
		assert.Has(t, page, "rollbackd reconcile --republish", "the finding does not name its command")
		if i == 0 {
			assert.Is(t, asks(t, p, rita, "/x/reconcile/mend", form).status, http.StatusForbidden, "who may look mends: HTTP")
		}
		done := asks(t, p, anna, "/x/reconcile/mend", form)
		again := asks(t, p, anna, "/x/reconcile/mend", form)
		if done.status != http.StatusSeeOther || again.location != done.location {
			t.Fatalf("mended: HTTP %d, %q and %q\n%s", done.status, done.location, again.location, done.page)
		}
		w.eventually("it is mended and applied", func() bool {
			act := asks(t, p, rita, done.location, nil)
			return strings.Contains(act.page, `<span class="tag success">done</span>`) &&
				strings.Contains(act.page, "purged by mistake") && w.rows(dedup.Success) == i+1
		})
		assert.Has(t, asks(t, p, rita, link, nil).page, "<b>It was mended</b> by anna",
			"the finding does not say that it is mended")
	}
	is(w, "acts have mended something",
		w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'mend' AND actor = 'anna' AND state = "+
			"'done'"), n)
	// when the daemon has died before it wrote down that it has mended, then the next one says so, and mends nothing twice
	replays := w.count("SELECT SUM(replays) FROM consumer_log")
	w.exec("UPDATE consumer_log_act SET state = 'running', work = 1, owner = 'died', lease_until = UTC_TIMESTAMP(6), " +
		"result = NULL, ended_at = NULL WHERE kind = 'mend'")
	w.eventually("the acts are taken up again", func() bool {
		return w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'mend' AND state <> 'running' AND term = 2") == n
	})
	is(w, "acts are done", w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'mend' AND state = 'done'"), n)
	assert.Is(t, w.count("SELECT SUM(replays) FROM consumer_log"), replays, "the rows were replayed times, before")
	w.rest(p)
}
