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
	"github.com/rollbackd/rollbackd/internal/test/require"
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

// cameBack fails unless the stock of n late orders is back, once, by one act, and that of others whose letters were
// edited.
func (w *world) cameBack(n, edited int) {
	w.t.Helper()
	assert.Is(w.t, w.amount(1001), 5+2*(n+edited), "of sku 1001 are on stock")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND replays = 1"), n,
		"rows say success after one replay")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND replays = 0"), edited,
		"edited messages say success")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 4"), edited, "letters are ended")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'replay'"), 1, "replays are known")
	assert.Is(w.t, w.count("SELECT COUNT(*) FROM stock_reservation WHERE status = 2"), n+edited, "reservations released")
}

// where is where a link or button with this text is on the screen.
func (b *tab) where(text string) (x, y float64) {
	b.t.Helper()
	find := fmt.Sprintf(`Array.from(document.querySelectorAll("a, button")).find(e => e.innerText.trim() === %q)`, text)
	b.until(fmt.Sprintf("there is %q to click on", text), find)
	return b.middle(find)
}

func (b *tab) click(text string) {
	b.t.Helper()
	x, y := b.where(text)
	b.do(chromedp.MouseClickXY(x, y))
}

// keyboard is a person who has nothing else.
type keyboard struct {
	*tab
	script                bool // scripts run in the pages
	presses, typed, words int
	// paced is set for one whose time counts: then each act takes as long as it takes a person.
	paced bool
	own   time.Duration // what the person has taken, whatever the machine takes meanwhile
	aside time.Duration // what the test itself has looked at meanwhile
}

// How long a person takes. The keystroke-level model (Card, Moran and Newell, 1980) has these figures for somebody who
// types 40 words a minute, and for letters and digits that make no word; grown-ups read 240 words a minute silently.
// Who types for a living takes less than half of it.
const (
	aPress  = 280 * time.Millisecond
	aLetter = 500 * time.Millisecond
	aChoice = 1350 * time.Millisecond // what to do next
	aWord   = time.Minute / 240
)

func (k *keyboard) takes(d time.Duration) {
	k.t.Helper()
	if !k.paced {
		return
	}
	k.own += d
	select {
	case <-time.After(d):
	case <-k.t.Context().Done():
		k.t.Fatal(k.t.Context().Err())
	}
}

func (k *keyboard) press(key string) {
	k.t.Helper()
	k.takes(aPress)
	k.do(chromedp.KeyEvent(key))
	k.presses++
}

func (k *keyboard) write(text string) {
	k.t.Helper()
	for _, letter := range text {
		k.takes(aLetter)
		k.do(chromedp.KeyEvent(string(letter)))
		k.typed++
	}
}

// reads is a page that the walk comes to. The person reads its heading, and all of the parts that tell what he came
// for. Before that axe-core finds nothing in it, which takes none of his time; it needs scripts.
func (k *keyboard) reads(parts string) {
	k.t.Helper()
	began, where := time.Now(), ask[string](k.tab, "location.pathname")
	k.scripts(true)
	k.usable(where)
	k.scripts(k.script)
	k.stands(where)
	k.aside += time.Since(began)
	words := ask[int](k.tab, fmt.Sprintf(`Array.from(document.querySelectorAll(%q)).map(
		e => (e.value || e.innerText).trim()).join(" ").split(/\s+/).length`, "h1, "+parts))
	k.takes(time.Duration(words) * aWord)
	k.words += words
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

// tabTo is a choice: Tab is pressed until what begins so has the focus.
func (k *keyboard) tabTo(name string) {
	k.t.Helper()
	k.takes(aChoice)
	k.tabs(name)
}

// tabs presses Tab. Wherever the focus is on the way, it must be seen.
func (k *keyboard) tabs(name string) {
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
	k.tabs("Skip to the content") // the choice is that of where he goes from there
	k.press(kb.Enter)
	k.until("the content has the focus", `document.activeElement.id === "main"`)
}

// goes is a choice, and the key that takes it: then a page shows a text, of which the person reads some parts.
func (k *keyboard) goes(to, key, shows, parts string) {
	k.t.Helper()
	k.tabTo(to)
	k.press(key)
	k.shows(shows)
	k.reads(parts)
}

// comes waits for what an act comes to: its page says so by itself, and without a script once it is loaded again.
func (k *keyboard) comes(text string) {
	k.t.Helper()
	if k.script {
		k.shows(text)
	}
	for late := time.Now().Add(patience); !ask[bool](k.tab, fmt.Sprintf(`document.body.innerText.includes(%q)`, text)); {
		require.That(k.t, !time.Now().After(late), "the act does not end with %q", text)
		k.do(chromedp.Reload())
	}
}

// finds looks for an order: what is known of it shows a text.
func (k *keyboard) finds(order, shows, parts string) {
	k.t.Helper()
	k.tabTo("Message or order")
	k.press(kb.Enter)
	k.until("one may write the order at once", `document.activeElement.id === "sn"`)
	k.reads("label")
	k.write(order)
	k.press(kb.Enter)
	k.shows(shows)
	k.reads(parts)
}

// Given an order whose letter names the wrong order, and three whose reservations came late, when a newcomer has the
// pages and a keyboard alone, then he finds the letter, edits it, rehearses and replays the others, and proves what
// became of them, within four minutes at a person's speed; also when scripts are switched off. The stock of each is
// back once, and axe-core finds nothing on the way.
func TestFiveTasksAreDoneByKeyboardInFourMinutes(t *testing.T) {
	t.Parallel()
	const goal, order = 4 * time.Minute, "20261122-0007"
	for name, script := range map[string]bool{"with script": true, "no script": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, k := newWorld(t, "ROLLBACKD_OUTBOX=on"), &keyboard{tab: newTab(t), paced: true, script: script}
			mend := w.lateOrders("20261122-0301", "20261122-0302", "20261122-0303")
			w.reserve(order, 1001, 2)
			w.die(letter{key: order, body: `{"order_sn":"20261122-0070"}`, reason: dedup.ReasonExhausted})
			k.scripts(script)
			k.open(w.at + "/")
			k.until("one may write the token at once", `document.activeElement.id === "token"`)
			began := time.Now()
			k.reads("label")
			k.write(token)
			k.press(kb.Enter)
			k.shows("What needs a person")
			figures := map[bool]string{true: "This page changes by itself.", false: "Load the page again for newer figures."}
			k.shows(figures[script])
			k.reads(".needs")

			k.finds(order, "all 3 attempts failed, the last one as in remark", ".answer")
			k.skip()
			k.goes(order, kb.Enter, `"20261122-0070"`, "article pre")

			k.skip() // edit
			k.goes("Edit it", kb.Enter, "An edited letter is a new message", ".lead, textarea")
			k.skip()
			k.tabTo("Body")
			for _, key := range []string{kb.End, kb.ArrowLeft, kb.ArrowLeft, kb.Backspace, kb.Backspace} {
				k.press(key)
			}
			k.write("07")
			k.goes("See what differs", kb.Enter, `+   "order_sn": "20261122-0007"`, "main > p, pre, form p")
			k.shows("would be applied")
			assert.Is(t, w.amount(1001), 5, "before the edited letter is sent of sku 1001 are on stock")
			k.skip()
			k.goes("End the letter and send this", kb.Enter, "sent in its place", ".facts")

			mend() // somebody else's part: the shop writes what it forgot
			k.tabTo("Dead letters")
			k.press(kb.Enter)
			k.shows("By failure")
			k.comes("letters in all")
			k.reads("#groups tbody")
			k.skip()
			k.goes(ask[string](k.tab, `document.querySelector("a[href*='/letters/groups/']").innerText`), kb.Enter,
				"The latest of them", "#group .facts")
			k.skip()
			k.goes("Replay or discard these letters", kb.Enter, "3 will run", ".lead, tbody .tag")

			k.skip() // rehearse
			k.tabTo("Rehearse these letters")
			k.press(" ")
			k.shows("rehearse by admin")
			k.comes("What a replay would come to")
			k.shows("stock_reservation")
			k.reads("#run table")
			assert.Is(t, w.count("SELECT COUNT(*) FROM stock_reservation WHERE status = 2"), 1,
				"after the rehearsal reservations are released")
			k.skip()
			k.goes("To the replay of these letters", kb.Enter, "3 will run", ".lead")

			k.skip() // replay
			k.tabTo("Replay these letters")
			k.press(" ")
			k.shows("replay by admin")
			k.comes("What it came to")
			k.shows("applied\n3")
			k.reads("#run h2 + .facts")

			k.finds(order, "was sent in its place.", ".answer b, .notice") // prove
			k.shows("It was sent in the place of")
			k.skip()
			k.tabTo(order + "/edited-1")
			k.press(kb.Enter)
			k.until("the message is applied", `document.querySelector("h2 .tag")?.innerText === "success"`)
			k.reads(".answer, .notice")
			k.goes("Acts", kb.Enter, "3 replayed, 3 applied", "#acts tbody") // and who did it, of all that was done
			waited := time.Since(began) - k.aside - k.own
			t.Logf("%v, and %v for the machine: %d presses of keys, %d characters typed, %d words read; axe-core has taken %v",
				k.own.Round(time.Second), waited.Round(time.Second), k.presses, k.typed, k.words, k.aside.Round(time.Second))
			assert.AtMost(t, k.own, goal, "the five tasks take a person")
			assert.AtMost(t, waited, goal, "a person waits for pages and acts")
			w.cameBack(3, 1)
		})
	}
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
	assert.That(t, ask[bool](b, "window.sameDocument === true"), "the page was loaded again")
}

// badMinute is how many minutes ago one was bad, of the day that lived writes down.
const badMinute = 400

// lived writes down a day of minutes, as daemons do, in place of those that the daemon has written: more by day than by
// night, one minute that was bad, and half an hour in which no daemon ran.
func (w *world) lived() {
	w.t.Helper()
	const minute = "('stock-rollback', '%s', TIMESTAMPDIFF(MINUTE, '1970-01-01', UTC_TIMESTAMP()) - %d, %d, %d, " +
		"%d, 0, 0, %d, %d, 0, 0, 0, " + // dead by reason
		"0, 0, 0, 0, %d, %d, %d, 0, 0, 0, 0, 0, 0, 0, 0, 0, %d, 0, 0, %d, %d)"
	var rows []string
	for ago := 1; ago <= 24*60; ago++ {
		if ago > 800 && ago <= 830 {
			continue
		}
		by := float64(ago%720) / 720
		n := int(1500 + 9000*by*(1-by)*4 + float64(ago*7919%900))
		few := n / 200
		row := fmt.Sprintf(minute, w.queue, ago, n, n/900, 0, 0, 0, n/2, n/2-few, few, 0, n/400, n/800)
		if ago == badMinute {
			row = fmt.Sprintf(minute, w.queue, ago, n/30, n/12, 3, 4, 9, 0, 0, 0, n/30, 2*n, n/12)
		}
		rows = append(rows, row)
	}
	w.exec("REPLACE INTO consumer_log_minute VALUES " + strings.Join(rows, ", "))
}

// Given a day in which one minute was bad, then the charts of the day show when, to the pointer, and by keyboard as a
// table; they fit a phone, and are usable in light and dark colours.
func TestABadMinuteIsSeenADayLater(t *testing.T) {
	t.Parallel()
	w, k := newWorld(t), &keyboard{tab: newTab(t)}
	w.lived()
	w.signIn(k.tab)
	k.until("there are charts of the hour", `document.querySelectorAll("#charts svg").length === 6`)
	k.skip()
	k.tabTo("last day")
	k.press(kb.Enter)
	k.until("there are charts of the day", `location.search === "?span=day" &&
		document.querySelectorAll("#charts svg").length === 6`)
	k.shows("exhausted 9")
	k.shows("malformed 3")
	k.usable("the charts of a day")
	k.stands("the charts of a day")

	x, y := k.middle(`document.querySelector("#charts svg rect.r4")`)
	k.do(chromedp.MouseEvent(chromedp.MouseMoved, x, y))
	k.until("the pointer is told what died", `Array.from(document.querySelectorAll("#charts .hint text"))
		.filter(e => getComputedStyle(e).display !== "none").map(e => e.textContent).join().includes("16 dead: 3 malformed")`)

	k.open(w.at + "/?span=day")
	k.skip()
	k.tabTo("The same figures as a table")
	k.press(kb.Enter)
	k.shows("16 dead: 3 malformed, 4 permanent, 9 exhausted")
	k.tabTo("Figures of the last day")
	k.usable("the table of a day")
	rows := ask[int](k.tab, `document.querySelectorAll("#charts tbody tr").length`)
	assert.AtLeast(t, rows, 93, "rows of the table") // half an hour has none
	assert.AtMost(t, rows, 97, "rows of the table")
	k.do(chromedp.EmulateViewport(narrow, high))
	k.stands("the table of a day, narrow")
	assert.Is(t, ask[int](k.tab, `Array.from(document.querySelectorAll("#charts svg")).filter(
		e => e.getBoundingClientRect().width < 300).length`), 0, "charts are too small to read on a phone")
}
