package browser

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// signIn signs in as a person does.
func (w *world) signIn(b *tab) { w.signInWith(b, token) }

func (w *world) signInWith(b *tab, token string) {
	w.t.Helper()
	b.open(w.at + "/")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), token+kb.Enter))
	b.shows("What needs a person")
}

// Given one who may look and not act, then each page with a form shows it, says that he may not, and lets him press
// nothing; the form that he sends all the same, as another person has it, is refused, and stands among the acts.
func TestWhoMayOnlyLookSeesWhatHeMayNotDo(t *testing.T) {
	t.Parallel()
	w, b, other := newWorld(t), newTab(t), newTab(t)
	w.lateOrders("A-1")
	w.signIn(other)
	other.open(w.at + "/letters/act?act=replay&key=rollback-A-1")
	form := other.form()
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
	status := ask[int](b, sends(form)+`.then(r => r.status)`)
	b.forgive("Failed to load resource: the server responded with a status of 403")
	if runs := w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind = 'replay'"); status != 403 || runs != 0 {
		t.Errorf("the form of another is answered with %d, and %d runs have begun", status, runs)
	}
	b.open(w.at + "/acts")
	b.shows("POST /letters/act")
	b.quiet()
}
