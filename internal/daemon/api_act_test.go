package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// apiAct is an act as the API has it.
type apiAct struct {
	ID, Kind, State, Actor, Why string
	Sweeping                    bool
	Result                      struct{ Replayed, Discarded int }
	Detail                      struct {
		Pause string
		Until time.Time
	}
}

// Given orders whose rollbacks are dead letters, two daemons and no Redis; when the cause is mended and the same run is
// asked for at once from both, four times each under one Idempotency-Key, then one run begins and every answer that is
// not "it is being done" is that of the first; the same request afterwards gets the first answer again, from either
// daemon, and another one under the key is refused; each order's stock is back once. Who may only look has changed
// nothing.
func TestTheAPIDoesOnceWhatIsAskedForUnderOneKey(t *testing.T) {
	t.Parallel()
	const n, runs = 20, "/x/y/api/v1/runs"
	w, _, both := deadOrders(t, n, 2, "BASE_PATH", "/x/y", "REDIS_URL", "off")
	first, second := both[0], both[1]
	acts := func() int { return w.count("SELECT COUNT(*) FROM consumer_log_act WHERE kind <> 'refused'") }

	var preview struct {
		At      time.Time
		Filter  json.RawMessage
		Matched int
	}
	calls(t, first, rita, http.MethodGet, runs+"/preview?kind=replay&tag=stock.rollback", "").
		into(t, http.StatusOK, &preview)
	require.Is(t, preview.Matched, n, "the preview says %+v", preview)
	body := fmt.Sprintf(`{"kind":"replay","filter":%s,"cut_off":%q,"rate":1000,"max_failures":5}`, preview.Filter,
		preview.At.Format(time.RFC3339Nano))
	const key = "one key/of the test"
	if got := calls(t, first, rita, http.MethodPost, runs, body, "Idempotency-Key", key); got.status != 403 {
		t.Errorf("who may look gets HTTP %d: %s", got.status, got.text)
	}
	refused := `{"kind":"discard","filter":{"all":true},"why":" "}`
	if got := calls(t, first, anna, http.MethodPost, runs, refused, "Idempotency-Key", "refused"); got.status != 422 {
		t.Errorf("a discard without a reason gets HTTP %d: %s", got.status, got.text)
	}
	if acts() != 0 || w.rows(dedup.Dead) != n {
		t.Fatalf("%d acts and %d dead letters, though nobody who may has asked for anything", acts(), w.rows(dedup.Dead))
	}

	answers := make([]reply, 8)
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() {
			answers[i] = calls(t, both[i%2], anna, http.MethodPost, runs, body, "Idempotency-Key", key)
		})
	}
	asking.Wait()
	var one reply
	for _, a := range answers {
		switch a.status {
		case http.StatusCreated:
			if one.text == nil {
				one = a
			}
			if a.header.Get("Location") != one.header.Get("Location") || string(a.text) != string(one.text) {
				t.Errorf("one answer is %s at %s, another %s at %s", one.text, one.header.Get("Location"), a.text,
					a.header.Get("Location"))
			}
		case http.StatusConflict:
			if a.header.Get("Retry-After") == "" || !strings.Contains(string(a.text), "is being done") {
				t.Errorf("the answer meanwhile is %v %s", a.header, a.text)
			}
		default:
			t.Errorf("an answer is HTTP %d: %s", a.status, a.text)
		}
	}
	if one.text == nil {
		t.Fatal("nobody was answered that it is done")
	}
	var run apiAct
	one.into(t, http.StatusCreated, &run)
	if run.Kind != "replay" || run.Actor != "anna" || one.header.Get("Location") != "/x/y/api/v1/acts/"+run.ID {
		t.Errorf("the act is %+v at %s", run, one.header.Get("Location"))
	}
	for _, p := range both {
		w.eventually("the run is done and the queue swept", func() bool {
			run = apiAct{} // what is missing in the answer is not what was there before
			calls(t, p, rita, http.MethodGet, one.header.Get("Location"), "").into(t, http.StatusOK, &run)
			return run.State == "done" && !run.Sweeping
		})
		spaced := strings.ReplaceAll(body, ",", " ,\n ") // the same, written otherwise
		again := calls(t, p, anna, http.MethodPost, runs, spaced, "Idempotency-Key", key)
		if again.status != http.StatusCreated || string(again.text) != string(one.text) ||
			again.header.Get("Idempotency-Replayed") != "true" ||
			again.header.Get("Location") != one.header.Get("Location") {
			t.Errorf("asked again it answers HTTP %d %v %s, want %s", again.status, again.header, again.text, one.text)
		}
		other := strings.Replace(body, `"rate":1000`, `"rate":999`, 1)
		for what, got := range map[string]reply{
			"another body":    calls(t, p, anna, http.MethodPost, runs, other, "Idempotency-Key", key),
			"another address": calls(t, p, anna, http.MethodPost, "/x/y/api/v1/resume", "{}", "Idempotency-Key", key),
		} {
			if got.status != http.StatusUnprocessableEntity || !strings.Contains(string(got.text), "another request") {
				t.Errorf("%s under the key gets HTTP %d: %s", what, got.status, got.text)
			}
		}
	}
	if run.Result.Replayed != n || acts() != 1 {
		t.Errorf("%d acts, the run has come to %+v", acts(), run)
	}
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == n })
	ended := calls(t, second, anna, http.MethodPost, runs+"/"+run.ID+"/stop", "", "Idempotency-Key", "stop it")
	if ended.status != http.StatusConflict || !strings.Contains(string(ended.text), "ended") {
		t.Errorf("a run that has ended is stopped with HTTP %d: %s", ended.status, ended.text)
	}
	w.rest(first, second)
}

// Given two daemons, when consuming is paused through one of them, then both stop taking deliveries, a second pause
// names the first, and a resume through the other one lets both go on; a run that is slow stops when it is told to, and
// a second run of the same letters is refused and names the first.
func TestTheAPIPausesResumesAndStops(t *testing.T) {
	t.Parallel()
	const n, at = 30, "/api/v1"
	w, _, both := deadOrders(t, n, 2)
	first, second := both[0], both[1]

	posts := func(p *program.Process, path, key, body string) reply {
		t.Helper()
		return calls(t, p, anna, http.MethodPost, at+path, body, "Idempotency-Key", key)
	}
	var paused, resumed, run apiAct
	posts(first, "/pause", "k1", `{"why":"a mend of the shop","seconds":600}`).into(t, http.StatusCreated, &paused)
	var state struct {
		Paused      bool
		ID, By, Why string
	}
	calls(t, second, rita, http.MethodGet, at+"/pause", "").into(t, http.StatusOK, &state)
	if !state.Paused || state.ID != paused.ID || state.By != "anna" || state.Why != "a mend of the shop" {
		t.Errorf("the pause is %+v", state)
	}
	for _, p := range both {
		w.eventually("nothing is consumed", func() bool {
			var o struct{ Health struct{ Waiting []string } }
			calls(t, p, rita, http.MethodGet, at+"/overview", "").into(t, http.StatusOK, &o)
			return strings.Contains(strings.Join(o.Health.Waiting, ";"), "a mend of the shop")
		})
	}
	twice := posts(second, "/pause", "k2", `{"why":"another"}`)
	if twice.status != http.StatusConflict || !strings.Contains(string(twice.text), at+"/acts/"+paused.ID) {
		t.Errorf("a second pause gets HTTP %d: %s", twice.status, twice.text)
	}
	posts(second, "/resume", "k3", `{"pause":"`+paused.ID+`"}`).into(t, http.StatusCreated, &resumed)
	if resumed.Kind != "resume" || resumed.Detail.Pause != paused.ID {
		t.Errorf("the resume is %+v", resumed)
	}
	if none := posts(first, "/resume", "k4", `{}`); none.status != http.StatusConflict {
		t.Errorf("a resume without a pause gets HTTP %d: %s", none.status, none.text)
	}

	slow := `{"kind":"replay","filter":{"all":true},"rate":0.001}`
	posts(first, "/runs", "k5", slow).into(t, http.StatusCreated, &run)
	same := posts(second, "/runs", "k6", `{"kind":"replay","filter":{"all":true}}`)
	if same.status != http.StatusConflict || !strings.Contains(string(same.text), at+"/acts/"+run.ID) {
		t.Errorf("a second run of the same letters gets HTTP %d: %s", same.status, same.text)
	}
	var stopped apiAct
	posts(second, "/runs/"+run.ID+"/stop", "k7", "").into(t, http.StatusOK, &stopped)
	w.eventually("the run is stopped", func() bool {
		calls(t, first, rita, http.MethodGet, at+"/acts/"+run.ID, "").into(t, http.StatusOK, &run)
		return run.State == "stopped"
	})
	var list struct{ Items []apiAct }
	calls(t, first, rita, http.MethodGet, at+"/acts?actor=anna", "").into(t, http.StatusOK, &list)
	if len(list.Items) != 3 || list.Items[0].ID != run.ID || list.Items[2].ID != paused.ID {
		t.Errorf("the acts are %+v", list.Items)
	}
	w.stop(first, second)
}
