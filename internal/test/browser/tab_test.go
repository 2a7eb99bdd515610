package browser

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Screens, in CSS pixels.
const (
	wide, high = 1280, 900
	narrow     = 390 // a phone's
)

// tab is one tab of Chromium with a profile of its own. It notes whatever goes wrong in its pages.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string // guarded by mu
	wg         sync.WaitGroup
}

// newTab opens an empty tab. When the test ends, nothing may have gone wrong in it but what [tab.forgive] has taken.
func newTab(t *testing.T) *tab {
	t.Helper()
	b := &tab{t: t}
	ctx, cancel := chromedp.NewContext(require.Get(chromium())(t), chromedp.WithNewBrowserContext())
	b.ctx = ctx
	require.OK(t, chromedp.Listen(ctx, b.hear))
	t.Cleanup(func() {
		b.quiet()
		b.wg.Wait()
		cancel()
	})
	b.call(emulation.SetFocusEmulationEnabled.Method, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	b.do(chromedp.EmulateViewport(wide, high))
	b.prefer("light")
	return b
}

// hear notes what no page of ours does: errors in the console, what the policy has stopped, exceptions, dialogs, and
// requests to anybody else. It is called by the loop that reads from Chromium and must not wait.
func (b *tab) hear(event any) {
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.complain("log %s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *runtime.EventConsoleAPICalled:
		b.complain("console.%s %v", e.Type, e.Args)
	case *runtime.EventExceptionThrown:
		b.complain("exception: %s", e.ExceptionDetails.Text)
	case *network.EventRequestWillBeSent:
		if to := e.Request.URL; !strings.HasPrefix(to, "http://127.0.0.1:") {
			b.complain("request to %.200s", to)
		}
	case *page.EventJavascriptDialogOpening:
		b.complain("dialog: %s", e.Message)
		b.wg.Go(func() { // a dialog stops everything in its page
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		})
	}
}

func (b *tab) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
}

// quiet fails for what went wrong so far.
func (b *tab) quiet() {
	b.t.Helper()
	for _, c := range b.forgive("") {
		b.t.Error(c)
	}
}

// forgive takes away and returns the complaints that hold the text.
func (b *tab) forgive(text string) (taken []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = slices.DeleteFunc(b.complaints, func(c string) bool {
		yes := strings.Contains(c, text)
		if yes {
			taken = append(taken, c)
		}
		return yes
	})
	return taken
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	require.OK(b.t, chromedp.Do(ctx, steps...))
}

// open opens an address and waits until all of it is there.
func (b *tab) open(address string) {
	b.t.Helper()
	b.do(chromedp.Navigate(address))
}

// prefer sets the scheme of colours, light or dark. Movement is off: a page that scrolls smoothly is not where it will
// be.
func (b *tab) prefer(scheme string) {
	b.t.Helper()
	b.call(emulation.SetEmulatedMedia.Method, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// scripts switches the scripts of pages on or off. What the test asks of a page runs in any case.
func (b *tab) scripts(on bool) {
	b.t.Helper()
	b.call(emulation.SetScriptExecutionDisabled.Method, emulation.SetScriptExecutionDisabledParams{Value: !on})
}

func (b *tab) call(method string, params any) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		return to.Call(ctx, method, params, &cdp.Empty{})
	}))
}

// ask evaluates an expression in the page.
func ask[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := tryAsk[T](b, expression)
	require.That(b.t, err == nil, "%s\n%v", expression, err)
	return v
}

func tryAsk[T any](b *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// until waits until an expression is true in the page, or in the one that comes after it.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	var err error
	if !poll.Within(patience, func() (yes bool) {
		yes, err = tryAsk[bool](b, `document.readyState === "complete" && !!(`+expression+`)`)
		return yes && err == nil
	}) {
		text, _ := tryAsk[string](b, `location.href + "\n" + document.body.innerText`)
		b.t.Fatalf("still not after %v: %s (%v)\n%s", patience, what, err, text)
	}
}

// shows waits until the page shows a text.
func (b *tab) shows(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("the page shows %q", text), fmt.Sprintf("document.body.innerText.includes(%q)", text))
}

// layout is what can be measured of how a page stands on the screen.
type layout struct {
	Over      int      `json:"over"`      // how many pixels are to be reached by scrolling sideways only
	Offenders []string `json:"offenders"` // what sticks out
	Marks     []string `json:"marks"`     // characters that turn the writing round, or are none
	Parts     string   `json:"parts"`     // the parts of the body, in their order
}

func (b *tab) layout() layout {
	b.t.Helper()
	return ask[layout](b, `(() => {
		const root = document.documentElement, room = root.clientWidth, offenders = [];
		for (const e of document.body.querySelectorAll("*")) {
			if (e.closest(".scroll, pre, .unseen, .skip, svg")) continue;
			if (e.getBoundingClientRect().right > room + 1) offenders.push(e.outerHTML.slice(0, 120));
		}
		return {
			over: Math.max(root.scrollWidth, document.body.scrollWidth) - room, offenders: offenders.slice(0, 5),
			marks: root.textContent.match(/[\u0000-\u0008\u202a-\u202e\u2066-\u2069\ufffe\uffff]/g) || [],
			parts: Array.from(document.body.children, e => e.localName).join(" "),
		};
	})()`)
}

// stands fails when the page is not laid out as all pages are, or is wider than the screen.
func (b *tab) stands(where string) {
	b.t.Helper()
	l := b.layout()
	assert.That(b.t, l.Over <= 0 && len(l.Offenders) == 0, "%s is %d pixels wider than the screen: %q", where, l.Over,
		l.Offenders)
	assert.AtMost(b.t, len(l.Marks), 0, "%s shows the characters %q as they", where, l.Marks)
	assert.Is(b.t, l.Parts, "a header main footer", "%s consists", where)
}

// fits fails when the page does not stand as it should on a wide screen, or on a phone's.
func (b *tab) fits(where string) {
	b.t.Helper()
	b.stands(where)
	b.do(chromedp.EmulateViewport(narrow, high))
	b.stands(fmt.Sprintf("%s at a width of %d", where, narrow))
	b.do(chromedp.EmulateViewport(wide, high))
}

// middle is where the middle of an element is on the screen; it is scrolled there.
func (b *tab) middle(element string) (x, y float64) {
	b.t.Helper()
	at := ask[[]float64](b, `(e => {
		e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2];
	})(`+element+`)`)
	return at[0], at[1]
}
