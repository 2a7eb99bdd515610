package daemon_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// said is what a page answered.
type said struct {
	status   int
	location string
	page     string
}

// asks sends a request to a page as whoever has the token; a form is posted.
func asks(t *testing.T, p *program.Process, token, path string, form url.Values) said {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r := calls(t, p, token, method, path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	return said{r.status, r.header.Get("Location"), string(r.text)}
}

// field is the value of a hidden field of a form.
func field(t *testing.T, page, name string) string {
	t.Helper()
	m := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no field %s:\n%s", name, page)
	}
	return html.UnescapeString(m[1])
}

// Given orders whose rollbacks are dead letters, two daemons below a base path, and one who may act and one who may
// look; when the cause is mended and the form of a preview is posted at once to both daemons, twice each, then one run
// begins, every answer leads to it, each order's stock is back once, and who may only look has changed nothing.
func TestTheFormOfAPreviewReplaysOnceHoweverOftenItIsPosted(t *testing.T) {
	t.Parallel()
	const n = 20
	const hostile = `<script>alert(1)</script>"'><img src=x>`
	w, orders, both := deadOrders(t, n, 2, "BASE_PATH", "/x/y")
	first, second := both[0], both[1]
	acts := func() int { return w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind <> 'refused'") }

	const replay, discard = "/x/y/letters/act?act=replay&tag=stock.rollback", "/x/y/letters/act?act=discard&all=1"
	looks := asks(t, first, rita, replay, nil)
	if looks.status != http.StatusOK || !strings.Contains(looks.page, "<button disabled") ||
		field(t, looks.page, "token") != "" || !strings.Contains(looks.page, "<b>20</b> will run") {
		t.Errorf("who may look sees, HTTP %d:\n%s", looks.status, looks.page)
	}
	sees := asks(t, first, anna, replay, nil)
	form := url.Values{
		"token": {field(t, sees.page, "token")}, "set": {field(t, sees.page, "set")}, "rate": {"1000"},
		"max_failures": {"5"}, "why": {hostile},
	}
	assert.Is(t, asks(t, first, rita, "/x/y/letters/act", form).status, http.StatusForbidden,
		"who may look posts the form: HTTP")
	unsaid := asks(t, first, anna, discard, nil)
	if got := asks(t, first, anna, "/x/y/letters/act", url.Values{
		"token": {field(t, unsaid.page, "token")}, "set": {field(t, unsaid.page, "set")}, "why": {" "},
	}); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.page, "write a reason") {
		t.Errorf("a discard without a reason: HTTP %d", got.status)
	}
	if acts() != 0 || w.rows(dedup.Dead) != n {
		t.Fatalf("%d acts and %d dead letters, though nobody who may has asked for anything", acts(), w.rows(dedup.Dead))
	}

	answers := make([]said, 4)
	var posting sync.WaitGroup
	for i := range answers {
		posting.Go(func() {
			answers[i] = asks(t, both[i%2], anna, "/x/y/letters/act", form)
		})
	}
	posting.Wait()
	for _, a := range answers {
		if a.status != http.StatusSeeOther || a.location != answers[0].location ||
			!strings.HasPrefix(a.location, "/x/y/acts/") {
			t.Fatalf("the same form leads to %q, HTTP %d, and to %q\n%s", a.location, a.status, answers[0].location, a.page)
		}
	}
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == n })
	var run said
	w.eventually("the run is done", func() bool {
		run = asks(t, second, rita, answers[0].location, nil)
		return strings.Contains(run.page, `<span class="tag success">done</span>`) &&
			!strings.Contains(run.page, "are being dropped")
	})
	for _, want := range []string{"replay by anna", "<dt>replayed</dt><dd><b>20</b>", "&lt;script&gt;alert(1)",
		`tag=&#34;stock.rollback&#34;`, "1,000 a second"} {
		assert.Has(t, run.page, want, "the run's page lacks")
	}
	list := asks(t, first, rita, "/x/y/acts", nil)
	if strings.Contains(run.page+list.page, "<script>alert") || strings.Contains(run.page+list.page, "<img src=x") ||
		!strings.Contains(list.page, answers[0].location) || !strings.Contains(list.page, "20 replayed") {
		t.Errorf("the list of acts:\n%s", list.page)
	}
	sn, key := orders[0].SN, ""
	require.OK(t, w.db.QueryRowContext(t.Context(), "SELECT rollback_key FROM stock_reservation WHERE order_sn = ? "+
		"LIMIT 1", sn).Scan(&key))
	for _, path := range []string{"/x/y/order?sn=" + sn, "/x/y/message?key=" + url.QueryEscape(key)} {
		if page := asks(t, second, rita, path, nil).page; !strings.Contains(page, `<a href="`+answers[0].location+
			`">replay by anna</a>`) {
			t.Errorf("%s does not lead to the act that replayed it:\n%s", path, page)
		}
	}
	if again := asks(t, second, anna, "/x/y/letters/act", form); again.location != answers[0].location {
		t.Errorf("the form posted after the end leads to %q, HTTP %d", again.location, again.status)
	}
	form.Set("why", "another")
	assert.Is(t, asks(t, second, anna, "/x/y/letters/act", form).status, http.StatusUnprocessableEntity,
		"the token under another form: HTTP")
	assert.Is(t, acts(), 1, "acts")
	w.rest(first, second)
}

// Given a `dlq replay` that waits for the daemon's pace, when its process is killed in the middle, then the page of its
// act says within five seconds that its worker is gone.
func TestThePageOfAReplayThatWasKilledSaysSoWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	w, _, fleet := deadOrders(t, 5, 1)
	d := fleet[0]
	replay := w.command("dlq", "replay", "--all", "--rate", "0.01")
	act := ""
	w.eventually("the replay has begun", func() bool {
		err := w.db.QueryRowContext(t.Context(), "SELECT id FROM consumer_log_act WHERE state = 'running'").Scan(&act)
		return err == nil
	})
	sees := func() string { return asks(t, d, rita, "/acts/"+act, nil).page }
	if page := sees(); strings.Contains(page, "Its worker is gone") || !strings.Contains(page, "running") {
		t.Errorf("while it goes on the page says\n%s", page)
	}
	w.kill(replay)
	gone := time.Now()
	w.eventually("the page says that the worker is gone", func() bool {
		asked := time.Since(gone) // late on a busy machine, and then it has to say so
		says := strings.Contains(sees(), "Its worker is gone")
		if !says && asked > 5*time.Second {
			t.Errorf("asked after %v it does not say so", asked)
		}
		return says
	})
}
