package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// axeSource is the script of axe-core, read once.
var axeSource = sync.OnceValues(func() (string, error) {
	text, err := os.ReadFile(os.Getenv("ROLLBACKD_TEST_AXE"))
	return string(text), err
})

// finding is something in a page that people with a disability could not use.
type finding struct {
	ID     string   `json:"id"`
	Impact string   `json:"impact"` // minor, moderate, serious or critical
	Help   string   `json:"help"`
	Where  []string `json:"where"`
}

// axe asks axe-core what is wrong with the page as it is on the screen now, by the rules that are named, or by all.
func (b *tab) axe(rules ...string) []finding {
	b.t.Helper()
	source, err := axeSource()
	if err != nil {
		b.t.Fatal("make test-browser gets axe-core and says where it is in ROLLBACKD_TEST_AXE: ", err)
	}
	if !ask[bool](b, `"axe" in window`) {
		ask[bool](b, source+"\n;true")
	}
	only := ""
	if len(rules) > 0 {
		only = fmt.Sprintf(", runOnly: [%q]", strings.Join(rules, `", "`))
	}
	return ask[[]finding](b, `axe.run(document, {resultTypes: ["violations"], preload: false`+only+`}).then(
		r => r.violations.map(v => ({
			id: v.id, impact: v.impact, help: v.help,
			where: v.nodes.slice(0, 4).map(n => n.html.slice(0, 160) + " — " + n.failureSummary),
		})))`)
}

// usable fails for what axe-core finds in light colours, and in dark ones by the one rule that looks at colours. What
// it calls minor counts too: none of its rules is of no use here.
func (b *tab) usable(where string) {
	b.t.Helper()
	tell := func(scheme string, found []finding) {
		b.t.Helper()
		for _, f := range found {
			b.t.Errorf("%s, %s: %s (%s): %s\n%s", where, scheme, f.ID, f.Impact, f.Help, strings.Join(f.Where, "\n"))
		}
	}
	tell("light", b.axe())
	b.prefer("dark")
	tell("dark", b.axe("color-contrast"))
	b.prefer("light")
}

// Given a page that does what no page of ours may do, then each of it is noticed: otherwise these tests could not fail.
func TestWhatGoesWrongInAPageIsNoticed(t *testing.T) {
	t.Parallel()
	at := badPage(t)
	b := newTab(t)
	b.open(at)
	for _, want := range []string{
		"Content Security Policy", "console.error", "exception", "dialog: hello", "request to http://elsewhere.example/",
		"status of 404",
	} {
		poll.Until(t, "it is noticed: "+want, func() bool { return len(b.forgive(want)) > 0 })
	}
	b.forgive("") // what it says twice
	l := b.layout()
	assert.That(t, l.Over > 0 && len(l.Offenders) != 0 && len(l.Marks) == 1 && l.Parts != "a header main footer",
		"of the layout this is noticed: %+v", l)
	found := map[string]string{}
	for _, f := range b.axe() {
		found[f.ID] = f.Impact
	}
	assert.That(t, found["image-alt"] == "critical" && found["color-contrast"] == "serious", "axe-core finds %v", found)
}

// badPage serves a page with every fault that the tests look for.
func badPage(t *testing.T) (address string) {
	t.Helper()
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			w.Header().Set("Content-Security-Policy", "script-src 'self'")
			_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>Bad</title><main><h1>Bad</h1>
				<p style="width: 3000px; color: #999; background: #fff">Wide and pale, and turned: `+"\u202e"+`</p>
				<img src="http://elsewhere.example/a.png"><img src="/missing.png">
				<script>document.title = "inline"</script><script src="/bad.js"></script></main>`)
		case "/bad.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = io.WriteString(w, `console.error("a fault"); alert("hello"); throw new Error("a fault");`)
		case "/favicon.ico":
			w.WriteHeader(http.StatusNoContent)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(at.Close)
	return at.URL
}
