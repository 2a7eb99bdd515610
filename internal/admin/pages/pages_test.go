package pages

import (
	"bufio"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

func TestMain(m *testing.M) { stack.Main(m) }

// hostile is text that would be something in a page, were it not escaped.
const hostile = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>&amp;` + "\u202e" + ` javascript:alert(3)`

// hostileOrder is as much of it as the number of an order may hold.
const hostileOrder = `<img src=x onerror=alert(2)>"'<script>alert(1)`

// world is a log on a real server, and pages over it.
type world struct {
	t       *testing.T
	dsn     string
	records *dedup.Log
	desk    *operator.Operator
	pages   *Pages
	server  *httptest.Server
	health  atomic.Pointer[server.Readiness]
	pool    *sql.DB
}

func newWorld(t *testing.T, base string, guard server.GuardOptions, hide view.Hide) *world {
	t.Helper()
	return newWorldWith(t, base, guard, 0, func(o *view.Options) { o.Hide = hide })
}

// open is a world whose guard lets everybody in, with nothing hidden.
func open(t *testing.T, base string) *world {
	t.Helper()
	return newWorld(t, base, server.GuardOptions{}, view.Hide{})
}

func newWorldWith(
	t *testing.T, base string, guard server.GuardOptions, lockWait time.Duration, change func(*view.Options),
) *world {
	t.Helper()
	t.Parallel()
	dsn := stack.MySQL(t)
	db := require.First(dedup.Open(t.Context(), dsn,
		dedup.OpenOptions{MaxOpen: view.Connections, Statement: view.StatementTime, LockWait: lockWait}))(t)
	pool := require.Get(db.DB())(t)
	stack.Tables(t, dsn, "log and stock", func() {
		require.OK(t, dedup.Migrate(t.Context(), db, dedup.MigrateOptions{
			Table: "consumer_log", Extra: []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}},
		}))
	})
	records := require.Get(dedup.NewLog(db,
		dedup.LogOptions{Table: "consumer_log", Lease: time.Minute, Delays: []time.Duration{time.Second}, MaxAttempts: 5}))(t)
	letters := require.Get(deadletter.New(deadletter.Options{Records: records, Group: "g", Queue: "q",
		KeyFrom: "header:x-message-key", MaxReplays: 3}))(t)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	w := &world{t: t, dsn: dsn, records: records, pool: pool}
	w.health.Store(&server.Readiness{Group: "g", Queue: "q", Consuming: true})
	w.desk = require.Get(operator.New(operator.Options{
		Lookup: operator.Lookup{DB: db, Records: records, Group: "g"}, Letters: letters, Queue: "q",
		Expected: operator.Query{Text: "SELECT 'stock.rollback' AS msg_tag, sn AS msg_key, NULL AS body, NULL AS " +
			"created_at, sn AS after FROM orders WHERE sn > ? ORDER BY sn LIMIT ?", Params: []string{"after", "limit"}},
	}))(t)
	o := view.Options{
		Letters: letters, Desk: w.desk, Metrics: prometheus.NewRegistry(),
		Health: func() server.Readiness { return *w.health.Load() }, Logger: log,
		Names: operator.Names{Queue: "q", MaxAttempts: 5, Program: "rollbackd"},
		Lookup: operator.Lookup{Records: records, Group: "g", DB: db,
			OrderOf: func([]byte) (string, bool) { return "", false }},
	}
	change(&o)
	v := view.New(o)
	guard.BasePath, guard.Logger, guard.Refused = base, log, NewRefusals(w.desk, log).Note
	g := require.Get(server.NewGuard(guard))(t)
	p := New(v, g, "test")
	w.pages = p
	w.server = httptest.NewServer(http.StripPrefix(base, p))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { v.Run(ctx); close(ended) }()
	t.Cleanup(func() {
		p.End()
		w.server.Close()
		stop()
		<-ended
		_ = pool.Close()
	})
	return w
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.pool, query, args...)
}

func (w *world) dead(key, body, cause string, reason dedup.Reason) {
	w.t.Helper()
	require.OK(w.t, errors.Join(w.records.DeadRows(w.t.Context(), []dedup.Death{{Entry: dedup.Entry{
		Identity: dedup.Identity{Group: "g", Tag: "stock.rollback", Key: key}, BodyHash: sha256.Sum256([]byte(body)),
		Body: []byte(body),
	}, Reason: reason, Cause: cause}})...))
}

// answer is what is said to a request.
type answer struct {
	status     int
	location   string
	page, kind string
	header     http.Header
}

// send sends a request to an address, with headers in pairs; a form is posted. A redirect is an answer.
func (w *world) send(method, address string, form url.Values, header ...string) answer {
	w.t.Helper()
	req, _ := http.NewRequestWithContext(w.t.Context(), method, address, strings.NewReader(form.Encode())) // which is one
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Error(err)
		return answer{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	assert.OK(w.t, err)
	h := resp.Header
	return answer{resp.StatusCode, h.Get("Location"), string(text), h.Get("Content-Type"), h}
}

// get asks for a page.
func (w *world) get(path string, header ...string) (int, string) {
	w.t.Helper()
	a := w.send(http.MethodGet, w.server.URL+path, nil, header...)
	return a.status, a.page
}

// says asks for a page, which must hold these texts, and none that begins with a !.
func (w *world) says(path string, status int, texts ...string) string {
	w.t.Helper()
	return w.holds(path, w.send(http.MethodGet, w.server.URL+path, nil), status, texts...).page
}

// holds fails the test unless an answer has this status and holds these texts, and none that begins with a !.
func (w *world) holds(what string, a answer, status int, texts ...string) answer {
	w.t.Helper()
	good := a.status == status
	for _, text := range texts {
		if without, not := strings.CutPrefix(text, "!"); strings.Contains(a.page, without) == not {
			w.t.Errorf("%s: %q", what, text)
			good = false
		}
	}
	assert.That(w.t, good, "%s: HTTP %d, want %d:\n%s", what, a.status, status, a.page)
	return a
}

// watch asks for the events of a page.
func (w *world) watch(ctx context.Context, path string) *http.Response {
	w.t.Helper()
	req := require.Get(http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+path+"?live=1", http.NoBody))(w.t)
	return require.Get(http.DefaultClient.Do(req))(w.t)
}

// ask sends a request as whoever has the token; a form is posted.
func (w *world) ask(token, path string, form url.Values) answer {
	w.t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	return w.send(method, w.server.URL+path, form, "Authorization", "Bearer "+token)
}

// signIn sends the form of the sign-in below /x.
func (w *world) signIn(token, next string) answer {
	w.t.Helper()
	return w.send(http.MethodPost, w.server.URL+"/x/sign-in", url.Values{"token": {token}, "next": {next}})
}

// until asks for a page until it shows something that is found out in the background.
func (w *world) until(path, text string) string {
	w.t.Helper()
	for began := time.Now(); ; {
		status, page := w.get(path)
		if strings.Contains(page, text) {
			return page
		}
		require.That(w.t, status == http.StatusOK && time.Since(began) <= time.Minute, "%s: HTTP %d, without %q:\n%s", path,
			status, text, page)
	}
}

func (w *world) some() *world {
	w.dead("order-1", `{"order_sn":"A-1","note":"secret"}`, `sku 7 has only 3 reserved, 5 were asked for`,
		dedup.ReasonExhausted)
	w.dead("order-2", `{"order_sn":"A-2"}`, `sku 9 has only 1 reserved, 2 were asked for`, dedup.ReasonExhausted)
	w.dead(hostile, hostile, hostile, dedup.ReasonMalformed)
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, "+
		"created_at, owner) VALUES ('g', 'stock.rollback', ?, 0, 2, UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE, "+
		"UTC_TIMESTAMP(6), 'host/1/2')", "stuck-1")
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key) VALUES "+
		"(?, 1, 1, 2, 'stock.rollback', 'order-1')", hostileOrder)
	return w
}

// compared writes down a comparison that has ended, with a finding of each kind.
func (w *world) compared() (id string) {
	w.t.Helper()
	report := operator.Report{Findings: []operator.Finding{}}
	report.Unclear, report.More = []string{hostile}, map[operator.FindingKind]int{operator.Overdue: 7}
	since := time.Now().Add(-time.Hour)
	for _, kind := range operator.FindingKinds() {
		report.Findings = append(report.Findings,
			operator.Finding{Group: "g", Kind: kind, Tag: "stock.rollback", Key: "order-1", Status: "dead", Since: &since,
				Order: hostileOrder, SKU: 7, Was: "released", Items: []operator.Item{{SKU: 7, Quantity: 2}}})
	}
	report.Findings[0].Hindrance = "too_old"
	report.Findings[2].Hindrance = hostile
	text := require.Get(json.Marshal(operator.Result{Report: require.Get(json.Marshal(report))(w.t)}))(w.t)
	a := require.Get(w.desk.Note(w.t.Context(), operator.Actor{Name: hostile}, operator.KindReconcile, hostile, nil,
		""))(w.t)
	w.exec("UPDATE consumer_log_act SET result = ? WHERE id = ?", text, []byte(a.ID))
	require.Get(w.desk.Note(w.t.Context(), operator.Actor{Name: "anna"}, operator.KindMend, "",
		operator.MendOrder{Of: a.ID, Number: 1, Finding: report.Findings[1]}, hostile))(w.t)
	return a.ID
}

var linked = regexp.MustCompile(`(?:href|src|action|data-events)="([^"]*)"`)

// Given pages below a base path, then every link, form and file of every page stands below it and answers, and what
// strangers have written is text and nothing else.
func TestEveryLinkStaysBelowTheBasePathAndAnswers(t *testing.T) {
	w := open(t, "/x/y").some()
	seenNow := require.Get(w.desk.Preview(t.Context(),
		operator.PreviewRequest{Kind: operator.KindDiscard, Filter: deadletter.Filter{Error: hostile}}))(t)
	require.Get(w.desk.Start(t.Context(), operator.Actor{Name: "anna"},
		operator.Request{Kind: operator.KindDiscard, Filter: seenNow.Filter, CutOff: seenNow.At, Why: hostile}))(t)
	w.compared()
	pause := operator.PauseRequest{Why: hostile}
	require.Get(w.desk.Pause(t.Context(), operator.Actor{Name: hostile}, pause))(t)
	w.until("/x/y/letters", "/letters/groups/")
	seen := map[string]bool{}
	for queue := []string{"/x/y/",
		"/x/y/order?sn=" + url.QueryEscape(hostileOrder), "/x/y/sign-in", "/x/y/message?key=none",
		"/x/y/letters?error=reserved", "/x/y/log?status=dead"}; len(queue) > 0; {
		path := queue[0]
		queue = queue[1:]
		if seen[path] || strings.Contains(path, "live=1") {
			continue
		}
		seen[path] = true
		status, page := w.get(path)
		assert.That(t, status == http.StatusOK || path == "/x/y/message?key=none", "%s: HTTP %d", path, status)
		if strings.Contains(path, "/static/") || strings.Contains(path, "/download") {
			continue
		}
		for _, bad := range []string{"<script>alert", "<img src=x", "\u202e", "ZgotmplZ", "href=\"javascript", "style="} {
			assert.That(t, !strings.Contains(page, bad), "%s holds %q", path, bad)
		}
		for _, m := range linked.FindAllStringSubmatch(page, -1) {
			to := html.UnescapeString(m[1])
			if strings.HasPrefix(to, "#") {
				continue
			}
			assert.That(t, strings.HasPrefix(to, "/x/y/"), "%s leads out of the base path: %q", path, to)
			if !strings.Contains(m[0], "action=") {
				queue = append(queue, to)
			}
		}
	}
	for _, want := range []string{
		"/x/y/reconcile/finding?", "/x/y/reconcile?of=", "/x/y/pause", "/x/y/acts/",
		"/x/y/letters/act?act=replay&all=1", "/x/y/letters/act?act=discard",
	} {
		assert.That(t, slices.ContainsFunc(slices.Collect(maps.Keys(seen)),
			func(path string) bool { return strings.HasPrefix(path, want) }), "no link leads to %s", want)
	}
	assert.AtLeast(t, len(seen), 15, "only addresses were found: %v", seen)
}

func TestWhatLiesBehindManyLettersIsFoundInWhole(t *testing.T) {
	w := open(t, "/stock").deadMany(2100) // more than a page looks through
	// when the order of the first is asked for, then the page says that it did not look everywhere
	whole := "/stock/order?sn=A-2099&amp;whole=1"
	w.says("/stock/order?sn=A-2099", http.StatusOK, "!>k-2099<", `href="`+whole+`"`)
	w.says(html.UnescapeString(whole), http.StatusOK, ">k-2099<", "!"+whole, "!data-events") // nor is it repeated
	// and so with a search, page by page or in whole
	const search, first = "/stock/letters?error=sku+2099", "key=k-2099&amp;"
	quick := w.says(search, http.StatusOK, "!"+first, "Not all letters were looked through")
	further := regexp.MustCompile(`href="([^"]*)">Look further`).FindStringSubmatch(quick)
	require.That(t, further != nil, "nothing leads further:\n%s", quick)
	w.says(html.UnescapeString(further[1]), http.StatusOK, first)
	w.says(search+"&whole=1", http.StatusOK, first, "!Not all")
}

// Given more letters than are grouped at once, then the page shows those that were, and later all; and the overview
// says how many there are, how old that figure is, and in how many groups they are, or how many were looked at.
func TestManyLettersAreGroupedBitByBit(t *testing.T) {
	w := open(t, "").deadMany(5500)
	w.until("/letters", "Of 5,000 letters, the latest; there are more.")
	_, page := w.get("/letters/groups/0")
	assert.Has(t, page, "None of the latest 5,000 dead letters is of this", "a group that was not met")
	page = w.until("/letters", "5,500 letters in all")
	assert.Is(t, strings.Count(page, `href="/letters/groups/`), 2, "%s: groups", page)
	assert.Has(t, w.until("/", "dead letters</b>"), "<b>5,500 dead letters</b><p>Counted ", "the overview")
	page = w.until("/", "the largest: exhausted")
	assert.That(t, strings.Contains(page, "looked at so far") != strings.Contains(page, "In 2 groups"),
		"the page says neither that all letters are in two groups nor how many were looked at:\n%s", page)
}

// deadMany writes so many dead rows, one a second; twelve of them, of all ages, have an error of their own.
func (w *world) deadMany(n int) *world {
	w.t.Helper()
	const some = 10_000
	for from := 0; from < n; from += some {
		w.exec(`INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, msg_body, properties, body_hash,
			consumer_status, consumer_times, replays, consumer_timestamp, created_at, dead_at, reason, remark)
		WITH RECURSIVE hundred AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM hundred WHERE n < 99),
			numbers AS (SELECT a.n * 100 + b.n + ? AS n FROM hundred AS a, hundred AS b),
			made AS (SELECT n, UTC_TIMESTAMP(6) - INTERVAL n + 60 SECOND AS at,
				CONCAT('{"order_sn":"A-', n, '","items":[{"sku_id":1,"quantity":2}]}') AS body FROM numbers)
		SELECT 'g', 'stock.rollback', CONCAT('k-', n), NULL, body,
			CONCAT('{"routing_key":"stock.rollback","headers":{"x-message-key":"k-', n, '"}}'),
			UNHEX(SHA2(body, 256)), 3, 5, 0, at, at, at, 'exhausted',
			IF(n MOD ? = 7, CONCAT('the door of store Ypsilon does not open for order A-', n),
				CONCAT('sku ', n, ' has only 1 reserved, 2 were asked for')) FROM made WHERE n < ?`, from, n/12, n)
	}
	return w
}

// Given letters with one kind of error and another, then pages say what the commands say of them, find them by what is
// asked for, group them under stable addresses that count and offer them, and say of a replay of a body that is wrong
// that it would fail again; the set of one letter is called one.
func TestPagesSayWhatIsKnownOfLetters(t *testing.T) {
	w := open(t, "").some()
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, " +
		"consumer_timestamp, created_at, remark) " +
		"VALUES ('g', 'stock.rollback', 'order-3', 1, 2, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'too late')")
	id := view.GroupID(dedup.ReasonExhausted, deadletter.Fingerprint("sku 1 has only 1 reserved, 1 were asked for"))
	page := w.until("/letters", "/letters/groups/"+id)
	assert.Is(t, strings.Count(page, "/letters/groups/"), 2, "%s: groups", page)
	const preview = "/letters/act?act="
	const again, one = "would fail again", "this letter</button>"
	for path, texts := range map[string][]string{
		"/message?key=order-1&tag=stock.rollback": {
			"A copy was confirmed in q.dead, and it had no effect: its attempts failed, the last one as in remark.",
			"rollbackd dlq replay --tag stock.rollback --key order-1", "/letters/groups/" + id + `">All letters of this failure`,
			"sku 7 has only 3 reserved, 5 were asked for", "&#34;order_sn&#34;: &#34;A-1&#34;", "absent → dead",
		},
		"/log":                         {"before that: too late"},
		"/letters/groups/" + id:        {"order-1", "order-2", "!alert"},
		"/letters?key=order-2":         {"order-2"},
		"/letters?error=only+3":        {"order-1"},
		"/letters?reason=malformed":    {"alert(1)"},
		"/letters?until=2000-01-01":    {"No dead"},
		"/letters?sn=A-1":              {"order-1"},
		"/letters?sn=order-2":          {"order-2"},
		"/letters?body=secret":         {"order-1"},
		"/letters?sku=7":               {"No dead"},
		"/letters?sn=A-2&body=A-1":     {"No dead"},
		preview + "replay&body=secret": {"<b>1</b> letter is", "body=&#34;secret&#34;"},
		preview + "replay&all=1": {
			"<b>2</b> will be looked for in the queue, <b>1</b> would fail again.", ">will be looked for in the queue<",
		},
		preview + "discard&all=1":            {"<b>3</b> ends without an effect."},
		preview + "replay&reason=malformed":  {again, one},
		preview + "discard&reason=malformed": {"!" + again, one},
		preview + "replay&reason=exhausted":  {"!" + again, "!" + one},
	} {
		w.says(path, http.StatusOK, texts...)
	}
	w.says("/message?key=nobody", http.StatusNotFound, "knows no message")
	w.says("/nowhere", http.StatusNotFound)
	w.says("/letters?sku=seven", http.StatusBadRequest)
	w.says("/letters?since=yesterday", http.StatusBadRequest)
	// what is offered for download are the letters that were asked for, of a group its own and no others of its reason
	w.dead("order-9", "{}", "the shelf is locked", dedup.ReasonExhausted)
	link := regexp.MustCompile(`"(/letters/download[^"]+)"`).FindStringSubmatch(w.until("/letters/groups/"+id, "download"))
	require.That(t, link != nil, "the group's page offers no download")
	for _, path := range []string{html.UnescapeString(link[1]), "/letters/download?error=reserved"} {
		assert.Is(t, strings.Count(w.says(path, http.StatusOK, "!order-9"), "\n"), 2, "%s: lines", path)
	}
}

// Given that bodies are hidden, or parts of them, then no page, no download and no search shows them; pages say that
// error texts, which are shown, may quote them.
func TestWhatIsHiddenIsShownNowhere(t *testing.T) {
	for name, hide := range map[string]view.Hide{"bodies": {Bodies: true}, "pointer": {Pointers: [][]string{{"note"}}}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", server.GuardOptions{}, hide)
			w.some()
			const warned = "Error texts are not, and may quote what is hidden."
			order := map[bool]string{true: "A-1", false: "!A-1"}[name == "pointer"]
			w.says("/message?key=order-1", http.StatusOK, "!secret", order, warned)
			w.says("/letters", http.StatusOK, warned)
			for _, path := range []string{ // to find by a text of the body would tell bit by bit what it holds
				"/letters/download", "/letters?body=secret", "/letters/act?act=replay&body=secret",
			} {
				w.says(path, http.StatusForbidden, "!order-1")
			}
		})
	}
}

// Given stuck messages, trouble and letters, then the overview says first what needs a person, and the same page sends
// its live parts as events when they change; when the pages end, then these do, and so do those of whoever comes after
// that: a server that shuts down waits for nobody.
func TestTheOverviewSaysWhatNeedsAPersonAndChangesByItself(t *testing.T) {
	w := open(t, "")
	w.until("/", "<b>Nothing.</b>")
	watching, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	resp := w.watch(watching, "/")
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	await := func(what string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), what) {
				return
			}
		}
		t.Fatalf("the events end before %q: %v", what, lines.Err())
	}
	await("Nothing.")
	w.some()
	await("3 dead letters")
	w.until("/", "1 message does not move")
	page := w.until("/", "3 dead letters")
	for _, want := range []string{"stuck-1", "host/1/2", "ended without a result"} {
		assert.Has(t, page, want, "the overview lacks")
	}
	w.pages.End()
	later := w.watch(watching, "/log")
	defer later.Body.Close()
	for _, events := range []*http.Response{resp, later} {
		assert.Is(t, events.Header.Get("Content-Type"), "text/event-stream", "the events")
		_, err := io.Copy(io.Discard, events.Body)
		assert.OK(t, err, "the events were cut off:")
	}
	for n := range mostStreams {
		_, ok := w.pages.streams.Enter(strconv.Itoa(n))
		require.That(t, ok, "only %d places for streams are free again, want all %d", n, mostStreams)
	}
}

// Given a message that does not move, and a thousand that failed after it and wait until they are due, then the
// overview finds it.
func TestWhatDoesNotMoveIsFoundBehindAThousandThatWait(t *testing.T) {
	w := open(t, "")
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp," +
		" created_at, due_at) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 500) " +
		"SELECT 'g', 't', i + b, 2, 1, UTC_TIMESTAMP(6) - INTERVAL IF(i + b = 0, 60, 2) MINUTE, UTC_TIMESTAMP(6), " +
		"UTC_TIMESTAMP(6) + INTERVAL IF(i + b = 0, -9, 9) MINUTE FROM n, (SELECT 0 AS b UNION SELECT 501) AS halves")
	w.until("/", "1 message does not move")
}

// Given a group without an elected daemon, and rows of another group in its log, then the overview says both; when a
// daemon is elected, from where it is connected; and while the brake or a person holds, first which it is, until when,
// and where that is changed.
func TestTheOverviewSaysWhoIsElectedWhichGroupsThereAreAndWhichBrakeHolds(t *testing.T) {
	w := newWorldWith(t, "/x", server.GuardOptions{}, 0, func(o *view.Options) { o.Elects = true })
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, " +
		"consumer_timestamp, created_at) VALUES ('h', 't', 'k', 1, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))")
	w.until("/x/", "<b>No daemon is elected</b>")
	w.until("/x/", "no group named g is in consumer_log; there are: h")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		w.records.Campaign(ctx, "g", slog.New(slog.DiscardHandler), func(ctx context.Context) { <-ctx.Done() })
	})
	page := w.until("/x/", "The daemon that is connected to MySQL from ")
	assert.That(t, regexp.MustCompile(`MySQL from (localhost|127\.0\.0\.1:\d+) is elected`).MatchString(page),
		"who is elected:\n%s", page)
	for why, want := range map[string][]string{
		"max_dead_rate: over 100 dead letters of all daemons within 1m0s, trying one batch after 5m0s, at " +
			"2026-11-23T10:00:00Z": {
			"The brake holds", "at 2026-11-23T10:00:00Z", `href="/x/letters">See the dead letters`},
		"person: paused by anna until 2026-11-23T10:00:00Z: shelves are counted": {"A person has paused consuming",
			"It is paused by anna until 2026-11-23T10:00:00Z: shelves are counted.", `href="/x/pause">Resume or change it`},
		"mysql: refused": {"Nothing is consumed", "mysql: refused"},
	} {
		w.health.Store(&server.Readiness{Group: "g", Queue: "q", Waiting: []string{why}})
		_, page := w.get("/x/")
		_, first, _ := strings.Cut(page, `<ul class="needs">`)
		first, _, _ = strings.Cut(first, "</li>")
		for _, text := range want {
			assert.Has(t, first, text, "%s: the first need lacks", why)
		}
	}
}

// Given acts of several people, then the list is searched by who, what and when.
func TestActsAreFoundByWhoWhatAndWhen(t *testing.T) {
	w := open(t, "")
	note := func(who string, kind operator.Kind, why string) {
		t.Helper()
		require.Get(w.desk.Note(t.Context(), operator.Actor{Name: who}, kind, why, nil, ""))(t)
	}
	note("anna", operator.KindPause, "the first one")
	note("bert", operator.KindPause, "the second one")
	between := require.Get(w.records.Now(t.Context()))(t)
	note("anna", operator.KindResume, "the third one")
	at := url.QueryEscape(between.Format(time.RFC3339Nano))
	for query, want := range map[string]string{
		"": "third second first", "who=anna": "third first", "kind=pause": "second first", "since=" + at: "third",
		"until=" + at: "second first", "who=anna&kind=pause": "first", "who=nobody": "", "since=1h": "third second first",
		"until=2000-01-01": "",
	} {
		_, page := w.get("/acts?" + query)
		var have []string
		for _, m := range regexp.MustCompile(`the (\w+) one`).FindAllStringSubmatch(page, -1) {
			have = append(have, m[1])
		}
		if got := strings.Join(have, " "); got != want || strings.Contains(page, "No act matches.") != (want == "") {
			t.Errorf("%q finds %q, want %q", query, got, want)
		}
	}
	w.says("/acts?since=yesterday", http.StatusBadRequest, "is no")
}

// Given a token, then a browser is led to the sign-in, from there to where it wanted to go and nowhere else; and after
// many wrong tokens from an address the sign-in says that no more are looked at, and for how long.
func TestASignInLeadsWhereOneWantedAndSaysWhenItLooksAtATokenAgain(t *testing.T) {
	w := newWorld(t, "/x", server.GuardOptions{Token: func() string { return "the-token" }}, view.Hide{})
	w.says("/x/letters", http.StatusUnauthorized) // to a program
	status, _ := w.get("/x/letters", "Accept", "text/html")
	assert.Is(t, status, http.StatusSeeOther, "a browser without a session: HTTP")
	for next, want := range map[string]string{
		"/x/letters?key=a": "/x/letters?key=a", "": "/x/", "//evil.example/": "/x/", "https://evil.example/": "/x/",
		"/\\evil.example": "/x/", "/letters": "/x/letters",
	} {
		got := w.holds("a sign-in", w.signIn("the-token", next), http.StatusSeeOther)
		assert.Is(t, got.location, want, "next %q leads to", next)
		if next == "/letters" {
			cookie, _, _ := strings.Cut(got.header.Get("Set-Cookie"), ";")
			w.holds("signed in", w.send(http.MethodGet, w.server.URL+"/x/", nil, "Cookie", cookie), 200, "Sign out")
		}
	}
	w.says("/x/sign-in?live=1", http.StatusOK, "</html>") // whoever is not signed in watches no page for ever
	wrong := w.holds("a wrong token", w.signIn("wrong", ""), http.StatusUnauthorized)
	assert.Is(t, wrong.header.Get("Set-Cookie"), "", "after a wrong token the cookie")
	for name, want := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
	} {
		assert.Is(t, wrong.header.Get(name), want, "%s", name)
	}
	const unknown = "is not one of those that are known"
	for n := 0; wrong.status == http.StatusUnauthorized && n < 1000; n++ {
		assert.Has(t, wrong.page, unknown, "after %d wrong ones", n)
		wrong = w.signIn(fmt.Sprint("wrong-", n), "")
	}
	w.holds("after many wrong tokens", wrong, http.StatusTooManyRequests, "!"+unknown,
		"Send it again in "+wrong.header.Get("Retry-After")+" second")
}

var throughAll = regexp.MustCompile(`href="([^"]*whole=1[^"]*)">Look through all`)

// Given twelve letters of all ages among many, then what a replay of them would do is said at once where their kind is
// looked for by key, and else by the page that looks through all letters.
func TestTwelveLettersAmongManyAreFound(t *testing.T) {
	n := 6000
	w := open(t, "")
	if os.Getenv("ROLLBACKD_TEST_BIG") != "" {
		n = 1_000_000
		w.exec("SET GLOBAL innodb_buffer_pool_size = 2147483648") // with the tests' 256 MB the rows would be on the disk
	}
	w.deadMany(n)
	kind := deadletter.Fingerprint("the door of store Ypsilon does not open for order A-7")
	oldest := 11*(n/12) + 7
	for name, c := range map[string]struct {
		query url.Values
		want  int
	}{
		"by key":   {url.Values{"key": {fmt.Sprint("k-", oldest)}}, 1},
		"by error": {url.Values{"error": {"store Ypsilon"}}, 12},
		"by group": {url.Values{"fingerprint": {kind}, "reason": {string(dedup.ReasonExhausted)}}, 12},
	} {
		c.query.Set("act", "replay")
		took, page := w.found("/letters/act?" + c.query.Encode())
		t.Logf("%s among %d letters: %v", name, n, took)
		assert.That(t, strings.Count(page, ">will run<") == c.want && !strings.Contains(page, "At least"),
			"%s: want %d that will run:\n%s", name, c.want, page)
	}
}

// found opens a preview, and if that did not look through all letters the one that does. It says how long each took.
func (w *world) found(address string) (took []time.Duration, page string) {
	w.t.Helper()
	for {
		began := time.Now()
		status, page := w.get(address)
		took = append(took, time.Since(began).Round(time.Millisecond))
		require.Is(w.t, status, http.StatusOK, "%s: HTTP: %s", address, page)
		whole := throughAll.FindStringSubmatch(page)
		if whole == nil {
			return took, page
		}
		address = html.UnescapeString(whole[1])
	}
}
