package browser

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

var pictures = flag.String("pictures", "", "write the pictures of the documents into this folder")

// mostOfPicture bounds a picture in bytes: whoever reads the documents loads them all.
const mostOfPicture = 200_000

// Given a shop in which some rollbacks fail, then there are pictures of the overview, also on a phone, of a group's
// letters with their preview, of a rehearsal, of a letter that is edited, and of a message's story. They are kept when
// -pictures says where, and made in any case: make test-browser ARGS="-run Pictures -pictures $PWD/docs/pictures".
func TestPicturesOfThePagesAreSmall(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t, "ROLLBACKD_OUTBOX=on"), newTab(t)
	w.exec("INSERT INTO stock (sku_id, amount) VALUES (1001, 400), (1002, 90), (1003, 12)")
	var late []string
	for i := range 7 {
		late = append(late, fmt.Sprintf("20261122-%04d", 300+i))
	}
	w.die(unreserved(late...)...)
	for i := range 3 {
		order := fmt.Sprintf("20261122-%04d", 400+i)
		w.reserve(order, 1002, 1)
		w.die(letter{key: "rollback-" + order, reason: dedup.ReasonPermanent,
			body: fmt.Sprintf(`{"order_sn":%q,"items":[{"sku_id":1002,"quantity":4}]}`, order)})
	}
	w.die(letter{key: "rollback-20261122-0500", body: `{"order_sn":"20261122-0500","items":[{"sku":1003}]}`,
		reason: dedup.ReasonMalformed})
	w.signIn(b)
	b.shows("11 dead letters")
	w.lived()
	b.open(w.at + "/?span=day")
	b.until("there are charts", `document.querySelectorAll("#charts svg").length === 6`)
	b.picture("pages-overview.png", 1120, 980)
	b.prefer("dark")
	b.picture("pages-phone.png", narrow, 900)
	b.prefer("light")
	b.open(w.at + "/letters")
	b.until("the groups are there", `document.querySelectorAll("a[href*='/letters/groups/']").length === 3`)
	b.click(ask[string](b, `document.querySelector("a[href*='/letters/groups/']").innerText`))
	b.shows("The latest of them")
	b.click("Replay or discard these letters")
	b.shows("7 will run")
	b.picture("pages-preview.png", 1120, 1080)
	for _, order := range late[:5] {
		w.reserve(order, 1001, 2)
	}
	b.open(w.at + "/letters/act?act=replay&all=1")
	b.click("Rehearse these letters")
	b.shows("What a replay would come to")
	b.picture("pages-rehearsal.png", 1120, 900)
	w.reserve("20261122-0500", 1003, 1)
	b.open(w.at + "/letter/edit?tag=stock.rollback&key=rollback-20261122-0500")
	b.do(chromedp.SetValue(chromedp.CSS("#body"), `{"order_sn":"20261122-0500","items":[{"sku_id":1003,"quantity":1}]}`))
	b.click("See what differs and what it would do")
	b.shows("would be applied")
	b.picture("pages-edit.png", 1120, 900)
	b.open(w.at + "/letters/act?act=replay&tag=stock.rollback&key=rollback-" + late[0])
	b.do(chromedp.SetValue(chromedp.CSS("#why"), "the order service was late"))
	b.click("Replay this letter")
	b.shows("What it came to")
	b.click("See this message")
	b.until("the message is applied", `document.querySelector("h2 .tag")?.innerText === "success"`)
	b.picture("pages-message.png", 1120, 1075)
}

// picture takes what is on a screen of that size.
func (b *tab) picture(name string, width, height int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height))
	png := require.Get(chromedp.Run(b.ctx, chromedp.CaptureScreenshot()))(b.t)
	b.do(chromedp.EmulateViewport(wide, high))
	if *pictures == "" {
		return // with other fonts a picture has another size
	}
	assert.AtMost(b.t, len(png), mostOfPicture, "%s has bytes", name)
	require.OK(b.t, os.WriteFile(filepath.Join(*pictures, name), png, 0o600))
}
