package pages

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given one who may look, when he sends each form that acts, some of them twice, then each is refused, and stands once
// in the list of acts with who asked for what; nothing else was done.
func TestWhatIsRefusedStandsInTheListOfActs(t *testing.T) {
	w := newWorld(t, "/x", people(t), view.Hide{})
	paths := []string{"/letters/act", "/pause", "/resume", "/reconcile", "/reconcile/mend", "/reconcile/expected",
		"/letters/rehearse", "/letter/edit", "/letter/edit/send", "/outbox/act",
		"/acts/01890000-0000-7000-8000-000000000000/stop"}
	for _, path := range append(paths, paths[:2]...) {
		got := w.holds(path, w.ask(rita, "/x"+path, url.Values{"why": {"because"}}), http.StatusForbidden,
			"rita may look and not act")
		assert.Is(t, got.kind, "application/problem+json", "%s", path)
	}
	all, _, err := w.desk.Acts(t.Context(), operator.ActFilter{})
	require.That(t, err == nil && len(all) == len(paths), "%d acts, %v; want %d", len(all), err, len(paths))
	for i, a := range all {
		assert.That(t, a.Kind == operator.KindRefused && a.Actor == "rita" && a.State == operator.Failed, "%+v", a)
		assert.Has(t, w.ask(anna, "/x/acts/"+a.ID, nil).page, "POST "+paths[len(paths)-1-i], "the page of the act")
	}
	// Who has no right at all is nobody who could be named.
	assert.Is(t, w.ask("no token of ours", "/x/pause", url.Values{}).status, http.StatusUnauthorized, "a stranger: HTTP")
	all, _, err = w.desk.Acts(t.Context(), operator.ActFilter{})
	assert.That(t, err == nil && len(all) == len(paths), "%d acts, %v", len(all), err)
}

// The same refusal counts once in a minute, and one who thinks of ever new ones does not fill the memory.
func TestTheSameRefusalIsNewsOnceInAMinute(t *testing.T) {
	f := NewRefusals(nil, nil)
	now := time.Now()
	for _, tc := range []struct {
		what string
		at   time.Duration
		want bool
	}{
		{"a", 0, true}, {"a", time.Second, false}, {"b", time.Second, true}, {"a", refusedEvery - 1, false},
		{"a", refusedEvery, true}, {"a", refusedEvery + 1, false},
	} {
		assert.Is(t, f.news(tc.what, now.Add(tc.at)), tc.want, "%s after %v", tc.what, tc.at)
	}
	for i := range 3 * mostRefused {
		f.news(strings.Repeat("x", i), now)
	}
	assert.AtMost(t, len(f.known), mostRefused, "are remembered")
	assert.That(t, f.news("later", now.Add(3*refusedEvery)) && len(f.known) <= 10, "after a while %d are remembered",
		len(f.known))
}

// Given acts whose workers said nothing for four seconds, and for longer than a lease, three that hold all places and
// one that waits for them, and a run of which one letter failed again, then the page of each says so and what follows.
func TestThePageOfAnActSaysWhatBecameOfIt(t *testing.T) {
	w := open(t, "/x")
	var acts []string
	ask := func(who string) {
		t.Helper()
		a := require.Get(w.desk.Ask(t.Context(), operator.Actor{Name: who}, operator.TaskRequest{Kind: "slow"}))(t)
		acts = append(acts, a.ID)
	}
	hold := func() {
		w.exec("UPDATE consumer_log_act SET owner = 'host/1/x', lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR")
	}
	ask("anna")
	ask("bert")
	hold()
	ask(hostile[:40])
	w.says("/x/acts/"+acts[2], http.StatusOK, "!It waits for a place.") // two of three are taken
	hold()
	ask("carl")
	texts := []string{"It waits for a place.", "slow by bert", "!" + hostile[:40]}
	for _, holder := range acts[:3] {
		texts = append(texts, `href="/x/acts/`+holder+`"`)
		w.says("/x/acts/"+holder, http.StatusOK, "!It waits for a place.")
	}
	w.says("/x/acts/"+acts[3], http.StatusOK, texts...)
	const silent, lost = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"
	for id, left := range map[string]int{silent: 11, lost: -60} {
		w.exec("INSERT INTO consumer_log_act (id, group_name, queue, kind, state, work, actor, request, created_at, owner, "+
			"lease_until, progress) VALUES (?, 'g', 'q', 'replay', 'running', 3, 'ann@host', "+
			"'{\"kind\":\"replay\",\"filter\":{\"order\":\"A-1\"}}', UTC_TIMESTAMP(6) - INTERVAL 2 MINUTE, 'host/1/2', "+
			"UTC_TIMESTAMP(6) + INTERVAL ? SECOND, '{\"done\":4}')", id, left)
	}
	w.says("/x/acts/"+silent, http.StatusOK, "Its worker is gone", "seconds", "Nobody else goes on with it",
		"order=&#34;A-1&#34;")
	w.says("/x/acts/"+lost, http.StatusOK, "failed", "its process was killed", "ended")
	w.says("/x/acts", http.StatusOK, "its worker is gone", "its process was killed")
	run := require.Get(w.desk.Note(t.Context(), operator.Actor{Name: "anna"}, operator.KindReplay, "",
		operator.Request{Kind: operator.KindReplay, Filter: deadletter.Filter{Keys: []string{"order-1"}}}, ""))(t)
	const failed = "<b>1 letter failed again.</b>"
	for result, texts := range map[string][]string{
		`{"replayed":1,"applied":1}`:      {"!" + failed},
		`{"replayed":1,"failed_again":1}`: {failed, `href="/x/letters?since=20`},
	} {
		w.exec("UPDATE consumer_log_act SET result = ? WHERE id = ?", result, []byte(run.ID))
		w.says("/x/acts/"+run.ID, http.StatusOK, texts...)
	}
}

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

// everything is all that stands in all tables.
func (w *world) everything() string {
	w.t.Helper()
	tables := stack.RowsOf(w.t, w.pool, "SELECT GROUP_CONCAT(table_name) AS names FROM information_schema.tables "+
		"WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'")[0]["names"]
	require.That(w.t, strings.Contains(tables, "consumer_log_once"), "the tables are %s", tables)
	return fmt.Sprint(stack.RowsOf(w.t, w.pool, "CHECKSUM TABLE "+tables))
}

// Given somebody who may act, then nothing changes by whatever he looks at, forms too; and where another site makes his
// browser ask, or leads it to what acts, he gets nothing. Whoever follows a link to another page may come from
// anywhere.
func TestALookChangesNothing(t *testing.T) {
	w := open(t, "").some()
	of := w.compared()
	a := require.Get(w.desk.Pause(t.Context(), operator.Actor{Name: "anna"}, operator.PauseRequest{Why: "a mend"}))(t)
	require.Get(w.desk.Issue(t.Context(), operator.Actor{}))(t) // the key is made once for all
	before := w.everything()
	const act = "/letters/act?act=replay&all=1"
	paths := []string{"/", "/letters", act, "/letters/act?act=discard&key=order-1", "/acts", "/acts/" + a.ID, "/pause",
		"/log", "/message?key=order-1", "/order?sn=A-1", "/find", "/reconcile", "/reconcile?of=" + of,
		"/reconcile/finding?n=0&of=" + of, "/reconcile/finding?n=1&of=" + of, "/letters/download", "/static/pages.css"}
	for _, path := range paths {
		for range 3 {
			status, page := w.get(path)
			assert.That(t, status == http.StatusOK || strings.HasPrefix(path, "/order"), "%s: HTTP %d:\n%s", path, status, page)
		}
		for _, site := range []string{"cross-site", "same-site"} {
			for kind, h := range map[string][]string{
				"a picture": {"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
				"a script":  {"Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"},
				"a frame":   {"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
				"unnamed":   nil,
				"a page":    {"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			} {
				status, _ := w.get(path, append(h, "Sec-Fetch-Site", site)...)
				open := strings.HasPrefix(path, "/static/") || kind == "a page" && !strings.HasPrefix(path, "/letters/act")
				assert.That(t, (status == http.StatusForbidden) != open, "%s for %s %s: HTTP %d", path, kind, site, status)
			}
		}
		for _, site := range []string{"same-origin", "none"} {
			status, _ := w.get(path, "Sec-Fetch-Site", site)
			assert.That(t, status != http.StatusForbidden, "%s from these pages (%s): HTTP %d", path, site, status)
		}
		require.Is(t, w.everything(), before, "%s has changed to", path)
	}
}
