package browser

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// hostile is text that would be something in a page, were it not escaped.
const hostile = `<script>alert(1)</script>"'><img src=x onerror=alert(2)><svg onload=alert(3)></svg></pre>` +
	"</live-part>\u202e" + `<a href="javascript:alert(4)">{{.}}`

// hostileLetters are dead for each of the reasons that there are, and what stands in them was written by somebody who
// wants to harm, or by a broken program.
func (w *world) hostileLetters() {
	w.t.Helper()
	w.exec("INSERT INTO stock (sku_id, amount) VALUES (1001, 5)")
	w.reserve("differs", 1001, 3)
	malformed := func(key, body string) letter { return letter{key: key, body: body, reason: dedup.ReasonMalformed} }
	order := `<img src=x onerror=alert(2)>"'<script>alert(1)`
	w.die(append(unreserved("A-1", order),
		malformed(hostile, hostile),
		malformed("huge", `{"note":"`+strings.Repeat("x", 200_000)+`"}`),
		malformed("huge and hostile", strings.Repeat(hostile, 1000)),
		malformed("no text", "\xff\xfe{\"order_sn\":\"\xc3\x28\"}\x80"),
		malformed("turned \u2067round", "{\"order_sn\":\"\u202e1-A\u2066\"}\ufeff"),
		malformed("nothing in it", "{\"order_sn\":\"A\x00B\x1b[31m\"}"),
		malformed(strings.Repeat("wide", 63), `{"order_sn":"`+strings.Repeat("W", 2000)+`"}`),
		letter{key: "rollback-differs", tag: "<b>tag</b>" + strings.Repeat("w", 80), reason: dedup.ReasonPermanent,
			body: `{"order_sn":"differs","items":[{"sku_id":1001,"quantity":5}]}`},
		letter{key: "with headers", reason: dedup.ReasonMalformed, body: "[]",
			headers: map[string]any{"x-note": hostile, hostile: "note", "x-long": strings.Repeat("y", 3000)}},
	)...)
	w.die(letter{key: "rollback-A-1", body: hostile, reason: dedup.ReasonConflict},
		letter{key: "none", body: hostile, headers: map[string]any{"x-message-key": "a\x07" + hostile},
			reason: dedup.ReasonUnidentified})
	for _, reason := range []dedup.Reason{ // which take a broken server or process, and only their rows are needed here
		dedup.ReasonCrashed, dedup.ReasonDeliveryLimit, dedup.ReasonEffectUnknown,
	} {
		w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_body, consumer_status, consumer_times, "+
			"consumer_timestamp, created_at, dead_at, reason, remark) VALUES ('stock-rollback', 'stock.rollback', ?, ?, 3, 1, "+
			"UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), ?, ?)", []byte(string(reason)+hostile[:60]), []byte(hostile),
			string(reason), string(reason)+": "+hostile)
	}
	for _, reason := range dedup.Reasons() {
		assert.That(w.t, w.count("SELECT COUNT(*) FROM consumer_log WHERE reason = ?", string(reason)) != 0,
			"no letter is dead for %s", reason)
	}
	w.stuck("stuck "+hostile, hostile[:90])
}

// stuck is a message whose worker has not come back.
func (w *world) stuck(key, owner string) {
	w.t.Helper()
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, "+
		"created_at, owner) VALUES ('stock-rollback', 'stock.rollback', ?, 0, 2, UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE, "+
		"UTC_TIMESTAMP(6), ?)", []byte(key), []byte(owner))
}

// signIn signs in as a person does.
func (w *world) signIn(b *tab) {
	w.t.Helper()
	b.open(w.at + "/")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), token+kb.Enter))
	b.shows("What needs a person")
}

var inPath = regexp.MustCompile(`/[0-9a-f-]{16,}`)

// kind is what an address has in common with those of other things of its kind.
func kind(u *url.URL) string {
	var names []string
	for name, values := range u.Query() {
		if name == "act" {
			name += "=" + values[0]
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return inPath.ReplaceAllString(u.Path, "/…") + "?" + strings.Join(names, "&")
}

// Given letters of all reasons, most of them hostile, and acts with hostile words, then every page that a link leads
// to opens without an error in the console, a dialog, a script that was run, or a request to anybody else; it says that
// consuming is paused, until somebody resumes, fits on wide and narrow screens, and axe-core finds nothing in it.
func TestEveryPageOpensAndFitsAndIsUsable(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t, "ROLLBACKD_OUTBOX=on"), newTab(t)
	w.hostileLetters()
	w.signIn(b)
	for act, key := range map[string]string{"replay": "rollback-A-1", "discard": "huge"} {
		b.open(w.at + "/letters/act?act=" + act + "&key=" + key)
		b.do(chromedp.SetValue(chromedp.CSS("#why"), hostile))
		b.click(map[string]string{"replay": "Replay", "discard": "Discard"}[act] + " this letter")
		b.shows("What it came to")
	}
	b.open(w.at + "/letters/act?act=replay&all=1")
	b.click("Rehearse these letters")
	b.shows("What a replay would come to")
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, updated_at) "+
		"VALUES (?, 1001, 1, 2, 'stock.rollback', ?, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR)", hostile[:60],
		"never seen "+hostile)
	b.open(w.at + "/reconcile")
	b.click("Compare now")
	b.shows("released without success")
	b.open(w.at + "/")
	b.click("Pause")
	b.shows("Consuming is not paused by anybody.")
	b.do(chromedp.SetValue(chromedp.CSS("#why"), hostile+strings.Repeat("w", 100)))
	b.click("Pause consuming")
	b.shows("Consuming is paused for the whole fleet")
	const (
		mostOpened = 6 // of a kind
		mostAsked  = 2
	)
	opened, kinds := map[string]bool{}, map[string]int{}
	for queue := []string{w.at + "/", w.at + "/order?sn=A-1", w.at + "/sign-in", w.at + "/letters?error=reservation",
		w.at + "/log?status=dead"}; len(queue) > 0; {
		address := queue[0]
		queue = queue[1:]
		u := require.Get(url.Parse(address))(t)
		if opened[address] || kinds[kind(u)] == mostOpened {
			continue
		}
		opened[address] = true
		kinds[kind(u)]++
		where := strings.TrimPrefix(address, w.at)
		b.open(address)
		if u.Path != basePath+"/sign-in" {
			b.shows("Consuming is paused for the whole fleet")
		}
		b.fits(where)
		if kinds[kind(u)] <= mostAsked {
			b.usable(where)
		}
		b.quiet()
		for _, to := range ask[[]string](b, `Array.from(document.querySelectorAll("a[href]"), a => a.href)`) {
			to, _, _ = strings.Cut(to, "#")
			if !strings.HasPrefix(to, w.at+"/") {
				t.Errorf("%s leads to %s", where, to)
			} else if !strings.Contains(to, "/letters/download") {
				queue = append(queue, to)
			}
		}
	}
	t.Logf("%d pages of %d kinds", len(opened), len(kinds))
	for _, want := range []string{
		"/?", "/?span", "/letters?", "/letters/groups/…?", "/letters/act?act=replay&fingerprint&reason",
		"/letters/act?act=discard&key&tag",
		"/reconcile?", "/reconcile?of", "/reconcile/finding?n&of", "/pause?",
		"/acts?", "/acts/…?", "/message?key&tag", "/letter/edit?key&tag",
		"/order?sn", "/find?", "/log?", "/log?status", "/sign-in?",
	} {
		assert.That(t, kinds[basePath+want] != 0, "no page of the kind %s was opened: %v", want, kinds)
	}
	if t.Failed() {
		return
	}
	w.staysHarmless(b)
	b.open(w.at + "/")
	b.click("Resume or change it")
	b.click("Resume consuming")
	b.until("the answer is there", `!location.pathname.endsWith("/pause") ||
		document.body.innerText.includes("is not paused")`)
	b.open(w.at + "/pause")
	b.shows("Consuming is not paused by anybody.")
	assert.Is(t, w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'pause' AND actor = 'admin'"), 1, "pauses")
}

// staysHarmless holds that hostile text does nothing either when a script puts it into an open page.
func (w *world) staysHarmless(b *tab) {
	b.t.Helper()
	for _, path := range []string{"/", "/letters", "/message?key=huge"} {
		b.open(w.at + path)
		b.shows("This page changes by itself.")
		b.until("a part is marked", `document.querySelectorAll("live-part").forEach(e => e.append(
			Object.assign(document.createElement("i"), {className: "old"}))) || true`)
		w.exec("UPDATE consumer_log SET remark = ? WHERE msg_key = 'huge'", "<img src=y onerror=alert(5)>"+path)
		b.until("the part was replaced", `
			Array.from(document.querySelectorAll("live-part")).some(e => !e.querySelector(".old"))`)
		b.stands(path)
		b.quiet()
	}
}

// Given a daemon, then a browser is led to the sign-in, a wrong token is refused there, and the right one leads to the
// overview, light or dark; of addresses that show nothing their pages say so. All fit, and are usable.
func TestPagesThatSayWhatIsWrongAreUsable(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	b.open(w.at + "/")
	b.shows("Sign in")
	b.stands("the sign-in")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), "wrong"+kb.Enter))
	b.shows("This token is not one of those that are known here.")
	assert.That(t, len(b.forgive("status of 401")) != 0, "Chromium does not tell of the refused token in its console")
	w.signIn(b)
	assert.Is(t, ask[string](b, "location.href"), w.at+"/", "the sign-in leads to")
	const lightness = `getComputedStyle(document.body).backgroundColor.match(/\d+/g).reduce((a, x) => a + +x, 0)`
	light := ask[int](b, lightness)
	b.prefer("dark")
	if dark := ask[int](b, lightness); light < 3*200 || dark > 3*50 {
		t.Errorf("the sum of the background's red, green and blue is %d in light and %d in dark colours", light, dark)
	}
	b.prefer("light")
	for path, want := range map[string]string{
		"/nowhere" + strings.Repeat("wide", 100):   "There is no page",
		"/message?key=" + url.QueryEscape(hostile): "knows no message",
		"/order?sn=none": "No message of this order is known", "/letters?since=yesterday": "is no time",
		"/acts/none": "act", "/letters/act?act=replay": "",
	} {
		b.open(w.at + path)
		b.shows(want)
		b.forgive("Failed to load resource: the server responded with a status of 4")
		b.quiet()
		b.usable(path)
		b.fits(path)
	}
}
