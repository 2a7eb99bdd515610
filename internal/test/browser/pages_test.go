package browser

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// signIn signs in as a person does.
func (w *world) signIn(b *tab) {
	w.t.Helper()
	b.open(w.at + "/")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), token+kb.Enter))
	b.shows("What needs a person")
}

// Given a daemon, then a browser is led to the sign-in, a wrong token is refused there, and the right one leads to the
// overview, without an error in the console.
func TestASignInLeadsToTheOverview(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	b.open(w.at + "/")
	b.shows("Sign in")
	b.stands("the sign-in")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), "wrong"+kb.Enter))
	b.shows("This token is not one of those that are known here.")
	if len(b.forgive("status of 401")) == 0 {
		t.Error("Chromium does not tell of the refused token in its console")
	}
	w.signIn(b)
	b.stands("the overview")
	const lightness = `getComputedStyle(document.body).backgroundColor.match(/\d+/g).reduce((a, x) => a + +x, 0)`
	light := ask[int](b, lightness)
	b.prefer("dark")
	if dark := ask[int](b, lightness); light < 3*200 || dark > 3*50 {
		t.Errorf("the sum of the background's red, green and blue is %d in light and %d in dark colours", light, dark)
	}
	if got := ask[string](b, "location.href"); got != w.at+"/" {
		t.Errorf("the sign-in leads to %s", got)
	}
}

// Given somebody who pauses the fleet with hostile words, then every page says so, fits and is usable, until he
// resumes.
func TestAPauseIsSaidOnEveryPage(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newTab(t)
	w.signIn(b)
	b.click("Pause")
	b.shows("Consuming is not paused by anybody.")
	b.do(chromedp.SetValue(chromedp.CSS("#why"), hostile))
	b.click("Pause consuming")
	b.shows("Consuming is paused for the whole fleet")
	for _, path := range []string{"/", "/pause", "/letters", "/find", "/log"} {
		b.open(w.at + path)
		b.shows("Consuming is paused for the whole fleet")
		b.stands(path)
		b.do(chromedp.EmulateViewport(narrow, high))
		b.stands(path + ", narrow")
		b.do(chromedp.EmulateViewport(wide, high))
		b.usable(path)
	}
	if got := w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'pause' AND actor = 'admin'"); got != 1 {
		t.Errorf("%d pauses are noted", got)
	}
	b.click("Resume or change it")
	b.click("Resume consuming")
	b.until("the answer is there", `!location.pathname.endsWith("/pause") ||
		document.body.innerText.includes("is not paused")`)
	b.open(w.at + "/pause")
	b.shows("Consuming is not paused by anybody.")
}
