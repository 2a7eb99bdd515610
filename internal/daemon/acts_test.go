package daemon_test

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// asks sends a request to a page as whoever has the token; a form is posted.
func asks(t *testing.T, p *program.Process, token, path string, form url.Values) reply {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	return calls(t, p, token, method, path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded")
}

// hidden are the fields of forms that say what is asked for.
var hidden = regexp.MustCompile(`name="(token|set|of|n)" value="([^"]*)"`)

// form is the first one of a page as it comes, with fields besides, in pairs.
func form(page string, pairs ...string) url.Values {
	form := url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		if !form.Has(m[1]) {
			form.Set(m[1], html.UnescapeString(m[2]))
		}
	}
	for pair := range slices.Chunk(pairs, 2) {
		form.Set(pair[0], pair[1])
	}
	return form
}

// atOnce posts a form so many times to two daemons at once. All answers must lead to one place.
func atOnce(t *testing.T, times int, both []*program.Process, path string, form url.Values) (location string) {
	t.Helper()
	answers := make([]reply, times)
	var posting sync.WaitGroup
	for i := range answers {
		posting.Go(func() { answers[i] = asks(t, both[i%2], anna, path, form) })
	}
	posting.Wait()
	for _, a := range answers {
		require.That(t, a.status == http.StatusSeeOther && a.location != "" && a.location == answers[0].location,
			"one form leads to %q, HTTP %d, and to %q\n%s", a.location, a.status, answers[0].location, a.text)
	}
	return answers[0].location
}

// done is the page of an act when it is done.
func (w *world) done(p *program.Process, location string) (page string) {
	w.t.Helper()
	w.eventually("the act is done", func() bool {
		page = asks(w.t, p, rita, location, nil).text
		return strings.Contains(page, `<span class="tag success">done</span>`) && !strings.Contains(page, "are being dropped")
	})
	return page
}

// has fails the test for each of the texts that a page lacks.
func has(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		assert.Has(t, page, text, "a page lacks")
	}
}

// Given orders whose rollbacks are dead letters, two daemons below a base path, and one who may act and one who may
// look; when the cause is mended and the form of a preview is posted at once to both daemons, twice each, then one run
// begins, every answer leads to it, and each order's stock is back once.
func TestTheFormOfAPreviewReplaysOnceHoweverOftenItIsPosted(t *testing.T) {
	const n = 20
	const hostile = `<script>alert(1)</script>"'><img src=x>`
	w, orders, both := deadOrders(t, n, 2, "BASE_PATH", "/x/y")
	first, second := both[0], both[1]
	const replay, discard = "/x/y/letters/act?act=replay&tag=stock.rollback", "/x/y/letters/act?act=discard&all=1"
	looks := asks(t, first, rita, replay, nil)
	assert.That(t, looks.status == http.StatusOK && strings.Contains(looks.text, "<button disabled") &&
		form(looks.text).Get("token") == "" && strings.Contains(looks.text, "<b>20</b> will run"),
		"who may look sees, HTTP %d:\n%s", looks.status, looks.text)
	sees := asks(t, first, anna, replay, nil)
	replays := form(sees.text, "rate", "1000", "max_failures", "5", "why", hostile)
	unsaid := form(asks(t, first, anna, discard, nil).text, "why", " ")
	got := asks(t, first, anna, "/x/y/letters/act", unsaid)
	assert.That(t, got.status == http.StatusUnprocessableEntity && strings.Contains(got.text, "write a reason"),
		"a discard without a reason: HTTP %d", got.status)
	at := atOnce(t, 4, both, "/x/y/letters/act", replays)
	assert.Has(t, at, "/x/y/acts/", "it leads to")
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == n })
	run := w.done(second, at)
	has(t, run, "replay by anna", "<dt>replayed</dt><dd><b>20</b>", "&lt;script&gt;alert(1)",
		`tag=&#34;stock.rollback&#34;`, "1,000 a second")
	list := asks(t, first, rita, "/x/y/acts", nil)
	assert.That(t, !strings.Contains(run+list.text, "<script>alert") && !strings.Contains(run+list.text, "<img src=x") &&
		strings.Contains(list.text, at) && strings.Contains(list.text, "20 replayed"), "the list of acts:\n%s", list.text)
	sn := orders[0].SN
	key := stack.RowsOf(t, w.db, "SELECT rollback_key FROM stock_reservation WHERE order_sn = ?", sn)[0]["rollback_key"]
	for _, path := range []string{"/x/y/order?sn=" + sn, "/x/y/message?key=" + url.QueryEscape(key)} {
		has(t, asks(t, second, rita, path, nil).text, `<a href="`+at+`">replay by anna</a>`)
	}
	assert.Is(t, asks(t, second, anna, "/x/y/letters/act", replays).location, at, "the form posted after the end leads to")
	replays.Set("why", "another")
	assert.Is(t, asks(t, second, anna, "/x/y/letters/act", replays).status, http.StatusUnprocessableEntity,
		"the token under another form: HTTP")
	is(w, "acts", w.count("SELECT COUNT(*) FROM consumer_log_act"), 1)
	w.rest(first, second)
}

// checksums are those of all tables but those in which acts are written down, and what daemons write from time to time
// whatever is asked of them: who keeps house, and the figures of a minute.
func (w *world) checksums() string {
	tables := stack.RowsOf(w.t, w.db, "SELECT GROUP_CONCAT(table_name) AS names FROM information_schema.tables WHERE "+
		"table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_name NOT IN ('consumer_log_act', "+
		"'consumer_log_once', 'consumer_log_minute', 'rollbackd_meta')")[0]["names"]
	return fmt.Sprint(stack.RowsOf(w.t, w.db, "CHECKSUM TABLE "+tables+" EXTENDED"))
}

// Given dead orders whose reservations are back but for one, and two daemons, when the form of a rehearsal is posted to
// both, then one is done by the running handler, its page and the command say which orders would be applied and what
// would change, no table has changed, and the page leads to the replay, which comes to that.
func TestARehearsalSaysWhatTheReplayThenComesTo(t *testing.T) {
	n := sized(60, 10_000)
	w, orders, both := deadOrders(t, n, 2, "MAX_ATTEMPTS", "1")
	w.exec("UPDATE stock_reservation SET order_sn = CONCAT('x-', order_sn) WHERE order_sn = ?", orders[0].SN)

	sees := asks(t, both[0], anna, "/letters/act?act=replay&tag=stock.rollback", nil)
	rehearses := form(sees.text[strings.Index(sees.text, `aria-label="Rehearse"`):])
	before := w.checksums() // once a form was issued
	began := time.Now()
	act := w.done(both[1], atOnce(t, 2, both, "/letters/rehearse", rehearses))
	took := time.Since(began)
	t.Logf("%d letters were rehearsed within %v", n, took.Round(10*time.Millisecond))
	assert.AtMost(t, took, time.Minute, "it took")
	has(t, act, "would fail", "would be applied", "no reservation", "stock_reservation ", "Nothing was written",
		">"+map[int]string{60: "59", 10_000: "9,999"}[n]+"<")
	assert.Is(t, w.checksums(), before, "the tables are")
	out, err := w.types("dlq", "replay", "--all", "--rehearse")
	require.OK(t, err)
	has(t, out, "would fail", fmt.Sprint(n-1), "would be applied", "this was a rehearsal")

	at := act[strings.Index(act, "/letters/act?"):]
	to := strings.ReplaceAll(at[:strings.Index(at, `"`)], "&amp;", "&")
	sees = asks(t, both[0], anna, to, nil)
	assert.Is(t, asks(t, both[0], anna, "/letters/act", form(sees.text)).status, http.StatusSeeOther, "the replay")
	w.eventually("all but one are applied", func() bool { return w.rows(dedup.Success) == n-1 && w.rows(dedup.Dead) == 1 })
	w.exec("UPDATE stock_reservation SET order_sn = SUBSTRING(order_sn, 3) WHERE order_sn LIKE 'x-%'")
	w.eventually("all are applied, the last one too", func() bool {
		// its first letter may lie there still, and then it is told so; or whoever sweeps has them all in hand
		if w.rows(dedup.Success) < n {
			_, _ = w.types("dlq", "replay", "--all", "--no-wait")
		}
		return w.rows(dedup.Success) == n
	})
	w.rest(both...)
}

// Given two letters whose bodies name the wrong order, and two daemons with an outbox, when one is edited on the page,
// then that shows what differs and what the handler would do, its form posted to both daemons sends one message, the
// stock of the right order is back once, the letter never runs, not even when it is replayed with --discarded, and
// pages and explain of either lead to the other; and a command edits the other letter. Both say if the outbox is late.
func TestAnEditedLetterIsSentAndTheOriginalNeverRuns(t *testing.T) {
	w := newWorld(t, "MAX_ATTEMPTS", "1", "MAX_DEAD_RATE", "off", "OUTBOX", "on", "ADMIN_TOKENS_FILE", twoTokens(t))
	orders := w.open(2)
	sent := w.route.Rollbacks(orders)
	for i := range sent {
		sent[i].Message.Body = []byte(strings.ReplaceAll(string(sent[i].Message.Body), orders[i].SN, "wrong-"+orders[i].SN))
	}
	first, second := w.start(), w.start()
	w.publish(sent...)
	w.eventually("both are dead", func() bool { return w.rows(dedup.Dead) == 2 })
	run := func(args ...string) string { t.Helper(); return require.Get(w.types(args...))(t) }
	key, file := sent[0].Message.MessageID, filepath.Join(t.TempDir(), "letter.ndjson")
	run("dlq", "export", "--key", key, "-o", file)
	at := url.Values{"key": {key}, "tag": {"stock.rollback"}}

	w.eventually("the message's page leads to the one that edits it", func() bool {
		return strings.Contains(asks(t, first, anna, "/message?"+at.Encode(), nil).text, "/letter/edit?")
	})
	sees := asks(t, first, rita, "/letter/edit?"+at.Encode(), nil)
	assert.Has(t, sees.text, "wrong-"+orders[0].SN, "the page that edits lacks")
	edit := url.Values{"key": at["key"], "tag": at["tag"], "headers": {""}, "body": {string(orders[0].Body()) + "\r\n"}}
	sees = asks(t, first, anna, "/letter/edit", edit)
	has(t, sees.text, "would be applied", "stock_reservation ", "wrong-"+orders[0].SN, "/edited-1")
	assert.That(t, w.rows(dedup.Dead) == 2 && w.waiting() == 0 && w.count("SELECT COUNT(*) FROM oracle_release") == 0,
		"the preview has changed something")
	atOnce(t, 4, []*program.Process{first, second}, "/letter/edit/send", form(sees.text, "why", "the order"))
	w.eventually("the edited one is applied", func() bool { return w.rows(dedup.Success) == 1 })
	assert.Has(t, run("dlq", "replay", "--discarded", "--from", file), "had ended already", "a replay says of the letter")

	body := filepath.Join(t.TempDir(), "body.json")
	require.OK(t, os.WriteFile(body, orders[1].Body(), 0o600))
	w.exec("INSERT INTO rollbackd_outbox (msg_key, body, due_at, next_at, owner) VALUES ('held', '{}', " +
		"UTC_TIMESTAMP(6) - INTERVAL 2 MINUTE, UTC_TIMESTAMP(6) + INTERVAL 4 MINUTE, 'a relay that is gone')")
	edit = url.Values{"key": {sent[1].Message.MessageID}, "tag": at["tag"], "body": {string(orders[1].Body())}}
	w.eventually("the page says that the outbox is late", func() bool {
		return strings.Contains(asks(t, first, anna, "/letter/edit", edit).text, "<b>The outbox is late</b>")
	})
	says := run("dlq", "edit", sent[1].Message.MessageID, "--body", body, "--why", "the order")
	has(t, says, "put into the outbox", "The outbox is late")
	w.eventually("both edited ones are applied, the letters gone", func() bool {
		return w.rows(dedup.Success) == 2 && w.rows(dedup.Discarded) == 2 && w.broker.Depth(w.config().Queue+".dead") == 0
	})
	for of, other := range map[string]string{key: key + "/edited-1", key + "/edited-1": key} {
		at := url.Values{"key": {other}, "tag": {"stock.rollback"}}
		assert.Has(t, asks(t, second, rita, "/message?key="+url.QueryEscape(of), nil).text, fmt.Sprintf(`href="/message?%s"`,
			strings.ReplaceAll(at.Encode(), "&", "&amp;")), "the page of %s does not lead to %s", of, other)
		assert.Has(t, run("log", "explain", of), "key "+other, "explain of %s does not name %s", of, other)
	}
	is(w, "reservations given back", w.count("SELECT COUNT(DISTINCT order_sn) FROM stock_reservation WHERE status = 2"), 2)
	is(w, "reservations given back twice", w.count("SELECT COUNT(*) FROM (SELECT order_sn, sku_id FROM oracle_release "+
		"GROUP BY order_sn, sku_id HAVING COUNT(*) > 1) r"), 0)
	w.stop(first, second)
}

// Given dead orders whose letters somebody purged, and one who may act and one who may look; when the first has log,
// letters and stock compared on a page and mends what is found one by one, then each message runs once, the acts say
// who did it, and the form that was sent twice did it once.
func TestWhatAComparisonFindsIsMendedOneByOneOnThePages(t *testing.T) {
	const n = 3
	w, _, fleet := deadOrders(t, n, 1, "BASE_PATH", "/x")
	p := fleet[0]
	w.eventually("all letters are there", func() bool { return w.broker.Depth(rabbit.DeadQueue(w.config().Queue)) == n })
	w.broker.Purge(rabbit.DeadQueue(w.config().Queue))

	sees := asks(t, p, rita, "/x/reconcile", nil)
	assert.That(t, sees.status == http.StatusOK && strings.Contains(sees.text, "Nothing has been compared yet.") &&
		strings.Contains(sees.text, "<button disabled"), "who may look sees, HTTP %d:\n%s", sees.status, sees.text)
	compares := form(asks(t, p, anna, "/x/reconcile", nil).text)
	for range 2 {
		got := asks(t, p, anna, "/x/reconcile", compares)
		require.That(t, got.status == http.StatusSeeOther && got.location == "/x/reconcile", "HTTP %d, %q\n%s", got.status,
			got.location, got.text)
	}
	finding := regexp.MustCompile(`/x/reconcile/finding\?n=\d+&amp;of=[0-9a-f-]{36}`)
	var links []string
	w.eventually("it has compared", func() bool {
		sees = asks(t, p, rita, "/x/reconcile", nil)
		links = finding.FindAllString(sees.text, -1)
		return strings.Contains(sees.text, `<span class="tag success">done</span>`)
	})
	require.That(t, len(links) == n && strings.Contains(sees.text, "it was purged, or moved by hand"), "it has found:\n%s",
		sees.text)
	for i, link := range links {
		link = strings.ReplaceAll(link, "&amp;", "&")
		page := asks(t, p, anna, link, nil).text
		mends := form(page, "why", "purged by mistake")
		assert.Has(t, page, "rollbackd reconcile --republish", "the finding does not name its command")
		done, again := asks(t, p, anna, "/x/reconcile/mend", mends), asks(t, p, anna, "/x/reconcile/mend", mends)
		require.That(t, done.status == http.StatusSeeOther && again.location == done.location,
			"mended: HTTP %d, %q and %q\n%s", done.status, done.location, again.location, done.text)
		has(t, w.done(p, done.location), "purged by mistake")
		w.eventually("it is applied", func() bool { return w.rows(dedup.Success) == i+1 })
		assert.Has(t, asks(t, p, rita, link, nil).text, "<b>It was mended</b> by anna", "the finding")
	}
	is(w, "acts have mended something",
		w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'mend' AND actor = 'anna' AND state = 'done'"), n)
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
	assert.Has(t, logs.String(), "no queue named "+w.config().Queue+" is in RabbitMQ", "the log")
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
				assert.That(t, want == http.StatusOK || !strings.Contains(r.text, "goroutine"), "%s tells of the process", page)
			}
		}
		w.stop(daemon)
	}
}
