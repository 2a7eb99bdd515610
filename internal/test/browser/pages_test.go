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
	if got := ask[string](b, "location.href"); got != w.at+"/" {
		t.Errorf("the sign-in leads to %s", got)
	}
}
