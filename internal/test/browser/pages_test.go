package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// signIn signs in as a person does.
func (w *world) signIn(b *tab) { w.signInWith(b, token) }

func (w *world) signInWith(b *tab, token string) {
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
	assert.Is(t, ask[string](b, "location.href"), w.at+"/", "the sign-in leads to")
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
	assert.Is(t, w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'pause' AND actor = 'admin'"), 1,
		"pauses are noted")
	b.click("Resume or change it")
	b.click("Resume consuming")
	b.until("the answer is there", `!location.pathname.endsWith("/pause") ||
		document.body.innerText.includes("is not paused")`)
	b.open(w.at + "/pause")
	b.shows("Consuming is not paused by anybody.")
}

// Given one who may look and not act, then each page with a form shows it, says that he may not, and lets him press
// nothing; the form that he sends all the same, as another person has it, is refused, and stands among the acts.
func TestWhoMayOnlyLookSeesWhatHeMayNotDo(t *testing.T) {
	t.Parallel()
	w, b, other := newWorld(t), newTab(t), newTab(t)
	w.lateOrders("A-1")
	w.signIn(other)
	other.open(w.at + "/letters/act?act=replay&key=rollback-A-1")
	form := ask[string](other, `JSON.stringify(Array.from(new FormData(document.querySelector("main form"))))`)
	w.signInWith(b, readToken)
	b.shows("rita, may look and not act")
	for _, path := range []string{"/letters/act?act=replay&key=rollback-A-1", "/letters/act?act=discard&key=rollback-A-1",
		"/reconcile", "/pause"} {
		b.open(w.at + path)
		buttons := ask[int](b, `document.querySelectorAll("main form[method=post] button").length`)
		pressed := ask[int](b, `document.querySelectorAll("main form[method=post] button:not([disabled])").length`)
		tokens := ask[int](b, `Array.from(document.querySelectorAll("input[name=token]")).filter(i => i.value).length`)
		if buttons == 0 || pressed > 0 || tokens > 0 {
			t.Errorf("%s has %d buttons, of which %d can be pressed, and %d tokens of forms", path, buttons, pressed, tokens)
		}
		b.usable(path)
		b.stands(path)
	}
	status := ask[int](b, fmt.Sprintf(`fetch(%q, {method: "POST", body: new URLSearchParams(JSON.parse(%q))})`+
		`.then(r => r.status)`, basePath+"/letters/act", form))
	b.forgive("Failed to load resource: the server responded with a status of 403")
	if runs := w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'replay'"); status != 403 || runs != 0 {
		t.Errorf("the form of another is answered with %d, and %d runs have begun", status, runs)
	}
	b.open(w.at + "/acts")
	b.shows("POST /letters/act")
	b.quiet()
}
