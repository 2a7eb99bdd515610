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

	"github.com/rollbackd/rollbackd/dedup"
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
	require.That(t, ok && closed, "the page has no form that is sent to %s:\n%s", to, page)
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
	looks := w.holds("who may look", w.ask(rita, "/x/pause", nil), http.StatusOK, "!"+banner).page
	assert.That(t, strings.Count(looks, "<button disabled") == 1 && form(t, looks, "/x/pause").Get("token") == "",
		"who may look sees:\n%s", looks)
	sent := form(t, w.ask(anna, "/x/pause", nil).page, "/x/pause")
	sent.Set("for", "30m0s")
	for name, value := range map[string]string{"why": " ", "for": "25h"} {
		wrong := url.Values{"token": sent["token"], "why": {why}, "for": sent["for"]}
		wrong.Set(name, value)
		w.holds(name, w.ask(anna, "/x/pause", wrong), http.StatusUnprocessableEntity, "Nothing was done.")
	}
	sent.Set("why", why)
	w.holds("who may look pauses", w.ask(rita, "/x/pause", sent), http.StatusForbidden)
	paused := func() dedup.Pause { return require.Get(w.desk.Paused(t.Context()))(t) }
	require.Is(t, paused().ID, "", "nobody who may has asked for a pause: it is")
	answers := make([]answer, 2)
	var sending sync.WaitGroup
	for i := range answers {
		sending.Go(func() { answers[i] = w.ask(anna, "/x/pause", sent) })
	}
	sending.Wait()
	for _, a := range answers {
		require.That(t, a.status == http.StatusSeeOther && a.location == answers[0].location,
			"it leads to %q, HTTP %d, and to %q\n%s", a.location, a.status, answers[0].location, a.page)
	}
	now := paused()
	assert.That(t, now.By == "anna" && now.Why == operator.Plain(why) && answers[0].location == "/x/acts/"+now.ID &&
		now.Until.Sub(now.Since).Minutes() == 30, "the pause is %+v", now)
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
	assert.That(t, longer.Get("instead") == now.ID && resume.Get("pause") == now.ID, "the forms name %v and %v, want %s",
		longer, resume, now.ID)
	w.holds("who may look resumes", w.ask(rita, "/x/resume", resume), http.StatusForbidden)
	ended := w.holds("the resume", w.ask(anna, "/x/resume", resume), http.StatusSeeOther)
	assert.Is(t, w.ask(anna, "/x/resume", resume).location, ended.location, "resumed again, it leads to")
	assert.Is(t, paused().ID, "", "after the resume it is")
	w.holds("after the resume", w.ask(rita, "/x/", nil), http.StatusOK, "!"+banner)
	// The form that would have lengthened the pause is about one that has ended: it pauses anew.
	longer.Set("why", "again")
	longer.Set("for", "5m0s")
	w.holds("the older form", w.ask(anna, "/x/pause", longer), http.StatusSeeOther)
	late := form(t, w.ask(anna, "/x/pause", nil).page, "/x/pause")
	require.Get(w.desk.Pause(t.Context(), operator.Actor{Name: "bert"},
		operator.PauseRequest{Why: "mine", Instead: late.Get("instead")}))(t)
	late.Set("why", "too late")
	late.Set("for", "5m0s")
	w.holds("instead of a pause that another one has replaced", w.ask(anna, "/x/pause", late), http.StatusConflict, "bert")
	list := w.ask(rita, "/x/acts", nil).page
	assert.Is(t, strings.Count(list, `/x/acts/`), 6, "three pauses, a resume, and what rita was refused: of %s acts", list)
}
