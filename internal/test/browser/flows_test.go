package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// unreserved are rollbacks of orders that have reserved nothing, so that they are dead letters of one group.
func unreserved(orders ...string) (all []letter) {
	for _, o := range orders {
		all = append(all, letter{
			key: "rollback-" + o, body: fmt.Sprintf(`{"order_sn":%q,"items":[{"sku_id":1001,"quantity":2}]}`, o),
			reason: dedup.ReasonExhausted,
		})
	}
	return all
}

// lateOrders are unreserved orders whose reservations come late: mend writes them.
func (w *world) lateOrders(orders ...string) (mend func()) {
	w.t.Helper()
	w.exec("INSERT INTO stock (sku_id, amount) VALUES (1001, 5)")
	w.die(unreserved(orders...)...)
	return func() {
		w.t.Helper()
		for _, o := range orders {
			w.reserve(o, 1001, 2)
		}
	}
}

// cameBack fails unless the stock of n late orders is back, once, by one act.
func (w *world) cameBack(n int) {
	w.t.Helper()
	assert.Is(w.t, w.amount(1001), 5+2*n, "of sku 1001 are on stock")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND replays = 1"), n,
		"rows say success after one replay")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'replay'"), 1, "replays are known")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM stock_reservation WHERE status = 2"), n, "reservations are released")
}

// at is where a link or button with this text is on the screen; it is scrolled there.
func (b *tab) where(text string) (x, y float64) {
	b.t.Helper()
	find := fmt.Sprintf(`Array.from(document.querySelectorAll("a, button")).find(e => e.innerText.trim() === %q)`, text)
	b.until(fmt.Sprintf("there is %q to click on", text), find)
	at := ask[[]float64](b, `(e => {
		e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2];
	})(`+find+`)`)
	return at[0], at[1]
}

func (b *tab) click(text string) {
	b.t.Helper()
	x, y := b.where(text)
	b.do(chromedp.MouseClickXY(x, y))
}

// Given orders whose stock did not come back for one reason, when that is mended and a person goes from the overview to
// their group, sees the verdicts and replays them, then the page of the run says so by itself, and the stock is back.
func TestAGroupIsReplayedFromTheOverview(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	mend := w.lateOrders("A-1", "A-2", "A-3")
	w.signIn(b)
	b.shows("3 dead letters")
	b.click("Look at them")
	b.shows("By failure")
	b.until("the group is there", `document.querySelectorAll("a[href*='/letters/groups/']").length === 1`)
	b.click(ask[string](b, `document.querySelector("a[href*='/letters/groups/']").innerText`))
	b.shows("The latest of them")
	for _, key := range []string{"rollback-A-1", "rollback-A-2", "rollback-A-3"} {
		b.shows(key)
	}
	b.click("Replay or discard these letters")
	b.shows("3 letters are of this set")
	b.shows("3 will run")
	mend()
	b.click("Replay these letters")
	b.until("the run is done", `document.querySelector(".tag")?.innerText === "done"`)
	b.shows("replayed\n3\napplied\n3")
	b.stands("the page of the run")
	w.cameBack(3)
	b.click("Dead letters")
	b.shows("No message is dead.")
}

// Given a preview, when its button is clicked on twice in a row, and its form sent twice at once after that, then there
// is one act and one effect, and each answer leads to the same page.
func TestADoubleClickActsOnce(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	w.lateOrders("A-1")()
	w.signIn(b)
	b.open(w.at + "/letters/act?act=replay&key=rollback-A-1")
	again := ask[string](b, `JSON.stringify(Array.from(new FormData(document.querySelector("main form"))))`)
	x, y := b.where("Replay this letter")
	b.do(chromedp.MouseClickXY(x, y), chromedp.MouseClickXY(x, y, chromedp.ClickCount(2)))
	b.until("the run is done", `document.querySelector(".tag")?.innerText === "done"`)
	run := ask[string](b, "location.href")
	led := ask[[]string](b, fmt.Sprintf(`(() => {
		const send = () => fetch(%q, {method: "POST", body: new URLSearchParams(JSON.parse(%q))}).then(r => r.url);
		return Promise.all([send(), send()]);
	})()`, basePath+"/letters/act", again))
	for _, to := range led {
		assert.Is(t, to, run, "the same form leads to, not to")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// But for the sign-in: two by hand, and by the clicks two, or one where the server answers before the second.
	assert.AtLeast(t, b.posts-1, 3, "the form was sent times only")
	w.cameBack(1)
}

// keyboard is a person who has nothing else.
type keyboard struct {
	*tab
	presses, typed int
}

func (k *keyboard) press(key string) {
	k.t.Helper()
	k.do(chromedp.KeyEvent(key))
	k.presses++
}

func (k *keyboard) write(text string) {
	k.t.Helper()
	k.do(chromedp.KeyEvent(text))
	k.typed += len(text)
}

// focus is what has the focus.
type focus struct {
	Name    string `json:"name"`
	Nothing bool   `json:"nothing"` // the page itself
	Marked  bool   `json:"marked"`  // it is seen to have the focus
	Seen    bool   `json:"seen"`    // it is on the screen
}

func (k *keyboard) focus() focus {
	k.t.Helper()
	return ask[focus](k.tab, `(() => {
		const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
		const label = e.labels && e.labels.length ? e.labels[0].innerText : e.getAttribute("aria-label") || e.innerText;
		return {
			name: label.trim(), nothing: e === document.body,
			marked: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2,
			seen: r.width > 0 && r.height > 0 && r.bottom > 0 && r.top < innerHeight && r.right > 0 && r.left < innerWidth,
		};
	})()`)
}

// tabTo presses Tab until what begins so has the focus. Wherever the focus is on the way, it must be seen.
func (k *keyboard) tabTo(name string) {
	k.t.Helper()
	var way []string
	for range 60 {
		k.press(kb.Tab)
		f := k.focus()
		if way = append(way, f.Name); f.Nothing {
			continue
		}
		if !f.Marked || !f.Seen {
			k.t.Errorf("at %s nobody sees that %q has the focus: %+v", ask[string](k.tab, "location.href"), f.Name, f)
		}
		if strings.HasPrefix(f.Name, name) {
			return
		}
	}
	k.t.Fatalf("Tab does not lead to %q: %q", name, way)
}

// skip goes past what stands at the head of every page, by the link that the first Tab shows.
func (k *keyboard) skip() {
	k.t.Helper()
	k.tabTo("Skip to the content")
	k.press(kb.Enter)
	k.until("the content has the focus", `document.activeElement.id === "main"`)
}

// comes waits for what an act comes to: its page says so by itself, and without a script once it is loaded again.
func (k *keyboard) comes(text string, script bool) {
	k.t.Helper()
	if script {
		k.shows(text)
	}
	for late := time.Now().Add(patience); !ask[bool](k.tab, fmt.Sprintf(`document.body.innerText.includes(%q)`, text)); {
		if time.Now().After(late) {
			k.t.Fatalf("the act does not end with %q", text)
		}
		k.do(chromedp.Reload())
	}
}

// Given an order whose stock did not come back, when a newcomer has the pages and a keyboard alone, then he finds why,
// rehearses the replay once the cause is mended, replays, and sees the effect and who did it; also when scripts are
// switched off.
func TestWhyStockDidNotComeBackIsFoundAndMendedByKeyboard(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]bool{"with script": true, "no script": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k := newWorld(t), &keyboard{tab: newTab(t)}
			mend := w.lateOrders("20261122-0007")
			if !script {
				k.withoutScript()
			}
			began := time.Now()
			k.open(w.at + "/")
			k.until("one may write the token at once", `document.activeElement.id === "token"`)
			k.write(token)
			k.press(kb.Enter)
			k.shows("What needs a person")
			if script {
				k.shows("This page changes by itself.")
			} else {
				k.shows("Load the page again for newer figures.")
			}
			k.tabTo("Message or order")
			k.press(kb.Enter)
			k.shows("Its messages are found by its reservations")
			k.until("one may write the order at once", `document.activeElement.id === "sn"`)
			k.write("20261122-0007")
			k.press(kb.Enter)
			k.shows("all 3 attempts failed, the last one as in remark")
			k.shows("no reservation")
			mend() // somebody else's part: the shop writes what it forgot
			k.skip()
			k.tabTo("Replay or discard this letter")
			k.press(kb.Enter)
			k.shows("1 will run")
			k.skip()
			k.tabTo("Rehearse this letter")
			k.press(" ")
			k.shows("rehearse by admin")
			k.comes("What a replay would come to", script)
			k.shows("stock_reservation")
			assert.Is(t, w.amount(1001), 5, "after the rehearsal of sku 1001 are on stock")
			k.skip()
			k.tabTo("To the replay of these letters")
			k.press(kb.Enter)
			k.shows("1 will run")
			k.skip()
			k.tabTo("Replay this letter")
			k.press(" ")
			k.shows("replay by admin")
			k.comes("What it came to", script)
			k.shows("applied\n1")
			k.skip()
			k.tabTo("See this message")
			k.press(kb.Enter)
			k.shows("dead → failed") // the replay, in the message's story
			k.until("the message is applied", `document.querySelector("h2 .tag")?.innerText === "success"`)
			k.tabTo("Acts") // and who did it, of all that was done
			k.press(kb.Enter)
			k.shows("1 replayed, 1 applied")
			t.Logf("%d presses of Tab, Enter and Space, %d characters typed, %v", k.presses, k.typed,
				time.Since(began).Round(100*time.Millisecond))
			w.cameBack(1)
		})
	}
}

// Given a letter whose body names the wrong order, when a person with a keyboard alone edits it, looks
// what it would do and sends it, then the page says so, both pages are usable, and the stock is back.
func TestALetterIsEditedByKeyboard(t *testing.T) {
	t.Parallel()
	w, k := newWorld(t, "ROLLBACKD_OUTBOX=on"), &keyboard{tab: newTab(t)}
	mend := w.lateOrders("A-1")
	mend()
	w.exec("UPDATE consumer_log SET msg_body = REPLACE(msg_body, 'A-1', 'A-2'), body_hash = " +
		"UNHEX(SHA2(REPLACE(msg_body, 'A-1', 'A-2'), 256))")
	w.signIn(k.tab)
	eventually(t, "the page leads to the one that edits", func() bool {
		k.open(w.at + "/message?key=rollback-A-1&tag=stock.rollback")
		return ask[bool](k.tab, `document.body.innerText.includes("Edit it")`)
	})
	k.skip()
	k.tabTo("Edit it")
	k.press(kb.Enter)
	k.shows("An edited letter is a new message")
	k.usable("the page that edits")
	k.skip()
	k.tabTo("Body")
	k.do(chromedp.SetValue(chromedp.CSS("#body"), `{"order_sn":"A-1"}`))
	k.tabTo("See what differs")
	k.press(kb.Enter)
	k.shows("What it would do")
	k.shows("would be applied")
	k.usable("the page of what an edited letter would do")
	k.skip()
	k.tabTo("End the letter and send this")
	k.press(kb.Enter)
	k.shows("sent in its place")
	k.shows("rollback-A-1/edited-1")
	eventually(t, "the stock is back", func() bool { return w.amount(1001) == 5+2 })
}

// Given a page that is open, when messages die and are replayed by somebody else, then it shows that without anybody
// doing anything; and what has the focus is not taken away by it.
func TestAnOpenPageChangesByItself(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	w.signIn(b)
	b.shows("This page changes by itself.")
	b.shows("Nothing. Messages are consumed, and none is dead")
	w.stuck("stuck-1", "a-machine/1/2")
	b.shows("1 message does not move")
	b.until("the page is marked", `window.sameDocument = true`)
	w.lateOrders("A-1", "A-2")()
	b.shows("2 dead letters")
	b.until("the link has the focus", `(e => { e.focus(); return document.activeElement === e; })(
		Array.from(document.querySelectorAll("#needs a")).find(e => e.innerText === "Look at them"))`)
	w.die(unreserved("A-3")...)
	b.until("figures that have no focus change", `document.querySelector("#outcomes").innerText.includes("dead_lettered")`)
	if !ask[bool](b, `document.activeElement.innerText === "Look at them" && document.activeElement.isConnected`) {
		t.Error("the focus was taken away")
	}
	b.do(chromedp.KeyEvent(kb.Tab))
	b.shows("3 dead letters")
	b.do(chromedp.EmulateViewport(narrow, high))
	b.until("a table is scrolled sideways and has not the focus", `(e => {
		document.activeElement.blur();
		e.scrollLeft = 40;
		return e.scrollLeft === 40;
	})(document.querySelector("#stuck .scroll"))`)
	b.until("its part is marked", `document.querySelector("#stuck .scroll").append(
		Object.assign(document.createElement("i"), {className: "old"})) || true`)
	b.until("its part was replaced", `!document.querySelector("#stuck .old")`)
	assert.Is(t, ask[int](b, `document.querySelector("#stuck .scroll").scrollLeft`), 40, "the table was scrolled back, to")
	if !ask[bool](b, "window.sameDocument === true") {
		t.Error("the page was loaded again")
	}
}
