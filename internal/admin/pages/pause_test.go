package pages

import (
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Those of the file of tokens: anna may act, rita may look.
const anna, rita = "token-of-anna-who-may-act", "token-of-rita-who-may-look"

// people is a guard that knows anna and rita.
func people(t *testing.T) server.GuardOptions {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	require.OK(t, os.WriteFile(file, []byte("anna full "+anna+"\nrita read "+rita+"\n"), 0o600))
	return server.GuardOptions{TokensFile: file}
}

// form takes the hidden fields of the form that is sent to an address out of a page.
func form(t *testing.T, page, to string) url.Values {
	t.Helper()
	_, inside, ok := strings.Cut(page, `action="`+to+`"`)
	inside, _, closed := strings.Cut(inside, "</form>")
	if !ok || !closed {
		t.Fatalf("the page has no form that is sent to %s:\n%s", to, page)
	}
	fields := url.Values{}
	hidden := regexp.MustCompile(`type="hidden" name="([^"]*)" value="([^"]*)"`)
	for _, m := range hidden.FindAllStringSubmatch(inside, -1) {
		fields.Set(m[1], html.UnescapeString(m[2]))
	}
	return fields
}

// Given one who may act and one who may look; when the first sends the form of a pause from two windows at once, then
// the fleet is paused once, every page of both says by whom, until when and why, and what the second sends is refused;
// when it is resumed, then no page says so any more.
func TestAPauseActsOnceAndStandsOnEveryPageUntilItIsResumed(t *testing.T) {
	w := newWorld(t, "/x", people(t), view.Hide{})
	const banner, why = "Consuming is paused for the whole fleet", hostile
	looks := w.ask(rita, "/x/pause", nil)
	if looks.status != http.StatusOK || strings.Count(looks.page, "<button disabled") != 1 ||
		form(t, looks.page, "/x/pause").Get("token") != "" || strings.Contains(looks.page, banner) {
		t.Errorf("who may look sees, HTTP %d:\n%s", looks.status, looks.page)
	}
	sent := form(t, w.ask(anna, "/x/pause", nil).page, "/x/pause")
	sent.Set("for", "30m0s")
	for name, value := range map[string]string{"why": " ", "for": "25h"} {
		wrong := url.Values{"token": sent["token"], "why": {why}, "for": sent["for"]}
		wrong.Set(name, value)
		if got := w.ask(anna, "/x/pause", wrong); got.status != http.StatusUnprocessableEntity ||
			!strings.Contains(got.page, "Nothing was done.") {
			t.Errorf("%s %q: HTTP %d\n%s", name, value, got.status, got.page)
		}
	}
	sent.Set("why", why)
	assert.Is(t, w.ask(rita, "/x/pause", sent).status, http.StatusForbidden, "who may look pauses: HTTP")
	if now, err := w.desk.Paused(t.Context()); err != nil || now.ID != "" {
		t.Fatalf("it is %v though nobody who may has asked for it, %v", now, err)
	}
	answers := make([]answer, 2)
	var sending sync.WaitGroup
	for i := range answers {
		sending.Go(func() { answers[i] = w.ask(anna, "/x/pause", sent) })
	}
	sending.Wait()
	for _, a := range answers {
		if a.status != http.StatusSeeOther || a.location != answers[0].location {
			t.Fatalf("it leads to %q, HTTP %d, and to %q\n%s", a.location, a.status, answers[0].location, a.page)
		}
	}
	now, err := w.desk.Paused(t.Context())
	if err != nil || now.By != "anna" || now.Why != operator.Plain(why) || answers[0].location != "/x/acts/"+now.ID ||
		now.Until.Sub(now.Since).Minutes() != 30 {
		t.Errorf("the pause is %+v, %v", now, err)
	}
	for _, path := range []string{
		"/x/", "/x/letters", "/x/log", "/x/find", "/x/acts", "/x/pause", answers[0].location, "/x/message?key=none",
		"/x/none",
	} {
		for _, token := range []string{anna, rita} {
			page := w.ask(token, path, nil).page
			said, _, _ := strings.Cut(page[max(0, strings.Index(page, banner)):], "</p>")
			if !strings.Contains(said, "by anna until") || !strings.Contains(said, now.Until.Format("2006-01-02 15:04:05")) ||
				!strings.Contains(said, "&lt;script&gt;alert(1)") || strings.Contains(page, "<script>alert") {
				t.Errorf("%s does not say that it is paused:\n%s", path, page)
			}
		}
	}
	seen := w.ask(anna, "/x/pause", nil).page
	longer, resume := form(t, seen, "/x/pause"), form(t, seen, "/x/resume")
	if longer.Get("instead") != now.ID || resume.Get("pause") != now.ID {
		t.Errorf("the forms name %v and %v, want %s", longer, resume, now.ID)
	}
	assert.Is(t, w.ask(rita, "/x/resume", resume).status, http.StatusForbidden, "who may look resumes: HTTP")
	ended := w.ask(anna, "/x/resume", resume)
	if again := w.ask(anna, "/x/resume", resume); ended.status != http.StatusSeeOther || again.location != ended.location {
		t.Errorf("resumed: HTTP %d, %q; again %q", ended.status, ended.location, again.location)
	}
	if now, err := w.desk.Paused(t.Context()); err != nil || now.ID != "" {
		t.Errorf("after the resume it is %v, %v", now, err)
	}
	if page := w.ask(rita, "/x/", nil).page; strings.Contains(page, banner) {
		t.Errorf("a page still says that it is paused:\n%s", page)
	}
	// The form that would have lengthened the pause is about one that has ended: it pauses anew.
	longer.Set("why", "again")
	longer.Set("for", "5m0s")
	if got := w.ask(anna, "/x/pause", longer); got.status != http.StatusSeeOther {
		t.Errorf("the older form: HTTP %d\n%s", got.status, got.page)
	}
	late := form(t, w.ask(anna, "/x/pause", nil).page, "/x/pause")
	require.Get(w.desk.Pause(t.Context(), operator.Actor{Name: "bert"}, operator.PauseRequest{
		Why: "mine", Instead: late.Get("instead"),
	}))(t)
	late.Set("why", "too late")
	late.Set("for", "5m0s")
	if got := w.ask(anna, "/x/pause", late); got.status != http.StatusConflict || !strings.Contains(got.page, "bert") {
		t.Errorf("instead of a pause that another one has replaced: HTTP %d\n%s", got.status, got.page)
	}
	list := w.ask(rita, "/x/acts", nil).page
	if n := strings.Count(list, `/x/acts/`); n != 6 {
		t.Errorf("%d acts, want three pauses, a resume, and what rita was refused:\n%s", n, list)
	}
}
