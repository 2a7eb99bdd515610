package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

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
